/* Gradients of kernels of 3 x 3 by fewer multiplications, for one type and one instruction set.
 *
 * A tile of the gradient of the result, 2 x 2, is transformed, multiplied with the transformed tile of
 * the data, element by element, and added up over all tiles (`winograd.h`). The sums are transformed
 * to the gradient of the kernel at the end of a row. Lanes of products are output maps.
 */
#ifndef GDB_TILED_GRADIENTS_H
#define GDB_TILED_GRADIENTS_H

enum {
    GDB_GRADIENT_MAPS = 8,          /* input maps that are multiplied at once */
    GDB_GRADIENT_BYTES = 1 << 16    /* of transformed tiles that stay in the L2 cache */
};

/* The parts of scratch, plain values: planes of vectors, transformed tiles of the data, gradients of
 * the result with output maps as lanes, their transformed tiles, and sums of products. */
typedef struct {
    int64_t data, packed, gradients, sums, end;
} gdb_gradient_parts;

#endif

static gdb_gradient_parts F(gradient_parts)(const gdb_maps *m, const gdb_geometry *g,
                                            const gdb_tiling *t) {
    const int64_t data = t->vectors * t->plane;
    const int64_t packed = data + t->vectors * t->group;
    const int64_t gradients = packed + 2 * t->lines * m->result[1] * LANES;
    const int64_t sums = gradients + GDB_TILE_ELEMENTS * t->lines * t->tiles[1] * LANES;
    return (gdb_gradient_parts){
        data, packed, gradients, sums,
        sums + F(packed_elements)(GDB_TILE_ELEMENTS * g->in_maps, g->out_maps)};
}

/* Transform tiles of some lines of the gradient of the result, of which a vector is a position. */
static void F(transform_gradients)(const gdb_tiling *t, int64_t lines, const int64_t *size,
                                   const T *from, T *to) {
    const int64_t step = lines * t->tiles[1] * LANES, below = size[1] * LANES;
    for (int64_t y = 0; y < 2 * lines; y += 2)
        for (int64_t x = 0; x < 2 * t->tiles[1]; x += 2, to += LANES) {
            const T *at = from + (y * size[1] + x) * LANES;
            const int has_right = x + 1 < size[1], has_below = y + 1 < size[0];
            VECTOR rows[2][4] = {{LOAD(at)}};
            if (has_right) rows[1][0] = LOAD(at + LANES);
            if (has_below) rows[0][3] = LOAD(at + below);
            if (has_right && has_below) rows[1][3] = LOAD(at + below + LANES);
            UNROLL for (int i = 0; i < 2; i++) {
                rows[i][1] = rows[i][0] + rows[i][3];
                rows[i][2] = rows[i][0] - rows[i][3];
            }
            UNROLL for (int i = 0; i < 4; i++) {
                *(VECTOR *)(to + i * step) = rows[0][i];
                *(VECTOR *)(to + (4 + i) * step) = rows[0][i] + rows[1][i];
                *(VECTOR *)(to + (8 + i) * step) = rows[0][i] - rows[1][i];
                *(VECTOR *)(to + (12 + i) * step) = rows[1][i];
            }
        }
}

/* Add the products of one element of all tiles of some lines, for some input maps, to sums. */
INLINE void F(add_tiles)(const int maps, int64_t tiles, int64_t group, const T *data,
                         const T *gradients, T *sums) {
    VECTOR sum[GDB_GRADIENT_MAPS], right;
    UNROLL for (int i = 0; i < maps; i++) sum[i] = LOAD(sums + i * GDB_TILE_ELEMENTS * LANES);
    for (int64_t tile = 0; tile < tiles; tile++, data += TILE_STEP, gradients += LANES) {
        right = LOAD(gradients);
        UNROLL for (int i = 0; i < maps; i++) sum[i] += BROADCAST(data[i / LANES * group + i % LANES]) * right;
    }
    UNROLL for (int i = 0; i < maps; i++)
        *(VECTOR *)(sums + i * GDB_TILE_ELEMENTS * LANES) = sum[i];
}

/* Add the products of all tiles of some lines to the sums of a vector of output maps. */
static void F(add_lines)(const gdb_geometry *g, const gdb_tiling *t, int64_t lines, const T *data,
                         const T *gradients, T *sums) {
    const int64_t tiles = lines * t->tiles[1];
    for (int64_t e = 0; e < GDB_TILE_ELEMENTS; e++)
        for (int64_t r = 0; r < g->in_maps; r += GDB_GRADIENT_MAPS) {
            const T *left = data + r / LANES * t->group + e * LANES + r % LANES;
            const T *right = gradients + e * tiles * LANES;
            T *to = sums + (r * GDB_TILE_ELEMENTS + e) * LANES;
            switch (g->in_maps - r) {
            case 1: F(add_tiles)(1, tiles, t->group, left, right, to); break;
            case 2: F(add_tiles)(2, tiles, t->group, left, right, to); break;
            case 3: F(add_tiles)(3, tiles, t->group, left, right, to); break;
            case 4: F(add_tiles)(4, tiles, t->group, left, right, to); break;
            case 5: F(add_tiles)(5, tiles, t->group, left, right, to); break;
            case 6: F(add_tiles)(6, tiles, t->group, left, right, to); break;
            case 7: F(add_tiles)(7, tiles, t->group, left, right, to); break;
            default: F(add_tiles)(8, tiles, t->group, left, right, to);
            }
        }
}

