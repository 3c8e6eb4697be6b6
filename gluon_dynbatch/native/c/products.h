/* Matrix products for one type and one instruction set.
 *
 * The algorithm is that of Goto and van de Geijn, "Anatomy of high-performance matrix
 * multiplication" (2008), except that A is not packed: it has few rows, and each load of one of its
 * elements serves NV vectors. B is packed before, for many products; or, for one, panel by panel; or
 * not at all, for few rows.
 */

#define DEPTH 256           /* products at most that a tile sums up before it is stored */
#define HEIGHT 16           /* tiles of A that stay in the cache for all panels of B */
#define LINE 64             /* bytes of a cache line, and of the widest vector */
#define SMALL_BYTES 16384   /* size at most of a B that fits into the L1 cache */
#define PREFETCH_BYTES 1024 /* distance of prefetches from B, which is in the L2 cache or beyond */
#define FEW_BYTES 4096      /* distance of prefetches from a matrix that is not packed */
#define DOT_COLUMNS 4       /* of a tile of dot products */

/* Rows, and vectors per row, of a tile of C in registers. */
#define MR GDB_TILE_ROWS
#define NV GDB_TILE_VECTORS
#define DOT_ROWS (MR * NV / DOT_COLUMNS) /* of a tile of dot products */
#define LANES ((int)(GDB_BYTES / sizeof(T)))
#define NR (NV * LANES)
#define VECTOR F(vector)
#define BIT_VECTOR F(bit_vector)
#define LOAD(p) (*(const VECTOR *)(p))
#define BROADCAST(x) ((x) - (VECTOR){0}) /* a sum would turn -0 into 0 */
#define QUAD F(quad)
/* Select four elements of two vectors of four, by index. */
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (FOUR_BITS){__VA_ARGS__})
#endif
#define FOUR_BITS F(four_bits)
#define INLINE static inline __attribute__((always_inline))

/* Call a function of a tile with constant numbers of rows and vectors. Cases beyond MR or NV are
 * unreachable and compile to nothing. */
#define TILE(r, v, call, ...)                                                                      \
    case r:                                                                                        \
        if (r <= MR && v <= NV) call(r < MR ? r : MR, v < NV ? v : NV, __VA_ARGS__);               \
        break;
#define TILES(v, rows, ...)                                                                        \
    switch (rows) {                                                                                \
        TILE(1, v, __VA_ARGS__) TILE(2, v, __VA_ARGS__) TILE(3, v, __VA_ARGS__)                    \
        TILE(4, v, __VA_ARGS__) TILE(5, v, __VA_ARGS__) TILE(6, v, __VA_ARGS__)                    \
        TILE(7, v, __VA_ARGS__) TILE(8, v, __VA_ARGS__)                                            \
    }
#define ANY_TILE(rows, width, ...)                                                                 \
    if ((width) == LANES)                                                                          \
        TILES(1, rows, __VA_ARGS__)                                                                \
    else if ((width) == 2 * LANES)                                                                 \
        TILES(2, rows, __VA_ARGS__)                                                                \
    else                                                                                           \
        TILES(3, rows, __VA_ARGS__)

typedef T VECTOR __attribute__((vector_size(GDB_BYTES), aligned(__alignof__(T)), may_alias));
typedef T QUAD __attribute__((vector_size(4 * sizeof(T)), aligned(__alignof__(T)), may_alias));
typedef BITS FOUR_BITS __attribute__((vector_size(4 * sizeof(T))));
typedef BITS BIT_VECTOR __attribute__((vector_size(GDB_BYTES), may_alias));

static int64_t F(packed_elements)(int64_t k, int64_t n) {
    return k * ((n + LANES - 1) / LANES * LANES);
}

/* Return the width of the panel that begins at column j: NR, or fewer whole vectors at the end. */
INLINE int F(width)(int64_t n, int64_t j) {
    return n - j >= NR ? NR : (int)((n - j + LANES - 1) / LANES * LANES);
}

