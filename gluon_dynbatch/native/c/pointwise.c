#include "steps.h"

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

static inline void copy_same(gdb_array to, gdb_array from, int64_t rows, int64_t columns) {
    const int64_t size = gdb_size_of(to.dtype);
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

static inline __attribute__((always_inline)) void copy(gdb_array to, gdb_array from, int64_t rows, int64_t columns) {
    if (to.dtype == from.dtype)
        copy_same(to, from, rows, columns);
    else if (to.dtype)
        CONVERT_TO(double)
    else
        CONVERT_TO(float)
}

/* Write an element of each row into all columns of a register, or plus the column's number, that of the
 * first being `first`, unless that is negative. Whole vectors are written: the next row overwrites
 * what is too much, and registers have room for it after the last. */
#define SPREAD(D) \
    for (int64_t row = 0; row < rows; row++) { \
        const D number = (D)gdb_number(&from, row, 0); \
        D *const t = (D *)to.data + row * columns; \
        for (int64_t i = 0; i < columns; i += VECTOR) \
            for (int k = 0; k < VECTOR; k++) \
                t[i + k] = first < 0 ? number : number + (D)((int)(first + i) + k); \
    }

static void spread(gdb_array to, gdb_array from, int64_t first, int64_t rows, int64_t columns) {
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
    const gdb_access *loads, *stores;
    const gdb_instruction *instructions;
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
    const int64_t fits = CACHED / (gdb_size_of(loop->step.dtype) * (loop->registers + 1));
    return fits > MOST ? MOST : fits < 128 ? 128 : fits & ~(int64_t)(VECTOR - 1);
}

/* Find what is behind the loop, and lay out the scratch memory; return its size. */
static int64_t lay_out(run *r, char *scratch) {
    const gdb_loop *loop = r->loop;
    char *at = (char *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    int64_t reductions = 0;
    r->loads = (const gdb_access *)(loop + 1);
    r->stores = r->loads + loop->n_loads;
    r->instructions = (const gdb_instruction *)(r->stores + loop->n_stores);
    for (int64_t s = 0; s < loop->n_stores; s++)
        reductions += r->stores[s].how != GDB_ROW;
    r->size = gdb_size_of(loop->step.dtype);
    r->tile = tile_of(loop);
    r->stride = (r->tile + VECTOR) * r->size;
    r->registers = at, at += loop->registers * r->stride;
    r->reduced = (double *)at, at += reductions * r->tile * 8;
    r->read = (char **)at, at += loop->registers * sizeof(char *);
    r->ready = (int32_t *)at, at += loop->n_loads * 4;
    return at - scratch + 64;
}

int64_t gdb_loop_scratch(const gdb_loop *loop) {
    run r = {.loop = loop};
    return lay_out(&r, NULL);
}

static inline char *own(const run *r, int64_t reg) { return r->registers + reg * r->stride; }

static inline gdb_array accessed(const run *r, const gdb_access *access, int64_t row, int64_t column) {
    if (access->place.slot < 0)
        return (gdb_array){(char *)&access->value, 0, GDB_FLOAT64};
    gdb_array found = r->slots[access->place.slot];
    found.data += (row * found.pitch + access->place.column + column) * gdb_size_of(found.dtype);
    return found;
}

static int is_dense(const run *r) {
    const gdb_loop *loop = r->loop;
    for (int64_t i = 0; i < loop->n_loads + loop->n_stores; i++) {
        const gdb_access *a = &r->loads[i];
        const int64_t pitch = accessed(r, a, 0, 0).pitch;
        if (pitch == 0 && a->how == GDB_SPREAD)
            continue;
        if (pitch != loop->width || a->place.column || a->how != GDB_ROW)
            return 0;
    }
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

static void load_register(const run *r, const gdb_access *load, int64_t row, int64_t column,
                          int64_t rows, int64_t columns) {
    const gdb_array to = {own(r, load->reg), columns, r->loop->step.dtype};
    if (load->how == GDB_SPREAD || load->how == GDB_RAMP)
        spread(to, accessed(r, load, row, 0), load->how == GDB_RAMP ? column : -1, rows, columns);
    else if (load->how == GDB_MOVED)
        gather(to, accessed(r, load, row, 0),
               (const int32_t *)((const int64_t *)r->loop + load->order) + column, rows, columns);
    else
        copy(to, accessed(r, load, row, column), rows, columns);
}

/* Fill the registers that are the same in all tiles. */
static void prepare(const run *r) {
    const gdb_loop *loop = r->loop;
    const int64_t rows = r->rows < r->tile_rows ? r->rows : r->tile_rows;
    for (int64_t reg = 0; reg < loop->registers; reg++)
        r->read[reg] = own(r, reg);
    for (int64_t l = 0; l < loop->n_loads; l++) {
        const gdb_access *load = &r->loads[l];
        const int same = load->how == GDB_SPREAD;
        r->ready[l] = accessed(r, load, 0, 0).pitch == 0 && (same || r->width == r->tile_columns);
        if (r->ready[l] && same)
            load_register(r, load, 0, 0, 1, rows * r->tile_columns);
        else if (r->ready[l])
            load_register(r, load, 0, 0, rows, r->tile_columns);
    }
}

/* Whether rows of a register and of a gdb_array are the same sequence of numbers in memory, and whole
 * vectors, so that a kernel can work in place. */
static inline int in_place(const run *r, gdb_array m, int64_t rows, int64_t columns) {
    return m.dtype == r->loop->step.dtype && (rows * columns) % VECTOR == 0
        && (rows == 1 || m.pitch == columns);
}

static void run_loads(const run *r, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    const int64_t n = rows * columns, spare = -n & (VECTOR - 1);
    for (int64_t l = 0; l < r->loop->n_loads; l++) {
        const gdb_access *load = &r->loads[l];
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

static void run_instructions(const run *r, int64_t count) {
    const gdb_instruction *i = r->instructions;
    for (; i < r->instructions + r->loop->n_instructions; i++)
        r->kernels->functions[i->code](own(r, i->target), r->read[i->a], r->read[i->b],
                                       r->read[i->c], count, i->value, i->value2);
}

static void run_stores(const run *r, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    double *reduced = r->reduced;
    for (int64_t s = 0; s < r->loop->n_stores; s++) {
        const gdb_access *store = &r->stores[s];
        const gdb_array from = {r->read[store->reg], columns, r->loop->step.dtype};
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

/* Store what was loaded without a way through registers, if that is all there is to do. */
static int run_copies(const run *r) {
    const gdb_loop *loop = r->loop;
    for (int64_t i = 0; i < loop->n_loads + loop->n_stores; i++) {
        const gdb_access *a = &r->loads[i];
        if (a->how != GDB_ROW || accessed(r, a, 0, 0).dtype != loop->step.dtype)
            return 0;
    }
    for (int64_t l = 0; l < loop->n_loads; l++)
        for (int64_t s = 0; s < loop->n_stores; s++)
            if (r->stores[s].reg == r->loads[l].reg)
                copy(accessed(r, &r->stores[s], 0, 0), accessed(r, &r->loads[l], 0, 0), r->rows,
                     r->width);
    return 1;
}

void gdb_run_loop(const gdb_loop *loop, const gdb_array *slots, int64_t rows, void *scratch) {
    run r = {.loop = loop, .kernels = gdb_kernels_of(loop->step.dtype), .slots = slots, .rows = rows,
             .width = loop->width};
    if (rows < 1 || loop->width < 1)
        return;
    lay_out(&r, scratch);
    if (loop->n_instructions == 0 && run_copies(&r))
        return;
    choose_tiles(&r);
    prepare(&r);
    for (int64_t row = 0; row < r.rows; row += r.tile_rows)
        for (int64_t column = 0; column < r.width; column += r.tile_columns) {
            const int64_t m = r.rows - row < r.tile_rows ? r.rows - row : r.tile_rows;
            const int64_t left = r.width - column;
            const int64_t n = left < r.tile_columns ? left : r.tile_columns;
            run_loads(&r, row, column, m, n);
            run_instructions(&r, (m * n + VECTOR - 1) & ~(int64_t)(VECTOR - 1));
            run_stores(&r, row, column, m, n);
        }
}
