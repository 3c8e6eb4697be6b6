#include "pointwise.h"

#include <math.h>
#include <string.h>

#include "types.h"

const char *const gdb_code_names[GDB_N_CODES] = {
#define X(name, arity, result) #name,
#include "codes.h"
};
const int32_t gdb_code_arity[GDB_N_CODES] = {
#define X(name, arity, result) arity,
#include "codes.h"
};

/* ------------------------------------------------------------------ from and to rows of arrays */

enum { VECTOR = 16, MOST = 512, CACHED = 24 << 10 };  /* numbers, numbers, bytes */

static inline int64_t size_of(int32_t dtype) { return dtype & 1 ? 8 : 4; }

static void copy_same(gdb_array to, gdb_array from, int64_t rows, int64_t columns) {
    const int64_t size = size_of(to.dtype);
    int64_t b = columns * size;
    const int64_t t = to.pitch * size, f = from.pitch * size;
    if (t == b && f == b)
        b *= rows, rows = 1;
    for (int64_t row = 0; row < rows; row++)
        memcpy(to.data + row * t, from.data + row * f, b);
}

#define CONVERT(D, S) \
    for (int64_t row = 0; row < rows; row++) { \
        D *const t = (D *)to.data + row * to.pitch; \
        const S *const f = (const S *)from.data + row * from.pitch; \
        INDEPENDENT \
        for (int64_t i = 0; i < columns; i++) \
            t[i] = (D)f[i]; \
    }
#define CONVERT_TO(D) \
    switch (from.dtype) { \
    case GDB_FLOAT32: CONVERT(D, float) break; \
    case GDB_FLOAT64: CONVERT(D, double) break; \
    case GDB_INT32: CONVERT(D, int32_t) break; \
    default: CONVERT(D, int64_t) \
    }

static void copy(gdb_array to, gdb_array from, int64_t rows, int64_t columns) {
    if (to.dtype == from.dtype)
        copy_same(to, from, rows, columns);
    else if (to.dtype)
        CONVERT_TO(double)
    else
        CONVERT_TO(float)
}

static double element(gdb_array from, int64_t row) {
    double number;
    copy((gdb_array){(char *)&number, 1, GDB_FLOAT64},
         (gdb_array){from.data + row * from.pitch * size_of(from.dtype), 1, from.dtype}, 1, 1);
    return number;
}

/* Write an element of each row into all columns of a register. Whole vectors are written: the next
 * row overwrites what is too much, and registers have room for it after the last. */
#define SPREAD(D) \
    for (int64_t row = 0; row < rows; row++) { \
        const D number = (D)element(from, row); \
        D *const t = (D *)to.data + row * columns; \
        for (int64_t i = 0; i < columns; i += VECTOR) \
            for (int k = 0; k < VECTOR; k++) \
                t[i + k] = number; \
    }

static void spread(gdb_array to, gdb_array from, int64_t rows, int64_t columns) {
    if (to.dtype)
        SPREAD(double)
    else
        SPREAD(float)
}

#define GATHER(D) \
    for (int64_t row = 0; row < rows; row++) { \
        D *const t = (D *)to.data + row * columns; \
        const D *const f = (const D *)from.data + row * from.pitch; \
        for (int64_t i = 0; i < columns; i++) \
            t[i] = order[i] < 0 ? 0 : f[order[i]]; \
    }

/* Write elements of each row by number into a register, of the same type. */
static void gather(gdb_array to, gdb_array from, const int32_t *order, int64_t rows, int64_t columns) {
    if (to.dtype)
        GATHER(double)
    else
        GATHER(float)
}

/* ------------------------------------------------------------------ a run */

typedef struct {
    const gdb_loop *loop;
    const gdb_kernels *kernels;
    const gdb_array *slots;
    int64_t rows, width, size, tile, tile_rows, tile_columns;
    char **read;      /* per register: where it is now */
    char *registers;  /* one after another, `stride` bytes each */
    int64_t stride;
    double *reduced;  /* per store that reduces: `tile` numbers */
    int32_t *ready;   /* per load: whether it is done before all tiles */
} run;

