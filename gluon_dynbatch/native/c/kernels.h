/* Loops over numbers and matrix products, for each type and for each instruction set.
 *
 * All may be called from any thread and without the GIL; they allocate nothing. Sizes are in
 * elements, `x_row` is the stride between rows of `x`. Products of few rows with a parameter are as
 * fast as reading the parameter allows.
 */
#ifndef GDB_KERNELS_H
#define GDB_KERNELS_H

#include <stdint.h>

enum { GDB_FLOAT32, GDB_FLOAT64, GDB_INT32, GDB_INT64 }; /* kernels compute with the first two */

/* What adds up to a gradient: rows of dY, and of what they are multiplied with. */
typedef struct {
    int64_t rows;
    const void *dy;
    int64_t dy_row;
    const void *x;
    int64_t x_row;
} gdb_chunk;

/* A convolution of maps, or one of its gradients: images of a row, groups, maps of a group that are
 * read and made, and sizes per axis, those of maps first. */
enum { GDB_OF_RESULT, GDB_OF_DATA, GDB_OF_KERNEL };
typedef struct {
    int64_t of, images, groups, channels, filters;
    int64_t data[2], result[2], kernel[2], stride[2], dilate[2], pad[2];
} gdb_maps;

/* A function of up to three operands; `n` is a multiple of 16. */
typedef void gdb_function(void *out, const void *a, const void *b, const void *c, int64_t n,
                          double value, double value2);
/* Go on with sums, or maxima, of rows of so many columns. */
typedef void gdb_reduction(const void *from, int64_t rows, int64_t columns, double *so_far);

typedef struct {
    gdb_function *const *functions; /* by code, see steps.h */
    gdb_reduction *add_sums, *raise_maxima;

    /* Elements that a packed k x n matrix takes. */
    int64_t (*packed_elements)(int64_t k, int64_t n);

    /* Pack B, k x n, with B[p][j] = b[p * row_stride + j * column_stride]. If `packed` begins at a
     * multiple of 64 bytes, products of few rows are up to 1.5 times as fast. */
    void (*pack)(const void *b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
                 void *packed);

    /* C = A B + bias, or C += A B + bias; A is m x k, with strides between rows and between columns,
     * B packed, `bias` has n elements or is NULL. */
    void (*multiply)(int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row, int64_t a_column,
                     const void *packed, void *c, int64_t c_row, const void *bias, int accumulate);

    /* C = A B for a small B whose rows lie one after another, as do those of C; or return 0: such a B
     * is to be packed. */
    int (*multiply_small)(int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row,
                          int64_t a_column, const void *b, void *c);

    /* The same for few rows and a B that is the transpose of W, n x k, as it is: to pack it for
     * them would take longer. */
    void (*multiply_few)(int64_t m, int64_t n, int64_t k, const void *a, int64_t a_row,
                         const void *w, int64_t w_row, void *c, int64_t c_row, const void *bias,
                         int accumulate);

    /* Whether numbers are all zero. */
    int (*is_zero)(const void *numbers, int64_t n);

    /* Bytes of scratch that weight_gradient takes; each thread needs its own. */
    int64_t (*gradient_scratch)(int64_t n, int64_t k);

    /* Add the sum of dY^T X to rows first to last (excluded) of dW, n x k. A row that is zero in all
     * of dY, or of X if `skip_x`, adds nothing, whatever is in the other. If `columns` is not 0, each
     * row has two matrices, n x columns and k x columns, and what adds up is one times the transpose
     * of the other. */
    void (*weight_gradient)(int64_t n, int64_t k, int64_t first, int64_t last,
                            const gdb_chunk *chunks, int64_t count, void *dw, int64_t dw_row,
                            int skip_x, int64_t columns, void *scratch);

    /* Add the sum of the rows of dY. */
    void (*bias_gradient)(int64_t n, const gdb_chunk *chunks, int64_t count, void *db);

    /* Bytes of scratch that convolve takes. */
    int64_t (*maps_scratch)(const gdb_maps *maps);

    /* For each row, of data and kernel the result; of the gradient of the result, with the kernel that
     * of the data, with the data those of the kernel and, behind it, of the bias. These are zero if
     * the first is, whatever is in the other. `bias` may be NULL. */
    void (*convolve)(const gdb_maps *maps, int64_t rows, const void *left, int64_t left_row,
                     const void *right, int64_t right_row, const void *bias, void *result,
                     int64_t result_row, void *scratch);
} gdb_kernels;

/* Return the kernels of a type for the instruction set that is in use. */
const gdb_kernels *gdb_kernels_of(int dtype);

/* Return the name of the i-th instruction set that this processor can run, the best first, or NULL. */
const char *gdb_instruction_set(int i);

/* Use an instruction set (NULL: the best) from now on; return 0 if there is none such. For tests: the
 * best is chosen when the first kernel runs. What was packed for one is unfit for another. */
int gdb_use_instruction_set(const char *name);

enum { GDB_MOST_THREADS = 64 };

/* Call `work` in up to `count` threads at once, at most GDB_MOST_THREADS, and return when all calls
 * have returned; the calling thread is number 0. There are fewer if no more can be made. So `work` has
 * to take what is to be done piece by piece, until nothing is left. */
void gdb_together(void (*work)(void *given, int number), void *given, int count);

#endif
