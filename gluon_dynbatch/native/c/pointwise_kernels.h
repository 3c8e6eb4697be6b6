/* The kernels of one number type for one instruction set: included by pointwise.c for each of them.
 *
 * Whoever includes this defines GDB_DOUBLE (1 or 0) and GDB_SET (a name to tell copies apart).
 * Functions are free of branches where compilers are to vectorize the loops around them. They are
 * within 4 units in the last place with and without contraction into fused multiply-adds, and need
 * IEEE arithmetic: never compile this with -ffast-math. Polynomials were fitted by iteratively
 * reweighted least squares (Lawson 1961). Argument reductions are those of Cody & Waite, "Software
 * Manual for the Elementary Functions" (1980).
 */
#define GDB_PASTE3(a, b, c) a##_##b##_##c
#define GDB_NAME3(a, b, c) GDB_PASTE3(a, b, c)
#define DOUBLE_NAME(name) GDB_NAME3(name, f64, GDB_SET)
#if GDB_DOUBLE
#define T double
#define WIDE long double
#define BITS int64_t
#define UNSIGNED uint64_t
#define LGAMMA lgammal_r
#define F(name) GDB_NAME3(name, f64, GDB_SET)
#define M(name) name
#define WIDE_M(name) name##l
#define C(number) number
#define MANTISSA 52
#define ROUNDER 0x1.8p52  /* adding it leaves an integer in the low bits */
#define LN2_HIGH 0x1.62e42fefap-1
#define LN2_LOW 0x1.cf79abc9e3b39p-40
#define EXP_MIN -746.0
#define EXP_MAX 710.0
#define BELOW_HALF 0x1.fffffffffffffp-2
#else
#define T float
#define WIDE double
#define BITS int32_t
#define UNSIGNED uint32_t
#define LGAMMA lgamma_r
#define F(name) GDB_NAME3(name, f32, GDB_SET)
#define M(name) name##f
#define WIDE_M(name) name
#define C(number) number##f
#define MANTISSA 23
#define ROUNDER 0x1.8p23f
#define LN2_HIGH 0x1.62ep-1f
#define LN2_LOW 3.19461849e-5f
#define EXP_MIN -104.0f
#define EXP_MAX 89.0f
#define BELOW_HALF 0x1.fffffep-2f
#endif
#define BIAS ((1 << (sizeof(T) == 8 ? 10 : 7)) - 1)

typedef union { T number; BITS bits; } F(pun);

static inline BITS F(bits)(T x) { return ((F(pun)){.number = x}).bits; }
static inline T F(number)(BITS x) { return ((F(pun)){.bits = x}).number; }

static inline T F(nearest)(T x) { return (x + ROUNDER) - ROUNDER; }

/* 2^n for an integer n within the exponents of normal numbers. */
static inline T F(pow2)(T n) {
    return F(number)((BITS)((UNSIGNED)F(bits)(n + (ROUNDER + BIAS)) << MANTISSA));
}

/* ------------------------------------------------------------------ exponential functions */

/* Return r with x = n ln 2 + r, |r| < 0.35. */
static inline T F(reduce)(T x, T *n) {
    *n = F(nearest)(x * C(1.4426950408889634074));
    return (x - *n * LN2_HIGH) - *n * LN2_LOW;
}

/* Return (exp(r) - 1 - r) / r. */
static inline T F(exp_tail)(T r) {
#if GDB_DOUBLE
    T q = 0x1.af753dcc04cd9p-26;
    q = q * r + 0x1.28a3ae999171fp-22;
    q = q * r + 0x1.71ddeaf73c5d5p-19;
    q = q * r + 0x1.a019a58a41358p-16;
    q = q * r + 0x1.a01a01b5666fcp-13;
    q = q * r + 0x1.6c16c17f87f9fp-10;
    q = q * r + 0x1.111111110e838p-7;
    q = q * r + 0x1.5555555551fc6p-5;
    q = q * r + 0x1.555555555555cp-3;
#else
    T q = 0.0013946745f;
    q = q * r + 0.0083667561f;
    q = q * r + 0.0416662768f;
    q = q * r + 0.1666654199f;
#endif
    return (q * r + C(0.5)) * r;
}

