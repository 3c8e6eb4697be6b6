/* Sums over rows, which are the gradients of weights, biases and tables.
 *
 * What the tasks of a record share is a plain value on the stack of the thread that runs it, which
 * waits until all of them are done. */
#include <string.h>

#include "run.h"

enum {
    FIND_WORK = 4096,     /* of a row of which one element is read, which is not in the cache */
    SLAB_WORK = 40000000, /* of the pairs that are multiplied in one phase: so phases are few */
    MOST_BATCHES = 16,
    WINDOW = 2048 /* rows of which pairs are found at once */
};

typedef struct {
    const gdb_sum_record *record;
    const gdb_kernels *kernels;
    const gdb_chunk *chunks;
    char *target;
    int64_t size; /* rows or columns of a task */
    /* For MATRIX: pairs that have been found; those of the phase are [first, last). */
    gdb_pair *pairs;
    int64_t first, last, count, width, before_packed; /* `before_packed`: bytes of scratch */
    /* The rows that may be the next pairs: where they begin, and their number. */
    const gdb_chunk *chunk;
    int64_t row, candidates;
} sum;

/* Return how many pairs are multiplied in one phase: some batches of GDB_PAIRS. */
static int64_t most_pairs(int64_t rows, int64_t columns) {
    const int64_t work = larger(2 * rows * columns * GDB_PAIRS, 1);
    return larger(1, smaller(SLAB_WORK / work, MOST_BATCHES)) * GDB_PAIRS;
}

/* Return the bytes of pairs that have been found: less than those of a phase before a window is
 * added. */
static int64_t bytes_of_pairs(int64_t most) {
    return multiple((WINDOW + most) * sizeof(gdb_pair), GDB_LINE);
}

int64_t gdb_sum_scratch(int64_t dtype, int64_t rows, int64_t columns, int64_t chunks) {
    return multiple(chunks * sizeof(gdb_chunk), GDB_LINE)
        + bytes_of_pairs(most_pairs(rows, columns))
        + gdb_kernels_of(dtype)->packed_pairs(rows, columns) * gdb_size_of(dtype);
}

/* Go forward by so many rows, or to the end of all chunks; return by how many. */
static int64_t advance(const sum *s, const gdb_chunk **chunk, int64_t *row, int64_t rows) {
    const gdb_chunk *end = s->chunks + s->record->count;
    int64_t left = rows;
    while (*chunk < end) {
        const int64_t step = smaller(left, (*chunk)->rows - *row);
        *row += step, left -= step;
        if (*row < (*chunk)->rows) break;
        ++*chunk, *row = 0;
    }
    return rows - left;
}

/* List rows as pairs. A pair whose dY is zero, or whose X is zero if the option says so, becomes NULL:
 * it adds nothing, even if the other factor is not finite. */
static void find_some(void *context, int64_t number, char *scratch) {
    const sum *s = context;
    const int64_t size = gdb_size_of(s->record->dtype), skip_x = s->record->option & 1;
    const gdb_chunk *chunk = s->chunk;
    int64_t row = s->row, i = number * s->size;
    (void)scratch;
    advance(s, &chunk, &row, i);
    for (; i < smaller((number + 1) * s->size, s->candidates); i++, advance(s, &chunk, &row, 1)) {
        const char *y = (const char *)chunk->dy + row * chunk->dy_row * size;
        const char *x = (const char *)chunk->x + row * chunk->x_row * size;
        const int is_zero = skip_x ? s->kernels->is_zero(x, s->record->columns)
                                   : s->kernels->is_zero(y, s->record->rows);
        s->pairs[s->count + i] = is_zero ? (gdb_pair){NULL, NULL} : (gdb_pair){y, x};
    }
}

/* Find pairs until there are so many, or no rows are left. */
static void find_pairs(const gdb_run *r, sum *s, int64_t most) {
    memmove(s->pairs, s->pairs + s->first, (s->count - s->first) * sizeof *s->pairs);
    s->count -= s->first, s->first = 0;
    while (s->count < most) {
        const gdb_chunk *chunk = s->chunk;
        int64_t row = s->row;
        s->candidates = advance(s, &chunk, &row, WINDOW);
        if (s->candidates == 0) break;
        s->size = size_of_parts(s->candidates, tasks_for(r, s->candidates * FIND_WORK), 1);
        gdb_share(r->crew, find_some, s, parts_of(s->candidates, s->size));
        for (int64_t i = s->count, end = s->count + s->candidates; i < end; i++)
            if (s->pairs[i].dy) s->pairs[s->count++] = s->pairs[i];
        s->chunk = chunk, s->row = row;
    }
}

/* Multiply the pairs of the phase, in their order, for some rows and columns of the target. Each task
 * packs what it reads: lines of a cache that another thread has written take longer than that. */
