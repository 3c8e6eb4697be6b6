/* Pointwise programs: chains of elementwise functions, run tile by tile over the rows of arrays.
 *
 * A program loads columns of arrays into registers, computes on registers, and stores registers into
 * columns of arrays. A register holds `width` numbers for each of some rows at a time. Nothing here
 * allocates, locks or calls Python.
 */
#ifndef GDB_POINTWISE_H
#define GDB_POINTWISE_H

#include "kernels.h"

/* X(name, number of registers read): semantics are those of MXNet's operators of these names.
 *
 * const, clip (least, greatest), smooth_l1 (scalar) and hard_sigmoid (alpha, beta) have `value` and
 * `value2`; ramp is `value` in the first column, and one more in each next; greatest is maximum,
 * whose gradient is another; select is a != 0 ? b : c; gate is 0 where a is zero, and a * b elsewhere. */
#define GDB_CODES(X) \
    X(const, 0) X(ramp, 0) X(add, 2) X(sub, 2) X(mul, 2) X(div, 2) \
    X(negative, 1) X(reciprocal, 1) X(square, 1) X(sqrt, 1) X(rsqrt, 1) X(cbrt, 1) X(rcbrt, 1) \
    X(abs, 1) X(sign, 1) X(exp, 1) X(expm1, 1) X(log, 1) X(log1p, 1) X(log2, 1) X(log10, 1) \
    X(sin, 1) X(cos, 1) X(tan, 1) X(arcsin, 1) X(arccos, 1) X(arctan, 1) \
    X(sinh, 1) X(cosh, 1) X(tanh, 1) X(arcsinh, 1) X(arccosh, 1) X(arctanh, 1) \
    X(sigmoid, 1) X(softrelu, 1) X(softsign, 1) X(relu, 1) X(hard_sigmoid, 1) \
    X(erf, 1) X(erfinv, 1) X(gamma, 1) X(gammaln, 1) X(digamma, 1) X(degrees, 1) X(radians, 1) \
    X(ceil, 1) X(floor, 1) X(rint, 1) X(round, 1) X(fix, 1) X(trunc, 1) \
    X(power, 2) X(mod, 2) X(hypot, 2) X(maximum, 2) X(minimum, 2) X(greatest, 2) \
    X(equal, 2) X(not_equal, 2) X(greater, 2) X(greater_equal, 2) X(lesser, 2) X(lesser_equal, 2) \
    X(logical_and, 2) X(logical_or, 2) X(logical_xor, 2) X(logical_not, 1) \
    X(select, 3) X(clip, 1) X(smooth_l1, 1) X(gelu, 1) X(gate, 2)

enum {
#define GDB_ENUMERATE(name, arity) GDB_##name,
    GDB_CODES(GDB_ENUMERATE)
#undef GDB_ENUMERATE
    GDB_N_CODES
};

/* How a register is loaded, GDB_ROW or GDB_SPREAD, and how it is stored. */
enum { GDB_ROW, GDB_SPREAD, GDB_TOTAL, GDB_TOP };

/* Rows of numbers: the address of the first, elements between rows (0: one row for all), and type.
 * Integers are only loaded. */
typedef struct {
    char *data;
    int64_t pitch;
    int32_t dtype;
} gdb_array;

typedef struct {
    int32_t code, target, a, b, c;  /* registers; those beyond the code's arity are not looked at */
    double value, value2;
} gdb_instruction;

/* GDB_ROW is for columns [column, column + width) of each row. GDB_SPREAD takes element `column` of
 * each row for all columns; GDB_TOTAL and GDB_TOP (where NaN wins) assign the sum or maximum over a
 * row's columns to it. */
typedef struct {
    int32_t reg, slot, column, how;
} gdb_access;

typedef struct {
    int32_t dtype, n_registers;  /* the type of all registers */
    int64_t width;
    int32_t n_loads, n_instructions, n_stores;
    const gdb_access *loads;
    const gdb_instruction *instructions;
    const gdb_access *stores;
} gdb_loop;

extern const char *const gdb_code_names[GDB_N_CODES];
extern const int32_t gdb_code_arity[GDB_N_CODES];

/* Return how many bytes of scratch memory a run of the loop needs; any alignment will do. */
int64_t gdb_loop_scratch(const gdb_loop *loop);

/* Run a loop: all loads, then the instructions, then the stores in their order, for every row. What
 * a load, const or ramp writes to a register nothing else overwrites.
 *
 * Numbers are converted when they are loaded and stored. What is stored may lie upon what is loaded
 * if each element lies upon itself. */
void gdb_run_loop(const gdb_loop *loop, const gdb_array *slots, int64_t rows, void *scratch);

#endif
