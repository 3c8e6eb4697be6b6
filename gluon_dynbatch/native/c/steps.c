#include "steps.h"

#include <stdlib.h>
#include <string.h>

#include "sizes.h"

enum {
    /* Bytes of a block of rows. It should fit into the cache, but products need GDB_ROWS_AT_ONCE
     * rows to be fast, as long as these do not take more than MAX_BYTES. */
    CACHE_BYTES = 1 << 19,
    MAX_BYTES = 1 << 26,
    MAX_KEPT = 1 << 19, /* bytes of factors that a kernel keeps for further rows */
    FUNCTION_COST = 16 /* of one element, in operations of products */
};

static inline int64_t lines(int64_t bytes) { return (bytes + 63) & ~(int64_t)63; }

static inline char *address_of_slot(const gdb_array *slots, gdb_place place, int64_t row) {
    const gdb_array *array = &slots[place.slot];
    return array->data + (row * array->pitch + place.column) * gdb_size_of(array->dtype);
}

/* ------------------------------------------------------------------ products */

/* The parts of a row are contiguous. */
void gdb_run_product(const gdb_product *p, const gdb_array *slots, int64_t rows, int64_t first,
                     int64_t last, char *scratch) {
    const gdb_kernels *kernels = gdb_kernels_of(p->step.dtype);
    const int64_t m = rows * p->parts, n = last - first, k = p->inputs;
    const int64_t size = gdb_size_of(p->step.dtype);
    const int64_t a_row = p->parts > 1 ? k : slots[p->left.slot].pitch;
    const int64_t c_row = p->parts > 1 ? p->units : slots[p->result.slot].pitch;
    const char *a = address_of_slot(slots, p->left, 0);
    /* Panels of a packed matrix, and rows of its transpose, take `k` per column. */
    const int64_t row = p->transposed ? 1 : p->units, column = p->transposed ? k : 1;
    const int64_t before = first * (p->matrix_is == GDB_PACKED ? k : column);
    const char *matrix = address_of_slot(slots, p->matrix, 0) + before * size;
    const char *bias = p->bias.slot < 0 ? NULL : address_of_slot(slots, p->bias, 0) + first * size;
    char *c = address_of_slot(slots, p->result, 0) + first * size;
    if (p->matrix_is == GDB_PACKED)
        kernels->multiply(m, n, k, a, a_row, 1, matrix, c, c_row, bias, p->accumulate);
    else if (p->matrix_is == GDB_FEW)
        kernels->multiply_few(m, n, k, a, a_row, matrix, k, c, c_row, bias, p->accumulate);
    else
        kernels->multiply_panels(m, n, k, a, a_row, 1, matrix, row, column, c, c_row, bias,
                                 p->accumulate, scratch);
}

/* Multiply the matrices of each row. Where a gradient is zero, so is the product, even if the other
 * matrix is not finite. */
static void run_dots(const gdb_dots *d, const gdb_array *slots, int64_t rows, char *scratch) {
    const gdb_kernels *kernels = gdb_kernels_of(d->step.dtype);
    const int64_t m = d->m, k = d->k, n = d->n, size = gdb_size_of(d->step.dtype);
    const int64_t a_row = d->transpose_left ? 1 : k, a_column = d->transpose_left ? m : 1;
    const int64_t b_row = d->transpose_right ? 1 : n, b_column = d->transpose_right ? k : 1;
    for (int64_t row = 0; row < rows; row++) {
        const char *left = address_of_slot(slots, d->left, row);
        const char *right = address_of_slot(slots, d->right, row);
        char *result = address_of_slot(slots, d->result, row);
        for (int64_t i = 0; i < d->matrices; i++) {
            if ((d->gradient == 0 && kernels->is_zero(left, m * k))
                || (d->gradient == 1 && kernels->is_zero(right, k * n))) {
                memset(result, 0, m * n * size);
            } else if (m == 1 && d->transpose_right) {
                kernels->multiply_few(m, n, k, left, k, right, k, result, n, NULL, 0);
            } else {
                kernels->multiply_panels(m, n, k, left, a_row, a_column, right, b_row, b_column,
                                         result, n, NULL, 0, scratch);
            }
            left += m * k * size, right += k * n * size, result += m * n * size;
        }
    }
}

/* Fill in the sizes of a convolution, and of those after it that each read the result of the one
 * before, which nothing else reads; return how many of them run at once. */
