/* Kernels: the steps that run on the rows of a launch, one block of rows at a time.
 *
 * `gluon_dynbatch/kernel/step.py` writes each step as the members of a struct below, 8 bytes each.
 * A slot is the number of an array. All of them are plain values in the words of a kernel, which owns
 * and never changes them. Running a kernel allocates nothing, takes no lock, and does not
 * call Python.
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

/* Rows of numbers: address, elements between rows (0: all rows share one), and type. */
typedef struct {
    char *data;
    int64_t pitch, dtype;
} gdb_array;

/* Bytes of an element: one hexadecimal digit per type. */
static inline int64_t gdb_size_of(int64_t dtype) { return 0x18484 >> 4 * dtype & 15; }

/* Expand a macro for the type of a dtype that loops compute with. */
#define GDB_BY_TYPE(dtype, EXPAND) \
    switch (dtype) { \
    case GDB_FLOAT32: EXPAND(float) break; \
    case GDB_FLOAT64: EXPAND(double) break; \
    case GDB_INT32: EXPAND(int32_t) break; \
    case GDB_INT64: EXPAND(int64_t) break; \
    default: __builtin_unreachable(); \
    }
#define GDB_LOAD(T) return (double)((const T *)array->data)[row * array->pitch + column];

/* Load an element of any type. */
static inline double gdb_load(const gdb_array *array, int64_t row, int64_t column) {
    if (array->dtype == GDB_BOOL) GDB_LOAD(uint8_t)
    GDB_BY_TYPE(array->dtype, GDB_LOAD)
}

#define GDB_LOAD_FLOAT_INDEX(T) \
    { \
        const T index = ((const T *)array->data)[row * array->pitch + column]; \
        return index >= (T)-0x1p63 && index < (T)0x1p63 ? (int64_t)index : INT64_MIN; \
    }

/* Load an index as an integer, as the processor converts it: a number that is too large, or that is
 * not a number, becomes the least integer. */
static inline int64_t gdb_load_index(const gdb_array *array, int64_t row, int64_t column) {
    switch (array->dtype) {
    case GDB_FLOAT32: GDB_LOAD_FLOAT_INDEX(float)
    case GDB_FLOAT64: GDB_LOAD_FLOAT_INDEX(double)
    case GDB_INT32: return ((const int32_t *)array->data)[row * array->pitch + column];
    default: return ((const int64_t *)array->data)[row * array->pitch + column];
    }
}

/* Load an index as an integer of 32 bits.  Of longer integers, these are the last bits. */
static inline int32_t gdb_load_index32(const gdb_array *array, int64_t row, int64_t column) {
    const int64_t index = gdb_load_index(array, row, column);
    const int is_float = array->dtype == GDB_FLOAT32 || array->dtype == GDB_FLOAT64;
    return is_float && index != (int32_t)index ? INT32_MIN : (int32_t)index;
}

/* The columns of an array from `column` on. */
typedef struct {
    int64_t slot, column;
} gdb_place;

enum { GDB_LOOP, GDB_PRODUCT, GDB_GATHER, GDB_DOTS, GDB_CONVOLVED, GDB_INDEXED, GDB_RANKED };

/* The head of each step; `words` is the number of its members, with the head. */
typedef struct {
    int64_t kind, words, dtype;
} gdb_step;

/* GDB_PRODUCT: rows times a matrix; `matrix_is` says whether it is packed (GDB_PACKED), or how it is
 * multiplied as it is: GDB_PANELS, packed panel by panel; GDB_FEW, by dot products, if its transpose is
 * in memory. A row of the launch has `parts` rows of the product.
 * GDB_GATHER: rows of the matrix, a table of `table_rows`, at `parts` indices per row; `mode` says
 * what those beyond either end choose, see gdb_indexed. */
enum { GDB_PACKED, GDB_PANELS, GDB_FEW };
typedef struct {
    gdb_step step;
    gdb_place left, matrix, result, bias; /* no bias: slot -1 */
    int64_t table_rows, inputs, units, parts, accumulate, matrix_is, transposed, mode;
} gdb_product;

/* Products of matrices of which each row has its own: see `kernel.layout.Dot`. */
typedef struct {
    gdb_step step;
    gdb_place left, right, result;
    int64_t matrices, m, k, n, transpose_left, transpose_right, gradient;
} gdb_dots;

typedef struct {
    gdb_step step;
    gdb_place left, right, result, bias, added; /* no bias, nothing added: slot -1 */
    int64_t function;                           /* of gdb_ending */
    int64_t passes_on;                          /* the next step alone reads the result, as it is */
    int64_t kept;      /* offset of scratch that nothing else uses, or 0; filled in by `gdb_new_kernel` */
    gdb_maps maps;
} gdb_convolved;