/* Transpose a block of 4 x 4: read parts of columns, return rows. */
INLINE void F(transpose_four)(const T *b, int64_t column_stride, QUAD *rows) {
    QUAD c0 = *(const QUAD *)b, c1 = *(const QUAD *)(b + column_stride);
    QUAD c2 = *(const QUAD *)(b + 2 * column_stride), c3 = *(const QUAD *)(b + 3 * column_stride);
    QUAD low01 = SHUFFLE(c0, c1, 0, 4, 1, 5), high01 = SHUFFLE(c0, c1, 2, 6, 3, 7);
    QUAD low23 = SHUFFLE(c2, c3, 0, 4, 1, 5), high23 = SHUFFLE(c2, c3, 2, 6, 3, 7);
    rows[0] = SHUFFLE(low01, low23, 0, 1, 4, 5), rows[1] = SHUFFLE(low01, low23, 2, 3, 6, 7);
    rows[2] = SHUFFLE(high01, high23, 0, 1, 4, 5), rows[3] = SHUFFLE(high01, high23, 2, 3, 6, 7);
}

/* The same, and write parts of rows. */
INLINE void F(transpose_block)(const T *b, int64_t column_stride, T *to, int64_t width) {
    QUAD rows[4];
    F(transpose_four)(b, column_stride, rows);
    UNROLL for (int i = 0; i < 4; i++) *(QUAD *)(to + i * width) = rows[i];
}

/* Pack columns whose elements are contiguous, a cache line of each at a time; four columns together
 * where a vector has at least four elements. Meanwhile, the next columns are fetched in the order of
 * memory: no processor foresees so many streams. */
static void F(pack_columns)(const T *b, int64_t column_stride, int64_t k, int count,
                            int width, T *to) {
    enum { STEP = LINE / sizeof(T), FOUR = sizeof(QUAD) <= GDB_BYTES ? 4 : 1 };
    const char *ahead = (const char *)(b + width * column_stride);
    for (int64_t from = 0; from < k; from += STEP)
        for (int j = 0, columns; j < width; j += columns) {
            const int64_t stop = from + STEP < k ? from + STEP : k;
            const T *column = b + j * column_stride;
            int64_t p = from;
            T *out = to + j;
            columns = j + FOUR <= count ? FOUR : 1;
            for (int i = 0; i < columns; i++, ahead += LINE) __builtin_prefetch(ahead);
            for (; columns == 4 && p + 4 <= stop; p += 4)
                F(transpose_block)(column + p, column_stride, out + p * width, width);
            for (int i = 0; i < columns; i++)
                for (int64_t q = p; q < stop; q++)
                    out[q * width + i] = j < count ? column[i * column_stride + q] : 0;
        }
}

/* Copy `count` elements and pad them with zeros to `width`, a multiple of LANES. The last of
 * several vectors overlaps the one before. */
INLINE void F(copy_vectors)(const T *from, int count, int width, T *to) {
    if (count < LANES) {
        for (int i = 0; i < width; i++) to[i] = i < count ? from[i] : 0;
        return;
    }
    *(VECTOR *)(to + width - LANES) = (VECTOR){0};
    for (int i = 0; i + LANES <= count; i += LANES) *(VECTOR *)(to + i) = LOAD(from + i);
    *(VECTOR *)(to + count - LANES) = LOAD(from + count - LANES);
}

static void F(pack)(const void *from, int64_t row_stride, int64_t column_stride,
                    int64_t k, int64_t n, void *packed) {
    const T *b = from;
    T *to = packed;
    for (int64_t j = 0; j < n; j += NR, b += NR * column_stride) {
        int width = F(width)(n, j), count = n - j < width ? (int)(n - j) : width;
        if (row_stride == 1 && column_stride != 1)
            F(pack_columns)(b, column_stride, k, count, width, to);
        else
            for (int64_t p = 0; p < k; p++) {
                const T *row = b + p * row_stride;
                T *packed_row = to + p * width;
                if (column_stride == 1)
                    F(copy_vectors)(row, count, width, packed_row);
                else
                    for (int i = 0; i < width; i++)
                        packed_row[i] = i < count ? row[i * column_stride] : 0;
            }
        to += k * width;
    }
}

/* Compute one tile of C. `rows` and `vectors` are constants wherever this is inlined. The last of
 * several vectors of B and of C begins at column `last`, and may overlap the one before. */
