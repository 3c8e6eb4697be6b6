/* The products for one instruction set. To be defined by who includes this:
 *
 * ISA     name of the instruction set
 * TARGET  attribute that turns it on
 * BYTES   of a vector
 * MR, NV  rows, and vectors per row, of a tile of C that is kept in registers
 *
 * As in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), except
 * that A is read where it is: it has few rows, and an element of it is loaded once for NV products.
 */
#ifndef REAL
#define REAL float
#include "products_kernel.h"
#undef REAL
#define REAL double
#include "products_kernel.h"
#undef REAL
#undef ISA
#undef TARGET
#undef BYTES
#undef MR
#undef NV
#else

#define NAME(x) JOIN(x, REAL, ISA)
#define LANES ((int)(BYTES / sizeof(REAL)))
#define NR (NV * LANES)
#define VECTOR NAME(vector)
#define QUAD NAME(quad)
#define QUAD_LANES ((int)(16 / sizeof(REAL)))
#define LOAD(p) (*(const VECTOR *)(p))
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef REAL VECTOR __attribute__((vector_size(BYTES), aligned(__alignof__(REAL)), may_alias));
typedef REAL QUAD __attribute__((vector_size(16), aligned(__alignof__(REAL)), may_alias));

static int64_t NAME(packed_elements)(int64_t k, int64_t n)
{
    return k * ((n + LANES - 1) / LANES * LANES);
}

/* The width of the panel that begins at column j: NR, or less in whole vectors for the last one. */
INLINE int NAME(width)(int64_t n, int64_t j)
{
    return n - j >= NR ? NR : (int)((n - j + LANES - 1) / LANES * LANES);
}

/* Transpose QUAD_LANES x QUAD_LANES elements by perfect shuffles. */
INLINE void NAME(transpose)(const REAL *from, int64_t from_row, REAL *to, int64_t to_row)
{
    QUAD in[QUAD_LANES], out[QUAD_LANES];
    UNROLL for (int i = 0; i < QUAD_LANES; i++) in[i] = *(const QUAD *)(from + i * from_row);
    UNROLL for (int step = 1; step < QUAD_LANES; step *= 2) {
        UNROLL for (int i = 0; i < QUAD_LANES / 2; i++) {
            out[2 * i] = LOW(REAL, in[i], in[i + QUAD_LANES / 2]);
            out[2 * i + 1] = HIGH(REAL, in[i], in[i + QUAD_LANES / 2]);
        }
        UNROLL for (int i = 0; i < QUAD_LANES; i++) in[i] = out[i];
    }
    UNROLL for (int i = 0; i < QUAD_LANES; i++) *(QUAD *)(to + i * to_row) = in[i];
}

/* Pack columns of which the elements are adjacent, a line of the cache of each at a time. */
TARGET static void NAME(pack_columns)(const REAL *b, int64_t column_stride, int64_t k, int count,
                                      int width, REAL *to)
{
    const int step = LINE / sizeof(REAL);
    for (int64_t from = 0; from < k; from += step) {
        int64_t until = from + step < k ? from + step : k;
        for (int j = 0; j < width; j += QUAD_LANES) {
            int64_t p = from;
            if (j + QUAD_LANES <= count)
                for (; p + QUAD_LANES <= until; p += QUAD_LANES)
                    NAME(transpose)(b + j * column_stride + p, column_stride, to + p * width + j,
                                    width);
            for (; p < until; p++)
                for (int i = j; i < j + QUAD_LANES; i++)
                    to[p * width + i] = i < count ? b[i * column_stride + p] : 0;
        }
    }
}

TARGET static void NAME(pack)(const void *from, int64_t row_stride, int64_t column_stride,
                              int64_t k, int64_t n, void *packed)
{
    const REAL *b = from;
    REAL *to = packed;
    for (int64_t j = 0; j < n; j += NR, b += NR * column_stride) {
        int width = NAME(width)(n, j), count = n - j < width ? (int)(n - j) : width;
        if (row_stride == 1 && column_stride != 1)
            NAME(pack_columns)(b, column_stride, k, count, width, to);
        else
            for (int64_t p = 0; p < k; p++) {
                const REAL *row = b + p * row_stride;
                REAL *line = to + p * width;
                if (column_stride == 1 && count == NR)
                    memcpy(line, row, NR * sizeof(REAL));
                else
                    for (int i = 0; i < width; i++)
                        line[i] = i < count ? row[i * column_stride] : 0;
            }
        to += k * width;
    }
}

