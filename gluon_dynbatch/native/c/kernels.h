/* Elementwise functions, reductions, matrix products and convolutions, for each type and each
 * instruction set.
 *
 * Chunks, maps and pairs are plain values, and the tables of functions are constants.
 *
 * All may be called from any thread, without the GIL; none allocates memory. Scratch is aligned to
 * 64 bytes. Sizes and strides are in elements; `x_row` is the stride between rows of `x`. A product
 * of few rows with a parameter takes no longer than reading the parameter.
 */
#ifndef GDB_KERNELS_H
#define GDB_KERNELS_H

#include <stdint.h>

/* Integers are computed by loops only. Booleans, of one byte, are converted by loads and stores. */
enum { GDB_FLOAT32, GDB_FLOAT64, GDB_INT32, GDB_INT64, GDB_BOOL };

/* Rows of dY and of X, whose products add up to the gradient of a weight. */
typedef struct {
    int64_t rows;
    const void *dy;
    int64_t dy_row;
    const void *x;
    int64_t x_row;
} gdb_chunk;

/* A convolution of feature maps, or one of its gradients. A row has `images` times `groups` times
 * `channels` maps of data, and `filters` instead of `channels` maps of the result. Arrays of two
 * have one number per axis; `data`, `result` and `kernel` are sizes. */
enum { GDB_OF_RESULT, GDB_OF_DATA, GDB_OF_KERNEL };
typedef struct {
    int64_t of, images, groups, channels, filters;
    int64_t data[2], result[2], kernel[2], stride[2], dilate[2], pad[2];
} gdb_maps;

/* What is done with each element of a result: something is added, and if the sum is not above zero, it
 * becomes zero. GDB_RELU keeps what is not a number. */
enum { GDB_AS_IT_IS, GDB_RELU, GDB_RECTIFIED };
typedef struct {
    const void *added; /* or NULL */
    int64_t added_row, function;
} gdb_ending;

/* A convolution of rows: what it multiplies with, its biases or NULL, and its ending, which is for
 * results. If `right_row` is 0, all rows share `right`. */
typedef struct {
    const gdb_maps *maps;
    const void *right;
    int64_t right_row;
    const void *bias;
    gdb_ending ending;
} gdb_link;
enum { GDB_MOST_LINKS = 8 }; /* that are computed together */

/* Apply a function of up to three operands to `n` elements, a multiple of 16. */
typedef void gdb_function(void *out, const void *a, const void *b, const void *c, int64_t n,
                          double value, double value2);
/* Reduce each row of `columns` elements into its accumulator. */
typedef void gdb_reduction(const void *from, int64_t rows, int64_t columns, double *accumulators);

/* Rows of dY and of X at once, to which the gradient of a weight adds. */
enum { GDB_PAIRS = 250 }; /* packed strides of a power of two would conflict in caches */
typedef struct {
    const void *dy, *x;
} gdb_pair;