static int64_t find_links(const gdb_step *step, const gdb_step *end, gdb_link *links) {
    const gdb_kernels *kernels = gdb_kernels_of(step->dtype);
    int64_t count = 0;
    for (int passes_on = 1; passes_on && count < GDB_MOST_LINKS && step < end;
         step = gdb_next_step(step)) {
        const gdb_convolved *c = (const gdb_convolved *)step;
        passes_on = c->passes_on;
        links[count++] = (gdb_link){.maps = &c->maps, .ending = {.function = c->function}};
    }
    return kernels->chain_length(links, count);
}

static const gdb_step *run_convolved(const gdb_step *step, const gdb_step *end,
                                     const gdb_array *slots, int64_t rows, char *scratch,
                                     int again) {
    const gdb_convolved *c = (const gdb_convolved *)step;
    const gdb_place left = c->left;
    const int64_t kept = c->kept;
    const gdb_kernels *kernels = gdb_kernels_of(step->dtype);
    gdb_link links[GDB_MOST_LINKS];
    const int64_t count = find_links(step, end, links);
    for (gdb_link *l = links; l < links + count; l++, step = gdb_next_step(step)) {
        c = (const gdb_convolved *)step;
        l->right = address_of_slot(slots, c->right, 0), l->right_row = slots[c->right.slot].pitch;
        if (c->bias.slot >= 0) l->bias = address_of_slot(slots, c->bias, 0);
        if (c->added.slot < 0) continue;
        l->ending.added = address_of_slot(slots, c->added, 0);
        l->ending.added_row = slots[c->added.slot].pitch;
    }
    kernels->convolve(links, count, rows, address_of_slot(slots, left, 0), slots[left.slot].pitch,
                      address_of_slot(slots, c->result, 0), slots[c->result.slot].pitch, scratch + kept,
                      again && kept);
    return step;
}

/* ------------------------------------------------------------------ rows by index */

#define ADD(T) \
    for (int64_t i = 0; i < count; i++) \
        ((T *)to)[i] += ((const T *)from)[i];

void gdb_add(int64_t dtype, char *to, const char *from, int64_t count) {
    if (dtype == GDB_BOOL) {
        for (int64_t i = 0; i < count; i++)
            to[i] |= from[i];
        return;
    }
    GDB_BY_TYPE(dtype, ADD)
}

/* Gather rows of a table by index: copy them, or add them to the result. */
static void run_gather(const gdb_product *p, const gdb_array *slots, int64_t rows) {
    const int64_t size = p->units * gdb_size_of(p->step.dtype);
    for (int64_t row = 0; row < rows; row++) {
        char *to = address_of_slot(slots, p->result, row);
        for (int64_t part = 0; part < p->parts; part++, to += size) {
            const int64_t chosen = gdb_table_row(&slots[p->left.slot], row, p->left.column + part,
                                                 p->table_rows, p->mode, 0);
            const char *from = address_of_slot(slots, p->matrix, 0) + size * chosen;
            if (chosen < 0)
                memset(to, 0xff, size); /* not a number */
            else if (p->accumulate)
                gdb_add(p->step.dtype, to, from, p->units);
            else
                memcpy(to, from, size);
        }
    }
}

void gdb_scatter_add(int64_t dtype, char *table, int64_t table_rows, int64_t units, int64_t first,
                     int64_t last, const gdb_chunk *chunk, int64_t index_dtype, int64_t mode) {
    const int64_t size = gdb_size_of(dtype);
    const gdb_array indices = {(char *)chunk->x, chunk->x_row, index_dtype};
    for (int64_t row = 0; row < chunk->rows; row++) {
        const int64_t index = mode == GDB_STRICT
            ? gdb_table_row(&indices, row, 0, table_rows, mode, 1)
            : gdb_row_at(gdb_load_index32(&indices, row, 0), table_rows, mode == GDB_WRAP);
        if (index < 0) continue;
        gdb_add(dtype, table + (index * units + first) * size,
                (const char *)chunk->dy + (row * chunk->dy_row + first) * size, last - first);
    }
}

/* ------------------------------------------------------------------ kernels */

