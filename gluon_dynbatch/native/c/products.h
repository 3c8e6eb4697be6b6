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
#define ROWS 250  /* that weight_gradient packs; no power of two, which is bad for caches */
#define AHEAD 1024 /* bytes by which B is prefetched: it is in the second cache, or beyond it */

/* Rows, and vectors per row, of a tile of C that is kept in registers. */
#define MR GDB_TILE_ROWS
#define NV GDB_TILE_VECTORS
#define LANES ((int)(GDB_BYTES / sizeof(T)))
#define NR (NV * LANES)
#define VECTOR F(vector)
#define BIT_VECTOR F(bit_vector)
#define LOAD(p) (*(const VECTOR *)(p))
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

/* Pack columns of which the elements are adjacent, a line of the cache of each at a time. */
static void F(pack_columns)(const T *b, int64_t column_stride, int64_t k, int count,
                            int width, T *to)
{
    enum { STEP = LINE / sizeof(T) };
    for (int64_t from = 0; from < k; from += STEP)
        for (int j = 0; j < width; j++) {
            const T *column = b + j * column_stride;
            T *out = to + j;
            if (j >= count)
                for (int64_t p = from; p < from + STEP && p < k; p++) out[p * width] = 0;
            else if (from + STEP <= k)
                UNROLL for (int64_t p = from; p < from + STEP; p++) out[p * width] = column[p];
            else
                for (int64_t p = from; p < k; p++) out[p * width] = column[p];
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

/* One tile of C. `rows` and `vectors` are constants wherever this is inlined. */
INLINE void F(tile)(const int rows, const int vectors, int64_t k, const T *a, int64_t a_row,
                       int64_t a_column, const T *b, T *c, int64_t c_row, const T *bias,
                       int accumulate)
{
    const T *row[MR];
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

static void F(any_tile)(int rows, int width, int64_t k, const T *a, int64_t a_row,
                        int64_t a_column, const T *b, T *c, int64_t c_row,
                        const T *bias, int accumulate)
{
    ANY_TILE(rows, width, F(tile), k, a, a_row, a_column, b, c, c_row, bias, accumulate)
}

/* A vector of C from the sums of products. */
INLINE VECTOR F(finished)(const T *sums, const T *c, const T *bias, int accumulate)
{
    VECTOR sum = LOAD(sums);
    if (bias) sum += LOAD(bias);
    if (accumulate) sum += LOAD(c);
    return sum;
}

/* A tile of which the last vector is more than the rest of C's columns goes through a buffer. The last
 * of several vectors overlaps. */
static void F(edge_tile)(int rows, int width, int count, int64_t k, const T *a,
                         int64_t a_row, int64_t a_column, const T *b, T *c,
                         int64_t c_row, const T *bias, int accumulate)
{
    T buffer[MR * NR], *sums = buffer;
    int last = count - LANES;
    F(any_tile)(rows, width, k, a, a_row, a_column, b, buffer, width, NULL, 0);
    for (int i = 0; i < rows; i++, sums += width, c += c_row) {
        if (last < 0) {
            for (int j = 0; j < count; j++)
                c[j] = sums[j] + (bias ? bias[j] : 0) + (accumulate ? c[j] : 0);
            continue;
        }
        VECTOR end = F(finished)(sums + last, c + last, bias ? bias + last : NULL, accumulate);
        for (int j = 0; j < last; j += LANES)
            *(VECTOR *)(c + j) = F(finished)(sums + j, c + j, bias ? bias + j : NULL, accumulate);
        *(VECTOR *)(c + last) = end;
    }
}

/* C (+)= A B (+ bias) for k values of p of a B that was packed with `depth` of them. Tiles of A are
 * `a_tile` apart. */
static void F(block)(int64_t m, int64_t n, int64_t k, const T *a, int64_t a_tile,
                     int64_t a_row, int64_t a_column, const T *b, int64_t depth,
                     int64_t start, T *c, int64_t c_row, const T *bias,
                     int accumulate)
{
    for (int64_t from = 0; from < m; from += HEIGHT * MR)
        for (int64_t j = 0; j < n; j += NR) {
            int width = F(width)(n, j);
            const T *panel = b + j * depth + start * width, *shift = bias ? bias + j : NULL;
            for (int64_t i = from; i < m && i < from + HEIGHT * MR; i += MR) {
                int rows = m - i < MR ? (int)(m - i) : MR;
                const T *left = a + i / MR * a_tile;
                T *to = c + i * c_row + j;
                if (n - j >= width)
                    F(any_tile)(rows, width, k, left, a_row, a_column, panel, to, c_row, shift,
                                accumulate);
                else
                    F(edge_tile)(rows, width, (int)(n - j), k, left, a_row, a_column, panel, to,
                                 c_row, shift, accumulate);
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
                 packed, k, p, c, c_row, p ? NULL : bias, p || accumulate);
        p += part;
    } while (p < k);
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

INLINE int F(is_zero)(const T *row, int64_t n)
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
static int64_t F(gather)(int64_t n, int64_t k, int64_t first, int64_t last,
                         const gdb_chunk **chunk, const gdb_chunk *end, int64_t *row, int skip_x,
                         T *right, T *left)
{
    int64_t filled = 0;
    for (; *chunk < end; ++*chunk, *row = 0)
        for (; *row < (*chunk)->rows; ++*row) {
            const T *y = (const T *)(*chunk)->dy + *row * (*chunk)->dy_row;
            const T *x = (const T *)(*chunk)->x + *row * (*chunk)->x_row;
            if (filled == ROWS) return filled;
            if (skip_x ? F(is_zero)(x, k) : F(is_zero)(y, n)) continue;
            for (int64_t j = 0; j < k; j += NR)
                F(pack)(x + j, 0, 1, 1, k - j < NR ? k - j : NR,
                        right + j * ROWS + filled * F(width)(k, j));
            for (int64_t i = first; i < last; i += MR) {
                T *to = left + (i - first) * ROWS + filled * MR;
                if (last - i >= MR) /* for which the compiler knows how many */
                    memcpy(to, y + i, MR * sizeof(T));
                else
                    memcpy(to, y + i, (last - i) * sizeof(T));
            }
            filled++;
        }
    return filled;
}

static void F(weight_gradient)(int64_t n, int64_t k, int64_t first, int64_t last,
                               const gdb_chunk *chunk, int64_t count, void *to, int64_t dw_row,
                               int skip_x, void *scratch)
{
    T *right = (T *)(((uintptr_t)scratch + LINE - 1) / LINE * LINE);
    T *left = right + F(packed_elements)(ROWS, k);
    T *dw = (T *)to + first * dw_row;
    const gdb_chunk *end = chunk + count;
    int64_t row = 0, filled;
    do {
        filled = F(gather)(n, k, first, last, &chunk, end, &row, skip_x, right, left);
        F(block)(last - first, k, filled, left, ROWS * MR, 1, MR, right, ROWS, 0, dw, dw_row, NULL, 1);
    } while (filled == ROWS);
}

static int64_t F(gradient_scratch)(int64_t n, int64_t k)
{
    int64_t left = (n + MR - 1) / MR * MR * ROWS;
    return (F(packed_elements)(ROWS, k) + left) * sizeof(T) + LINE;
}

/* Sums of 64 rows at a time, and their sums, both as doubles. */
static void F(bias_gradient)(int64_t n, const gdb_chunk *chunks, int64_t count, void *to)
{
    T *db = to;
    for (int64_t j = 0; j < n; j += 64) {
        int width = n - j < 64 ? (int)(n - j) : 64;
        double total[64] = {0}, part[64] = {0};
        int64_t seen = 0;
        for (const gdb_chunk *chunk = chunks; chunk < chunks + count; chunk++) {
            const T *row = (const T *)chunk->dy + j;
            for (int64_t r = 0; r < chunk->rows; r++, row += chunk->dy_row) {
                for (int i = 0; i < width; i++) part[i] += row[i];
                if (++seen % 64) continue;
                for (int i = 0; i < 64; i++) total[i] += part[i], part[i] = 0;
            }
        }
        for (int i = 0; i < width; i++) db[j + i] += (T)(total[i] + part[i]);
    }
}
