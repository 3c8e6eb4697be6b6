/* Names, constants and C library functions for double (GDB_DOUBLE 1) or float (GDB_DOUBLE 0).
 *
 * The preprocessor reads GDB_DOUBLE where these macros are used, so one definition covers both. */
#ifndef GDB_TYPES_H
#define GDB_TYPES_H

#define JOIN(a, b) JOIN_(a, b)
#define JOIN_(a, b) a##b
#define JOIN3(a, b, c) JOIN3_(a, b, c)
#define JOIN3_(a, b, c) a##_##b##_##c
#define PICK(of_double, of_float) JOIN(PICK_, GDB_DOUBLE)(of_double, of_float)
#define PICK_1(of_double, of_float) of_double
#define PICK_0(of_double, of_float) of_float

#define T PICK(double, float)
#define BITS PICK(uint64_t, uint32_t)

/* F: a name of this package for this type and instruction set. M: a function of the C library. */
#define F(name) JOIN3(name, PICK(f64, f32), GDB_SET)
#define M(name) PICK(name, name##f)

#define C(number) PICK(number, number##f)
#define MANTISSA PICK(52, 23)
#define BIAS PICK(1023, 127)
#define ROUNDER PICK(0x1.8p52, 0x1.8p23f) /* adding it rounds to an integer, in the low bits */
#define LN2_HIGH PICK(0x1.62e42fefap-1, 0x1.62ep-1f)
#define LN2_LOW PICK(0x1.cf79abc9e3b39p-40, 3.19461849e-5f)
#define EXP_MIN PICK(-746.0, -104.0f)
#define EXP_MAX PICK(710.0, 89.0f)
#define BELOW_HALF PICK(0x1.fffffffffffffp-2, 0x1.fffffep-2f)

/* INDEPENDENT: the iterations of the next loop do not depend on each other. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
