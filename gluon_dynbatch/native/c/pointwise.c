#include "steps.h"

#include <math.h>
#include <string.h>

#include "elements.h"
#include "types.h"

const char *const gdb_code_names[GDB_N_CODES] = {
#define X(name, arity, result) #name,
#include "codes.h"
};
const int32_t gdb_code_arity[GDB_N_CODES] = {
#define X(name, arity, result) arity,
#include "codes.h"
};

enum {
    MAX_TILE = 512,         /* elements */
    CACHE_BYTES = 24 << 10 /* for the registers of a tile: most of an L1 cache */
};

/* ------------------------------------------------------------------ a run of a loop */

/* A plain value on the stack of `gdb_run_loop`; what it points to is in its scratch, or outlives it. */
typedef struct {
    const gdb_loop *loop;
    const gdb_access *loads, *stores;
    const gdb_instruction *instructions;
    gdb_function *const *functions;
    const gdb_kernels *kernels; /* for reductions, of floats only */
    const gdb_array *slots;
    int64_t rows, parts, width; /* `rows` are all parts of all rows of the launch */
    int64_t size, tile, tile_rows, tile_columns; /* `tile`: most elements of one */
    char **values;      /* per register: address of its elements, maybe in a loaded array */
    char *registers;    /* `stride` bytes each */
    int64_t stride;
    double *reductions; /* per store that reduces: `tile` accumulators */
    int32_t *preloaded; /* per load: whether it is the same for all tiles */
} run;

/* Locate the parts of the loop and lay out its scratch memory; return the bytes of scratch. */
static int64_t lay_out_loop(run *r, char *scratch) {
    const gdb_loop *loop = r->loop;
    const int64_t size = gdb_size_of(loop->step.dtype);
    const int64_t fits = CACHE_BYTES / (size * (loop->registers + 1));
    char *at = scratch;
    int64_t reductions = 0;
    r->loads = (const gdb_access *)(loop + 1);
    r->stores = r->loads + loop->n_loads;
    r->instructions = (const gdb_instruction *)(r->stores + loop->n_stores);
    for (int64_t s = 0; s < loop->n_stores; s++)
        reductions += r->stores[s].mode != GDB_ROW;
    r->size = size;
    r->tile = fits > MAX_TILE ? MAX_TILE : fits < 128 ? 128 : fits & ~(int64_t)(VECTOR - 1);
    r->stride = (r->tile + VECTOR) * size;
    r->registers = at, at += loop->registers * r->stride;
    r->reductions = (double *)at, at += reductions * r->tile * 8;
    r->values = (char **)at, at += loop->registers * sizeof(char *);
    r->preloaded = (int32_t *)at, at += loop->n_loads * 4;
    return at - scratch;
}

int64_t gdb_loop_scratch(const gdb_loop *loop) {
    run r = {.loop = loop};
    return lay_out_loop(&r, NULL);
}

static inline char *register_at(const run *r, int64_t reg) {
    return r->registers + reg * r->stride;
}

/* Return the array that an access loads or stores, from a row and a column on. */
static inline gdb_array accessed(const run *r, const gdb_access *access, int64_t row,
                                 int64_t column) {
    if (access->place.slot < 0)
        return (gdb_array){(char *)&access->value, 0, GDB_FLOAT64};
    gdb_array array = r->slots[access->place.slot];
    int64_t first = access->place.column + column;
    if (r->parts > 1) {
        first += row % r->parts * access->step + row / r->parts * array.pitch;
        array.pitch = access->step;
    } else
        first += row * array.pitch;
    array.data += first * gdb_size_of(array.dtype);
    return array;
}

/* Return how many of some rows follow each other at the same distance, from the first one on. */
static inline int64_t even_rows(const run *r, const gdb_access *access, int64_t row, int64_t rows) {
    if (r->parts == 1)
        return rows;
    if (access->mode == GDB_PERMUTED || (access->mode == GDB_IOTA && access->step))
        return 1;
    if (access->mode == GDB_UNIFORM || access->place.slot < 0
        || r->slots[access->place.slot].pitch == r->parts * access->step)
        return rows;
    const int64_t left = r->parts - row % r->parts;
    return rows < left ? rows : left;
}

/* Return whether an access finds the same in all rows. */
static inline int is_shared(const run *r, const gdb_access *access) {
    const int64_t pitch = access->place.slot < 0 ? 0 : r->slots[access->place.slot].pitch;
    return pitch == 0 && (r->parts == 1 || (access->step == 0 && access->mode != GDB_PERMUTED));
}