/* exp(x) for x up to EXP_MAX. */
static inline T F(exp_below)(T x) {
    T n;
    x = x < EXP_MIN ? EXP_MIN : x;
    const T r = F(reduce)(x, &n), half = F(nearest)(n * C(0.5));
    /* In two steps, as a result may be denormal or the largest power not a number. */
    return (C(1.0) + (r + r * F(exp_tail)(r))) * F(pow2)(half) * F(pow2)(n - half);
}

static inline T F(exp)(T x) { return F(exp_below)(x > EXP_MAX ? EXP_MAX : x); }

static inline T F(expm1)(T x) {
    T n, y = x > EXP_MAX ? EXP_MAX : x;
    y = y < C(-40.0) ? C(-40.0) : y;
    const T r = F(reduce)(y, &n), p = r + r * F(exp_tail)(r), s = F(pow2)(n - C(1.0));
    y = n == 0 ? p : (s * p + (s - C(0.5))) * C(2.0);
    return M(copysign)(y, x);
}

static inline T F(tanh)(T x) {
    /* -e / (2 + e) with e = expm1(-2 |x|). */
    T n, y = C(-2.0) * M(fabs)(x);
    y = y < C(-40.0) ? C(-40.0) : y;
    const T r = F(reduce)(y, &n), p = r + r * F(exp_tail)(r), s = F(pow2)(n);
    const T e = s * p + (s - C(1.0));
    return M(copysign)(e / (C(2.0) + e), x);
}

static inline T F(sigmoid)(T x) {
    const T e = F(exp_below)(-M(fabs)(x));
    return (x < 0 ? e : C(1.0)) / (C(1.0) + e);
}

/* ------------------------------------------------------------------ logarithms */
#if GDB_DOUBLE
static inline T F(log)(T x) { return log(x); }
static inline T F(log1p_above)(T x) { return log1p(x); }
static inline T F(log1p)(T x) { return log1p(x); }
static inline T F(log2)(T x) { return log2(x); }
static inline T F(log10)(T x) { return log10(x); }
#else
/* Return m in [sqrt(1/2), sqrt(2)) with x = m 2^n for a normal number x. */
static inline T F(split)(T x, T *n) {
    const uint32_t root = 0x3f3504f3, i = (uint32_t)F(bits)(x) - root;
    *n = (T)((int32_t)i >> 23);
    return F(number)((int32_t)((i & 0x007fffff) + root));
}

/* Return log(1 + f) - f for f within 0.42 of 0. */
static inline T F(log_tail)(T f) {
    T q = -0.0764022693f;
    q = q * f + 0.1277030855f;
    q = q * f - 0.1316219568f;
    q = q * f + 0.1420073509f;
    q = q * f - 0.1662306041f;
    q = q * f + 0.2000125945f;
    q = q * f - 0.2500082850f;
    q = q * f + 0.3333333135f;
    return f * f * (f * q - 0.5f);
}

/* Return the limits of a logarithm at and beyond 0 and at infinity, `y` elsewhere. */
static inline T F(log_ends)(T x, T y) {
    y = x > 0 ? y : (x == 0 ? -INFINITY : NAN);
    return x == INFINITY ? x : y;
}

static inline T F(split_any)(T x, T *n) {
    const int denormal = x < 0x1p-126f;
    const T m = F(split)(denormal ? x * 0x1p23f : x, n);
    *n = denormal ? *n - 23 : *n;
    return m;
}

static inline T F(log)(T x) {
    T n;
    const T f = F(split_any)(x, &n) - 1;
    return F(log_ends)(x, n * LN2_HIGH + (f + (F(log_tail)(f) + n * LN2_LOW)));
}

