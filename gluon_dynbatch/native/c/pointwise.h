/* Pointwise programs: chains of elementwise functions, run tile by tile over the rows of arrays.
 *
 * A program loads columns of arrays into registers, computes on registers, and stores registers into
 * columns of arrays. A register holds `width` numbers for each of some rows at a time. Nothing here
 * allocates, locks or calls Python.
 */
#ifndef GDB_POINTWISE_H
#define GDB_POINTWISE_H

#include "kernels.h"

enum {
#define X(name, arity, result) GDB_##name,
#include "codes.h"
    GDB_N_CODES
};

/* How a register is loaded, the first three, and how it is stored. */
enum { GDB_ROW, GDB_SPREAD, GDB_MOVED, GDB_TOTAL, GDB_TOP };

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

/* GDB_ROW is for columns [column, column + width) of each row; of one column, all are. GDB_SPREAD takes
 * element `column` of each row for all columns; GDB_MOVED takes those by number that `order` says, -1 for
 * zeros; GDB_TOTAL and GDB_TOP (where NaN wins) assign the sum or maximum over a
 * row's columns to it. */
typedef struct {
    int32_t reg, slot, column, how;
    int32_t *order;
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
 * a load, const or ramp writes to a register nothing else overwrites. Numbers are converted when they
 * are loaded and stored. Nothing is stored upon what is loaded. */
void gdb_run_loop(const gdb_loop *loop, const gdb_array *slots, int64_t rows, void *scratch);

#endif
