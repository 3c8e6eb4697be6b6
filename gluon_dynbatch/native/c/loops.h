/* Loops over functions, and reductions, for one type and one instruction set. */
#ifndef GDB_LOOPS_H
#define GDB_LOOPS_H

/* Counts are multiples of 16; the output is an operand itself or lies apart from all of them. */
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

/* Rows are reduced in several parts, of which the halves are combined; what is left over, and short
 * rows, are taken column by column, as many rows then go on at once. */
#define REDUCTION(name, combine, type, parts) \
    static void F(name)(const void *from, int64_t rows, int64_t columns, double *found) { \
        const T *x = from; \
        const int64_t whole = columns < 16 ? 0 : columns & -(int64_t)parts; \
        for (int64_t row = 0; row < rows && whole; row++, x += columns) { \
            type part[parts]; \
            for (int k = 0; k < parts; k++) \
                part[k] = x[k]; \
            for (int64_t i = parts; i < whole; i += parts) \
                for (int k = 0; k < parts; k++) \
                    part[k] = F(combine)(x[i + k], part[k]); \
            for (int half = parts / 2; half; half /= 2) \
                for (int k = 0; k < half; k++) \
                    part[k] = F(combine)(part[k], part[k + half]); \
            found[row] = F(combine)(part[0], (type)found[row]); \
        } \
        x = from; \
        for (int64_t i = whole; i < columns; i++) \
            for (int64_t row = 0; row < rows; row++) \
                found[row] = F(combine)(x[row * columns + i], (type)found[row]); \
    }

#endif

#define X(name, arity, result) LOOP(name, READ_##arity, result)
#include "codes.h"

static gdb_function *const F(functions)[] = {
#define X(name, arity, result) F(op_##name),
#include "codes.h"
};

static inline T F(greater)(T a, T b) { return ((a > b) | (a != a)) ? a : b; }
static inline double F(sum)(double a, double b) { return a + b; }

REDUCTION(add_sums, sum, double, 8)
REDUCTION(raise_maxima, greater, T, 32)
