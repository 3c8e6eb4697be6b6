/* Gradients of weights and biases, sums over rows, for one type and one instruction set. */

INLINE int F(is_zero)(const void *elements, int64_t n) {
    const T *row = elements;
    if (n && row[0] != 0) return 0;
    for (int64_t j = 0; j < n; j += 64) {
        int nonzero = 0;
        for (int64_t i = j; i < n && i < j + 64; i++) nonzero |= row[i] != 0;
        if (nonzero) return 0;
    }
    return 1;
}

/* X is packed into panels and, after it, dY into tiles of MR columns. */
static int64_t F(packed_pairs)(int64_t n, int64_t k) {
    return F(packed_elements)(GDB_PAIRS, k) + (n + MR - 1) / MR * MR * GDB_PAIRS;
}

static void F(pack_pairs)(const gdb_pair *pairs, int64_t count, int64_t first, int64_t n,
                          int64_t left, int64_t k, T *packed_y, T *packed_x) {
    for (int64_t p = 0; p < count; p++) {
        const T *x = (const T *)pairs[p].x + left, *y = (const T *)pairs[p].dy + first;
        for (int64_t j = 0; j < k; j += NR)
            F(pack)(x + j, 0, 1, 1, k - j < NR ? k - j : NR,
                    packed_x + j * GDB_PAIRS + p * F(width)(k, j));
        for (int64_t i = 0; i < n; i += MR) {
            T *to = packed_y + i * GDB_PAIRS + p * MR;
            if (n - i >= MR) /* a copy of constant size */
                memcpy(to, y + i, MR * sizeof(T));
            else
                memcpy(to, y + i, (n - i) * sizeof(T));
        }
    }
}

static void F(multiply_pairs)(const gdb_pair *pairs, int64_t count, int64_t first, int64_t last,
                              int64_t left, int64_t right, int64_t dw_row, void *dw,
                              void *scratch) {
    const int64_t n = last - first, k = right - left;
    T *x = scratch, *y = x + F(packed_elements)(GDB_PAIRS, k);
    F(pack_pairs)(pairs, count, first, n, left, k, y, x);
    F(multiply_block)(n, k, count, y, GDB_PAIRS * MR, 1, MR, x, 0, GDB_PAIRS, 0,
                      (T *)dw + first * dw_row + left, dw_row, NULL, 1);
}

static void F(add_columns)(int64_t n, int64_t k, int64_t first, int64_t last,
                           const gdb_chunk *chunk, int64_t count, void *to, int skip_x,
                           int64_t columns, void *right) {
    T *dw = (T *)to + first * k;
    for (const gdb_chunk *end = chunk + count; chunk < end; chunk++)
        for (int64_t row = 0; row < chunk->rows; row++) {
            const T *y = (const T *)chunk->dy + row * chunk->dy_row;
            const T *x = (const T *)chunk->x + row * chunk->x_row;
            if (skip_x ? F(is_zero)(x, k * columns) : F(is_zero)(y, n * columns)) continue;
            for (int64_t p = 0; p < columns; p += GDB_PAIRS) {
                int64_t depth = columns - p < GDB_PAIRS ? columns - p : GDB_PAIRS;
                F(pack)(x + p, 1, columns, depth, k, right);
                F(multiply_block)(last - first, k, depth, y + first * columns + p, MR * columns,
                                  columns, 1, right, 0, depth, 0, dw, k, NULL, 1);
            }
        }
}

/* Sum in double precision, 64 columns at a time. */
static void F(bias_gradient)(int64_t first, int64_t last, const gdb_chunk *chunks, int64_t count,
                             void *to) {
    T *db = to;
    for (int64_t j = first; j < last; j += 64) {
        int width = last - j < 64 ? (int)(last - j) : 64;
        double total[64] = {0};
        for (const gdb_chunk *chunk = chunks; chunk < chunks + count; chunk++) {
            const T *row = (const T *)chunk->dy + j;
            for (int64_t r = 0; r < chunk->rows; r++, row += chunk->dy_row)
                for (int i = 0; i < width; i++) total[i] += row[i];
        }
        for (int i = 0; i < width; i++) db[j + i] += (T)total[i];
    }
}

/* Add the sums of maps of `size` elements to the gradient of their biases. */
static void F(add_bias_gradient)(int64_t maps, int64_t size, const T *dy, T *db) {
    for (int64_t f = 0; f < maps; f++) {
        double total = db[f];
        F(accumulate_sums)(dy + f * size, 1, size, &total);
        db[f] = (T)total;
    }
}