/* Elements by index inside each row, which is an array of outer x count x inner, where count is the
 * product of the sizes of the indexed axes. The index has a row of `number` indices per axis; or, if
 * `each`, it is an array of outer x number x inner, with an index for each element. See
 * `kernel.layout.Index`.
 *
 * GDB_GATHERED  copies from the indexed positions: the result is outer x number x inner
 * GDB_ADDED     adds to the indexed positions, in the order of the indices; others are zero
 * GDB_WRITTEN   writes to them; the last of several indices counts
 *
 * Indices beyond either end: GDB_CLIP takes the nearest, GDB_WRAP begins again at the other end.
 * GDB_CHECKED and GDB_TRUNCATED count negative ones from the end, and fail for others; the former
 * rounds down, the latter towards zero. GDB_STRICT fails for negative ones, too, and for fractions
 * beyond the last element. What an index that fails chooses is not a number (of integers, -1),
 * and so is each sum that it is for. If `lenient`, it does not fail, and chooses zero or nothing. */
enum { GDB_GATHERED, GDB_ADDED, GDB_WRITTEN };
enum { GDB_CLIP, GDB_WRAP, GDB_CHECKED, GDB_TRUNCATED, GDB_STRICT, GDB_INDEX_MODES };
typedef struct {
    gdb_step step;
    gdb_place source, index, result;
    int64_t operation, mode, outer, number, inner, each, lenient, axes;
    int64_t sizes[]; /* of the indexed axes */
} gdb_indexed;

/* The positions of elements along an axis, in the order of their values: of each of outer x count x
 * inner elements, the first `number` positions. Equal elements are in the order of MXNet's operators.
 * Sorted are at most GDB_MOST_SORTED elements; as many may be chosen of any number (see `rank`).
 *
 * GDB_ARGMAX, GDB_ARGMIN          one position; the first that is not a number counts as both
 * GDB_DESCENDING, GDB_ASCENDING   compares only, so an element that is not a number equals all */
enum { GDB_ARGMAX, GDB_ARGMIN, GDB_DESCENDING, GDB_ASCENDING };
enum { GDB_MOST_SORTED = 1024 };
typedef struct {
    gdb_step step;
    gdb_place source, result;
    int64_t order, outer, count, inner, number;
} gdb_ranked;

void gdb_run_ranked(const gdb_ranked *ranked, const gdb_array *slots, int64_t rows);
void gdb_run_indexed(const gdb_indexed *indexed, const gdb_array *slots, int64_t rows);

/* Return the number of the row of a table that an index chooses, which is clipped, wrapped or strict;
 * -1 if it does not fit, which is a failure unless `lenient`. */
int64_t gdb_table_row(const gdb_array *index, int64_t row, int64_t column, int64_t table_rows,
                      int64_t mode, int lenient);

/* If an index failed since the last call, copy the message, of at most `size` bytes, and return 1.
 * Programs that run at the same time share failures: one of them reports it. */
int gdb_take_failure(char *message, int64_t size);

/* Return the number of a row in [0, rows) that an index stands for, clipped or wrapped. */
static inline int64_t gdb_row_at(int64_t index, int64_t rows, int64_t wrap) {
    if (wrap) {
        index %= rows;
        return index < 0 ? index + rows : index;
    }
    return index < 0 ? 0 : index < rows ? index : rows - 1;
}

/* A pointwise loop: an elementwise program over registers, which runs tile by tile: all loads, then
 * all instructions, then the stores in their order. It runs over `parts` parts of each row of the
 * launch, such as the rows of a matrix, as over rows. A register has the type of the step, and holds
 * `width` numbers for each part of a tile; loads and stores convert numbers. An instruction never
 * overwrites a loaded register, and a store never overwrites an array that is loaded.
 *
 * This struct is followed by the loads and stores (gdb_access), the instructions (gdb_instruction)
 * and the column orders. */
typedef struct {
    gdb_step step;
    int64_t width, parts, registers, n_loads, n_stores, n_instructions;
} gdb_loop;

/* How a register is loaded from each row, or stored to it. For each further part of a row, `column`
 * is greater by `step`:
 *
 * GDB_ROW         columns [column, column + width), loaded or stored
 * GDB_BROADCAST   element `column`, broadcast to all columns
 * GDB_PERMUTED    columns by index, -1 for zeros; the int32 indices of all parts are `order` words
 *                 after the beginning of the loop; `step` is 0
 * GDB_INDEX       the same, loaded as integers of 32 bits
 * GDB_IOTA        element `column` plus the number of each column
 * GDB_SUM         stores the sum of the part
 * GDB_MAX         stores the maximum of the part; NaN wins
 * GDB_PROD        stores the product of the part
 * GDB_UNIFORM     random numbers in [0, 1) for the columns from `column` on.  The array identifies
 *                 the row, by two numbers; `order` is the slot of the key, which is two numbers,
 *                 too, and `value` the number of the draw
 */