INLINE void F(tile)(const int rows, const int vectors, int64_t k, const T *a, int64_t a_row,
                    int64_t a_column, const T *b, int64_t b_row, int64_t last, T *c, int64_t c_row,
                    const T *bias, int accumulate) {
    const T *row[MR];
    VECTOR sum[MR][NV], right[NV];
    int64_t column[NV];
    UNROLL for (int v = 0; v < vectors; v++) column[v] = v < vectors - 1 ? v * LANES : last;
    UNROLL for (int i = 0; i < rows; i++) {
        row[i] = a + i * a_row;
        UNROLL for (int v = 0; v < vectors; v++) sum[i][v] = (VECTOR){0};
    }
    for (int64_t p = 0, at = 0; p < k; p++, at += a_column, b += b_row) {
        UNROLL for (int v = 0; v < vectors; v++) {
            right[v] = LOAD(b + column[v]);
            __builtin_prefetch((const char *)(b + column[v]) + PREFETCH_BYTES);
        }
        UNROLL for (int i = 0; i < rows; i++) {
            VECTOR left = BROADCAST(row[i][at]);
            UNROLL for (int v = 0; v < vectors; v++) sum[i][v] += left * right[v];
        }
    }
    if (bias)
        UNROLL for (int v = 0; v < vectors; v++) {
            right[v] = LOAD(bias + column[v]);
            UNROLL for (int i = 0; i < rows; i++) sum[i][v] += right[v];
        }
    UNROLL for (int i = 0; i < rows; i++, c += c_row) {
        if (accumulate) UNROLL for (int v = 0; v < vectors; v++) sum[i][v] += LOAD(c + column[v]);
        UNROLL for (int v = 0; v < vectors; v++) *(VECTOR *)(c + column[v]) = sum[i][v];
    }
}

static void F(any_tile)(int rows, int width, int64_t k, const T *a, int64_t a_row,
                        int64_t a_column, const T *b, int64_t b_row, int64_t last, T *c,
                        int64_t c_row, const T *bias, int accumulate) {
    ANY_TILE(rows, width, F(tile), k, a, a_row, a_column, b, b_row, last, c, c_row, bias,
             accumulate)
}

/* Compute a tile with fewer columns than a vector has lanes, in a buffer. */
static void F(edge_tile)(int rows, int count, int64_t k, const T *a, int64_t a_row,
                         int64_t a_column, const T *b, T *c, int64_t c_row, const T *bias,
                         int accumulate) {
    T sums[MR * LANES], padded_bias[LANES] = {0};
    F(any_tile)(rows, LANES, k, a, a_row, a_column, b, LANES, 0, sums, LANES, NULL, 0);
    if (bias) memcpy(padded_bias, bias, count * sizeof(T));
    for (int i = 0; i < rows; i++, c += c_row)
        for (int j = 0; j < count; j++)
            c[j] = sums[i * LANES + j] + padded_bias[j] + (accumulate ? c[j] : 0);
}

/* C = A B + bias, or C += A B + bias if `accumulate`, for rows [start, start + k) of a B that was
 * packed with `depth` rows. If `b_row` is not 0, B is not packed, and its rows of at least one
 * vector are `b_row` apart. Tiles of A are `a_tile` apart. */
static void F(multiply_block)(int64_t m, int64_t n, int64_t k, const T *a, int64_t a_tile,
                              int64_t a_row, int64_t a_column, const T *b, int64_t b_row,
                              int64_t depth, int64_t start, T *c, int64_t c_row, const T *bias,
                              int accumulate) {
    for (int64_t from = 0; from < m; from += HEIGHT * MR)
        for (int64_t j = 0; j < n; j += NR) {
            int width = F(width)(n, j), count = n - j < width ? (int)(n - j) : width;
            const T *panel = b + (b_row ? j : j * depth + start * width);
            const T *panel_bias = bias ? bias + j : NULL;
            for (int64_t i = from; i < m && i < from + HEIGHT * MR; i += MR) {
                int rows = m - i < MR ? (int)(m - i) : MR;
                const T *left = a + i / MR * a_tile;
                T *to = c + i * c_row + j;
                if (count < LANES && !b_row)
                    F(edge_tile)(rows, count, k, left, a_row, a_column, panel, to, c_row,
                                 panel_bias, accumulate);
                else
                    F(any_tile)(rows, width, k, left, a_row, a_column, panel,
                                b_row ? b_row : width, count - LANES, to, c_row, panel_bias,
                                accumulate);
            }
        }
}