/* One tile of C. `rows` and `vectors` are constants wherever this is inlined. */
INLINE void NAME(tile)(const int rows, const int vectors, int64_t k, const REAL *a, int64_t a_row,
                       int64_t a_column, const REAL *b, REAL *c, int64_t c_row, const REAL *bias,
                       int accumulate)
{
    const REAL *row[MR];
    VECTOR sum[MR][NV], right[NV];
    UNROLL for (int i = 0; i < rows; i++) {
        row[i] = a + i * a_row;
        UNROLL for (int v = 0; v < vectors; v++) sum[i][v] = (VECTOR){0};
    }
    for (int64_t p = 0, at = 0; p < k; p++, at += a_column, b += vectors * LANES) {
        UNROLL for (int v = 0; v < vectors; v++) {
            right[v] = LOAD(b + v * LANES);
            __builtin_prefetch((const char *)(b + v * LANES) + AHEAD);
        }
        UNROLL for (int i = 0; i < rows; i++) {
            VECTOR left = row[i][at] - (VECTOR){0};
            UNROLL for (int v = 0; v < vectors; v++) sum[i][v] += left * right[v];
        }
    }
    if (bias)
        UNROLL for (int v = 0; v < vectors; v++) {
            right[v] = LOAD(bias + v * LANES);
            UNROLL for (int i = 0; i < rows; i++) sum[i][v] += right[v];
        }
    UNROLL for (int i = 0; i < rows; i++, c += c_row)
        UNROLL for (int v = 0; v < vectors; v++) {
            VECTOR *to = (VECTOR *)(c + v * LANES);
            if (accumulate) sum[i][v] += *to;
            *to = sum[i][v];
        }
}

/* What is beyond MR or NV is never reached, and compiled to nothing. */
#define TILE(r, v)                                                                                 \
    case r:                                                                                        \
        if (r <= MR && v <= NV)                                                                    \
            NAME(tile)(r < MR ? r : MR, v < NV ? v : NV, k, a, a_row, a_column, b, c, c_row, bias, \
                       accumulate);                                                                \
        break;
#define TILES(v)                                                                                   \
    switch (rows) {                                                                                \
        TILE(1, v) TILE(2, v) TILE(3, v) TILE(4, v) TILE(5, v) TILE(6, v) TILE(7, v) TILE(8, v)    \
    }

TARGET static void NAME(any_tile)(int rows, int width, int64_t k, const REAL *a, int64_t a_row,
                                  int64_t a_column, const REAL *b, REAL *c, int64_t c_row,
                                  const REAL *bias, int accumulate)
{
    if (width == LANES)
        TILES(1)
    else if (width == 2 * LANES)
        TILES(2)
    else
        TILES(3)
}

/* A tile of which the last vector is more than the rest of C's columns goes through a buffer. */
TARGET static void NAME(edge_tile)(int rows, int width, int count, int64_t k, const REAL *a,
                                   int64_t a_row, int64_t a_column, const REAL *b, REAL *c,
                                   int64_t c_row, const REAL *bias, int accumulate)
{
    REAL buffer[MR * NR];
    NAME(any_tile)(rows, width, k, a, a_row, a_column, b, buffer, width, NULL, 0);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < count; j++) {
            REAL sum = buffer[i * width + j] + (bias ? bias[j] : 0);
            c[i * c_row + j] = accumulate ? c[i * c_row + j] + sum : sum;
        }
}

/* C (+)= A B (+ bias) for k values of p of a B that was packed with `depth` of them. Tiles of A are
 * `a_tile` apart. */
