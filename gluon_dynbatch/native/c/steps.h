/* Kernels: steps, run on the rows of a launch a block of rows at a time.
 *
 * `gluon_dynbatch/kernel/step.py` writes each step as the members of a struct below, 8 bytes each.
 * Slots are arrays by number. Running allocates nothing, locks nothing, and does not call Python.
 */
#ifndef GDB_STEPS_H
#define GDB_STEPS_H

#include "kernels.h"

enum {
#define X(name, arity, result) GDB_##name,
#include "codes.h"
    GDB_N_CODES
};
extern const char *const gdb_code_names[GDB_N_CODES];
extern const int32_t gdb_code_arity[GDB_N_CODES];

/* Rows of numbers: the address of the first, elements between rows (0: one row for all), and type.
 * Integers are only loaded. */
typedef struct {
    char *data;
    int64_t pitch, dtype;
} gdb_array;

static inline int64_t gdb_size_of(int64_t dtype) { return dtype & 1 ? 8 : 4; }

/* Return a number of a row. */
static inline double gdb_number(const gdb_array *array, int64_t row, int64_t column) {
    const int64_t i = row * array->pitch + column;
    switch (array->dtype) {
    case GDB_FLOAT32: return ((const float *)array->data)[i];
    case GDB_FLOAT64: return ((const double *)array->data)[i];
    case GDB_INT32: return ((const int32_t *)array->data)[i];
    default: return (double)((const int64_t *)array->data)[i];
    }
}

typedef struct {
    int64_t slot, column;
} gdb_place;

enum { GDB_LOOP, GDB_PRODUCT, GDB_CHOSEN, GDB_DOTS, GDB_CONVOLVED };

/* How each step begins; `words` are its members in all. */
typedef struct {
    int64_t kind, words, dtype;
} gdb_step;

/* Rows times a matrix, or rows of it by number, which makes it a table. */
typedef struct {
    gdb_step step;
    gdb_place left, matrix, result, bias; /* no bias: slot -1 */
    int64_t table_rows, inputs, units, parts, adds, unpacked;
} gdb_product;

/* As `kernel.layout.Dot` says. */
typedef struct {
    gdb_step step;
    gdb_place left, right, result;
    int64_t matrices, m, k, n, turn_left, turn_right, gradient;
} gdb_dots;

typedef struct {
    gdb_step step;
    gdb_place left, right, result, bias; /* no bias: slot -1 */
    gdb_maps maps;
} gdb_convolved;

/* A pointwise program, a chain of elementwise functions, run tile by tile: all loads, then the
 * instructions, then the stores in their order, for every row. A register, of the type of the step,
 * holds `width` numbers for each of some rows at a time. What a load writes to a register
 * nothing else overwrites. Numbers are converted when they are loaded and stored. Nothing is
 * stored upon what is loaded. */
typedef struct {
    gdb_step step;
    int64_t width, registers, n_loads, n_stores, n_instructions;
} gdb_loop; /* behind it are loads, stores and instructions, and then orders */

/* How registers are loaded and stored. Loaded are columns [column, column + width) of each row; element
 * `column` of each row for all columns; columns by number, -1 for zeros, which int32 numbers say so many
 * words behind the beginning of the loop; or the second plus the number of the column. The first is how
 * they are stored, or the sum, or the maximum (where NaN wins), of a row. */
enum { GDB_ROW, GDB_SPREAD, GDB_MOVED, GDB_RAMP, GDB_TOTAL, GDB_TOP };

typedef struct {
    int64_t reg;
    gdb_place place; /* slot -1 stands for `value` in all rows */
    int64_t how, order;
    double value;
} gdb_access;

typedef struct {
    int64_t code, target, a, b, c; /* registers; those beyond the code's arity are not looked at */
    double value, value2;
} gdb_instruction;

/* Return how many bytes of scratch memory a run of the loop needs; any alignment will do. */
int64_t gdb_loop_scratch(const gdb_loop *loop);
void gdb_run_loop(const gdb_loop *loop, const gdb_array *slots, int64_t rows, void *scratch);

typedef struct {
    gdb_array array; /* without an address */
    int64_t local;   /* where a block of its rows stands in scratch if it is nowhere else */
} gdb_slot;

typedef struct {
    int64_t references, slots_count;
    int64_t block, work;    /* rows; operations of a row, about */
    int64_t found, scratch; /* where slots with addresses stand in scratch; bytes of all of it */
    gdb_slot *slots;
    const gdb_step *steps, *end;
} gdb_kernel;

/* Products have the same blocks of so many rows however rows are shared among threads. */
enum { GDB_ROWS_AT_ONCE = 24 };

/* Make a kernel, NULL if there is no memory. Here `local` says whether there is to be such a place. */
gdb_kernel *gdb_new_kernel(const int64_t *steps, int64_t words, const gdb_slot *slots, int64_t count);
void gdb_release_kernel(gdb_kernel *kernel);

/* Run a kernel on some rows; places are a base, or -1, and an offset in bytes per slot. */
void gdb_run_block(const gdb_kernel *kernel, const int64_t *places, char **bases, char *scratch,
                   int64_t low, int64_t high);

/* Add numbers of a type to others. */
void gdb_add_row(int64_t dtype, char *to, const char *from, int64_t count);

/* Add rows to those of a table, each at the place that a number of some type says. */
void gdb_add_to_chosen(int64_t dtype, char *table, int64_t table_rows, int64_t units,
                       const gdb_chunk *chunk, int64_t place_dtype);

#endif