/* Return how many products a tile sums up before it is stored. */
INLINE int64_t F(depth_of)(int64_t k) {
    const int64_t parts = k > DEPTH ? (k + DEPTH - 1) / DEPTH : 1;
    return (k + parts - 1) / parts;
}

static void F(multiply)(int64_t m, int64_t n, int64_t k, const void *left, int64_t a_row,
                        int64_t a_column, const void *packed, void *to, int64_t c_row,
                        const void *bias, int accumulate) {
    const T *a = left;
    T *c = to;
    const int64_t depth = F(depth_of)(k);
    int64_t p = 0;
    do {
        F(multiply_block)(m, n, k - p < depth ? k - p : depth, a + p * a_column, MR * a_row, a_row,
                          a_column, packed, 0, k, p, c, c_row, p ? NULL : bias, p || accumulate);
        p += depth;
    } while (p < k);
}

static int64_t F(panel_elements)(int64_t k, int64_t n) {
    return F(packed_elements)(F(depth_of)(k), n < NR ? n : NR);
}

/* The tiles are those of `multiply`, so the results have the same bits. A panel is in the cache when it
 * has been packed. */
static void F(multiply_panels)(int64_t m, int64_t n, int64_t k, const void *left, int64_t a_row,
                               int64_t a_column, const void *right, int64_t b_row, int64_t b_column,
                               void *to, int64_t c_row, const void *bias, int accumulate,
                               void *panel) {
    const int64_t depth = F(depth_of)(k);
    const int64_t bytes = k * b_row * (int64_t)sizeof(T);
    const T *a = left, *b = right;
    /* Vectors that overlap would be accumulated twice. */
    if (b_column == 1 && bytes <= SMALL_BYTES && n >= LANES && !accumulate) {
        F(multiply_block)(m, n, k, a, MR * a_row, a_row, a_column, b, b_row, 0, 0, to, c_row, bias, 0);
        return;
    }
    for (int64_t j = 0, p = 0; j < n; j += NR, p = 0)
        do {
            const int64_t rows = k - p < depth ? k - p : depth, columns = n - j < NR ? n - j : NR;
            F(pack)(b + p * b_row + j * b_column, b_row, b_column, rows, columns, panel);
            F(multiply_block)(m, columns, rows, a + p * a_column, MR * a_row, a_row, a_column, panel,
                              0, rows, 0, (T *)to + j, c_row, bias && !p ? (const T *)bias + j : NULL,
                              p || accumulate);
            p += depth;
        } while (p < k);
}