/* Add the products of all tiles of an image to the sums of a group. */
static void F(add_image)(const gdb_maps *m, const gdb_geometry *g, const gdb_tiling *t,
                         const gdb_gradient_parts *parts, const T *dy, const T *data, T *scratch) {
    const int64_t size = gdb_area(m->result), width = m->result[1];
    F(copy_to_vectors)(g, t, data, scratch);
    for (int64_t y = 0; y < t->tiles[0]; y += t->lines) {
        const int64_t lines = t->tiles[0] - y < t->lines ? t->tiles[0] - y : t->lines;
        const int64_t left = m->result[0] - 2 * y, size_of_part[2] = {left, width};
        const int64_t positions = (left < 2 * lines ? left : 2 * lines) * width;
        F(transform_lines)(t, y, lines, scratch, scratch + parts->data);
        for (int64_t j = 0; j < m->filters; j += LANES) {
            const int count = m->filters - j < LANES ? (int)(m->filters - j) : LANES;
            F(pack_columns)(dy + j * size + 2 * y * width, size, positions, count, LANES,
                            scratch + parts->packed);
            F(transform_gradients)(t, lines, size_of_part, scratch + parts->packed,
                                   scratch + parts->gradients);
            F(add_lines)(g, t, lines, scratch + parts->data, scratch + parts->gradients,
                         scratch + parts->sums + j * GDB_TILE_ELEMENTS * g->in_maps);
        }
    }
}

/* Transform the sums of one input map to a vector for each element of the kernel. */
INLINE void F(transform_sums)(const T *sums, VECTOR *taps) {
    VECTOR rows[3][4];
    UNROLL for (int y = 0; y < 4; y++) {
        const VECTOR first = LOAD(sums + (4 + y) * LANES), last = LOAD(sums + (8 + y) * LANES);
        const VECTOR middle = (first + last) * C(0.5);
        rows[0][y] = LOAD(sums + y * LANES) + middle;
        rows[1][y] = (first - last) * C(0.5);
        rows[2][y] = LOAD(sums + (12 + y) * LANES) + middle;
    }
    UNROLL for (int x = 0; x < 3; x++) {
        const VECTOR middle = (rows[x][1] + rows[x][2]) * C(0.5);
        taps[x] = rows[x][0] + middle;
        taps[3 + x] = (rows[x][1] - rows[x][2]) * C(0.5);
        taps[6 + x] = rows[x][3] + middle;
    }
}

/* Write the gradients of the kernels of a group. */
static void F(write_kernels)(const gdb_maps *m, const T *sums, T *dw) {
    VECTOR taps[9];
    for (int64_t j = 0; j < m->filters; j += LANES)
        for (int64_t r = 0; r < m->channels; r++, sums += GDB_TILE_ELEMENTS * LANES) {
            F(transform_sums)(sums, taps);
            F(store_line)(9, taps, m->filters - j, dw + (j * m->channels + r) * 9,
                          m->channels * 9);
        }
}

static int64_t F(tiled_gradient_scratch)(const gdb_maps *m, const gdb_geometry *g) {
    const gdb_tiling t = F(tiling_of)(g, m->result, GDB_GRADIENT_BYTES);
    return F(gradient_parts)(m, g, &t).end * (int64_t)sizeof(T);
}

/* Compute the gradients of the kernel and of the bias for each row; where the gradient of the result
 * is zero, so are they. */
static void F(tiled_gradients)(const gdb_maps *m, const gdb_geometry *g, int64_t rows,
                               const T *dy, int64_t dy_row, const T *data, int64_t data_row, T *to,
                               int64_t to_row, T *scratch) {
    const gdb_tiling t = F(tiling_of)(g, m->result, GDB_GRADIENT_BYTES);
    const gdb_gradient_parts parts = F(gradient_parts)(m, g, &t);
    const int64_t kernel_size = m->filters * m->channels * 9, size = gdb_area(m->result);
    const int64_t in_size = m->channels * gdb_area(m->data), out_size = m->filters * size;
    memset(scratch, 0, parts.data * sizeof(T));
    for (int64_t row = 0; row < rows; row++, dy += dy_row, data += data_row, to += to_row)
        for (int64_t j = 0; j < m->groups; j++) {
            T *db = to + m->groups * kernel_size + j * m->filters;
            memset(scratch + parts.sums, 0, (parts.end - parts.sums) * sizeof(T));
            memset(db, 0, m->filters * sizeof(T));
            for (int64_t i = j; i < m->images * m->groups; i += m->groups) {
                const T *from = dy + i * out_size;
                if (F(is_zero)(from, out_size)) continue;
                F(add_image)(m, g, &t, &parts, from, data + i * in_size, scratch);
                F(add_bias_gradient)(m->filters, size, from, db);
            }
            F(write_kernels)(m, scratch + parts.sums, to + j * kernel_size);
        }
}
