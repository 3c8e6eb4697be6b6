/* Convolutions of feature maps, and their gradients, for one type and one instruction set.
 *
 * All three are one product. Input maps are copied to planes, where zeros surround them (and
 * separate their elements, for the gradient of strided data), unless none are needed. On a plane,
 * each tap of the factor is applied at a constant distance from the position that is computed, so a
 * table of distances replaces copies of all windows (im2col).
 *
 * The lanes of a vector are output maps or positions, whichever takes fewer operations. If they are
 * maps, a tile is some positions of a line, for several vectors of maps, or of several lines, for
 * one vector. If they are positions, these are a stretch of the plane, from the first position to
 * the last, with those between two lines, which are not stored; a tile is some maps, for several
 * vectors of the stretch. The factor is then read where it is.
 *
 * The factor is the kernel, turned round for the gradient of the data. For the gradient of the
 * kernel it is the gradient of the result, and the positions are the elements of the kernel.
 */
/* Copy input maps to their planes, which are zero elsewhere. */
static void F(copy_to_planes)(const gdb_geometry *g, const T *from, T *plane) {
    for (int64_t map = 0; map < g->in_maps; map++, plane += gdb_area(g->plane))
        for (int64_t y = 0; y < g->in_size[0]; y++, from += g->in_size[1]) {
            T *to = plane + (y * g->spacing[0] + g->origin[0]) * g->plane[1] + g->origin[1];
            const int64_t quads = g->spacing[1] == 1 && g->in_size[1] >= 4 ? g->in_size[1] : 0;
            for (int64_t x = 0; x + 4 <= quads; x += 4)
                *(QUAD *)(to + x) = *(const QUAD *)(from + x);
            if (quads) *(QUAD *)(to + quads - 4) = *(const QUAD *)(from + quads - 4);
            for (int64_t x = 0; x < g->in_size[1] && !quads; x++) to[x * g->spacing[1]] = from[x];
        }
}

/* Pack the factor, one vector of output maps after the other, each with its biases first. */
static void F(pack_factor)(const gdb_geometry *g, const T *factor, const T *bias, T *to) {
    const int in_order = g->factor_in_row == gdb_area(g->taps); /* maps are one stretch */
    const int64_t maps = in_order ? 1 : g->factor_maps;
    const int64_t taps = gdb_area(g->taps) * (in_order ? g->factor_maps : 1);
    for (int64_t j = 0; j < g->out_maps; j += LANES, factor += LANES * g->factor_out_row) {
        const int count = g->out_maps - j < LANES ? (int)(g->out_maps - j) : LANES;
        for (int i = 0; i < LANES; i++) *to++ = bias && i < count ? bias[j + i] : 0;
        for (int64_t map = 0; map < maps; map++, to += taps * LANES)
            F(pack_columns)(factor + map * g->factor_in_row, g->factor_out_row, taps, count, LANES,
                            to);
    }
}

/* Store or accumulate a tile, of which each vector is a position: `maps` lanes at most, `map_row`
 * elements apart, four lanes and positions together where a vector has at least four elements. */
INLINE void F(store_positions)(const int positions, const VECTOR *sums, int64_t maps, T *to,
                               int64_t map_row, int accumulate) {
    enum { FOUR = LANES >= 4 };
    const T *from = (const T *)sums;
    for (int64_t f = 0, lanes; f < LANES && f < maps; f += lanes) {
        const int whole = FOUR && !accumulate && positions >= 4 && maps - f >= 4;
        lanes = whole ? 4 : 1;
        UNROLL for (int i = 0; i < positions; i++) {
            T *element = to + f * map_row + i;
            if (!whole)
                *element = from[i * LANES + f] + (accumulate ? *element : 0);
            else if (i % 4 == 0)
                /* The last four overlap those before. */
                F(transpose_block)(from + f + (i + 4 < positions ? i : positions - 4) * LANES, LANES,
                                   element + (i + 4 < positions ? 0 : positions - 4 - i), map_row);
        }
    }
}

/* Compute some positions of a line for `parts` vectors of output maps (`by_maps`), or of `parts`
 * lines for one vector. `maps` is the number of output maps from the first on. */