/* Return whether all arrays are contiguous, so that all rows can run as one. */
static int is_dense(const run *r) {
    const gdb_loop *loop = r->loop;
    for (int64_t i = 0; i < loop->n_loads + loop->n_stores; i++) {
        const gdb_access *a = &r->loads[i];
        if ((a->mode == GDB_BROADCAST && is_shared(r, a)) || a->mode == GDB_UNIFORM)
            continue;
        if (a->mode != GDB_ROW || a->place.column || accessed(r, a, 0, 0).pitch != loop->width
            || even_rows(r, a, 0, r->rows) != r->rows)
            return 0;
    }
    return 1;
}

static void choose_tiles(run *r) {
    if (is_dense(r))
        r->width *= r->rows, r->rows = 1;
    const int64_t tiles = (r->width + r->tile - 1) / r->tile;
    const int64_t columns = (r->width + tiles - 1) / tiles;
    r->tile_columns = tiles == 1 ? r->width : (columns + VECTOR - 1) & ~(int64_t)(VECTOR - 1);
    r->tile_rows = r->width < r->tile ? r->tile / r->width : 1;
}

/* Compute random numbers, row after row.  If all rows run as one, `column` counts through all. */
static void load_uniform(const run *r, const gdb_access *load, char *to, int64_t row,
                         int64_t column, int64_t count) {
    const gdb_array *identities = &r->slots[load->place.slot];
    const uint32_t *key = (const uint32_t *)r->slots[load->order].data;
    const int64_t width = r->loop->width * r->loop->parts;
    column += row * r->loop->width;
    row = column / width, column %= width;
    for (int64_t columns; count; count -= columns, to += columns * r->size, row++, column = 0) {
        columns = count < width - column ? count : width - column;
        r->kernels->uniform(key, (const uint32_t *)identities->data + row * identities->pitch,
                            (uint32_t)load->value, load->place.column + column, columns, to);
    }
}

static void load_rows(const run *r, const gdb_access *load, gdb_array to, int64_t row,
                      int64_t column, int64_t rows, int64_t columns) {
    const int64_t part = row % r->parts;
    if (load->mode == GDB_BROADCAST || load->mode == GDB_IOTA)
        load_broadcast(to, accessed(r, load, row, 0),
                       load->mode == GDB_IOTA ? column + part * load->step : -1, rows, columns);
    else if (load->mode == GDB_PERMUTED)
        load_moved(to, accessed(r, load, row, 0),
                   (const int32_t *)((const int64_t *)r->loop + load->order)
                       + part * r->loop->width + column,
                   rows, columns);
    else if (load->mode == GDB_INDEX)
        load_indices(to, accessed(r, load, row, column), rows, columns);
    else if (load->mode == GDB_UNIFORM)
        load_uniform(r, load, to.data, row, column, rows * columns);
    else
        copy(to, accessed(r, load, row, column), rows, columns);
}

static void load_register(const run *r, const gdb_access *load, int64_t row, int64_t column,
                          int64_t rows, int64_t columns) {
    gdb_array to = {register_at(r, load->reg), columns, r->loop->step.dtype};
    for (int64_t even; rows > 0; row += even, rows -= even) {
        even = even_rows(r, load, row, rows);
        load_rows(r, load, to, row, column, even, columns);
        to.data += even * columns * r->size;
    }
}

/* Load the registers that are the same for all tiles. */
static void preload(const run *r) {
    const gdb_loop *loop = r->loop;
    const int64_t rows = r->rows < r->tile_rows ? r->rows : r->tile_rows;
    for (int64_t reg = 0; reg < loop->registers; reg++)
        r->values[reg] = register_at(r, reg);
    for (int64_t l = 0; l < loop->n_loads; l++) {
        const gdb_access *load = &r->loads[l];
        const int spread = load->mode == GDB_BROADCAST;
        r->preloaded[l] =
            is_shared(r, load) && (spread || r->width == r->tile_columns);
        if (r->preloaded[l])
            load_register(r, load, 0, 0, spread ? 1 : rows, (spread ? rows : 1) * r->tile_columns);
    }
}

/* Return whether an array has the layout of a register in whole vectors, so that functions can read
 * it in place. */
static inline int in_place(const run *r, gdb_array array, int64_t rows, int64_t columns) {
    return array.dtype == r->loop->step.dtype && (rows * columns) % VECTOR == 0
        && (rows == 1 || array.pitch == columns);
}