static void multiply_some(void *context, int64_t number, char *scratch) {
    const sum *s = context;
    const int64_t across = parts_of(s->record->columns, s->width);
    const int64_t first = number / across * s->size, left = number % across * s->width;
    for (int64_t i = s->first; i < s->last; i += GDB_PAIRS)
        s->kernels->multiply_pairs(
            s->pairs + i, smaller(GDB_PAIRS, s->last - i), first,
            smaller(first + s->size, s->record->rows), left,
            smaller(left + s->width, s->record->columns), s->record->columns, s->target,
            scratch + s->before_packed);
}

/* Choose the rows and columns of the target that a task computes. It packs as many columns of dY and
 * of X: so they are about equal. Return the number of tasks. */
static int64_t choose_size(sum *s, int64_t tasks) {
    const int64_t rows = s->record->rows, columns = s->record->columns;
    int64_t across = 1;
    while (across < tasks && across * across * rows < tasks * columns) across++;
    s->width = size_of_parts(columns, across, s->kernels->panel_columns);
    s->size = size_of_parts(rows, parts_of(tasks, parts_of(columns, s->width)),
                            s->kernels->tile_rows);
    return parts_of(rows, s->size) * parts_of(columns, s->width);
}

static void run_matrix(const gdb_run *r, sum *s) {
    const int64_t rows = s->record->rows, columns = s->record->columns;
    const int64_t most = most_pairs(rows, columns);
    s->before_packed = (char *)s->pairs - r->crew->scratch + bytes_of_pairs(most);
    s->chunk = s->chunks;
    for (;;) {
        if (s->count - s->first < most) find_pairs(r, s, most);
        s->last = smaller(s->first + most, s->count);
        if (s->last == s->first) break;
        const int64_t work = 2 * rows * columns * (s->last - s->first);
        gdb_share(r->crew, multiply_some, s, choose_size(s, tasks_for(r, work)));
        s->first = s->last;
    }
}

static void add_some_columns(void *context, int64_t number, char *scratch) {
    const sum *s = context;
    const int64_t first = number * s->size;
    scratch += multiple(s->record->count * sizeof(gdb_chunk), GDB_LINE); /* the owner's has the chunks */
    s->kernels->add_columns(s->record->rows, s->record->columns, first,
                            smaller(first + s->size, s->record->rows), s->chunks, s->record->count,
                            s->target, s->record->option & 1, s->record->option >> 1, scratch);
}

static void add_rows(void *context, int64_t number, char *scratch) {
    const sum *s = context;
    (void)scratch;
    s->kernels->bias_gradient(number * s->size, smaller((number + 1) * s->size, s->record->columns),
                              s->chunks, s->record->count, s->target);
}

static void scatter_some(void *context, int64_t number, char *scratch) {
    const sum *s = context;
    const int64_t first = number * s->size, last = smaller(first + s->size, s->record->columns);
    (void)scratch;
    for (int64_t i = 0; i < s->record->count; i++)
        gdb_scatter_add(s->record->dtype, s->target, s->record->rows, s->record->columns, first,
                        last, &s->chunks[i], s->record->option / GDB_INDEX_MODES,
                        s->record->option % GDB_INDEX_MODES);
}

void gdb_run_sum(const gdb_run *r, const int64_t *code) {
    const gdb_sum_record *record = (const gdb_sum_record *)code;
    const gdb_sum_chunk *from = (const gdb_sum_chunk *)(record + 1);
    gdb_chunk *chunks = (gdb_chunk *)r->crew->scratch;
    char *scratch = r->crew->scratch + multiple(record->count * sizeof *chunks, GDB_LINE);
    sum s = {.record = record, .kernels = gdb_kernels_of(record->dtype), .chunks = chunks,
             .target = at(record->target, r->bases), .pairs = (gdb_pair *)scratch};
    int64_t rows = 0;
    for (int64_t i = 0; i < record->count; i++) {
        chunks[i] = (gdb_chunk){from[i].rows, at(from[i].left, r->bases), from[i].left_pitch,
                                at(from[i].right, r->bases), from[i].right_pitch};
        if (from[i].numbering.base >= 0)
            chunks[i].rows = gdb_distinct_rows(from[i].numbering, from[i].rows, r->bases);
        rows += chunks[i].rows;
    }
    const int64_t bytes = rows * record->columns * gdb_size_of(record->dtype);
    const int64_t work = 2 * record->rows * record->columns * rows * (record->option >> 1);
    if (record->record == GDB_MATRIX && record->option >> 1) {
        s.size = size_of_parts(record->rows, tasks_for(r, work), s.kernels->tile_rows);
        gdb_share(r->crew, add_some_columns, &s, parts_of(record->rows, s.size));
    } else if (record->record == GDB_MATRIX) {
        run_matrix(r, &s);
    } else {
        s.size = size_of_parts(record->columns, tasks_for(r, bytes * GDB_COPY_WORK), GDB_LINE);
        gdb_share(r->crew, record->record == GDB_SCATTER ? scatter_some : add_rows, &s,
                  parts_of(record->columns, s.size));
    }
}