static int64_t tile_of(const gdb_loop *loop) {
    const int64_t fits = CACHED / (size_of(loop->dtype) * (loop->n_registers + 1));
    return fits > MOST ? MOST : fits < 128 ? 128 : fits & ~(int64_t)(VECTOR - 1);
}

/* Lay out the scratch memory; return its size. */
static int64_t lay_out(run *r, char *scratch) {
    const gdb_loop *loop = r->loop;
    char *at = (char *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    int64_t reductions = 0;
    for (int32_t s = 0; s < loop->n_stores; s++)
        reductions += loop->stores[s].how != GDB_ROW;
    r->size = size_of(loop->dtype);
    r->tile = tile_of(loop);
    r->stride = (r->tile + VECTOR) * r->size;
    r->registers = at, at += loop->n_registers * r->stride;
    r->reduced = (double *)at, at += reductions * r->tile * 8;
    r->read = (char **)at, at += loop->n_registers * sizeof(char *);
    r->ready = (int32_t *)at, at += loop->n_loads * 4;
    return at - scratch + 64;
}

int64_t gdb_loop_scratch(const gdb_loop *loop) {
    run r = {.loop = loop};
    return lay_out(&r, NULL);
}

static inline char *own(const run *r, int32_t reg) { return r->registers + reg * r->stride; }

static inline gdb_array accessed(const run *r, const gdb_access *access, int64_t row, int64_t column) {
    gdb_array found = r->slots[access->slot];
    found.data += (row * found.pitch + access->column + column) * size_of(found.dtype);
    return found;
}

static int is_dense(const run *r) {
    const gdb_loop *loop = r->loop;
    for (int32_t i = 0; i < loop->n_loads + loop->n_stores; i++) {
        const gdb_access *a = i < loop->n_loads ? &loop->loads[i] : &loop->stores[i - loop->n_loads];
        const int64_t pitch = r->slots[a->slot].pitch;
        if (a->how == GDB_SPREAD && pitch == 0)
            continue;
        if (pitch != loop->width || a->column || a->how != GDB_ROW)
            return 0;
    }
    for (int32_t i = 0; i < loop->n_instructions; i++)
        if (loop->instructions[i].code == GDB_ramp)
            return 0;
    return 1;
}

static void choose_tiles(run *r) {
    if (is_dense(r))
        r->width *= r->rows, r->rows = 1;
    const int64_t chunks = (r->width + r->tile - 1) / r->tile;
    const int64_t chunk = (r->width + chunks - 1) / chunks;
    r->tile_columns = chunks == 1 ? r->width : (chunk + VECTOR - 1) & ~(int64_t)(VECTOR - 1);
    r->tile_rows = r->width < r->tile ? r->tile / r->width : 1;
}

static inline void execute(const run *r, const gdb_instruction *i, void *out, int64_t n) {
    r->kernels->functions[i->code](
        out, r->read[i->a], r->read[i->b], r->read[i->c], n, i->value, i->value2);
}

static void load_register(const run *r, const gdb_access *load, int64_t row, int64_t column,
                          int64_t rows, int64_t columns) {
    const gdb_array to = {own(r, load->reg), columns, r->loop->dtype};
    if (load->how == GDB_SPREAD)
        spread(to, accessed(r, load, row, 0), rows, columns);
    else if (load->how == GDB_MOVED)
        gather(to, accessed(r, load, row, 0), load->order + column, rows, columns);
    else
        copy(to, accessed(r, load, row, column), rows, columns);
}

/* Fill the registers that are the same in all tiles. */
static void prepare(const run *r) {
    const gdb_loop *loop = r->loop;
    for (int32_t reg = 0; reg < loop->n_registers; reg++)
        r->read[reg] = own(r, reg);
    for (int32_t l = 0; l < loop->n_loads; l++) {
        const gdb_access *load = &loop->loads[l];
        r->ready[l] = r->slots[load->slot].pitch == 0
            && (load->how == GDB_SPREAD || r->width == r->tile_columns);
        if (r->ready[l])
            load_register(r, load, 0, 0, r->tile_rows, r->tile_columns);
    }
    for (int32_t i = 0; i < loop->n_instructions; i++)
        if (loop->instructions[i].code == GDB_const)
            execute(r, &loop->instructions[i], own(r, loop->instructions[i].target), r->tile);
}

/* Rows are written as whole vectors: the next overwrites what is too much. */
static void ramp(const run *r, const gdb_instruction *i, char *out, int64_t column, int64_t rows,
                 int64_t columns) {
    for (int64_t row = 0; row < rows; row++)
        r->kernels->functions[GDB_ramp](
            out + row * columns * r->size, NULL, NULL, NULL, columns + VECTOR - 1,
            i->value + (double)column, 0);
}

/* Whether rows of a register and of a gdb_array are the same sequence of numbers in memory, and whole
 * vectors, so that a kernel can work in place. */
static inline int in_place(const run *r, gdb_array m, int64_t rows, int64_t columns) {
    return m.dtype == r->loop->dtype && (rows * columns) % VECTOR == 0
        && (rows == 1 || m.pitch == columns);
}

static void run_loads(const run *r, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    const int64_t n = rows * columns, spare = -n & (VECTOR - 1);
    for (int32_t l = 0; l < r->loop->n_loads; l++) {
        const gdb_access *load = &r->loop->loads[l];
        if (r->ready[l])
            continue;
        const gdb_array from = accessed(r, load, row, column);
        char *to = own(r, load->reg);
        if (load->how == GDB_ROW && in_place(r, from, rows, columns)) {
            r->read[load->reg] = from.data;
            continue;
        }
        load_register(r, load, row, column, rows, columns);
        memset(to + n * r->size, 0, spare * r->size);
        r->read[load->reg] = to;
    }
}

static void run_instructions(const run *r, int64_t row, int64_t column, int64_t rows,
                             int64_t columns) {
    const gdb_loop *loop = r->loop;
    const int64_t n = (rows * columns + VECTOR - 1) & ~(int64_t)(VECTOR - 1);
    for (int32_t i = 0; i < loop->n_instructions; i++) {
        const gdb_instruction *instruction = &loop->instructions[i];
        char *out = own(r, instruction->target);
        if (instruction->code == GDB_ramp)
            ramp(r, instruction, out, column, rows, columns);
        else if (instruction->code != GDB_const)
            execute(r, instruction, out, n);
    }
}

static void run_stores(const run *r, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    double *reduced = r->reduced;
    for (int32_t s = 0; s < r->loop->n_stores; s++) {
        const gdb_access *store = &r->loop->stores[s];
        const gdb_array from = {r->read[store->reg], columns, r->loop->dtype};
        const int total = store->how == GDB_TOTAL;
        if (store->how == GDB_ROW) {
            copy(accessed(r, store, row, column), from, rows, columns);
        } else {
            for (int64_t i = 0; i < rows && column == 0; i++)
                reduced[i] = total ? 0 : -INFINITY;
            (total ? r->kernels->add_sums : r->kernels->raise_maxima)(
                from.data, rows, columns, reduced);
            if (column + columns == r->width)
                copy(accessed(r, store, row, 0), (gdb_array){(char *)reduced, 1, GDB_FLOAT64}, rows, 1);
        }
        reduced += store->how == GDB_ROW ? 0 : r->tile;
    }
}

void gdb_run_loop(const gdb_loop *loop, const gdb_array *slots, int64_t rows, void *scratch) {
    run r = {.loop = loop, .kernels = gdb_kernels_of(loop->dtype), .slots = slots, .rows = rows,
             .width = loop->width};
    if (rows < 1 || loop->width < 1)
        return;
    lay_out(&r, scratch);
    choose_tiles(&r);
    prepare(&r);
    for (int64_t row = 0; row < r.rows; row += r.tile_rows)
        for (int64_t column = 0; column < r.width; column += r.tile_columns) {
            const int64_t m = r.rows - row < r.tile_rows ? r.rows - row : r.tile_rows;
            const int64_t left = r.width - column;
            const int64_t n = left < r.tile_columns ? left : r.tile_columns;
            run_loads(&r, row, column, m, n);
            run_instructions(&r, row, column, m, n);
            run_stores(&r, row, column, m, n);
        }
}