static inline T F(log2)(T x) {
    T n;
    const T f = F(split_any)(x, &n) - 1;
    return F(log_ends)(x, n + (f + F(log_tail)(f)) * 1.44269504f);
}

static inline T F(log10)(T x) {
    T n;
    const T f = F(split_any)(x, &n) - 1;
    const T low = (f + F(log_tail)(f)) * 0.434294482f + n * 4.60503898e-6f;
    return F(log_ends)(x, n * 0x1.344p-2f + low);
}

/* log1p(x) for finite x above -1. */
static inline T F(log1p_above)(T x) {
    /* 1 + x = u + c exactly. */
    const T u = 1 + x, c = x >= 1 ? 1 - (u - x) : x - (u - 1);
    T n;
    const T m = F(split)(u, &n), f = (m - 1) + c * F(pow2)(n > 100 ? -100 : -n);
    return n * LN2_HIGH + (f + (F(log_tail)(f) + n * LN2_LOW));
}

static inline T F(log1p)(T x) {
    return M(copysign)(F(log_ends)(1 + x, F(log1p_above)(x)), x);
}
#endif

static inline T F(softrelu)(T x) {
    return (x > 0 ? x : 0) + F(log1p_above)(F(exp_below)(-M(fabs)(x)));
}

/* ------------------------------------------------------------------ error function, normal cdf */
#if GDB_DOUBLE
static inline T F(erf)(T x) { return erf(x); }

static inline T F(gelu)(T x) {
    return (T)(0.5L * x * erfcl(x * -0.70710678118654752440084436210484903928L));
}
#else
static inline T F(erf)(T x) {
    const T a = M(fabs)(x) > 4 ? 4 : M(fabs)(x), u = a * a;
    T p = -0.00059657975f;
    p = p * u + 0.00498830620f;
    p = p * u - 0.02676332928f;
    p = p * u + 0.11281726509f;
    p = p * u - 0.37612485886f;
    p = p * u + 1.12837910652f;
    T q = 2.09095542e-05f;  /* -log(erfc(a)) */
    q = q * a - 0.00043230300f;
    q = q * a + 0.00416052714f;
    q = q * a - 0.02509149723f;
    q = q * a + 0.10823661834f;
    q = q * a + 0.63338667154f;
    q = q * a + 1.12949514389f;
    q = q * a - 0.00017055202f;
    return M(copysign)(a < 0.92f ? a * p : 1 - F(exp_below)(-q), x);
}

/* In double precision: exp(-z^2) multiplies the rounding of z^2 by itself. For the polynomial in
 * (z - 3.75) / (z + 3.75) see Shepherd & Laframboise, Mathematics of Computation 36 (1981). */
static inline T F(gelu)(T x) {
    double z = fabs((double)x) * 0.70710678118654752440;
    z = z > 30 ? 30 : z;
    const double t = (z - 3.75) / (z + 3.75);
    double p = -0x1.022cd2ac48785p-12;
    p = p * t + 0x1.8b161e487361ep-12;
    p = p * t + 0x1.c336fec8b765dp-10;
    p = p * t - 0x1.415af1c727723p-7;
    p = p * t + 0x1.d0e74cee20098p-6;
    p = p * t - 0x1.e0a41b10e390bp-5;
    p = p * t + 0x1.7a1169abf1656p-4;
    p = p * t - 0x1.bdacdd657f422p-4;
    p = p * t + 0x1.5101a78ed8892p-4;
    p = p * t + 0x1.d5f9afe1d0ab3p-9;
    p = p * t - 0x1.1f367767a7e57p-3;
    p = p * t + 0x1.3ccda0acf0badp+0;
    const double beyond = 0.5 * DOUBLE_NAME(exp_below)(-z * z) * p / (1 + 2 * z);
    return (T)(x * (x < 0 ? beyond : 1 - beyond));
}
#endif

