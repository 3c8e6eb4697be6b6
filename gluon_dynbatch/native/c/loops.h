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
#define READ_0
#define READ_1 const T a = from0[i];
#define READ_2 READ_1 const T b = from1[i];
#define READ_3 READ_2 const T c = from2[i];
#define TRUTH(condition) ((condition) ? C(1.0) : C(0.0))

#endif

#define X(name, arity, result) LOOP(name, READ_##arity, result)
#include "codes.h"

static gdb_function *const F(functions)[] = {
#define X(name, arity, result) F(op_##name),
#include "codes.h"
};

/* Reductions of rows are in double precision and eight parts a row; short rows are taken column by
 * column, as many rows then go on at once. */
static void F(add_sums)(const void *from, int64_t rows, int64_t columns, double *total) {
    const T *x = from;
    const int64_t whole = columns < 16 ? 0 : columns & ~(int64_t)7;
    for (int64_t row = 0; row < rows && whole; row++) {
        double part[8] = {0};
        for (int64_t i = 0; i < whole; i += 8)
            for (int k = 0; k < 8; k++)
                part[k] += x[row * columns + i + k];
        total[row] += ((part[0] + part[4]) + (part[2] + part[6]))
            + ((part[1] + part[5]) + (part[3] + part[7]));
    }
    for (int64_t i = whole; i < columns; i++)
        for (int64_t row = 0; row < rows; row++)
            total[row] += x[row * columns + i];
}

static inline T F(greater)(T a, T b) { return ((a > b) | (a != a)) ? a : b; }

/* NaN is greater than all. */
static void F(raise_maxima)(const void *from, int64_t rows, int64_t columns, double *greatest) {
    const T *x = from;
    const int64_t whole = columns & ~(int64_t)31;
    for (int64_t row = 0; row < rows && whole; row++) {
        T part[32];
        memcpy(part, x + row * columns, sizeof part);
        for (int64_t i = 32; i < whole; i += 32)
            F(op_maximum)(part, x + row * columns + i, part, NULL, 32, 0, 0);
        for (int64_t half = 16; half; half /= 2)
            for (int64_t k = 0; k < half; k++)
                part[k] = F(greater)(part[k], part[k + half]);
        greatest[row] = F(greater)(part[0], (T)greatest[row]);
    }
    for (int64_t i = whole; i < columns; i++)
        for (int64_t row = 0; row < rows; row++)
            greatest[row] = F(greater)(x[row * columns + i], (T)greatest[row]);
}