TARGET static void NAME(block)(int64_t m, int64_t n, int64_t k, const REAL *a, int64_t a_tile,
                               int64_t a_row, int64_t a_column, const REAL *b, int64_t depth,
                               int64_t start, REAL *c, int64_t c_row, const REAL *bias,
                               int accumulate)
{
    for (int64_t j = 0; j < n; j += NR) {
        int width = NAME(width)(n, j);
        const REAL *panel = b + j * depth + start * width, *shift = bias ? bias + j : NULL;
        for (int64_t i = 0; i < m; i += MR) {
            int rows = m - i < MR ? (int)(m - i) : MR;
            const REAL *left = a + i / MR * a_tile;
            REAL *to = c + i * c_row + j;
            if (n - j >= width)
                NAME(any_tile)(rows, width, k, left, a_row, a_column, panel, to, c_row, shift,
                               accumulate);
            else
                NAME(edge_tile)(rows, width, (int)(n - j), k, left, a_row, a_column, panel, to,
                                c_row, shift, accumulate);
        }
    }
}

TARGET static void NAME(multiply)(int64_t m, int64_t n, int64_t k, const void *left, int64_t a_row,
                                  const void *packed, void *to, int64_t c_row, const void *bias,
                                  int accumulate)
{
    const REAL *a = left;
    REAL *c = to;
    int64_t parts = k > DEPTH ? (k + DEPTH - 1) / DEPTH : 1, part = (k + parts - 1) / parts;
    for (int64_t i = 0; i < m; i += HEIGHT * MR) {
        int64_t rows = m - i < HEIGHT * MR ? m - i : HEIGHT * MR, p = 0;
        do {
            NAME(block)(rows, n, k - p < part ? k - p : part, a + i * a_row + p, MR * a_row, a_row,
                        1, packed, k, p, c + i * c_row, c_row, p ? NULL : bias, p || accumulate);
            p += part;
        } while (p < k);
    }
}

/* Sums of products of `a` and some rows of W. */
INLINE void NAME(dots)(const int count, int64_t k, const REAL *a, const REAL *w, int64_t w_row,
                       REAL *total)
{
    VECTOR sum[4];
    int64_t whole = k / LANES * LANES;
    UNROLL for (int u = 0; u < count; u++) sum[u] = (VECTOR){0};
    for (int64_t p = 0; p < whole; p += LANES)
        UNROLL for (int u = 0; u < count; u++) sum[u] += LOAD(a + p) * LOAD(w + u * w_row + p);
    for (int u = 0; u < count; u++) {
        total[u] = 0;
        for (int i = 0; i < LANES; i++) total[u] += sum[u][i];
        for (int64_t p = whole; p < k; p++) total[u] += a[p] * w[u * w_row + p];
    }
}

/* Four rows of W stay in the first cache for all rows of A. */
TARGET static void NAME(multiply_few)(int64_t m, int64_t n, int64_t k, const void *left,
                                      int64_t a_row, const void *weight, int64_t w_row, void *to,
                                      int64_t c_row, const void *bias, int accumulate)
{
    const REAL *shift = bias;
    for (int64_t j = 0; j < n; j += 4) {
        const REAL *w = (const REAL *)weight + j * w_row;
        int count = n - j < 4 ? (int)(n - j) : 4;
        for (int64_t i = 0; i < m; i++) {
            const REAL *a = (const REAL *)left + i * a_row;
            REAL *c = (REAL *)to + i * c_row + j, total[4];
            if (count == 4)
                NAME(dots)(4, k, a, w, w_row, total);
            else
                for (int u = 0; u < count; u++) NAME(dots)(1, k, a, w + u * w_row, 0, total + u);
            for (int u = 0; u < count; u++)
                c[u] = total[u] + (shift ? shift[j + u] : 0) + (accumulate ? c[u] : 0);
        }
    }
}

INLINE int NAME(is_zero)(const REAL *row, int64_t n)
{
    for (int64_t j = 0; j < n; j += 64) {
        int found = 0;
        for (int64_t i = j; i < n && i < j + 64; i++) found |= row[i] != 0;
        if (found) return 0;
    }
    return 1;
}

/* Copy rows of X and of dY, from the given row of the given chunk on, until there are ROWS of them;
 * X to panels, dY to tiles of MR columns. Return how many there are. */