int64_t gdb_work_of(const gdb_step *step) {
    const gdb_loop *loop = (const gdb_loop *)step;
    const gdb_dots *d = (const gdb_dots *)step;
    const gdb_product *p = (const gdb_product *)step;
    const gdb_maps *m = &((const gdb_convolved *)step)->maps;
    const gdb_indexed *indexed = (const gdb_indexed *)step;
    const gdb_ranked *ranked = (const gdb_ranked *)step;
    switch (step->kind) {
    case GDB_INDEXED: return indexed->outer * indexed->number * indexed->inner;
    case GDB_RANKED: return ranked->outer * ranked->count * ranked->inner;
    case GDB_LOOP: return FUNCTION_COST * loop->width * loop->parts * loop->n_instructions;
    case GDB_DOTS: return 2 * d->matrices * d->m * d->k * d->n;
    case GDB_CONVOLVED:
        return 2 * m->images * m->groups * m->channels * m->filters * m->kernel[0] * m->kernel[1]
            * m->result[0] * m->result[1];
    default: return 2 * p->inputs * p->units * p->parts;
    }
}

/* Return the bytes of scratch of a step, with those before `end` that run at once with it. */
static int64_t scratch_of(const gdb_step *step, const gdb_step *end) {
    gdb_link links[GDB_MOST_LINKS];
    const gdb_dots *d = (const gdb_dots *)step;
    const gdb_product *p = (const gdb_product *)step;
    const int64_t size = gdb_size_of(step->dtype);
    switch (step->kind) {
    case GDB_LOOP: return gdb_loop_scratch((const gdb_loop *)step);
    case GDB_DOTS: return gdb_kernels_of(step->dtype)->panel_elements(d->k, d->n) * size;
    case GDB_PRODUCT:
        return p->matrix_is != GDB_PANELS
            ? 0 : gdb_kernels_of(step->dtype)->panel_elements(p->inputs, p->units) * size;
    case GDB_CONVOLVED:
        return gdb_kernels_of(step->dtype)->convolve_scratch(links, find_links(step, end, links));
    default: return 0;
    }
}

/* Note which slots a step writes. */
static void mark_written(const gdb_step *step, gdb_slot *slots) {
    const gdb_loop *loop = (const gdb_loop *)step;
    const gdb_access *stores = (const gdb_access *)(loop + 1) + loop->n_loads;
    switch (step->kind) {
    case GDB_LOOP:
        for (int64_t i = 0; i < loop->n_stores; i++) slots[stores[i].place.slot].is_written = 1;
        break;
    case GDB_DOTS: slots[((const gdb_dots *)step)->result.slot].is_written = 1; break;
    case GDB_CONVOLVED: slots[((const gdb_convolved *)step)->result.slot].is_written = 1; break;
    case GDB_INDEXED: slots[((const gdb_indexed *)step)->result.slot].is_written = 1; break;
    case GDB_RANKED: slots[((const gdb_ranked *)step)->result.slot].is_written = 1; break;
    default: slots[((const gdb_product *)step)->result.slot].is_written = 1;
    }
}

/* Give the convolutions of a kernel scratch of their own, behind `scratch` bytes, unless that is too much;
 * return where it ends. What they make of kernels and biases can be used for further rows if no step
 * writes these. */
static int64_t keep_factors(gdb_kernel *kernel, int64_t scratch) {
    const gdb_kernels *kernels;
    gdb_link links[GDB_MOST_LINKS];
    int64_t count, size, limit = scratch + MAX_KEPT;
    const gdb_step *step = kernel->steps;
    while (step < kernel->end) {
        gdb_convolved *head = (gdb_convolved *)step;
        int can_keep = 1;
        count = 1;
        if (step->kind == GDB_CONVOLVED) count = find_links(step, kernel->end, links);
        for (int64_t i = 0; i < count; i++, step = gdb_next_step(step)) {
            const gdb_convolved *c = (const gdb_convolved *)step;
            if (step->kind != GDB_CONVOLVED) continue;
            can_keep &= !kernel->slots[c->right.slot].is_written;
            if (c->bias.slot >= 0) can_keep &= !kernel->slots[c->bias.slot].is_written;
        }
        if (head->step.kind != GDB_CONVOLVED || !can_keep) continue;
        kernels = gdb_kernels_of(head->step.dtype);
        size = lines(kernels->convolve_scratch(links, count));
        if (scratch + size > limit) continue;
        head->kept = scratch, scratch += size;
    }
    return scratch;
}

static int64_t row_bytes(const gdb_array *slot) { return slot->pitch * gdb_size_of(slot->dtype); }

