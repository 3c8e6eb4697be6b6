/* Gradients of weights and biases, sums over rows, for one type and one instruction set. */

/* Rows that weight_gradient packs at a time; strides of a power of two would conflict in caches. */
#define PACKED_ROWS 250

INLINE int F(is_zero)(const void *elements, int64_t n) {
    const T *row = elements;
    for (int64_t j = 0; j < n; j += 64) {
        int nonzero = 0;
        for (int64_t i = j; i < n && i < j + 64; i++) nonzero |= row[i] != 0;
        if (nonzero) return 0;
    }
    return 1;
}

/* Pack the next rows of X (into panels) and columns [first, last) of dY (into tiles of MR columns),
 * without rows of zeros, up to PACKED_ROWS. `chunk` and `row` are the position in the chunks, which
 * this advances. Return the number of packed rows. */
static int64_t F(pack_rows)(int64_t n, int64_t k, int64_t first, int64_t last,
                            const gdb_chunk **chunk, const gdb_chunk *end, int64_t *row, int skip_x,
                            T *right, T *left) {
    int64_t packed = 0;
    for (; *chunk < end; ++*chunk, *row = 0)
        for (; *row < (*chunk)->rows; ++*row) {
            const T *y = (const T *)(*chunk)->dy + *row * (*chunk)->dy_row;
            const T *x = (const T *)(*chunk)->x + *row * (*chunk)->x_row;
            if (packed == PACKED_ROWS) return packed;
            if (skip_x ? F(is_zero)(x, k) : F(is_zero)(y, n)) continue;
            for (int64_t j = 0; j < k; j += NR)
                F(pack)(x + j, 0, 1, 1, k - j < NR ? k - j : NR,
                        right + j * PACKED_ROWS + packed * F(width)(k, j));
            for (int64_t i = first; i < last; i += MR) {
                T *to = left + (i - first) * PACKED_ROWS + packed * MR;
                if (last - i >= MR) /* a copy of constant size */
                    memcpy(to, y + i, MR * sizeof(T));
                else
                    memcpy(to, y + i, (last - i) * sizeof(T));
            }
            packed++;
        }
    return packed;
}

/* Add dY X^T of each row, where dY is n x columns and X is k x columns. */
static void F(add_columns)(int64_t n, int64_t k, int64_t first, int64_t last,
                           const gdb_chunk *chunk, int64_t count, T *dw, int64_t dw_row,
                           int skip_x, int64_t columns, T *right) {
    for (const gdb_chunk *end = chunk + count; chunk < end; chunk++)
        for (int64_t row = 0; row < chunk->rows; row++) {
            const T *y = (const T *)chunk->dy + row * chunk->dy_row;
            const T *x = (const T *)chunk->x + row * chunk->x_row;
            if (skip_x ? F(is_zero)(x, k * columns) : F(is_zero)(y, n * columns)) continue;
            for (int64_t p = 0; p < columns; p += PACKED_ROWS) {
                int64_t depth = columns - p < PACKED_ROWS ? columns - p : PACKED_ROWS;
                F(pack)(x + p, 1, columns, depth, k, right);
                F(multiply_block)(last - first, k, depth, y + first * columns + p, MR * columns,
                                  columns, 1, right, 0, depth, 0, dw, dw_row, NULL, 1);
            }
        }
}

static void F(weight_gradient)(int64_t n, int64_t k, int64_t first, int64_t last,
                               const gdb_chunk *chunk, int64_t count, void *to, int64_t dw_row,
                               int skip_x, int64_t columns, void *scratch) {
    T *right = scratch, *left = right + F(packed_elements)(PACKED_ROWS, k);
    T *dw = (T *)to + first * dw_row;
    if (columns) {
        F(add_columns)(n, k, first, last, chunk, count, dw, dw_row, skip_x, columns, right);
        return;
    }
    const gdb_chunk *end = chunk + count;
    int64_t row = 0, packed;
    do {
        packed = F(pack_rows)(n, k, first, last, &chunk, end, &row, skip_x, right, left);
        F(multiply_block)(last - first, k, packed, left, PACKED_ROWS * MR, 1, MR, right, 0,
                          PACKED_ROWS, 0, dw, dw_row, NULL, 1);
    } while (packed == PACKED_ROWS);
}

static int64_t F(gradient_scratch)(int64_t n, int64_t k) {
    int64_t left = (n + MR - 1) / MR * MR * PACKED_ROWS;
    return (F(packed_elements)(PACKED_ROWS, k) + left) * sizeof(T);
}

/* Sum in double precision, 64 columns at a time. */
static void F(bias_gradient)(int64_t n, const gdb_chunk *chunks, int64_t count, void *to) {
    T *db = to;
    for (int64_t j = 0; j < n; j += 64) {
        int width = n - j < 64 ? (int)(n - j) : 64;
        double total[64] = {0};
        for (const gdb_chunk *chunk = chunks; chunk < chunks + count; chunk++) {
            const T *row = (const T *)chunk->dy + j;
            for (int64_t r = 0; r < chunk->rows; r++, row += chunk->dy_row)
                for (int i = 0; i < width; i++) total[i] += row[i];
        }
        for (int i = 0; i < width; i++) db[j + i] += (T)total[i];
    }
}