TARGET static int64_t NAME(gather)(int64_t n, int64_t k, int64_t first, int64_t last,
                                   int64_t chunks, const int64_t *rows, const void *const *dy,
                                   const int64_t *dy_row, const void *const *x,
                                   const int64_t *x_row, int how, REAL *right, REAL *left,
                                   int64_t *chunk, int64_t *row)
{
    int64_t filled = 0;
    for (; *chunk < chunks; ++*chunk, *row = 0)
        for (; *row < rows[*chunk]; ++*row) {
            const REAL *y = (const REAL *)dy[*chunk] + *row * dy_row[*chunk];
            const REAL *from = (const REAL *)x[*chunk] + *row * x_row[*chunk];
            if (filled == ROWS) return filled;
            if (how & GDB_SKIP_X ? NAME(is_zero)(from, k) : NAME(is_zero)(y, n)) continue;
            for (int64_t j = 0; j < k; j += NR)
                NAME(pack)(from + j, 0, 1, 1, k - j < NR ? k - j : NR,
                           right + j * ROWS + filled * NAME(width)(k, j));
            for (int64_t i = first; i < last; i += MR) {
                REAL *to = left + (i - first) * ROWS + filled * MR;
                if (last - i >= MR) /* for which the compiler knows how many */
                    memcpy(to, y + i, MR * sizeof(REAL));
                else
                    memcpy(to, y + i, (last - i) * sizeof(REAL));
            }
            filled++;
        }
    return filled;
}

TARGET static void NAME(weight_gradient)(int64_t n, int64_t k, int64_t first, int64_t last,
                                         int64_t chunks, const int64_t *rows,
                                         const void *const *dy, const int64_t *dy_row,
                                         const void *const *x, const int64_t *x_row, void *to,
                                         int64_t dw_row, int how, void *scratch)
{
    int accumulate = how & GDB_ACCUMULATE;
    REAL *right = (REAL *)(((uintptr_t)scratch + LINE - 1) / LINE * LINE);
    REAL *left = right + NAME(packed_elements)(ROWS, k);
    REAL *dw = (REAL *)to + first * dw_row;
    int64_t chunk = 0, row = 0, filled;
    do {
        filled = NAME(gather)(n, k, first, last, chunks, rows, dy, dy_row, x, x_row, how, right, left,
                              &chunk, &row);
        for (int64_t i = 0; i < last - first && (filled || !accumulate); i += HEIGHT * MR)
            NAME(block)(last - first - i < HEIGHT * MR ? last - first - i : HEIGHT * MR, k, filled,
                        left + i * ROWS, ROWS * MR, 1, MR, right, ROWS, 0, dw + i * dw_row,
                        dw_row, NULL, accumulate);
        accumulate = 1;
    } while (filled == ROWS);
}

static int64_t NAME(scratch)(int64_t n, int64_t k)
{
    int64_t left = (n + MR - 1) / MR * MR * ROWS;
    return (NAME(packed_elements)(ROWS, k) + left) * sizeof(REAL) + LINE;
}

/* Sums of 64 rows at a time, and their sums, both as doubles. */
TARGET static void NAME(bias_gradient)(int64_t n, int64_t chunks, const int64_t *rows,
                                       const void *const *dy, const int64_t *dy_row, void *to,
                                       int accumulate)
{
    REAL *db = to;
    for (int64_t j = 0; j < n; j += 64) {
        int width = n - j < 64 ? (int)(n - j) : 64;
        double total[64] = {0}, part[64] = {0};
        int64_t seen = 0;
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const REAL *row = (const REAL *)dy[chunk] + j;
            for (int64_t r = 0; r < rows[chunk]; r++, row += dy_row[chunk]) {
                for (int i = 0; i < width; i++) part[i] += row[i];
                if (++seen % 64) continue;
                for (int i = 0; i < 64; i++) total[i] += part[i], part[i] = 0;
            }
        }
        for (int i = 0; i < width; i++)
            db[j + i] = (accumulate ? db[j + i] : 0) + (REAL)(total[i] + part[i]);
    }
}

static const struct products NAME(products) = {
    NAME(packed_elements), NAME(pack),          NAME(multiply), NAME(multiply_few),
    NAME(scratch),         NAME(weight_gradient), NAME(bias_gradient),
};

#endif