/* Return the sum of the elements of a vector. */
INLINE T F(sum_vector)(VECTOR vector) {
    T part[LANES];
    *(VECTOR *)part = vector;
    UNROLL for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

/* Store the sums of the elements of four vectors, which have at least four elements. */
INLINE void F(sum_four)(const VECTOR *vectors, T *sums) {
    QUAD quads[4];
    UNROLL for (int u = 0; u < 4; u++) {
        T part[LANES > 4 ? LANES : 4];
        *(VECTOR *)part = vectors[u];
        quads[u] = *(QUAD *)part;
        UNROLL for (int i = 4; i < LANES; i += 4) quads[u] += *(QUAD *)(part + i);
    }
    QUAD first = SHUFFLE(quads[0], quads[1], 0, 4, 1, 5) + SHUFFLE(quads[0], quads[1], 2, 6, 3, 7);
    QUAD last = SHUFFLE(quads[2], quads[3], 0, 4, 1, 5) + SHUFFLE(quads[2], quads[3], 2, 6, 3, 7);
    *(QUAD *)sums = SHUFFLE(first, last, 0, 1, 4, 5) + SHUFFLE(first, last, 2, 3, 6, 7);
}

/* Compute a tile of C = A W^T + bias, or C += A W^T + bias if `accumulate`, whose columns are the dot
 * products of rows of A with `count` rows of W. The last of several vectors overlaps the one before:
 * the bits of `tail_mask` are ones for the elements that only the last one has. `rows` and `count` are
 * constants wherever this is inlined. */
INLINE void F(dot_tile)(const int rows, const int count, int64_t k, BIT_VECTOR tail_mask, const T *a,
                        int64_t a_row, const T *w, int64_t w_row, T *c, int64_t c_row,
                        const T *bias, int accumulate) {
    VECTOR sum[DOT_ROWS][DOT_COLUMNS], row[DOT_ROWS];
    const int64_t whole = k / LANES * LANES, last = k - LANES;
    T total[DOT_COLUMNS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int u = 0; u < count; u++) sum[i][u] = (VECTOR){0};
    for (int64_t p = 0; p < whole; p += LANES) {
        UNROLL for (int i = 0; i < rows; i++) row[i] = LOAD(a + i * a_row + p);
        UNROLL for (int u = 0; u < count; u++) {
            const VECTOR column = LOAD(w + u * w_row + p);
            UNROLL for (int i = 0; i < rows; i++) sum[i][u] += row[i] * column;
        }
    }
    if (whole && whole < k)
        UNROLL for (int u = 0; u < count; u++) {
            const VECTOR column = (VECTOR)((BIT_VECTOR)LOAD(w + u * w_row + last) & tail_mask);
            UNROLL for (int i = 0; i < rows; i++)
                sum[i][u] += (VECTOR)((BIT_VECTOR)LOAD(a + i * a_row + last) & tail_mask) * column;
        }
    UNROLL for (int i = 0; i < rows; i++, a += a_row, c += c_row) {
        if (count == 4 && LANES >= 4)
            F(sum_four)(sum[i], total);
        else
            UNROLL for (int u = 0; u < count; u++) total[u] = F(sum_vector)(sum[i][u]);
        for (int64_t p = 0; p < k && !whole; p++)
            UNROLL for (int u = 0; u < count; u++) total[u] += a[p] * w[u * w_row + p];
        UNROLL for (int u = 0; u < count; u++)
            c[u] = total[u] + (bias ? bias[u] : 0) + (accumulate ? c[u] : 0);
    }
}

#define DOT_TILE(r, count)                                                                         \
    case r:                                                                                        \
        if (r <= DOT_ROWS)                                                                         \
            F(dot_tile)(r < DOT_ROWS ? r : DOT_ROWS, count, k, tail_mask, a, a_row, w, w_row, c,   \
                        c_row, b, accumulate);                                                     \
        break;
#define DOT_TILES(count)                                                                           \
    switch (rows) {                                                                                \
        DOT_TILE(1, count) DOT_TILE(2, count) DOT_TILE(3, count)                                   \
        DOT_TILE(4, count) DOT_TILE(5, count) DOT_TILE(6, count)                                   \
    }

/* Four rows of W at a time stay in the L1 cache for all rows of A. W is in memory or far caches, and
 * each of its pages starts the processor's own prefetches anew. */
static void F(multiply_few)(int64_t m, int64_t n, int64_t k, const void *left, int64_t a_row,
                            const void *weight, int64_t w_row, void *to, int64_t c_row,
                            const void *bias, int accumulate) {
    const int64_t ahead = FEW_BYTES / (int64_t)sizeof(T) / (w_row + 1) + DOT_COLUMNS;
    BIT_VECTOR tail_mask;
    for (int i = 0; i < LANES; i++) tail_mask[i] = i < LANES - k % LANES ? 0 : ~(BITS)0;
    for (int64_t j = 0, columns; j < n; j += columns) {
        const T *a = left, *w = (const T *)weight + j * w_row, *b = bias ? (const T *)bias + j : NULL;
        T *c = (T *)to + j;
        columns = n - j < DOT_COLUMNS ? 1 : DOT_COLUMNS;
        for (int64_t p = 0; p < DOT_COLUMNS * w_row && j + ahead + DOT_COLUMNS <= n;
             p += LINE / (int64_t)sizeof(T))
            __builtin_prefetch(w + ahead * w_row + p);
        for (int64_t i = 0, rows; i < m; i += rows, a += rows * a_row, c += rows * c_row) {
            rows = m - i < DOT_ROWS ? m - i : DOT_ROWS;
            if (columns == 1) {
                DOT_TILES(1)
            } else {
                DOT_TILES(DOT_COLUMNS)
            }
        }
    }
}
