/* Matrix products for one type and one instruction set.
 *
 * As in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), except
 * that A is read where it is: it has few rows, and an element of it is loaded once for NV products.
 */
#ifndef GDB_PRODUCTS_H
#define GDB_PRODUCTS_H

#define DEPTH 256 /* at most so many products are summed up in registers */
#define HEIGHT 16 /* tiles of A that are multiplied by one panel of B after the other */
#define LINE 64   /* bytes of a line of the cache, and of the widest vector */
#define SMALL 16384 /* bytes of a B that is in the first cache as a whole */
#define AHEAD 1024 /* bytes by which B is prefetched: it is in the second cache, or beyond it */

/* Rows, and vectors per row, of a tile of C that is kept in registers. */
#define MR GDB_TILE_ROWS
#define NV GDB_TILE_VECTORS
#define LANES ((int)(GDB_BYTES / sizeof(T)))
#define NR (NV * LANES)
#define VECTOR F(vector)
#define BIT_VECTOR F(bit_vector)
#define LOAD(p) (*(const VECTOR *)(p))
#define QUAD F(quad)
/* Numbers of two vectors of four. */
#if defined(__clang__) || __GNUC__ >= 12
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX(a, b, ...) __builtin_shuffle(a, b, (FOUR_BITS){__VA_ARGS__})
#endif
#define FOUR_BITS F(four_bits)
#define INLINE static inline __attribute__((always_inline))

/* Call a function of a tile with its rows and vectors as constants. What is beyond MR or NV is never
 * reached, and compiled to nothing. */
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

#endif

typedef T VECTOR __attribute__((vector_size(GDB_BYTES), aligned(__alignof__(T)), may_alias));
typedef T QUAD __attribute__((vector_size(4 * sizeof(T)), aligned(__alignof__(T)), may_alias));
typedef BITS FOUR_BITS __attribute__((vector_size(4 * sizeof(T))));
typedef BITS BIT_VECTOR __attribute__((vector_size(GDB_BYTES), may_alias));

static int64_t F(packed_elements)(int64_t k, int64_t n)
{
    return k * ((n + LANES - 1) / LANES * LANES);
}

/* The width of the panel that begins at column j: NR, or less in whole vectors for the last one. */
INLINE int F(width)(int64_t n, int64_t j)
{
    return n - j >= NR ? NR : (int)((n - j + LANES - 1) / LANES * LANES);
}

/* Write four numbers of each of four columns as four rows. */
INLINE void F(turn)(const T *b, int64_t column_stride, T *to, int64_t width)
{
    QUAD c0 = *(const QUAD *)b, c1 = *(const QUAD *)(b + column_stride);
    QUAD c2 = *(const QUAD *)(b + 2 * column_stride), c3 = *(const QUAD *)(b + 3 * column_stride);
    QUAD low01 = MIX(c0, c1, 0, 4, 1, 5), high01 = MIX(c0, c1, 2, 6, 3, 7);
    QUAD low23 = MIX(c2, c3, 0, 4, 1, 5), high23 = MIX(c2, c3, 2, 6, 3, 7);
    *(QUAD *)to = MIX(low01, low23, 0, 1, 4, 5);
    *(QUAD *)(to + width) = MIX(low01, low23, 2, 3, 6, 7);
    *(QUAD *)(to + 2 * width) = MIX(high01, high23, 0, 1, 4, 5);
    *(QUAD *)(to + 3 * width) = MIX(high01, high23, 2, 3, 6, 7);
}

/* Pack columns of which the elements are adjacent, a line of the cache of each at a time, and four of
 * them together where four numbers are a vector. */
static void F(pack_columns)(const T *b, int64_t column_stride, int64_t k, int count,
                            int width, T *to)
{
    enum { STEP = LINE / sizeof(T), FOUR = sizeof(QUAD) <= GDB_BYTES ? 4 : 1 };
    for (int64_t from = 0; from < k; from += STEP)
        for (int j = 0, some; j < width; j += some) {
            const int64_t stop = from + STEP < k ? from + STEP : k;
            const T *column = b + j * column_stride;
            int64_t p = from;
            T *out = to + j;
            some = j + FOUR <= count ? FOUR : 1;
            for (; some == 4 && p + 4 <= stop; p += 4)
                F(turn)(column + p, column_stride, out + p * width, width);
            for (int i = 0; i < some; i++)
                for (int64_t q = p; q < stop; q++)
                    out[q * width + i] = j < count ? column[i * column_stride + q] : 0;
        }
}

