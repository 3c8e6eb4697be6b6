/* Scalar functions for one type and one instruction set; set.h includes this for each.
 *
 * They are free of branches where compilers should vectorize the loops around them. Their results
 * are within 4 units in the last place, with and without contraction into fused multiply-adds. They
 * need IEEE arithmetic: never compile this with -ffast-math. Polynomials were fitted by iteratively
 * reweighted least squares (Lawson 1961). Argument reductions are those of Cody & Waite, "Software
 * Manual for the Elementary Functions" (1980).
 */
#include "types.h"

static inline T F(nearest)(T x) { return (x + ROUNDER) - ROUNDER; }

/* Return 2^n for an integer n in the exponent range of normal numbers. */
static inline T F(pow2)(T n) {
    union { T number; BITS bits; } power = {.number = n + (ROUNDER + BIAS)};
    power.bits <<= MANTISSA;
    return power.number;
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

/* Return exp(x) for x <= EXP_MAX. */
static inline T F(exp_below)(T x) {
    T n;
    x = x < EXP_MIN ? EXP_MIN : x;
    const T r = F(reduce)(x, &n), half = F(nearest)(n * C(0.5));
    /* Scale in two steps: the result may be denormal, and 2^n itself may overflow. */
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
    /* tanh(|x|) = -e / (2 + e) with e = expm1(-2 |x|). */
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

static inline T F(softrelu)(T x) {
    const T e = F(exp_below)(-M(fabs)(x));
#if GDB_DOUBLE
    const T rest = log1p(e);
#else
    T q = 0.00536481058f; /* log1p(e) / e */
    q = q * e - 0.0300657395f;
    q = q * e + 0.079204455f;
    q = q * e - 0.137537956f;
    q = q * e + 0.191536516f;
    q = q * e - 0.248571634f;
    q = q * e + 0.33321324f;
    q = q * e - 0.499996483f;
    const T rest = (q * e + 1) * e;
#endif
    return (x > 0 ? x : 0) + rest;
}

/* ------------------------------------------------------------------ error function */
#if GDB_DOUBLE
static inline T F(erf)(T x) { return erf(x); }
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
#endif

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