static inline T F(erfinv)(T y) {
    const double a = fabs((double)y);
    if (!(a < 1))
        return a == 1 ? (T)(y * INFINITY) : NAN;
    if (a < 1e-8)
        return (T)(y * 0.88622692545275801365);
    /* From the first guess of Winitzki (2008) by Halley's steps. */
    const double l = log1p(-a * a), h = 4.3307 + 0.5 * l;
    double x = sqrt(sqrt(h * h - l * 6.8027) - h);
    for (int step = 0; step < 3; step++) {
        const double error = a < 0.5 ? erf(x) - a : (1 - a) - erfc(x);
        const double newton = error / (1.12837916709551257390 * exp(-x * x));
        x -= newton / (1 + x * newton);
    }
    return (T)copysign(x, (double)y);
}

/* ------------------------------------------------------------------ trigonometric functions */
#if GDB_DOUBLE
static int F(within_reduction)(const T *x, int64_t n) { (void)x, (void)n; return 0; }
static inline T F(sine)(T x, int quarter) { return quarter ? cos(x) : sin(x); }
#else
static int F(within_reduction)(const T *x, int64_t n) {
    int beyond = 0;
    for (int64_t i = 0; i < n; i++)
        beyond |= !(M(fabs)(x[i]) < 1e6f);
    return !beyond;
}