/* Copy numbers to whole vectors, with zeros after them. The last of several vectors overlaps. */
INLINE void F(copy_vectors)(const T *from, int count, int width, T *to)
{
    if (count < LANES) {
        for (int i = 0; i < width; i++) to[i] = i < count ? from[i] : 0;
        return;
    }
    *(VECTOR *)(to + width - LANES) = (VECTOR){0};
    for (int i = 0; i + LANES <= count; i += LANES) *(VECTOR *)(to + i) = LOAD(from + i);
    *(VECTOR *)(to + count - LANES) = LOAD(from + count - LANES);
}

static void F(pack)(const void *from, int64_t row_stride, int64_t column_stride,
                    int64_t k, int64_t n, void *packed)
{
    const T *b = from;
    T *to = packed;
    for (int64_t j = 0; j < n; j += NR, b += NR * column_stride) {
        int width = F(width)(n, j), count = n - j < width ? (int)(n - j) : width;
        if (row_stride == 1 && column_stride != 1)
            F(pack_columns)(b, column_stride, k, count, width, to);
        else
            for (int64_t p = 0; p < k; p++) {
                const T *row = b + p * row_stride;
                T *line = to + p * width;
                if (column_stride == 1)
                    F(copy_vectors)(row, count, width, line);
                else
                    for (int i = 0; i < width; i++)
                        line[i] = i < count ? row[i * column_stride] : 0;
            }
        to += k * width;
    }
}

/* One tile of C. `rows` and `vectors` are constants wherever this is inlined. Rows of B are `b_row`
 * apart; the last of several vectors of B and of C begins at column `last`, and may overlap. */
