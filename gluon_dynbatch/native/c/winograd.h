/* Convolutions with kernels of 3 x 3 by fewer multiplications, for one type and one instruction set.
 *
 * The algorithm is F(2 x 2, 3 x 3) of Lavin and Gray, "Fast algorithms for convolutional neural
 * networks" (2016): tiles of 4 x 4 elements of the data, two apart, and kernels are transformed;
 * a product of both, element by element, has 16 multiplications for 2 x 2 results instead of 36.
 * Sums over maps are taken before the product is transformed back. An element of the result depends
 * on the elements of the data on which it depends by definition, and on no others.
 *
 * Lanes of vectors are maps everywhere: data are copied to planes in which each position is a vector of
 * input maps, and so are the elements of transformed tiles, of which products broadcast one map after
 * the other. Each transform is one of rows after one of columns, and an *element* of a transformed tile
 * is the number of its column times four plus that of its row.
 */
#ifndef GDB_WINOGRAD_H
#define GDB_WINOGRAD_H

enum {
    GDB_TILE_ELEMENTS = 16,
    GDB_TILES_AT_ONCE = 7,
    GDB_GROUP_BYTES = 1 << 14 /* of transformed tiles that stay in the L1 cache */
};

/* How the tiles of a group of convolutions are laid out, a plain value. */
typedef struct {
    int64_t tiles[2];
    int64_t vectors;     /* of input maps */
    int64_t line, plane; /* elements of a line and of a plane of a vector of input maps */
    int64_t lines;       /* of tiles that are transformed at once */
    int64_t group;       /* elements of these, for a vector of input maps */
} gdb_tiling;

#endif

#define HAS_32_REGISTERS (MR * NV >= 24) /* whether there are 32 registers */
#define GROUP_TILES (HAS_32_REGISTERS ? 7 : 6)
#define ROWS_AT_ONCE (HAS_32_REGISTERS ? 4 : 2)
/* Elements from a transformed tile to the next, for a vector of input maps. Strides of a power of two
 * would conflict in caches. */
#define TILE_STEP ((GDB_TILE_ELEMENTS + 1) * LANES)

/* Where results go, of which a vector is a position, and what is done with them. The elements of a line
 * of positions, and of all positions of a vector of maps. A plain value. */
typedef struct {
    T *first;
    int64_t line, vector;
    F(cutoff) cutoff;
    const char *ahead; /* what is fetched meanwhile, so many bytes for each line of tiles */
    int64_t ahead_bytes;
} F(target);

/* Return the layout of tiles, of which as many lines are transformed at once as fit into `most`
 * bytes, at least one. `positions` is the size of a map of the result. */
static gdb_tiling F(tiling_of)(const gdb_geometry *g, const int64_t *positions, int64_t most) {
    gdb_tiling t = {.tiles = {(positions[0] + 1) / 2, (positions[1] + 1) / 2},
                    .vectors = (g->in_maps + LANES - 1) / LANES};
    const int64_t bytes = t.vectors * t.tiles[1] * TILE_STEP * (int64_t)sizeof(T);
    t.line = (2 * t.tiles[1] + 2) * LANES;
    t.plane = (2 * t.tiles[0] + 2) * t.line;
    t.lines = most < bytes ? 1 : most < t.tiles[0] * bytes ? most / bytes : t.tiles[0];
    t.group = t.lines * t.tiles[1] * TILE_STEP;
    return t;
}

/* Copy a line of some maps, `map_row` elements apart, so that a vector is a position. */
INLINE void F(copy_line)(const T *from, int64_t map_row, int64_t width, int64_t maps, T *to) {
    enum { FOUR = LANES >= 4 };
    int64_t f = 0;
    for (; FOUR && width >= 4 && f + 4 <= maps; f += 4)
        for (int64_t i = 0; i < width; i += 4) {
            const int64_t at = i + 4 < width ? i : width - 4; /* the last overlap */
            F(transpose_block)(from + f * map_row + at, map_row, to + at * LANES + f, LANES);
        }
    for (; f < maps; f++)
        for (int64_t i = 0; i < width; i++) to[i * LANES + f] = from[f * map_row + i];
}