typedef struct {
    gdb_function *const *functions; /* by code, see steps.h */
    gdb_reduction *accumulate_sums, *accumulate_maxima, *accumulate_products;

    /* Rows and columns of a product that are computed at once. Each of its elements has the same
     * bits however rows and, by multiples of these, columns are shared out. */
    int64_t tile_rows, panel_columns;

    /* Return the number of elements of a packed k x n matrix. */
    int64_t (*packed_elements)(int64_t k, int64_t n);

    /* Pack B, k x n, with B[p][j] = b[p * row_stride + j * column_stride]. If `packed` is aligned
     * to 64 bytes, products of few rows are up to 1.5 times as fast. */
    void (*pack)(const void *b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
                 void *packed);

    /* C = A B + bias, or C += A B + bias if `accumulate`. A is m x k, with strides between rows and
     * between columns; B is packed; `bias` has n elements or is NULL. */
    void (*multiply)(int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row,
                     int64_t a_column, const void *packed, void *c, int64_t c_row, const void *bias,
                     int accumulate);

    /* Return the elements of scratch of `multiply_panels`. */
    int64_t (*panel_elements)(int64_t k, int64_t n);

    /* The same as `multiply`, with the same bits, for a B that is not packed, with strides between rows
     * and between columns: each panel of it is packed into `panel` when it is its turn. That is for
     * rows that only one product has. */
    void (*multiply_panels)(int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row,
                            int64_t a_column, const void *b, int64_t b_row, int64_t b_column,
                            void *c, int64_t c_row, const void *bias, int accumulate, void *panel);

    /* The same as `multiply` for few rows and B = W^T, where W is n x k and not packed: packing it
     * would take longer than the product. */
    void (*multiply_few)(int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row,
                         const void *w, int64_t w_row, void *c, int64_t c_row, const void *bias,
                         int accumulate);

    /* Return whether all of n elements are zero. */
    int (*is_zero)(const void *elements, int64_t n);

    /* The gradient of a weight is the sum of dY^T X over all rows of chunks: pairs of rows that are
     * not zero are found in their order, and multiplied, at most GDB_PAIRS at once. */

    /* Return the elements of scratch for n columns of dY and k of X. */
    int64_t (*packed_pairs)(int64_t n, int64_t k);

    /* Pack columns [first, last) of dY and [left, right) of X of some pairs, and add their products
     * to these rows and columns of dW, whose rows are `dw_row` apart; `first` is a multiple of
     * `tile_rows`, `left` of `panel_columns`. */
    void (*multiply_pairs)(const gdb_pair *pairs, int64_t count, int64_t first, int64_t last,
                           int64_t left, int64_t right, int64_t dw_row, void *dw, void *scratch);

    /* The same sum, if each row has two matrices, dY of n x columns and X of k x columns: add
     * dY X^T to rows [first, last) of dW. */
    void (*add_columns)(int64_t n, int64_t k, int64_t first, int64_t last, const gdb_chunk *chunks,
                        int64_t count, void *dw, int skip_x, int64_t columns, void *scratch);

    /* Add the sum of columns [first, last) of all rows of dY to `db`. */
    void (*bias_gradient)(int64_t first, int64_t last, const gdb_chunk *chunks, int64_t count,
                          void *db);

    /* Return how many of `count` convolutions, the first at least, are best computed together: each
     * reads the result of the one before, to which nothing is added, and which nothing else reads.
     * Only sizes and functions of endings are read. */
    int64_t (*chain_length)(const gdb_link *links, int64_t count);

    /* Return the bytes of scratch to convolve so many. */
    int64_t (*convolve_scratch)(const gdb_link *links, int64_t count);

    /* For each row, compute what `maps->of` says, of one convolution, or the result of the last of
     * several that `chain_length` counts:
     *
     * GDB_OF_RESULT   the result, of left = data, right = kernel, and `bias`
     * GDB_OF_DATA     the gradient of the data, of left = gradient of the result, right = kernel
     * GDB_OF_KERNEL   the gradients of the kernel and, after it, of the bias, of left = gradient of
     *                 the result, right = data; where left is zero they are, even if the data are
     *                 not finite
     *
     * If this is done `again`, nothing else has written to scratch since the same convolutions with
     * the same `right` and `bias`: what was made from these, for all rows, is still there. */
    void (*convolve)(const gdb_link *links, int64_t count, int64_t rows, const void *left,
                     int64_t left_row, void *result, int64_t result_row, void *scratch, int again);

    /* Write random numbers in [0, 1), those of some columns of a row.  They depend on nothing but
     * the key, the two numbers that identify the row, the number of the draw, and the column. */
    void (*uniform)(const uint32_t *key, const uint32_t *row, uint32_t draw, int64_t first,
                    int64_t columns, void *numbers);
} gdb_kernels;

/* Return the kernels of a type for the active instruction set. */
const gdb_kernels *gdb_kernels_of(int dtype);

/* Return the name of the i-th instruction set that this processor supports, the best first, or
 * NULL. */
const char *gdb_instruction_set(int i);

/* Activate an instruction set (NULL: the best); return 0 if it is not supported. For tests: the
 * first kernel that runs activates the best. Matrices packed for one set cannot be used by another.
 */
int gdb_use_instruction_set(const char *name);

#endif