enum { GDB_ROW, GDB_BROADCAST, GDB_PERMUTED, GDB_IOTA, GDB_SUM, GDB_MAX, GDB_INDEX, GDB_UNIFORM,
       GDB_PROD };

typedef struct {
    int64_t reg;
    gdb_place place; /* slot -1: `value` in all rows */
    int64_t mode, order, step;
    double value;
} gdb_access;

typedef struct {
    int64_t code, target, a, b, c; /* registers; those beyond the code's arity are ignored */
    double value, value2;
} gdb_instruction;

/* Return the functions of an integer type by code; NULL for those of floats only. */
gdb_function *const *gdb_integer_functions(int64_t dtype);

/* Return the bytes of scratch of a loop. */
int64_t gdb_loop_scratch(const gdb_loop *loop);
void gdb_run_loop(const gdb_loop *loop, const gdb_array *slots, int64_t rows, void *scratch);

typedef struct {
    gdb_array array; /* without an address */
    int64_t bytes;   /* of an array that all rows share */
    int64_t is_written;
    int64_t local;   /* offset in scratch of a block of its rows, used if it has no other address */
} gdb_slot;

/* Owned by all who count in `references`, a `Kernel` (`kernels.pxi`) and each program that has its
 * address: the last `gdb_release_kernel`, in any thread, frees it with all that it points to. Nothing
 * but the count changes. */
typedef struct {
    int64_t references, slots_count;
    int64_t block_rows;
    int64_t tile_rows; /* rows that are computed at once */
    int64_t work;    /* operations per row, roughly */
    int64_t arrays;  /* offset in scratch of the arrays of all slots, with their addresses */
    int64_t scratch; /* bytes */
    gdb_slot *slots;
    const gdb_step *steps, *end;
} gdb_kernel;

/* A member of one of the structs above, or of those in records.h, which others write as words of 8
 * bytes: the struct, without its prefix, the member, and its offset and size in words. A constant;
 * the last entry has no name. */
typedef struct {
    const char *name, *member;
    int64_t offset, size;
} gdb_layout;
extern const gdb_layout gdb_layouts[];

/* Blocks of kernels with products are multiples of GDB_ROWS_AT_ONCE rows: of the tiles of every
 * instruction set. Threads do not share fewer rows than GDB_ROWS_UNSHARED if each of them would pack
 * the same panels. */
enum { GDB_ROWS_AT_ONCE = 24, GDB_ROWS_UNSHARED = 48 };

static inline const gdb_step *gdb_next_step(const gdb_step *step) {
    return (const gdb_step *)((const int64_t *)step + step->words);
}

/* Return the operations of a step per row, roughly. */
int64_t gdb_work_of(const gdb_step *step);

/* Make a kernel, or return NULL if there is no memory. In `slots`, `local` is 1 for arrays that
 * need scratch, else 0; `is_written` is found here. */
gdb_kernel *gdb_new_kernel(const int64_t *steps, int64_t words, const gdb_slot *slots,
                           int64_t count);
void gdb_release_kernel(gdb_kernel *kernel);

/* Locate the arrays of all slots for a block that begins with row `low`. `places` has a base and an
 * offset in bytes for each slot; base -1 is scratch. */
void gdb_place_slots(const gdb_kernel *kernel, const int64_t *places, char **bases, char *scratch,
                     int64_t low, gdb_array *slots);

/* Run a step, or several before `end` at once, on the first rows of `slots`; return the next one. If it
 * runs `again`, the thread has run it before with the same shared arrays, and meanwhile nothing but steps
 * of the same kernel has used the scratch. Run a product on columns [first, last) only, `first` being a
 * multiple of what the product computes at once. */
const gdb_step *gdb_run_step(const gdb_step *step, const gdb_step *end, const gdb_array *slots,
                             int64_t rows, char *scratch, int again);
void gdb_run_product(const gdb_product *product, const gdb_array *slots, int64_t rows, int64_t first,
                     int64_t last, char *scratch);

/* Run a kernel on rows [low, high), at most a block; for `again`, see `gdb_run_step`. */
void gdb_run_block(const gdb_kernel *kernel, const int64_t *places, char **bases, char *scratch,
                   int64_t low, int64_t high, int again);

/* Add `count` elements to others. */
void gdb_add(int64_t dtype, char *to, const char *from, int64_t count);

/* Add columns [first, last) of each row of dY of a chunk to the row of a table that an index in X, of
 * type `index_dtype`, selects; see GDB_GATHER. Like MXNet, this takes indices as integers of 32
 * bits. Strict indices that do not fit, which the gather has reported, select none. */
void gdb_scatter_add(int64_t dtype, char *table, int64_t table_rows, int64_t units, int64_t first,
                     int64_t last, const gdb_chunk *chunk, int64_t index_dtype, int64_t mode);

#endif