/* Copy input maps to planes of vectors of maps, which are zero elsewhere. */
static void F(copy_to_vectors)(const gdb_geometry *g, const gdb_tiling *t, const T *from, T *planes) {
    const int64_t size = gdb_area(g->in_size), width = g->in_size[1];
    T *to = planes + g->origin[0] * t->line + g->origin[1] * LANES;
    for (int64_t map = 0; map < g->in_maps; map += LANES, from += LANES * size, to += t->plane) {
        const int64_t maps = g->in_maps - map < LANES ? g->in_maps - map : LANES;
        for (int64_t y = 0; y < g->in_size[0]; y++)
            F(copy_line)(from + y * width, size, width, maps, to + y * t->line);
    }
}

/* Transform a line of tiles of a vector of maps. */
static void F(transform_line)(int64_t tiles, int64_t line, const T *from, T *to) {
    VECTOR d[4][4], rows[4];
    for (int64_t i = 0; i < tiles; i++, from += 2 * LANES, to += TILE_STEP) {
        UNROLL for (int x = 0; x < 4; x++) {
            if (x < 2 && i) { /* columns that the tile before has, too */
                UNROLL for (int y = 0; y < 4; y++) d[x][y] = d[x + 2][y];
                continue;
            }
            UNROLL for (int y = 0; y < 4; y++) rows[y] = LOAD(from + y * line + x * LANES);
            d[x][0] = rows[0] - rows[2], d[x][1] = rows[1] + rows[2];
            d[x][2] = rows[2] - rows[1], d[x][3] = rows[3] - rows[1];
        }
        UNROLL for (int y = 0; y < 4; y++) {
            *(VECTOR *)(to + y * LANES) = d[0][y] - d[2][y];
            *(VECTOR *)(to + (4 + y) * LANES) = d[1][y] + d[2][y];
            *(VECTOR *)(to + (8 + y) * LANES) = d[2][y] - d[1][y];
            *(VECTOR *)(to + (12 + y) * LANES) = d[3][y] - d[1][y];
        }
    }
}

/* Transform one vector of kernels of 3 x 3, `turned` if they are applied in reverse order. */
INLINE void F(transform_kernels)(const T *taps, int turned, int64_t step, T *to) {
    VECTOR rows[3][4];
    UNROLL for (int x = 0; x < 3; x++) {
        VECTOR tap[3];
        UNROLL for (int y = 0; y < 3; y++)
            tap[y] = LOAD(taps + (turned ? 8 - 3 * y - x : 3 * y + x) * LANES);
        const VECTOR ends = (tap[0] + tap[2]) * C(0.5), middle = tap[1] * C(0.5);
        rows[x][0] = tap[0], rows[x][1] = ends + middle;
        rows[x][2] = ends - middle, rows[x][3] = tap[2];
    }
    UNROLL for (int y = 0; y < 4; y++) {
        const VECTOR ends = (rows[0][y] + rows[2][y]) * C(0.5), middle = rows[1][y] * C(0.5);
        *(VECTOR *)(to + y * LANES) = rows[0][y];
        *(VECTOR *)(to + step + y * LANES) = ends + middle;
        *(VECTOR *)(to + 2 * step + y * LANES) = ends - middle;
        *(VECTOR *)(to + 3 * step + y * LANES) = rows[2][y];
    }
}

/* Return the elements of the transformed kernels of a group. For each vector of output maps, these
 * are its biases and, for each column of a tile and each input map, four vectors. */
static int64_t F(transformed_elements)(const gdb_geometry *g) {
    return F(packed_elements)(GDB_TILE_ELEMENTS * g->in_maps + 1, g->out_maps);
}

/* Transform the kernels of a group. If those of an output map follow each other, several are packed at
 * once. */
static void F(transform_factor)(const gdb_geometry *g, int turned, const T *factor, const T *bias,
                                T *to) {
    enum { AT_ONCE = 8 };
    const int64_t step = 4 * g->in_maps * LANES, most = g->factor_in_row == 9 ? AT_ONCE : 1;
    T taps[AT_ONCE * 9 * LANES];
    for (int64_t j = 0; j < g->out_maps; j += LANES, to += 4 * step) {
        const int count = g->out_maps - j < LANES ? (int)(g->out_maps - j) : LANES;
        for (int i = 0; i < LANES; i++) *to++ = bias && i < count ? bias[j + i] : 0;
        for (int64_t map = 0; map < g->in_maps; map += most) {
            const int64_t maps = g->in_maps - map < most ? g->in_maps - map : most;
            F(pack_columns)(factor + j * g->factor_out_row + map * g->factor_in_row,
                            g->factor_out_row, 9 * maps, count, LANES, taps);
            for (int64_t i = 0; i < maps; i++)
                F(transform_kernels)(taps + 9 * i * LANES, turned, step,
                                     to + 4 * (map + i) * LANES);
        }
    }
}