/* sin(x + quarter pi / 2) for |x| below 1e6. */
static inline T F(sine)(T x, int quarter) {
    const double turns = x * 0.63661977236758134308 + 0x1.8p52, n = turns - 0x1.8p52;
    const double r = (x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34, u = r * r;
    const int64_t quadrant = DOUBLE_NAME(bits)(turns) + quarter;
    double s = 0x1.6cd5eb21db521p-19;
    s = s * u - 0x1.a00f93938b386p-13;
    s = s * u + 0x1.11110889ee97cp-7;
    s = s * u - 0x1.5555554ca9239p-3;
    double c = 0x1.99ff3e4a75ef4p-16;
    c = c * u - 0x1.6c0c814509efdp-10;
    c = c * u + 0x1.55554aa3a3831p-5;
    const double y = quadrant & 1 ? 1 - u * (0.5 - u * c) : r + r * u * s;
    return !quarter && x == 0 ? x : (T)(quadrant & 2 ? -y : y);
}
#endif

/* ------------------------------------------------------------------ gamma and its logarithm */

static inline T F(gammaln)(T x) {
    int sign;
    return (T)LGAMMA((WIDE)x, &sign);
}

/* The derivative of gammaln: reflected, shifted and expanded (Abramowitz & Stegun 6.3.5-18). At the
 * poles MXNet gives the largest double. */
static inline T F(digamma)(T argument) {
    WIDE x = argument, y = 0;
    if (x <= 0) {
        if (x == WIDE_M(floor)(x))
            return (T)DBL_MAX;
        const WIDE pi = 3.14159265358979323846264338327950288L, part = x - WIDE_M(rint)(x);
        y = -pi / WIDE_M(tan)(pi * part);
        x = 1 - x;
    }
    for (; x < 16; x += 1)
        y -= 1 / x;
    const WIDE u = 1 / (x * x);
    WIDE p = (WIDE)1 / 12;
    p = p * u - (WIDE)691 / 32760;
    p = p * u + (WIDE)1 / 132;
    p = p * u - (WIDE)1 / 240;
    p = p * u + (WIDE)1 / 252;
    p = p * u - (WIDE)1 / 120;
    p = p * u + (WIDE)1 / 12;
    return (T)(y + WIDE_M(log)(x) - 1 / (2 * x) - p * u);
}

/* ------------------------------------------------------------------ other functions */

static inline T F(mod)(T a, T b) {
    const double y = fabs((double)b), rest = a < 0 ? -fmod(-(double)a, y) : fmod((double)a, y);
    if (b == 0)
        return 0;
    return (T)((a < 0) != (b < 0) ? rest + (rest != 0 ? (double)b : 0) : rest);
}

static inline T F(rint)(T a) {
    const T below = M(floor)(a), above = M(ceil)(a);
    return a - below <= above - a ? below : above;
}

static inline T F(hard_sigmoid)(T a, T alpha, T beta) {
    const T y = (T)((double)alpha * a + beta), low = 1 < y ? 1 : y;
    return 0 > low ? 0 : low;
}

static inline T F(smooth_l1)(T a, T sigma) {
    const T square = sigma * sigma, edge = C(1.0) / square, size = M(fabs)(a);
    return size > edge ? size - C(0.5) * edge : C(0.5) * a * a * square;
}

#if GDB_DOUBLE
static inline T F(hypot)(T a, T b) { return hypot(a, b); }
#else
static inline T F(hypot)(T a, T b) {
    const double x = a, y = b;
    const T length = (T)sqrt(x * x + y * y);
    return M(fabs)(a) == INFINITY || M(fabs)(b) == INFINITY ? (T)INFINITY : length;
}
#endif

/* ------------------------------------------------------------------ loops */

/* Counts are multiples of 16; the output is an operand itself or lies apart from all of them. */
#define LOOP(name, read, expression) \
    static void F(op_##name)(void *out, const void *in0, const void *in1, const void *in2, \
                             int64_t n, double value, double value2) { \
        T *const to = out; \
        const T *const from0 = in0, *const from1 = in1, *const from2 = in2; \
        const T v = (T)value, v2 = (T)value2; \
        (void)from0, (void)from1, (void)from2, (void)v, (void)v2; \
        n &= ~(int64_t)15; \
        GDB_INDEPENDENT \
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

LOOP0(const, v)
LOOP0(ramp, v + i)
LOOP1(copy, a)
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
LOOP1(log2, F(log2)(a))
LOOP1(log10, F(log10)(a))
LOOP1(sin_any, M(sin)(a))
LOOP1(cos_any, M(cos)(a))
LOOP1(sin_near, F(sine)(a, 0))
LOOP1(cos_near, F(sine)(a, 1))
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
LOOP2(hypot, F(hypot)(a, b))
LOOP2(maximum, ((a > b) | (a != a)) ? a : b)
LOOP2(greatest, ((a > b) | (a != a)) ? a : b)
LOOP2(minimum, ((a < b) | (a != a)) ? a : b)
LOOP2(arctan2, M(atan2)(a, b))
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

/* The fast reduction of arguments holds for those below 1e6, as nearly all are. */
#define PERIODIC(name) \
    static void F(op_##name)(void *out, const void *a, const void *b, const void *c, int64_t n, \
                             double value, double value2) { \
        (F(within_reduction)(a, n) ? F(op_##name##_near) : F(op_##name##_any)) \
            (out, a, b, c, n, value, value2); \
    }
PERIODIC(sin)
PERIODIC(cos)

static gdb_kernel *const F(kernels)[GDB_N_CODES] = {
#define KERNEL(name, arity) F(op_##name),
    GDB_CODES(KERNEL)
#undef KERNEL
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

#undef T
#undef WIDE
#undef BITS
#undef UNSIGNED
#undef LGAMMA
#undef F
#undef M
#undef WIDE_M
#undef C
#undef MANTISSA
#undef ROUNDER
#undef LN2_HIGH
#undef LN2_LOW
#undef EXP_MIN
#undef EXP_MAX
#undef BELOW_HALF
#undef BIAS
#undef LOOP
#undef LOOP0
#undef LOOP1
#undef LOOP2
#undef LOOP3
#undef TRUTH
#undef PERIODIC
#undef DOUBLE_NAME
#undef GDB_NAME3
#undef GDB_PASTE3