INLINE void F(convolve_tile)(const int positions, const int parts, const int by_maps,
                             const gdb_geometry *g, int64_t step, int64_t line_step, int64_t maps,
                             const int64_t *distances, const T *factor, const T *planes, T *to,
                             int64_t map_row, int accumulate) {
    const int64_t k = g->factor_maps * gdb_area(g->taps);
    const T *lines[NV], *factors[NV];
    VECTOR sum[NV][MR], right[NV], part_sum[MR];
    UNROLL for (int l = 0; l < parts; l++) {
        lines[l] = planes + (by_maps ? 0 : l * line_step);
        factors[l] = factor + (by_maps ? l * (k + 1) * LANES : 0);
        UNROLL for (int i = 0; i < positions; i++) sum[l][i] = LOAD(factors[l]);
    }
    for (int64_t r = 0; r < k; r++) {
        const int64_t at = distances[r];
        UNROLL for (int l = 0; l < parts; l++) right[l] = LOAD(factors[l] + (r + 1) * LANES);
        UNROLL for (int i = 0; i < positions; i++)
            UNROLL for (int l = 0; l < parts; l++)
                sum[l][i] += BROADCAST(lines[l][at + i * step]) * right[l];
    }
    UNROLL for (int l = 0; l < parts; l++) {
        const int64_t rest = by_maps ? maps - l * LANES : maps;
        T *part_to = to + l * (by_maps ? LANES * map_row : g->positions[1]);
        UNROLL for (int i = 0; i < positions; i++) part_sum[i] = sum[l][i];
        F(store_positions)(positions, part_sum, rest, part_to, map_row, accumulate);
    }
}

#define CONVOLVE_TILES(by_maps, step)                                                              \
    ANY_TILE(positions, parts * LANES, F(convolve_tile), by_maps, g, step, line_step,              \
             g->out_maps - j, distances, factor + j * packed_row, from, tile_to, map_row,          \
             accumulate)

/* Compute all positions of all output maps, `map_row` elements apart in `to`, and store or
 * accumulate them. Positions of a line, and vectors of maps, are cut into equal parts. Tiles have
 * several lines if more lines than vectors fit into a tile. */
static void F(convolve_planes)(const gdb_geometry *g, const int64_t *distances, const T *factor,
                               const T *planes, T *to, int64_t map_row, int accumulate) {
    const int64_t *size = g->positions, vectors = (g->out_maps + LANES - 1) / LANES;
    const int64_t step = g->position_step[1], line_step = g->position_step[0] * g->plane[1];
    const int64_t packed_row = g->factor_maps * gdb_area(g->taps) + 1;
    const int64_t tile_positions = gdb_equal_parts(size[1], MR);
    const int64_t tile_vectors = gdb_equal_parts(vectors, NV);
    const int by_maps = tile_vectors > 1 && (tile_vectors >= NV || tile_vectors >= size[0]);
    const int64_t lines_step = by_maps ? 1 : NV, vectors_step = by_maps ? tile_vectors : 1;
    for (int64_t j = 0; j < g->out_maps; j += vectors_step * LANES)
        for (int64_t y = 0; y < size[0]; y += lines_step)
            for (int64_t x = 0; x < size[1]; x += tile_positions) {
                const int64_t left = by_maps ? vectors - j / LANES : size[0] - y;
                const int64_t most = by_maps ? tile_vectors : NV, parts = left < most ? left : most;
                const int64_t rest = size[1] - x;
                const int64_t positions = rest < tile_positions ? rest : tile_positions;
                const T *from = planes + y * line_step + x * step;
                T *tile_to = to + j * map_row + y * size[1] + x;
                if (by_maps) {
                    CONVOLVE_TILES(1, step)
                } else if (step == 1) {
                    CONVOLVE_TILES(0, 1)
                } else {
                    CONVOLVE_TILES(0, step)
                }
            }
}