/* Sums of some tiles of a line, for one vector of output maps, and where their results go: two lines of
 * `positions` each, of which the lower one may be NULL. Columns of sums have two lines as well. A plain
 * value. */
typedef struct {
    VECTOR columns[4][2 * GDB_TILES_AT_ONCE];
    int64_t tiles, positions;
    T *upper, *lower;
} F(sums);

/* Multiply a column of some tiles of a line, of all input maps, with one vector of output maps, and
 * transform the sums to two lines. `bias` is added to the second element, which is part of both. */
INLINE void F(multiply_column)(const int tiles, int64_t in_maps, int64_t group, const T *left,
                               const T *right, VECTOR bias, VECTOR *upper) {
    enum { AT_ONCE = ROWS_AT_ONCE };
    VECTOR sum[AT_ONCE][GDB_TILES_AT_ONCE], factor, *lower = upper + tiles;
    UNROLL for (int y = 0; y < 4; y += AT_ONCE) {
        const T *to = right + y * LANES;
        UNROLL for (int a = 0; a < AT_ONCE; a++)
            UNROLL for (int i = 0; i < tiles; i++) sum[a][i] = y + a == 1 ? bias : (VECTOR){0};
        for (int64_t map = 0; map < in_maps; map += LANES) {
            const T *from = left + map / LANES * group + y * LANES;
            const T *end = from + (in_maps - map < LANES ? in_maps - map : LANES);
            for (; from < end; from++, to += 4 * LANES)
                UNROLL for (int a = 0; a < AT_ONCE; a++) {
                    factor = LOAD(to + a * LANES);
                    UNROLL for (int i = 0; i < tiles; i++)
                        sum[a][i] += BROADCAST(from[i * TILE_STEP + a * LANES]) * factor;
                }
        }
        UNROLL for (int i = 0; i < tiles; i++) {
            if (AT_ONCE == 4)
                upper[i] = sum[0][i] + sum[1][i] + sum[AT_ONCE - 2][i],
                lower[i] = sum[1][i] - sum[AT_ONCE - 2][i] + sum[AT_ONCE - 1][i];
            else if (y)
                upper[i] += sum[0][i], lower[i] += sum[1][i] - sum[0][i];
            else
                upper[i] = sum[0][i] + sum[1][i], lower[i] = sum[1][i];
        }
    }
}

/* Transform the sums of tiles [first, last) back, and write their results. */
static inline void F(write_tiles)(const F(sums) *s, const F(cutoff) *cutoff, int64_t first,
                                  int64_t last) {
    for (int64_t i = first; i < last && i < s->tiles; i++)
        UNROLL for (int line = 0; line < 2; line++) {
            const VECTOR *sum = &s->columns[0][line ? s->tiles + i : i];
            enum { NEXT = 2 * GDB_TILES_AT_ONCE };
            T *to = (line ? s->lower : s->upper) + 2 * i * LANES;
            VECTOR even = sum[0] + sum[NEXT] + sum[2 * NEXT];
            VECTOR odd = sum[NEXT] - sum[2 * NEXT] + sum[3 * NEXT];
            if (line && !s->lower) break;
            F(cut)(cutoff, &even);
            F(cut)(cutoff, &odd);
            *(VECTOR *)to = even;
            if (2 * i + 1 < s->positions) *(VECTOR *)(to + LANES) = odd;
        }
}

/* Compute the sums of some tiles, and write the results of those `before`, a quarter after each column:
 * while a processor adds and stores these, it multiplies the next column. */
INLINE void F(multiply_tiles)(const int tiles, int64_t in_maps, int64_t group, const T *left,
                              const T *right, VECTOR bias, F(sums) *sums, const F(sums) *before,
                              const F(cutoff) *cutoff) {
    enum { QUARTER = (GDB_TILES_AT_ONCE + 3) / 4 };
    for (int x = 0; x < 4; x++, left += 4 * LANES, right += 4 * in_maps * LANES) {
        const VECTOR first = x == 1 ? bias : (VECTOR){0};
        F(multiply_column)(tiles, in_maps, group, left, right, first, sums->columns[x]);
        F(write_tiles)(before, cutoff, x * QUARTER, (x + 1) * QUARTER);
    }
}

