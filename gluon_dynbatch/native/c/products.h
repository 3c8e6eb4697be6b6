/* Matrix products of rows with a parameter: for few rows as fast as reading the parameter allows.
 *
 * All functions may be called from any thread and without the GIL; they allocate nothing. `dtype`
 * is 0 for float, 1 for double; sizes are in elements, `x_row` is the stride between rows of `x`.
 */
#ifndef GDB_PRODUCTS_H
#define GDB_PRODUCTS_H

#include <stdint.h>

/* Instruction sets, by what they are worth. On anything but x86 there is only the first one. */
enum { GDB_BASELINE, GDB_AVX2, GDB_AVX512, GDB_ISAS };

/* Use the best instruction set up to `most` that this processor has, and return it. For tests; the
 * best of all is used without it. What was packed for one instruction set is unfit for another. */
int gdb_products_isa(int most);

/* Elements that a packed k x n matrix takes. */
int64_t gdb_packed_elements(int dtype, int64_t k, int64_t n);

/* Pack B, k x n, with B[p][j] = b[p * row_stride + j * column_stride]. If `packed` begins at a
 * multiple of 64 bytes, products of few rows are up to 1.5 times as fast. */
void gdb_pack(int dtype, const void *b, int64_t row_stride, int64_t column_stride, int64_t k,
              int64_t n, void *packed);

/* C = A B + bias, or C += A B + bias; A is m x k, B packed, `bias` has n elements or is NULL. */
void gdb_multiply(int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row,
                  const void *packed, void *c, int64_t c_row, const void *bias, int accumulate);

/* The same for few rows and a B that is the transpose of W, n x k, as it is: to pack it for them
 * would take longer. */
void gdb_multiply_few(int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row,
                      const void *w, int64_t w_row, void *c, int64_t c_row, const void *bias,
                      int accumulate);

/* Bytes of scratch that gdb_weight_gradient takes; each thread needs its own. */
int64_t gdb_weight_gradient_scratch(int dtype, int64_t n, int64_t k);

/* How a weight gradient is computed: added to dW; rows are skipped where X, not dY, is zero. */
enum { GDB_ACCUMULATE = 1, GDB_SKIP_X = 2 };

/* Rows first to last (excluded) of dW, n x k: the sum of dY^T X over chunks of rows, dY[i] being
 * rows[i] x n and X[i] rows[i] x k. A row that is zero in all of dY adds nothing, whatever X is. */
void gdb_weight_gradient(int dtype, int64_t n, int64_t k, int64_t first, int64_t last,
                         int64_t chunks, const int64_t *rows, const void *const *dy,
                         const int64_t *dy_row, const void *const *x, const int64_t *x_row,
                         void *dw, int64_t dw_row, int how, void *scratch);

/* The sum of the rows of all chunks, or its addition to db. */
void gdb_bias_gradient(int dtype, int64_t n, int64_t chunks, const int64_t *rows,
                       const void *const *dy, const int64_t *dy_row, void *db, int accumulate);

#endif
