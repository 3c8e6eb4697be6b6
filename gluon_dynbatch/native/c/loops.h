/* Loops over functions, and reductions, for one type and one instruction set. */
#ifndef GDB_LOOPS_H
#define GDB_LOOPS_H

/* Counts are multiples of 16; the output is an operand itself or lies apart from all of them. */
#define LOOP(name, read, expression) \
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
            to[i] = expression; \
        } \
    }
#define LOOP0(name, expression) LOOP(name, , expression)
#define LOOP1(name, expression) LOOP(name, const T a = from0[i];, expression)
#define LOOP2(name, expression) LOOP(name, const T a = from0[i]; const T b = from1[i];, expression)
#define LOOP3(name, expression) \
    LOOP(name, const T a = from0[i]; const T b = from1[i]; const T c = from2[i];, expression)
/* 0 or 1 */
#define TRUTH(name, condition) LOOP2(name, (condition) ? C(1.0) : C(0.0))
#define FUNCTION(name, arity) F(op_##name),

#endif

LOOP0(const, v)
LOOP0(ramp, v + i)
LOOP2(add, a + b)
LOOP2(sub, a - b)
LOOP2(mul, a * b)
LOOP2(div, a / b)
LOOP1(negative, -a)
LOOP1(reciprocal, C(1.0) / a)
LOOP1(square, a * a)
LOOP1(sqrt, M(sqrt)(a))
LOOP1(rsqrt, C(1.0) / M(sqrt)(a))
LOOP1(cbrt, M(cbrt)(a))
LOOP1(rcbrt, (T)(1 / WIDE_M(cbrt)((WIDE)a)))
LOOP1(abs, M(fabs)(a))
LOOP1(sign, (a > 0 ? C(1.0) : C(0.0)) - (a < 0 ? C(1.0) : C(0.0)))
LOOP1(exp, F(exp)(a))
LOOP1(expm1, F(expm1)(a))
LOOP1(log, F(log)(a))
LOOP1(log1p, F(log1p)(a))
LOOP1(log2, M(log2)(a))
LOOP1(log10, M(log10)(a))
LOOP1(sin, M(sin)(a))
LOOP1(cos, M(cos)(a))
LOOP1(tan, M(tan)(a))
LOOP1(arcsin, M(asin)(a))
LOOP1(arccos, M(acos)(a))
LOOP1(arctan, M(atan)(a))
LOOP1(sinh, M(sinh)(a))
LOOP1(cosh, M(cosh)(a))
LOOP1(tanh, F(tanh)(a))
LOOP1(arcsinh, M(asinh)(a))
LOOP1(arccosh, M(acosh)(a))
LOOP1(arctanh, M(atanh)(a))
LOOP1(sigmoid, F(sigmoid)(a))
LOOP1(softrelu, F(softrelu)(a))
LOOP1(softsign, a / (C(1.0) + M(fabs)(a)))
LOOP1(relu, a <= 0 ? C(0.0) : a)
LOOP1(hard_sigmoid, F(hard_sigmoid)(a, v, v2))
LOOP1(erf, F(erf)(a))
LOOP1(erfinv, F(erfinv)(a))
LOOP1(gamma, (T)WIDE_M(tgamma)((WIDE)a))
LOOP1(gammaln, F(gammaln)(a))
LOOP1(digamma, F(digamma)(a))
LOOP1(degrees, a * C(57.295779513082320877))
LOOP1(radians, a * C(0.017453292519943295769))
LOOP1(ceil, M(ceil)(a))
LOOP1(floor, M(floor)(a))
LOOP1(rint, F(rint)(a))
LOOP1(round, M(trunc)(a + M(copysign)(BELOW_HALF, a)))
LOOP1(fix, M(trunc)(a))
LOOP1(trunc, M(trunc)(a))
LOOP2(power, M(pow)(a, b))
LOOP2(mod, F(mod)(a, b))
LOOP2(hypot, M(hypot)(a, b))
LOOP2(maximum, ((a > b) | (a != a)) ? a : b)
LOOP2(greatest, ((a > b) | (a != a)) ? a : b)
LOOP2(minimum, ((a < b) | (a != a)) ? a : b)
TRUTH(equal, a == b)
TRUTH(not_equal, a != b)
TRUTH(greater, a > b)
TRUTH(greater_equal, a >= b)
TRUTH(lesser, a < b)
TRUTH(lesser_equal, a <= b)
TRUTH(logical_and, (a != 0) & (b != 0))
TRUTH(logical_or, (a != 0) | (b != 0))
TRUTH(logical_xor, (a != 0) ^ (b != 0))
LOOP1(logical_not, a == 0 ? C(1.0) : C(0.0))
LOOP3(select, a != 0 ? b : c)
LOOP1(clip, a > v2 ? v2 : (a < v ? v : a))
LOOP1(smooth_l1, F(smooth_l1)(a, v))
LOOP1(gelu, F(gelu)(a))
LOOP2(gate, a == 0 ? C(0.0) : a * b)

static gdb_function *const F(functions)[] = {GDB_CODES(FUNCTION)};

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
