/* Functions of pointwise loops for integers.
 *
 * Like the processor, and so MXNet, they keep the last bits of sums and products that are too large.
 * A division by zero, which ends MXNet's process, is zero. */
#include "steps.h"

#include <math.h>

/* X(name, number of operands, result): as in codes.h, with the unsigned type U of the same size. */
#define FUNCTIONS \
    X(add, 2, (T)((U)a + (U)b)) \
    X(sub, 2, (T)((U)a - (U)b)) \
    X(mul, 2, (T)((U)a * (U)b)) \
    X(div, 2, b == 0 ? 0 : b == -1 ? (T)(0 - (U)a) : a / b) \
    X(mod, 2, (T)remainder_of((double)a, (double)b)) \
    X(floor, 1, a) \
    X(negative, 1, (T)(0 - (U)a)) \
    X(sign, 1, (T)((a > 0) - (a < 0))) \
    X(relu, 1, a <= 0 ? 0 : a) \
    X(maximum, 2, a > b ? a : b) \
    X(greatest, 2, a > b ? a : b) \
    X(minimum, 2, a < b ? a : b) \
    X(equal, 2, a == b) \
    X(not_equal, 2, a != b) \
    X(greater, 2, a > b) \
    X(greater_equal, 2, a >= b) \
    X(lesser, 2, a < b) \
    X(lesser_equal, 2, a <= b) \
    X(logical_and, 2, a && b) \
    X(logical_or, 2, a || b) \
    X(logical_xor, 2, !a != !b) \
    X(logical_not, 1, !a) \
    X(select, 3, a ? b : c) \
    X(clip, 1, a > v2 ? v2 : a < v ? v : a)

/* Return the remainder with the sign of the divisor, in double precision, as MXNet does. */
static inline double remainder_of(double a, double b) {
    const double rest = b == 0 ? 0 : fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

#define X(name, arity, result) \
    static void JOIN(name)(void *out, const void *in0, const void *in1, const void *in2, \
                           int64_t n, double value, double value2) { \
        const T *const from0 = in0, *const from1 = in1, *const from2 = in2; \
        const T v = (T)value, v2 = (T)value2; \
        (void)v, (void)v2; \
        for (int64_t i = 0; i < n; i++) { \
            const T a = from0[i], b = arity > 1 ? from1[i] : 0, c = arity > 2 ? from2[i] : 0; \
            (void)b, (void)c; \
            ((T *)out)[i] = result; \
        } \
    }

#define T int32_t
#define U uint32_t
#define JOIN(name) name##_int32
FUNCTIONS
#undef T
#undef U
#undef JOIN

#define T int64_t
#define U uint64_t
#define JOIN(name) name##_int64
FUNCTIONS
#undef T
#undef U
#undef JOIN
#undef X

static gdb_function *const of_int32[GDB_N_CODES] = {
#define X(name, arity, result) [GDB_##name] = name##_int32,
    FUNCTIONS
#undef X
};
static gdb_function *const of_int64[GDB_N_CODES] = {
#define X(name, arity, result) [GDB_##name] = name##_int64,
    FUNCTIONS
#undef X
};

gdb_function *const *gdb_integer_functions(int64_t dtype) {
    return dtype == GDB_INT32 ? of_int32 : of_int64;
}