/* Compute some vectors of the stretch, the last at `last`, for some output maps. */
INLINE void F(stretch_tile)(const int maps, const int vectors, int64_t taps,
                            const int64_t *distances, const int64_t *elements, const T *factor,
                            int64_t factor_row, const T *bias, const T *planes, int64_t last,
                            T *to, int64_t map_row) {
    const T *row[MR];
    VECTOR sum[MR][NV], right[NV];
    int64_t column[NV];
    UNROLL for (int v = 0; v < vectors; v++) column[v] = v < vectors - 1 ? v * LANES : last;
    UNROLL for (int i = 0; i < maps; i++) {
        row[i] = factor + i * factor_row;
        const VECTOR first = BROADCAST(bias ? bias[i] : 0);
        UNROLL for (int v = 0; v < vectors; v++) sum[i][v] = first;
    }
    for (int64_t r = 0; r < taps; r++) {
        const T *from = planes + distances[r];
        const int64_t at = elements[r];
        UNROLL for (int v = 0; v < vectors; v++) right[v] = LOAD(from + column[v]);
        UNROLL for (int i = 0; i < maps; i++) {
            VECTOR left = BROADCAST(row[i][at]);
            UNROLL for (int v = 0; v < vectors; v++) sum[i][v] += left * right[v];
        }
    }
    UNROLL for (int i = 0; i < maps; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            *(VECTOR *)(to + i * map_row + column[v]) = sum[i][v];
}

/* Compute all positions of all output maps of a group, with positions as lanes. `wide` has room for
 * the stretches of MR maps; they are computed there if lines are not contiguous on the plane. */
static void F(convolve_stretch)(const gdb_geometry *g, const int64_t *distances,
                                const int64_t *elements, const T *factor, const T *bias,
                                const T *planes, T *wide, T *to) {
    const int64_t taps = g->factor_maps * gdb_area(g->taps), width = g->positions[1];
    const int64_t vectors = (g->stretch + LANES - 1) / LANES, size = gdb_area(g->positions);
    const int64_t at_once = gdb_equal_parts(vectors, NV), part = gdb_equal_parts(g->out_maps, MR);
    const int in_place = width == g->plane[1];
    for (int64_t j = 0; j < g->out_maps; j += part, to += part * size) {
        const int maps = (int)(g->out_maps - j < part ? g->out_maps - j : part);
        const T *rows = factor + j * g->factor_out_row, *biases = bias ? bias + j : NULL;
        T *sums = in_place ? to : wide;
        for (int64_t v = 0; v < vectors; v += at_once) {
            const int64_t count = vectors - v < at_once ? vectors - v : at_once, x = v * LANES;
            const int64_t end = v + count < vectors ? x + count * LANES : g->stretch;
            const int64_t last = end - LANES - x;
            ANY_TILE(maps, count * LANES, F(stretch_tile), taps, distances, elements, rows,
                     g->factor_out_row, biases, planes + x, last, sums + x, g->stretch)
        }
        for (int64_t line = 0; line < maps * g->positions[0] && !in_place; line++) {
            const int64_t map = line / g->positions[0], y = line % g->positions[0];
            const T *from = wide + map * g->stretch + y * g->plane[1];
            memcpy(to + line * width, from, width * sizeof(T));
        }
    }
}

/* Return the elements of the planes of a group that are copies. */
static int64_t F(planes_size)(const gdb_geometry *g) {
    return gdb_is_plane(g) ? 0 : F(packed_elements)(1, g->in_maps * gdb_area(g->plane));
}

/* Return the bytes of the two tables of taps. */
static int64_t F(tables_size)(const gdb_geometry *g) {
    const int64_t bytes = 2 * g->factor_maps * gdb_area(g->taps) * (int64_t)sizeof(int64_t);
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Scratch has the tables, the planes, the packed factors of all groups or stretches, and the result of
 * a group before its ending. */
static int64_t F(convolve_scratch)(const gdb_link *links, int64_t count) {
    const gdb_maps *m = links->maps;
    const gdb_geometry g = gdb_geometry_of(m);
    if (F(is_tiled)(m, &g))
        return m->of == GDB_OF_KERNEL ? F(tiled_gradient_scratch)(m, &g)
                                      : F(chain_scratch)(links, count);
    const int64_t taps = g.factor_maps * gdb_area(g.taps);
    const int64_t packed = m->groups * F(packed_elements)(taps + 1, g.out_maps);
    const int64_t wide = F(packed_elements)(1, MR * g.stretch);
    const int by_positions = F(by_positions)(&g, m->of == GDB_OF_KERNEL);
    const int64_t maps = m->of == GDB_OF_RESULT ? g.out_maps * gdb_area(g.positions) : 0;
    return (F(planes_size)(&g) + (by_positions ? wide : packed) + maps) * sizeof(T)
        + F(tables_size)(&g);
}

/* Add the gradients of the kernel and the bias of one group for one image. */
static void F(add_kernel_gradient)(const gdb_maps *m, const gdb_geometry *g,
                                   const int64_t *distances, const T *dy, const T *data, T *planes,
                                   T *packed, T *dw, T *db) {
    const int64_t taps = gdb_area(m->kernel), size = gdb_area(m->result);
    const int64_t rounds = g->channel_lines ? 1 : m->channels;
    const T *from = gdb_is_plane(g) ? data : planes;
    if (from == planes) F(copy_to_planes)(g, data, planes);
    F(pack_factor)(g, dy, NULL, packed);
    for (int64_t r = 0; r < rounds; r++)
        F(convolve_planes)(g, distances, packed, from + r * gdb_area(g->plane), dw + r * taps,
                           m->channels * taps, 1);
    F(add_bias_gradient)(m->filters, size, dy, db);
}

/* Compute the result, or the gradient of the data, of one row. The packed factors of all groups are
 * made if they are `new`. */
static void F(convolve_row)(const gdb_link *link, const gdb_geometry *g, const int64_t *distances,
                            const int64_t *elements, const T *a, const T *factor, int new,
                            int64_t row, T *planes, T *packed, T *maps, T *c) {
    const gdb_maps *m = link->maps;
    const int64_t kernel_size = m->filters * m->channels * gdb_area(m->kernel);
    const int64_t in_size = g->in_maps * gdb_area(g->in_size);
    const int64_t out_size = g->out_maps * gdb_area(g->positions);
    const int64_t taps = g->factor_maps * gdb_area(g->taps);
    const int64_t packed_size = F(packed_elements)(taps + 1, g->out_maps);
    const T *bias = link->bias;
    for (int64_t j = 0; j < m->groups && new && !elements; j++)
        F(pack_factor)(g, factor + j * kernel_size, bias ? bias + j * m->filters : NULL,
                       packed + j * packed_size);
    for (int64_t i = 0; i < m->images * m->groups; i++, a += in_size, c += out_size) {
        const int64_t j = i % m->groups;
        T *to = F(has_ending)(link->ending) ? maps : c;
        const T *from = gdb_is_plane(g) ? a : planes;
        if (from == planes) F(copy_to_planes)(g, a, planes);
        if (elements)
            F(convolve_stretch)(g, distances, elements, factor + j * kernel_size,
                                bias ? bias + j * m->filters : NULL, from, packed, to);
        else
            F(convolve_planes)(g, distances, packed + j * packed_size, from, to,
                               gdb_area(g->positions), 0);
        if (to != c)
            F(end_maps)(link->ending.function, out_size, to,
                        F(added_to)(link->ending, row, i * out_size), c);
    }
}

static void F(convolve_directly)(const gdb_link *link, const gdb_geometry *g, int64_t rows,
                                 const T *left, int64_t left_row, T *c, int64_t c_row,
                                 void *scratch, int again) {
    const gdb_maps *m = link->maps;
    const int by_positions = F(by_positions)(g, m->of == GDB_OF_KERNEL);
    const int64_t kernel_size = m->filters * m->channels * gdb_area(m->kernel);
    const int64_t result_size = m->filters * gdb_area(m->result);
    const int64_t data_size = m->channels * gdb_area(m->data);
    const int64_t taps = g->factor_maps * gdb_area(g->taps);
    int64_t *distances = scratch, *elements = by_positions ? distances + taps : NULL;
    T *planes = (T *)((char *)scratch + F(tables_size)(g)), *packed = planes + F(planes_size)(g);
    T *maps = packed + (by_positions ? F(packed_elements)(1, MR * g->stretch)
                                     : m->groups * F(packed_elements)(taps + 1, g->out_maps));
    if (!again) {
        memset(planes, 0, (char *)packed - (char *)planes);
        gdb_fill_distances(g, m->of == GDB_OF_DATA, distances);
        if (by_positions) gdb_fill_elements(g, elements);
    }
    for (int64_t row = 0; row < rows; row++, left += left_row, c += c_row) {
        const T *right = (const T *)link->right + row * link->right_row;
        T *db = c + m->groups * kernel_size;
        if (m->of != GDB_OF_KERNEL) {
            F(convolve_row)(link, g, distances, elements, left, right,
                            (!row && !again) || link->right_row, row, planes, packed, maps, c);
            continue;
        }
        memset(c, 0, m->groups * (kernel_size + m->filters) * sizeof(T));
        for (int64_t i = 0; i < m->images * m->groups; i++) {
            const int64_t j = i % m->groups;
            const T *dy = left + i * result_size;
            if (!F(is_zero)(dy, result_size))
                F(add_kernel_gradient)(m, g, distances, dy, right + i * data_size, planes, packed,
                                       c + j * kernel_size, db + j * m->filters);
        }
    }
}

static void F(convolve)(const gdb_link *links, int64_t count, int64_t rows, const void *left,
                        int64_t left_row, void *result, int64_t result_row, void *scratch,
                        int again) {
    const gdb_maps *m = links->maps;
    const gdb_geometry g = gdb_geometry_of(m);
    if (!F(is_tiled)(m, &g))
        F(convolve_directly)(links, &g, rows, left, left_row, result, result_row, scratch,
                             again);
    else if (m->of == GDB_OF_KERNEL)
        F(tiled_gradients)(m, &g, rows, left, left_row, links->right, links->right_row, result,
                           result_row, scratch);
    else
        F(convolve_by_tiles)(links, count, rows, left, left_row, result, result_row, scratch, again);
}

static const gdb_kernels F(kernels) = {
    F(functions), F(accumulate_sums), F(accumulate_maxima), F(accumulate_products), MR, NR, F(packed_elements), F(pack),
    F(multiply), F(panel_elements), F(multiply_panels), F(multiply_few), F(is_zero), F(packed_pairs),
    F(multiply_pairs), F(add_columns), F(bias_gradient), F(chain_length), F(convolve_scratch),
    F(convolve), F(uniform),
};
