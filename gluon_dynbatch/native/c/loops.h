/* Elementwise loops and reductions of rows, for one type and one instruction set. */

/* `n` is a multiple of 16. `out` may be an operand, but must not overlap one in part. */
#define LOOP(name, read, result) \
    static void F(op_##name)(void *out, const void *in0, const void *in1, const void *in2, \
                             int64_t n, double value, double value2) { \
        T *const to = out; \
        const T *const from0 = in0, *const from1 = in1, *const from2 = in2; \
        const T v = (T)value, v2 = (T)value2; \
        (void)from0, (void)from1, (void)from2, (void)v, (void)v2; \
        n &= ~(int64_t)15; \
        INDEPENDENT \
        for (int64_t i = 0; i < n; i++) { \
            read \
            to[i] = result; \
        } \
    }
#define READ_1 const T a = from0[i];
#define READ_2 READ_1 const T b = from1[i];
#define READ_3 READ_2 const T c = from2[i];
#define TRUTH(condition) ((condition) ? C(1.0) : C(0.0))

/* Long rows are reduced to `parts` partial results, which a tree combines. Their remaining columns,
 * and short rows, are reduced column by column, so that rows are independent iterations. */
#define REDUCTION(name, combine, type, parts) \
    static void F(name)(const void *from, int64_t rows, int64_t columns, double *accumulators) { \
        const T *x = from; \
        const int64_t whole = columns < 16 ? 0 : columns & -(int64_t)parts; \
        for (int64_t row = 0; row < rows && whole; row++, x += columns) { \
            type partial[parts]; \
            for (int k = 0; k < parts; k++) \
                partial[k] = x[k]; \
            for (int64_t i = parts; i < whole; i += parts) \
                for (int k = 0; k < parts; k++) \
                    partial[k] = F(combine)(x[i + k], partial[k]); \
            for (int half = parts / 2; half; half /= 2) \
                for (int k = 0; k < half; k++) \
                    partial[k] = F(combine)(partial[k], partial[k + half]); \
            accumulators[row] = F(combine)(partial[0], (type)accumulators[row]); \
        } \
        x = from; \
        for (int64_t i = whole; i < columns; i++) \
            for (int64_t row = 0; row < rows; row++) \
                accumulators[row] = F(combine)(x[row * columns + i], (type)accumulators[row]); \
    }

#define X(name, arity, result) LOOP(name, READ_##arity, result)
#include "codes.h"

static gdb_function *const F(functions)[] = {
#define X(name, arity, result) F(op_##name),
#include "codes.h"
};

static inline T F(maximum)(T a, T b) { return ((a > b) | (a != a)) ? a : b; }
static inline double F(sum)(double a, double b) { return a + b; }
static inline double F(times)(double a, double b) { return a * b; }

REDUCTION(accumulate_sums, sum, double, 8)
REDUCTION(accumulate_maxima, maximum, T, 32)
REDUCTION(accumulate_products, times, double, 8)