INLINE void F(tile)(const int rows, const int vectors, int64_t k, const T *a, int64_t a_row,
                       int64_t a_column, const T *b, int64_t b_row, int64_t last, T *c,
                       int64_t c_row, const T *bias, int accumulate)
{
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
            __builtin_prefetch((const char *)(b + column[v]) + AHEAD);
        }
        UNROLL for (int i = 0; i < rows; i++) {
            VECTOR left = row[i][at] - (VECTOR){0};
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

static void F(any_tile)(int rows, int width, int64_t k, const T *a, int64_t a_row, int64_t a_column,
                        const T *b, int64_t b_row, int64_t last, T *c, int64_t c_row, const T *bias,
                        int accumulate)
{
    ANY_TILE(rows, width, F(tile), k, a, a_row, a_column, b, b_row, last, c, c_row, bias, accumulate)
}

/* A tile of which the only vector is more than C's columns goes through a buffer. */
static void F(edge_tile)(int rows, int count, int64_t k, const T *a, int64_t a_row, int64_t a_column,
                         const T *b, T *c, int64_t c_row, const T *bias, int accumulate)
{
    T sums[MR * LANES], shift[LANES] = {0};
    F(any_tile)(rows, LANES, k, a, a_row, a_column, b, LANES, 0, sums, LANES, NULL, 0);
    if (bias) memcpy(shift, bias, count * sizeof(T));
    for (int i = 0; i < rows; i++, c += c_row)
        for (int j = 0; j < count; j++) c[j] = sums[i * LANES + j] + shift[j] + (accumulate ? c[j] : 0);
}

/* C (+)= A B (+ bias) for k values of p of a B that was packed with `depth` of them. Or C = A B, if rows
 * of B are as they are, `b_row` apart, and no less than a vector. Tiles of A are `a_tile` apart. */
static void F(block)(int64_t m, int64_t n, int64_t k, const T *a, int64_t a_tile,
                     int64_t a_row, int64_t a_column, const T *b, int64_t b_row,
                     int64_t depth, int64_t start, T *c, int64_t c_row, const T *bias,
                     int accumulate)
{
    for (int64_t from = 0; from < m; from += HEIGHT * MR)
        for (int64_t j = 0; j < n; j += NR) {
            int width = F(width)(n, j), count = n - j < width ? (int)(n - j) : width;
            const T *panel = b + (b_row ? j : j * depth + start * width);
            const T *shift = bias ? bias + j : NULL;
            for (int64_t i = from; i < m && i < from + HEIGHT * MR; i += MR) {
                int rows = m - i < MR ? (int)(m - i) : MR;
                const T *left = a + i / MR * a_tile;
                T *to = c + i * c_row + j;
                if (count < LANES && !b_row)
                    F(edge_tile)(rows, count, k, left, a_row, a_column, panel, to, c_row, shift,
                                 accumulate);
                else
                    F(any_tile)(rows, width, k, left, a_row, a_column, panel,
                                b_row ? b_row : width, count - LANES, to, c_row, shift, accumulate);
            }
        }
}

static void F(multiply)(int64_t m, int64_t n, int64_t k, const void *left, int64_t a_row,
                        int64_t a_column, const void *packed, void *to, int64_t c_row,
                        const void *bias, int accumulate)
{
    const T *a = left;
    T *c = to;
    int64_t parts = k > DEPTH ? (k + DEPTH - 1) / DEPTH : 1, part = (k + parts - 1) / parts;
    int64_t p = 0;
    do {
        F(block)(m, n, k - p < part ? k - p : part, a + p * a_column, MR * a_row, a_row, a_column,
                 packed, 0, k, p, c, c_row, p ? NULL : bias, p || accumulate);
        p += part;
    } while (p < k);
}

static int F(multiply_small)(int64_t m, int64_t n, int64_t k, const void *left, int64_t a_row,
                             int64_t a_column, const void *right, void *to)
{
    if (n < LANES || k * n * (int64_t)sizeof(T) > SMALL) return 0;
    F(block)(m, n, k, left, MR * a_row, a_row, a_column, right, n, 0, 0, to, n, NULL, 0);
    return 1;
}

/* The sum of a vector. */
INLINE T F(total)(VECTOR vector)
{
    T part[LANES];
    *(VECTOR *)part = vector;
    UNROLL for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

/* Sums of products of `a` and some rows of W. The last of several vectors overlaps: `unseen` has ones
 * in the bits of numbers that no other vector has. */
INLINE void F(dots)(const int count, int64_t k, BIT_VECTOR unseen, const T *a, const T *w,
                       int64_t w_row, T *total)
{
    VECTOR sum[4];
    int64_t whole = k / LANES * LANES, last = k - LANES;
    UNROLL for (int u = 0; u < count; u++) sum[u] = (VECTOR){0};
    for (int64_t p = 0; p < whole; p += LANES)
        UNROLL for (int u = 0; u < count; u++) sum[u] += LOAD(a + p) * LOAD(w + u * w_row + p);
    if (whole && whole < k) {
        VECTOR end = (VECTOR)((BIT_VECTOR)LOAD(a + last) & unseen);
        UNROLL for (int u = 0; u < count; u++)
            sum[u] += end * (VECTOR)((BIT_VECTOR)LOAD(w + u * w_row + last) & unseen);
    }
    for (int u = 0; u < count; u++) {
        total[u] = F(total)(sum[u]);
        for (int64_t p = 0; p < k && !whole; p++) total[u] += a[p] * w[u * w_row + p];
    }
}

/* Four rows of W stay in the first cache for all rows of A. */
static void F(multiply_few)(int64_t m, int64_t n, int64_t k, const void *left,
                            int64_t a_row, const void *weight, int64_t w_row, void *to,
                            int64_t c_row, const void *bias, int accumulate)
{
    const T *shift = bias;
    BIT_VECTOR unseen;
    for (int i = 0; i < LANES; i++) unseen[i] = i < LANES - k % LANES ? 0 : ~(BITS)0;
    for (int64_t j = 0; j < n; j += 4) {
        const T *w = (const T *)weight + j * w_row;
        int count = n - j < 4 ? (int)(n - j) : 4;
        for (int64_t i = 0; i < m; i++) {
            const T *a = (const T *)left + i * a_row;
            T *c = (T *)to + i * c_row + j, total[4];
            if (count == 4)
                F(dots)(4, k, unseen, a, w, w_row, total);
            else
                for (int u = 0; u < count; u++) F(dots)(1, k, unseen, a, w + u * w_row, 0, total + u);
            for (int u = 0; u < count; u++)
                c[u] = total[u] + (shift ? shift[j + u] : 0) + (accumulate ? c[u] : 0);
        }
    }
}