static void run_loads(const run *r, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    const int64_t n = rows * columns, padding = -n & (VECTOR - 1);
    for (int64_t l = 0; l < r->loop->n_loads; l++) {
        const gdb_access *load = &r->loads[l];
        if (r->preloaded[l])
            continue;
        const gdb_array from = accessed(r, load, row, column);
        char *to = register_at(r, load->reg);
        if (load->mode == GDB_ROW && in_place(r, from, rows, columns)
            && even_rows(r, load, row, rows) == rows) {
            r->values[load->reg] = from.data;
            continue;
        }
        load_register(r, load, row, column, rows, columns);
        memset(to + n * r->size, 0, padding * r->size);
        r->values[load->reg] = to;
    }
}

static void run_instructions(const run *r, int64_t count) {
    const gdb_instruction *i = r->instructions;
    for (; i < r->instructions + r->loop->n_instructions; i++)
        r->functions[i->code](register_at(r, i->target), r->values[i->a], r->values[i->b],
                              r->values[i->c], count, i->value, i->value2);
}

static gdb_reduction *reduction_of(const gdb_kernels *kernels, int64_t mode) {
    return mode == GDB_SUM ? kernels->accumulate_sums
        : mode == GDB_MAX ? kernels->accumulate_maxima : kernels->accumulate_products;
}

/* Store rows that are `from.pitch` elements apart. */
static void store_rows(const run *r, const gdb_access *store, gdb_array from, int64_t row,
                       int64_t column, int64_t rows, int64_t columns) {
    for (int64_t even; rows > 0; row += even, rows -= even) {
        even = even_rows(r, store, row, rows);
        copy(accessed(r, store, row, column), from, even, columns);
        from.data += even * from.pitch * gdb_size_of(from.dtype);
    }
}

static void run_stores(const run *r, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    double *accumulators = r->reductions;
    for (int64_t s = 0; s < r->loop->n_stores; s++) {
        const gdb_access *store = &r->stores[s];
        const gdb_array from = {r->values[store->reg], columns, r->loop->step.dtype};
        if (store->mode == GDB_ROW) {
            store_rows(r, store, from, row, column, rows, columns);
        } else {
            for (int64_t i = 0; i < rows && column == 0; i++)
                accumulators[i] = store->mode == GDB_SUM ? 0
                    : store->mode == GDB_MAX ? -INFINITY : 1;
            reduction_of(r->kernels, store->mode)(from.data, rows, columns, accumulators);
            if (column + columns == r->width)
                store_rows(r, store, (gdb_array){(char *)accumulators, 1, GDB_FLOAT64}, row, 0,
                           rows, 1);
        }
        accumulators += store->mode == GDB_ROW ? 0 : r->tile;
    }
}

static void copy_rows(const run *r, const gdb_access *load, const gdb_access *store) {
    int64_t rows = even_rows(r, load, 0, r->rows);
    rows = rows == r->rows ? even_rows(r, store, 0, rows) : rows;
    for (int64_t row = 0; row < r->rows; row += rows)
        copy(accessed(r, store, row, 0), accessed(r, load, row, 0), rows, r->width);
}

/* Copy loaded arrays directly to stored ones, if no type or layout changes; else return 0. */
static int run_copies(const run *r) {
    const gdb_loop *loop = r->loop;
    for (int64_t i = 0; i < loop->n_loads + loop->n_stores; i++) {
        const gdb_access *a = &r->loads[i];
        if (a->mode != GDB_ROW || accessed(r, a, 0, 0).dtype != loop->step.dtype)
            return 0;
    }
    for (int64_t l = 0; l < loop->n_loads; l++)
        for (int64_t s = 0; s < loop->n_stores; s++)
            if (r->stores[s].reg == r->loads[l].reg)
                copy_rows(r, &r->loads[l], &r->stores[s]);
    return 1;
}

void gdb_run_loop(const gdb_loop *loop, const gdb_array *slots, int64_t rows, void *scratch) {
    const int is_float = loop->step.dtype == GDB_FLOAT32 || loop->step.dtype == GDB_FLOAT64;
    const gdb_kernels *kernels = is_float ? gdb_kernels_of(loop->step.dtype) : NULL;
    run r = {.loop = loop, .kernels = kernels, .slots = slots, .rows = rows * loop->parts,
             .parts = loop->parts, .width = loop->width,
             .functions = is_float ? kernels->functions
                                   : gdb_integer_functions(loop->step.dtype)};
    if (rows < 1 || loop->width < 1)
        return;
    lay_out_loop(&r, scratch);
    if (loop->n_instructions == 0 && run_copies(&r))
        return;
    choose_tiles(&r);
    preload(&r);
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
