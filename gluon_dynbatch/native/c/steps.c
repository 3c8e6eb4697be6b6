#include "steps.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* Values of a block of rows stay in a cache of about this size, but there are no fewer rows than
     * products need to be fast, unless that were too much memory. All other steps go row by row. */
    CACHE = 1 << 19,
    MOST_BYTES = 1 << 26,
    FUNCTION = 16 /* what a function of an element takes, in operations of products */
};

static inline int64_t lines(int64_t bytes) { return (bytes + 63) & ~(int64_t)63; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static inline char *at(const gdb_array *slots, gdb_place place, int64_t row) {
    const gdb_array *found = &slots[place.slot];
    return found->data + (row * found->pitch + place.column) * gdb_size_of(found->dtype);
}

/* ------------------------------------------------------------------ products */

/* Where rows have several parts, these stand side by side. */
static void run_product(const gdb_product *p, const gdb_array *slots, int64_t rows) {
    const gdb_kernels *kernels = gdb_kernels_of(p->step.dtype);
    const int64_t m = rows * p->parts, n = p->units, k = p->inputs;
    const int64_t a_row = p->parts > 1 ? k : slots[p->left.slot].pitch;
    const int64_t c_row = p->parts > 1 ? n : slots[p->result.slot].pitch;
    const char *a = at(slots, p->left, 0), *matrix = at(slots, p->matrix, 0);
    const char *bias = p->bias.slot < 0 ? NULL : at(slots, p->bias, 0);
    char *c = at(slots, p->result, 0);
    if (p->unpacked)
        kernels->multiply_few(m, n, k, a, a_row, matrix, k, c, c_row, bias, p->adds);
    else
        kernels->multiply(m, n, k, a, a_row, 1, matrix, c, c_row, bias, p->adds);
}

/* Multiply matrices of which each row has its own. */
static void run_dots(const gdb_dots *d, const gdb_array *slots, int64_t rows, char *scratch) {
    const gdb_kernels *kernels = gdb_kernels_of(d->step.dtype);
    const int64_t m = d->m, k = d->k, n = d->n, size = gdb_size_of(d->step.dtype);
    const int64_t a_row = d->turn_left ? 1 : k, a_column = d->turn_left ? m : 1;
    char *packed = scratch + -(intptr_t)scratch % 64;
    for (int64_t row = 0; row < rows; row++) {
        const char *left = at(slots, d->left, row), *right = at(slots, d->right, row);
        char *result = at(slots, d->result, row);
        for (int64_t i = 0; i < d->matrices; i++) {
            if ((d->gradient == 0 && kernels->is_zero(left, m * k))
                || (d->gradient == 1 && kernels->is_zero(right, k * n))) {
                memset(result, 0, m * n * size);
            } else if (m == 1 && d->turn_right) {
                kernels->multiply_few(m, n, k, left, k, right, k, result, n, NULL, 0);
            } else if (d->turn_right
                       || !kernels->multiply_small(m, n, k, left, a_row, a_column, right, result)) {
                kernels->pack(right, d->turn_right ? 1 : n, d->turn_right ? k : 1, k, n, packed);
                kernels->multiply(m, n, k, left, a_row, a_column, packed, result, n, NULL, 0);
            }
            left += m * k * size, right += k * n * size, result += m * n * size;
        }
    }
}

static void run_convolved(const gdb_convolved *c, const gdb_array *slots, int64_t rows, char *scratch) {
    const gdb_kernels *kernels = gdb_kernels_of(c->step.dtype);
    kernels->convolve(&c->maps, rows, at(slots, c->left, 0), slots[c->left.slot].pitch,
                      at(slots, c->right, 0), slots[c->right.slot].pitch,
                      c->bias.slot < 0 ? NULL : at(slots, c->bias, 0), at(slots, c->result, 0),
                      slots[c->result.slot].pitch, scratch);
}

/* ------------------------------------------------------------------ rows by number */

/* Return the place among some rows that a number says; the first for what is no number. */
static inline int64_t clipped(double place, int64_t rows) {
    return !(place > 0) ? 0 : place < rows ? (int64_t)place : rows - 1;
}

#define ADD(T) \
    for (int64_t i = 0; i < count; i++) \
        ((T *)to)[i] += ((const T *)from)[i];

void gdb_add_row(int64_t dtype, char *to, const char *from, int64_t count) {
    switch (dtype) {
    case GDB_FLOAT32: ADD(float) break;
    case GDB_FLOAT64: ADD(double) break;
    case GDB_INT32: ADD(int32_t) break;
    default: ADD(int64_t)
    }
}

/* Copy or add the rows of a table that stand at the places in some columns of each row. */
static void run_chosen(const gdb_product *p, const gdb_array *slots, int64_t rows) {
    const int64_t size = p->units * gdb_size_of(p->step.dtype);
    for (int64_t row = 0; row < rows; row++) {
        char *to = at(slots, p->result, row);
        for (int64_t part = 0; part < p->parts; part++, to += size) {
            const double place = gdb_number(&slots[p->left.slot], row, p->left.column + part);
            const char *from = at(slots, p->matrix, 0) + size * clipped(place, p->table_rows);
            if (p->adds)
                gdb_add_row(p->step.dtype, to, from, p->units);
            else
                memcpy(to, from, size);
        }
    }
}

void gdb_add_to_chosen(int64_t dtype, char *table, int64_t table_rows, int64_t units,
                       const gdb_chunk *chunk, int64_t place_dtype) {
    const int64_t size = gdb_size_of(dtype);
    const gdb_array places = {(char *)chunk->x, chunk->x_row, place_dtype};
    for (int64_t row = 0; row < chunk->rows; row++) {
        const int64_t place = clipped(gdb_number(&places, row, 0), table_rows);
        gdb_add_row(dtype, table + place * units * size,
                    (const char *)chunk->dy + row * chunk->dy_row * size, units);
    }
}

/* ------------------------------------------------------------------ kernels */

static inline const gdb_step *behind(const gdb_step *step, int64_t words) {
    return (const gdb_step *)((const int64_t *)step + words);
}

/* Return how much scratch a step needs, and add up its work. */
static int64_t take_note(const gdb_step *step, int64_t *work) {
    const gdb_loop *loop = (const gdb_loop *)step;
    const gdb_dots *d = (const gdb_dots *)step;
    const gdb_product *p = (const gdb_product *)step;
    const gdb_maps *m = &((const gdb_convolved *)step)->maps;
    switch (step->kind) {
    case GDB_LOOP:
        *work += FUNCTION * loop->width * loop->n_instructions;
        return gdb_loop_scratch(loop);
    case GDB_DOTS:
        *work += 2 * d->matrices * d->m * d->k * d->n;
        return gdb_kernels_of(step->dtype)->packed_elements(d->k, d->n) * gdb_size_of(step->dtype) + 64;
    case GDB_CONVOLVED:
        *work += 2 * m->images * m->groups * m->channels * m->filters * m->kernel[0] * m->kernel[1]
            * m->result[0] * m->result[1];
        return gdb_kernels_of(step->dtype)->maps_scratch(m);
    default:
        *work += 2 * p->inputs * p->units * p->parts;
        return 0;
    }
}

static int64_t row_bytes(const gdb_array *slot) { return slot->pitch * gdb_size_of(slot->dtype); }

gdb_kernel *gdb_new_kernel(const int64_t *steps, int64_t words, const gdb_slot *slots, int64_t count) {
    gdb_kernel *kernel = calloc(1, sizeof *kernel + count * sizeof *slots + 8 * words);
    int64_t row = 0, at = 0, at_once = 1;
    if (!kernel)
        return NULL;
    kernel->references = 1, kernel->slots_count = count;
    kernel->slots = memcpy(kernel + 1, slots, count * sizeof *slots);
    kernel->steps = memcpy(kernel->slots + count, steps, 8 * words);
    kernel->end = behind(kernel->steps, words);
    for (const gdb_step *step = kernel->steps; step < kernel->end; step = behind(step, step->words)) {
        at = larger(at, lines(take_note(step, &kernel->work)));
        if (step->kind == GDB_PRODUCT)
            at_once = GDB_ROWS_AT_ONCE;
    }
    for (int64_t s = 0; s < count; s++)
        row += row_bytes(&slots[s].array);
    row = larger(row, 1);
    kernel->block = larger(at_once, CACHE / row / at_once * at_once);
    kernel->block = larger(smaller(kernel->block, MOST_BYTES / row), 1);
    for (int64_t s = 0; s < count; s++) {
        kernel->slots[s].local = at;
        at += slots[s].local * lines(row_bytes(&slots[s].array) * kernel->block);
    }
    kernel->found = at;
    kernel->scratch = at + count * sizeof(gdb_array);
    return kernel;
}

void gdb_release_kernel(gdb_kernel *kernel) {
    if (!__atomic_sub_fetch(&kernel->references, 1, __ATOMIC_ACQ_REL))
        free(kernel);
}

void gdb_run_block(const gdb_kernel *kernel, const int64_t *places, char **bases, char *scratch,
                   int64_t low, int64_t high) {
    gdb_array *slots = (gdb_array *)(scratch + kernel->found);
    for (int64_t s = 0; s < kernel->slots_count; s++, places += 2) {
        slots[s] = kernel->slots[s].array;
        if (places[0] < 0)
            slots[s].data = scratch + kernel->slots[s].local;
        else
            slots[s].data = bases[places[0]] + places[1] + low * row_bytes(&slots[s]);
    }
    for (const gdb_step *step = kernel->steps; step < kernel->end; step = behind(step, step->words))
        switch (step->kind) {
        case GDB_LOOP: gdb_run_loop((const gdb_loop *)step, slots, high - low, scratch); break;
        case GDB_DOTS: run_dots((const gdb_dots *)step, slots, high - low, scratch); break;
        case GDB_CONVOLVED: run_convolved((const gdb_convolved *)step, slots, high - low, scratch); break;
        case GDB_CHOSEN: run_chosen((const gdb_product *)step, slots, high - low); break;
        default: run_product((const gdb_product *)step, slots, high - low);
        }
}