gdb_kernel *gdb_new_kernel(const int64_t *steps, int64_t words, const gdb_slot *slots,
                           int64_t count) {
    gdb_kernel *kernel = calloc(1, sizeof *kernel + count * sizeof *slots + 8 * words);
    int64_t bytes_of_row = 0, scratch = 0, multiple = 1;
    const gdb_step *step;
    if (!kernel)
        return NULL;
    kernel->references = 1, kernel->slots_count = count;
    kernel->slots = memcpy(kernel + 1, slots, count * sizeof *slots);
    kernel->steps = memcpy(kernel->slots + count, steps, 8 * words);
    kernel->end = (const gdb_step *)((const int64_t *)kernel->steps + words);
    kernel->tile_rows = 1;
    for (step = kernel->steps; step < kernel->end; step = gdb_next_step(step)) {
        scratch = larger(scratch, lines(scratch_of(step, kernel->end)));
        kernel->work += gdb_work_of(step);
        mark_written(step, kernel->slots);
        if (step->kind == GDB_PRODUCT) {
            const int by_panels = ((const gdb_product *)step)->matrix_is == GDB_PANELS;
            const int64_t rows = gdb_kernels_of(step->dtype)->tile_rows;
            multiple = GDB_ROWS_AT_ONCE;
            kernel->tile_rows = larger(kernel->tile_rows, by_panels ? GDB_ROWS_UNSHARED : rows);
        }
    }
    scratch = keep_factors(kernel, larger(scratch, lines(1)));
    for (int64_t s = 0; s < count; s++)
        bytes_of_row += row_bytes(&slots[s].array);
    bytes_of_row = larger(bytes_of_row, 1);
    kernel->block_rows = larger(multiple, CACHE_BYTES / bytes_of_row / multiple * multiple);
    kernel->block_rows = larger(smaller(kernel->block_rows, MAX_BYTES / bytes_of_row), 1);
    for (int64_t s = 0; s < count; s++) {
        kernel->slots[s].local = scratch;
        scratch += slots[s].local * lines(row_bytes(&slots[s].array) * kernel->block_rows);
    }
    kernel->arrays = scratch;
    kernel->scratch = scratch + count * sizeof(gdb_array);
    return kernel;
}

void gdb_release_kernel(gdb_kernel *kernel) {
    if (!__atomic_sub_fetch(&kernel->references, 1, __ATOMIC_ACQ_REL))
        free(kernel);
}

void gdb_place_slots(const gdb_kernel *kernel, const int64_t *places, char **bases, char *scratch,
                     int64_t low, gdb_array *slots) {
    for (int64_t s = 0; s < kernel->slots_count; s++, places += 2) {
        slots[s] = kernel->slots[s].array;
        if (places[0] < 0)
            slots[s].data = scratch + kernel->slots[s].local;
        else
            slots[s].data = bases[places[0]] + places[1] + low * row_bytes(&slots[s]);
    }
}

const gdb_step *gdb_run_step(const gdb_step *step, const gdb_step *end, const gdb_array *slots,
                             int64_t rows, char *scratch, int again) {
    const gdb_product *p = (const gdb_product *)step;
    switch (step->kind) {
    case GDB_LOOP: gdb_run_loop((const gdb_loop *)step, slots, rows, scratch); break;
    case GDB_DOTS: run_dots((const gdb_dots *)step, slots, rows, scratch); break;
    case GDB_CONVOLVED: return run_convolved(step, end, slots, rows, scratch, again);
    case GDB_INDEXED: gdb_run_indexed((const gdb_indexed *)step, slots, rows); break;
    case GDB_RANKED: gdb_run_ranked((const gdb_ranked *)step, slots, rows); break;
    case GDB_GATHER: run_gather(p, slots, rows); break;
    default: gdb_run_product(p, slots, rows, 0, p->units, scratch);
    }
    return gdb_next_step(step);
}

void gdb_run_block(const gdb_kernel *kernel, const int64_t *places, char **bases, char *scratch,
                   int64_t low, int64_t high, int again) {
    gdb_array *slots = (gdb_array *)(scratch + kernel->arrays);
    const gdb_step *step = kernel->steps;
    gdb_place_slots(kernel, places, bases, scratch, low, slots);
    while (step < kernel->end)
        step = gdb_run_step(step, kernel->end, slots, high - low, scratch, again);
}