/* Store a line of sums, of which each vector is a position. */
INLINE void F(store_line)(int64_t positions, const VECTOR *sums, int64_t maps, T *to,
                          int64_t map_row) {
    enum { FOUR = LANES >= 4 };
    const T *from = (const T *)sums;
    int64_t f = 0;
    for (; FOUR && positions >= 4 && f < LANES && f + 4 <= maps; f += 4)
        for (int64_t i = 0; i < positions; i += 4) {
            const int64_t at = i + 4 < positions ? i : positions - 4; /* the last overlap */
            F(transpose_block)(from + at * LANES + f, LANES, to + f * map_row + at, map_row);
        }
    for (; f < LANES && f < maps; f++)
        for (int64_t i = 0; i < positions; i++) to[f * map_row + i] = from[i * LANES + f];
}

#define ANY_TILES(count)                                                                           \
    case count:                                                                                    \
        F(multiply_tiles)(count, in_maps, group, left, right, bias, sums, before, cutoff);         \
        break;

static void F(any_tiles)(int64_t in_maps, int64_t group, const T *left, const T *right, VECTOR bias,
                         F(sums) *sums, const F(sums) *before, const F(cutoff) *cutoff) {
    switch (sums->tiles) {
        ANY_TILES(1) ANY_TILES(2) ANY_TILES(3) ANY_TILES(4) ANY_TILES(5) ANY_TILES(6) ANY_TILES(7)
    }
}

/* Compute a line of tiles of all output maps, from transformed ones. Sums of two turns take turns in
 * `both`; return which are the last. */
static int F(convolve_line)(const gdb_geometry *g, const gdb_tiling *t, int64_t y, const T *left,
                            const T *factor, const F(target) *to, F(sums) *both, int turn) {
    const int64_t width = g->positions[1], at_once = gdb_equal_parts(t->tiles[1], GROUP_TILES);
    const char *ahead = to->ahead + y * to->ahead_bytes;
    T *upper = to->first + 2 * y * to->line;
    for (const char *p = ahead; p < ahead + to->ahead_bytes; p += LINE) __builtin_prefetch(p, 0, 2);
    for (int64_t j = 0; j < g->out_maps; j += LANES, upper += to->vector) {
        const VECTOR bias = LOAD(factor);
        factor += LANES;
        for (int64_t x = 0; x < t->tiles[1]; x += at_once, turn = !turn) {
            F(sums) *sums = both + turn;
            sums->tiles = t->tiles[1] - x < at_once ? t->tiles[1] - x : at_once;
            sums->positions = width - 2 * x;
            sums->upper = upper + 2 * x * LANES;
            sums->lower = 2 * y + 1 < g->positions[0] ? sums->upper + to->line : NULL;
            F(any_tiles)(g->in_maps, t->group, left + x * TILE_STEP, factor, bias, sums,
                         both + !turn, &to->cutoff);
        }
        factor += GDB_TILE_ELEMENTS * g->in_maps * LANES;
    }
    return turn;
}

/* Transform lines of tiles of all input maps of a group. */
static void F(transform_lines)(const gdb_tiling *t, int64_t y, int64_t lines, const T *planes,
                               T *to) {
    for (int64_t v = 0; v < t->vectors; v++)
        for (int64_t line = 0; line < lines; line++)
            F(transform_line)(t->tiles[1], t->line, planes + v * t->plane + 2 * (y + line) * t->line,
                              to + v * t->group + line * t->tiles[1] * TILE_STEP);
}

/* Compute all positions of all output maps of a group, from data in planes of vectors. */
static void F(convolve_tiles)(const gdb_geometry *g, const gdb_tiling *t, const T *planes,
                              const T *factor, T *transformed, const F(target) *to) {
    F(sums) both[2];
    int turn = 0;
    both[1].tiles = 0;
    for (int64_t y = 0; y < t->tiles[0]; y += t->lines) {
        const int64_t lines = t->tiles[0] - y < t->lines ? t->tiles[0] - y : t->lines;
        F(transform_lines)(t, y, lines, planes, transformed);
        for (int64_t line = 0; line < lines; line++)
            turn = F(convolve_line)(g, t, y + line, transformed + line * t->tiles[1] * TILE_STEP,
                                    factor, to, both, turn);
    }
    F(write_tiles)(both + !turn, &to->cutoff, 0, GDB_TILES_AT_ONCE);
}
