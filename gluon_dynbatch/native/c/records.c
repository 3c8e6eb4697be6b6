#include "records.h"

#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "phases.h"
#include "steps.h"

enum {
    /* Operations of a task at least, some 10 us: about ten times what it takes to hand one out. */
    TASK_WORK = 1000000,
    FIND_WORK = 4096,    /* of a row of which one element is read, which is not in the cache */
    TASKS_PER_THREAD = 4, /* so that threads that are held up do less */
    MOST_TASKS = TASKS_PER_THREAD * GDB_MOST_THREADS,
    LINE = 64,
    SLAB_WORK = 20000000, /* of the pairs that are packed at once: so phases are few */
    MOST_BATCHES = 8,
    WINDOW = 2048 /* rows of which pairs are found at once */
};

static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }
static inline int64_t multiple(int64_t count, int64_t size) { return parts_of(count, size) * size; }

/* A run of records, and the one at hand. */
typedef struct {
    char **bases;
    gdb_crew *crew;
} run;

static inline char *at(gdb_spot spot, char **bases) { return bases[spot.base] + spot.offset; }

/* Return into how many tasks to share work. Numbers of threads change who does what, but no result:
 * each element is computed in the same way in any task. */
static int64_t tasks_for(const run *r, int64_t work) {
    if (r->crew->processors < 2) return 1;
    return larger(1, smaller(work / TASK_WORK, TASKS_PER_THREAD * r->crew->processors));
}

/* Return the size of the parts of a range that is shared into so many tasks: a multiple of
 * `unit`. */
static inline int64_t size_of_parts(int64_t count, int64_t tasks, int64_t unit) {
    return larger(multiple(parts_of(count, tasks), unit), unit);
}

/* ------------------------------------------------------------------ launches */

/* Where a task of a launch begins: at a row of a part. */
typedef struct {
    const int64_t *part;
    int64_t row;
} cut;

/* Some rows of all parts of a LAUNCH record, at most `limit` of each, in tasks of about equal
 * work. */
typedef struct {
    const int64_t *record;
    char **bases;
    int64_t limit, work, tasks;
} launch;

static void run_blocks(const int64_t *part, char **bases, char *scratch, int64_t low,
                       int64_t high) {
    const gdb_kernel *kernel = gdb_kernel_of(part);
    for (; low < high; low += kernel->block_rows)
        gdb_run_block(kernel, part + 2, bases, scratch, low,
                      smaller(low + kernel->block_rows, high));
}

/* Find where a task begins; the one after the last begins at the end. */
static cut find_cut(const launch *l, int64_t number) {
    const int64_t *part = l->record + 2;
    int64_t before = l->work / l->tasks * number; /* work that other tasks do */
    for (int64_t i = 0; i < l->record[1]; i++, part = gdb_next_part(part)) {
        const gdb_kernel *kernel = gdb_kernel_of(part);
        const int64_t rows = smaller(part[1], l->limit), row_work = larger(kernel->work, 1);
        if (number < l->tasks && before < rows * row_work) {
            const int64_t row = multiple(parts_of(before, row_work), kernel->tile_rows);
            if (row < rows) return (cut){part, row};
            before = rows * row_work; /* the next part begins */
        }
        before = larger(before - rows * row_work, 0);
    }
    return (cut){part, 0};
}

static void run_rows(void *context, int64_t number, char *scratch) {
    const launch *l = context;
    const cut first = find_cut(l, number), last = find_cut(l, number + 1);
    const int64_t *part = first.part;
    int64_t low = first.row;
    for (; part < last.part; part = gdb_next_part(part), low = 0)
        run_blocks(part, l->bases, scratch, low, smaller(part[1], l->limit));
    if (low < last.row) run_blocks(part, l->bases, scratch, low, last.row);
}

/* A block whose steps are shared one by one: for few rows, and much work in each. */
typedef struct {
    const gdb_kernel *kernel;
    const gdb_step *step;
    const gdb_array *slots;
    int64_t rows, size;
} block;

static void run_columns(void *context, int64_t number, char *scratch) {
    const block *b = context;
    const gdb_product *p = (const gdb_product *)b->step;
    (void)scratch;
    gdb_run_product(p, b->slots, b->rows, number * b->size,
                    smaller((number + 1) * b->size, p->units));
}

static void run_step_rows(void *context, int64_t number, char *scratch) {
    const block *b = context;
    const int64_t low = number * b->size;
    gdb_array *slots = (gdb_array *)(scratch + b->kernel->arrays);
    for (int64_t s = 0; s < b->kernel->slots_count; s++) {
        slots[s] = b->slots[s];
        slots[s].data += low * slots[s].pitch * gdb_size_of(slots[s].dtype);
    }
    gdb_run_step(b->step, slots, smaller(b->size, b->rows - low), scratch);
}

static void share_block(const run *r, const gdb_kernel *kernel, const int64_t *places, int64_t low,
                        int64_t rows) {
    char *scratch = r->crew->scratch;
    /* The tasks of the owner overwrite its own slots. */
    gdb_array *slots = malloc(larger(kernel->slots_count, 1) * sizeof *slots);
    block b = {kernel, kernel->steps, slots, rows, 0};
    if (!slots) {
        gdb_run_block(kernel, places, r->bases, scratch, low, low + rows);
        return;
    }
    gdb_place_slots(kernel, places, r->bases, scratch, low, slots);
    for (; b.step < kernel->end; b.step = gdb_next_step(b.step)) {
        const int64_t tasks = tasks_for(r, rows * gdb_work_of(b.step));
        const gdb_product *p = (const gdb_product *)b.step;
        if (b.step->kind == GDB_PRODUCT) {
            const int64_t unit = p->unpacked ? LINE : gdb_kernels_of(p->step.dtype)->panel_columns;
            b.size = size_of_parts(p->units, tasks, unit);
            gdb_share(r->crew, run_columns, &b, parts_of(p->units, b.size));
        } else {
            b.size = size_of_parts(rows, tasks, 1);
            gdb_share(r->crew, run_step_rows, &b, parts_of(rows, b.size));
        }
    }
    free(slots);
}

/* Return the work of a LAUNCH record, at most `limit` rows of each part, and its tiles. */
static int64_t work_of_launch(const int64_t *code, int64_t limit, int64_t *tiles) {
    const int64_t *part = code + 2;
    int64_t work = 0;
    *tiles = 0;
    for (int64_t i = 0; i < code[1]; i++, part = gdb_next_part(part)) {
        const int64_t rows = smaller(part[1], limit);
        work += rows * larger(gdb_kernel_of(part)->work, 1);
        *tiles += parts_of(rows, gdb_kernel_of(part)->tile_rows);
    }
    return work;
}

/* Return whether the steps of a launch are shared one by one, which has fewer tiles than tasks. Each
 * of them is a phase, which takes the time of a task more. */
static int is_shared_by_steps(const run *r, const int64_t *code, int64_t rows, int64_t tiles,
                              int64_t tasks) {
    const gdb_kernel *kernel = gdb_kernel_of(code + 2);
    int64_t by_rows = TASK_WORK, by_steps = 0;
    if (code[1] != 1 || kernel->tile_rows < 2 || tasks < 2 || tiles >= tasks || !tiles) return 0;
    by_rows += rows * kernel->work / tiles * parts_of(tiles, r->crew->processors);
    for (const gdb_step *step = kernel->steps; step < kernel->end; step = gdb_next_step(step)) {
        const int64_t work = rows * gdb_work_of(step), parts = tasks_for(r, work);
        by_steps += parts > 1 ? TASK_WORK + work / smaller(parts, r->crew->processors) : work;
    }
    return by_steps < by_rows;
}

/* Run a LAUNCH, at most `limit` rows of each part. */
static void run_launch(const run *r, const int64_t *code, int64_t limit) {
    const gdb_kernel *kernel = gdb_kernel_of(code + 2);
    const int64_t rows = smaller(code[3], limit);
    int64_t tiles;
    const int64_t work = work_of_launch(code, limit, &tiles), tasks = tasks_for(r, work);
    launch l = {code, r->bases, limit, work, larger(smaller(tasks, tiles), 1)};
    if (!is_shared_by_steps(r, code, rows, tiles, tasks)) {
        gdb_share(r->crew, run_rows, &l, l.tasks);
        return;
    }
    for (int64_t low = 0; low < rows; low += kernel->block_rows)
        share_block(r, kernel, code + 4, low, smaller(kernel->block_rows, rows - low));
}

/* ------------------------------------------------------------------ equal rows */

typedef struct {
    int32_t distinct, rows;
    int32_t number[]; /* of each row; the first row of each number follows */
} numbering;

static inline const int32_t *first_rows(const numbering *n) { return n->number + n->rows; }

/* The index by which a row was chosen, and the table. */
typedef struct {
    int64_t index, table;
} origin;

static inline uint64_t hash_of(int64_t index) {
    return ((uint64_t)index * 0x9E3779B97F4A7C15ULL) >> 32;
}

static void number_apart(numbering *n) {
    int32_t *first = n->number + n->rows;
    n->distinct = n->rows;
    for (int32_t row = 0; row < n->rows; row++) n->number[row] = first[row] = row;
}

/* Number rows in order of appearance, equal rows alike. */
static void number_alike(numbering *n, const gdb_key *keys, int64_t count, char **bases,
                         int32_t *table, uint64_t buckets, origin *origins) {
    int32_t *first = n->number + n->rows, row = 0;
    memset(table, -1, buckets * sizeof *table);
    for (const gdb_key *key = keys; key < keys + count; key++)
        for (int64_t k = 0; k < key->rows; k++, row++) {
            uint64_t bucket = buckets;
            origin o = {0, key->table};
            if (key->table >= 0) {
                const char *source = at(key->numbers, bases) + k * key->size;
                o.index = key->size == 8 ? *(const int64_t *)source : *(const int32_t *)source;
                bucket = hash_of(o.index) & (buckets - 1);
                while (table[bucket] >= 0 && (origins[table[bucket]].index != o.index
                                              || origins[table[bucket]].table != o.table))
                    bucket = (bucket + 1) & (buckets - 1);
            }
            if (bucket < buckets && table[bucket] >= 0) {
                n->number[row] = table[bucket];
                continue;
            }
            if (bucket < buckets) table[bucket] = n->distinct;
            origins[n->distinct] = o, first[n->distinct] = row;
            n->number[row] = n->distinct++;
        }
}

/* Fill in a numbering. If few rows are equal, or there is no memory for a hash table, all rows count
 * as distinct. */
static void number_rows(numbering *n, const gdb_key *keys, int64_t count, char **bases) {
    uint64_t buckets = 16;
    while (buckets < 2 * (uint64_t)n->rows) buckets *= 2;
    int32_t *table = malloc(buckets * sizeof *table); /* numbers, or -1 */
    origin *origins = malloc(larger(n->rows, 1) * sizeof *origins);
    n->distinct = 0;
    if (table && origins) number_alike(n, keys, count, bases, table, buckets, origins);
    free(table);
    free(origins);
    if (n->distinct == 0 || 4 * (int64_t)n->distinct > 3 * (int64_t)n->rows) number_apart(n);
}

/* Rows of an array that move between their own places and those of their numbers. Numbers come
 * first: no row from `distinct` on is in the place of a number. So these rows move in parallel, and
 * the others one after another, when nothing is overwritten that is still to be read. */
typedef struct {
    const numbering *rows;
    const gdb_moved *moved;
    char *target;
    const char *source;
    int64_t size; /* rows or numbers of a task */
    /* For LOOK_UP. */
    const gdb_key *keys;
    char **bases;
} movement;

/* Move the first of equal rows, or their sum (TOTAL), to the row of their number: rows [low, high)
 * with numbers [first, last). The target may be the source. */
static void compact_rows(const movement *m, int64_t low, int64_t high, int64_t first,
                         int64_t last) {
    const int64_t bytes = m->moved->width * gdb_size_of(m->moved->dtype);
    for (int64_t row = low; row < high; row++) {
        const int64_t number = m->rows->number[row];
        char *to = m->target + number * bytes;
        const char *from = m->source + row * bytes;
        if (number < first || number >= last)
            continue;
        if (first_rows(m->rows)[number] != row) {
            if (m->moved->operation == GDB_TOTAL)
                gdb_add(m->moved->dtype, to, from, m->moved->width);
        } else if (to != from) {
            memcpy(to, from, bytes);
        }
    }
}

/* Copy the row of each number, in place, to rows [low, high) that have it, the last one first. With
 * SINGLE only the first of equal rows gets it, and the others become zero. */
static void expand_rows(const movement *m, int64_t low, int64_t high) {
    const int64_t bytes = m->moved->width * gdb_size_of(m->moved->dtype);
    for (int64_t row = high - 1; row >= low; row--) {
        const int64_t number = m->rows->number[row];
        char *to = m->target + row * bytes;
        if (m->moved->operation == GDB_SINGLE && first_rows(m->rows)[number] != row)
            memset(to, 0, bytes);
        else if (number != row)
            memcpy(to, m->target + number * bytes, bytes);
    }
}

static void compact_some(void *context, int64_t task, char *scratch) {
    const movement *m = context;
    (void)scratch;
    compact_rows(m, m->rows->distinct, m->rows->rows, task * m->size, (task + 1) * m->size);
}

/* Copy rows of the table to the numbers whose first rows are among [low, high). */
static void look_up_rows(const movement *m, int64_t low, int64_t high) {
    const int64_t bytes = m->moved->width * gdb_size_of(m->moved->dtype);
    int64_t row = 0;
    for (const gdb_key *key = m->keys; row < high; key++) {
        const gdb_array index = {at(key->numbers, m->bases), 1, m->moved->index_dtype};
        const int64_t begin = row, end = row + key->rows;
        for (row = larger(begin, low); row < smaller(end, high); row++) {
            const int64_t number = m->rows->number[row];
            if (first_rows(m->rows)[number] != row) continue;
            const int64_t chosen = gdb_table_row(&index, row - begin, 0, m->moved->table_rows,
                                                 GDB_CLIP, 1);
            memcpy(m->target + number * bytes, m->source + chosen * bytes, bytes);
        }
        row = end;
    }
}

static void look_up_some(void *context, int64_t task, char *scratch) {
    const movement *m = context;
    (void)scratch;
    look_up_rows(m, task * m->size, smaller((task + 1) * m->size, m->rows->rows));
}

static void expand_some(void *context, int64_t task, char *scratch) {
    const movement *m = context;
    const int64_t low = m->rows->distinct + task * m->size;
    (void)scratch;
    expand_rows(m, low, smaller(low + m->size, m->rows->rows));
}

/* Move the rows of an array before the launch (PICK, LOOK_UP, TOTAL), or after it (REPEAT, SINGLE). */
static void move_rows(const run *r, const numbering *n, const gdb_moved *moved,
                      const gdb_key *keys) {
    const int64_t bytes = moved->width * gdb_size_of(moved->dtype), rest = n->rows - n->distinct;
    const int64_t tasks = tasks_for(r, rest * bytes * GDB_COPY_WORK);
    movement m = {n, moved, at(moved->target, r->bases), NULL, 0, keys, r->bases};
    if (moved->operation == GDB_LOOK_UP) {
        m.source = at(moved->source, r->bases);
        m.size = size_of_parts(n->rows, tasks_for(r, n->distinct * bytes * GDB_COPY_WORK), 1);
        gdb_share(r->crew, look_up_some, &m, parts_of(n->rows, m.size));
    } else if (moved->operation <= GDB_TOTAL) {
        m.source = at(moved->source, r->bases);
        m.size = size_of_parts(n->distinct, tasks, 1);
        compact_rows(&m, 0, n->distinct, 0, n->distinct);
        gdb_share(r->crew, compact_some, &m, parts_of(n->distinct, m.size));
    } else {
        m.size = size_of_parts(rest, tasks, 1);
        gdb_share(r->crew, expand_some, &m, parts_of(rest, m.size));
        expand_rows(&m, 0, n->distinct);
    }
}

/* Run the launch after a DISTINCT record on distinct rows. */
static void run_distinct(const run *r, const int64_t *code) {
    const gdb_distinct_record *record = (const gdb_distinct_record *)code;
    const gdb_key *keys = (const gdb_key *)(record + 1);
    const gdb_moved *moved = (const gdb_moved *)(keys + record->keys);
    numbering *n = (numbering *)at(record->numbering, r->bases);
    if (record->keys) {
        n->rows = (int32_t)record->rows;
        number_rows(n, keys, record->keys, r->bases);
    }
    for (int64_t i = 0; i < record->moved; i++)
        if (moved[i].operation <= GDB_TOTAL) move_rows(r, n, &moved[i], keys);
    run_launch(r, (const int64_t *)(moved + record->moved), n->distinct);
    for (int64_t i = 0; i < record->moved; i++)
        if (moved[i].operation > GDB_TOTAL) move_rows(r, n, &moved[i], keys);
}

/* ------------------------------------------------------------------ copies */

typedef struct {
    const gdb_rows_record *record;
    char **bases;
    int64_t tasks, size; /* `size`: elements of a task's part of the target */
} copies;

/* Do what a piece says for elements [first, last) of the target. */
static void run_piece(const gdb_rows_record *record, const gdb_piece *piece, char *target,
                      char **bases, int64_t first, int64_t last) {
    const int64_t size = record->element_size;
    char *to = target + first * size;
    if (first >= last) return;
    if (piece->operation == GDB_ZERO) {
        memset(to, 0, (last - first) * size);
        return;
    }
    const char *from = at(piece->source, bases) + (first - piece->target) * size;
    if (piece->operation == GDB_COPY)
        memcpy(to, from, (last - first) * size);
    else
        gdb_add(record->dtype, to, from, last - first);
}

/* Run some of the pieces, if they are in order, or else all for a part of the target. */
static void run_pieces(void *context, int64_t number, char *scratch) {
    const copies *c = context;
    const gdb_rows_record *record = c->record;
    const gdb_piece *pieces = (const gdb_piece *)(record + 1), *end = pieces + record->count;
    char *target = at(record->target, c->bases);
    int64_t first = INT64_MIN, last = INT64_MAX;
    (void)scratch;
    if (c->tasks > 1 && record->in_order) {
        end = pieces + record->count * (number + 1) / c->tasks;
        pieces += record->count * number / c->tasks;
    } else if (c->tasks > 1) {
        first = number * c->size, last = first + c->size;
    }
    for (; pieces < end; pieces++)
        run_piece(record, pieces, target, c->bases, larger(pieces->target, first),
                  smaller(pieces->target + pieces->count, last));
}

/* Return the copies of a record, in about so many tasks. */
static copies share_copies(const run *r, const gdb_rows_record *record, int64_t tasks) {
    copies c = {record, r->bases, tasks, 0};
    if (record->in_order) {
        c.tasks = smaller(tasks, larger(record->count, 1));
    } else {
        c.size = size_of_parts(record->end, tasks, larger(LINE / record->element_size, 1));
        c.tasks = larger(parts_of(record->end, c.size), 1);
    }
    return c;
}

/* ------------------------------------------------------------------ packed matrices */

typedef struct {
    const gdb_pack_record *record;
    char **bases;
    int64_t size; /* columns of a task */
} packing;

static void run_packing(void *context, int64_t number, char *scratch) {
    const packing *p = context;
    const gdb_pack_record *record = p->record;
    const int64_t size = gdb_size_of(record->dtype), first = number * p->size;
    (void)scratch;
    gdb_kernels_of(record->dtype)
        ->pack(at(record->source, p->bases) + first * record->column_stride * size,
               record->row_stride, record->column_stride, record->rows,
               smaller(p->size, record->columns - first),
               at(record->target, p->bases) + first * record->rows * size);
}

/* Return the packing of a record, in about so many tasks. */
static packing share_packing(const run *r, const gdb_pack_record *record, int64_t tasks) {
    const int64_t panel = gdb_kernels_of(record->dtype)->panel_columns;
    return (packing){record, r->bases, size_of_parts(record->columns, tasks, panel)};
}

/* ------------------------------------------------------------------ sums over rows */

/* Pairs that are packed at once, for MATRIX: batches of GDB_PAIRS each but the last one. */
typedef struct {
    char *packed;
    const gdb_pair *pairs;
    int64_t count, batches, size; /* `size`: pairs of a task that packs */
} slab;

typedef struct {
    const gdb_sum_record *record;
    const gdb_kernels *kernels;
    const gdb_chunk *chunks;
    char *target;
    int64_t size; /* rows or columns of a task */
    /* For MATRIX. One slab is multiplied while the next one is packed. */
    slab slabs[2], *packing;
    const slab *multiplied;
    int64_t batch_bytes, width, products; /* `products`: tasks that multiply */
    /* Pairs that have been found; those from `first` on are not packed yet. */
    gdb_pair *pairs;
    int64_t first, count;
    /* The rows that may be the next pairs: where they begin, and their number. */
    const gdb_chunk *chunk;
    int64_t row, candidates;
} sum;

/* Return how many batches of pairs are packed before they are multiplied. */
static int64_t most_batches(int64_t rows, int64_t columns) {
    const int64_t work = larger(2 * rows * columns * GDB_PAIRS, 1);
    return larger(1, smaller(SLAB_WORK / work, MOST_BATCHES));
}

static int64_t batch_bytes(const gdb_kernels *kernels, int64_t dtype, int64_t rows,
                           int64_t columns) {
    return multiple(kernels->packed_pairs(rows, columns) * gdb_size_of(dtype), LINE);
}

/* Return the bytes of pairs that have been found: less than a slab before a window is added. */
static int64_t bytes_of_pairs(int64_t batches) {
    return multiple((WINDOW + batches * GDB_PAIRS) * sizeof(gdb_pair), LINE);
}

int64_t gdb_sum_scratch(int64_t dtype, int64_t rows, int64_t columns, int64_t chunks) {
    const int64_t batches = most_batches(rows, columns);
    return multiple(chunks * sizeof(gdb_chunk), LINE) + bytes_of_pairs(batches)
        + 2 * batches * batch_bytes(gdb_kernels_of(dtype), dtype, rows, columns);
}

static inline int64_t pairs_in(const slab *s, int64_t batch) {
    return smaller(GDB_PAIRS, s->count - batch * GDB_PAIRS);
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
static void find_pairs(const run *r, sum *s, int64_t most) {
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

/* Begin the next slab: so many pairs, or all that are left. Return the tasks that pack it. */
static int64_t begin_slab(const run *r, sum *s, int64_t most) {
    slab *next = s->packing;
    if (s->count - s->first < most) find_pairs(r, s, most);
    next->pairs = s->pairs + s->first, next->count = smaller(s->count - s->first, most);
    next->batches = parts_of(next->count, GDB_PAIRS);
    s->first += next->count;
    const int64_t bytes = next->count * (s->record->rows + s->record->columns)
        * gdb_size_of(s->record->dtype);
    next->size = size_of_parts(GDB_PAIRS, parts_of(tasks_for(r, bytes * GDB_COPY_WORK),
                                                   larger(next->batches, 1)), 1);
    return next->batches * parts_of(GDB_PAIRS, next->size);
}

static void pack_some(const sum *s, int64_t number) {
    const slab *next = s->packing;
    const int64_t per_batch = parts_of(GDB_PAIRS, next->size), batch = number / per_batch;
    const int64_t first = number % per_batch * next->size, count = pairs_in(next, batch);
    s->kernels->pack_pairs(s->record->rows, s->record->columns, next->pairs + batch * GDB_PAIRS,
                           first, smaller(first + next->size, count),
                           next->packed + batch * s->batch_bytes);
}

/* Multiply all batches, in their order, for some rows and columns of the target. */
static void multiply_some(const sum *s, int64_t number) {
    const int64_t across = parts_of(s->record->columns, s->width);
    const int64_t first = number / across * s->size, left = number % across * s->width;
    for (int64_t batch = 0; batch < s->multiplied->batches; batch++)
        s->kernels->multiply_pairs(
            s->record->rows, s->record->columns, pairs_in(s->multiplied, batch),
            s->multiplied->packed + batch * s->batch_bytes, first,
            smaller(first + s->size, s->record->rows), left,
            smaller(left + s->width, s->record->columns), s->target);
}

static void multiply_or_pack(void *context, int64_t number, char *scratch) {
    const sum *s = context;
    (void)scratch;
    if (number < s->products)
        multiply_some(s, number);
    else
        pack_some(s, number - s->products);
}

/* Choose the rows and columns of the target that a task computes. It reads as many columns of dY and
 * of X, from other threads' caches: so they are about equal. Return the number of tasks. */
static int64_t choose_size(sum *s, int64_t tasks) {
    const int64_t rows = s->record->rows, columns = s->record->columns;
    int64_t across = 1;
    while (across < tasks && across * across * rows < tasks * columns) across++;
    s->width = size_of_parts(columns, across, s->kernels->panel_columns);
    s->size = size_of_parts(rows, parts_of(tasks, parts_of(columns, s->width)),
                            s->kernels->tile_rows);
    return parts_of(rows, s->size) * parts_of(columns, s->width);
}

static void run_matrix(const run *r, sum *s) {
    const int64_t rows = s->record->rows, columns = s->record->columns;
    const int64_t batches = most_batches(rows, columns), most = batches * GDB_PAIRS;
    s->batch_bytes = batch_bytes(s->kernels, s->record->dtype, rows, columns);
    s->slabs[0].packed = s->slabs[1].packed = (char *)s->pairs + bytes_of_pairs(batches);
    /* A thread alone packs when it has multiplied, into what is in its cache. */
    if (r->crew->processors > 1) s->slabs[1].packed += batches * s->batch_bytes;
    s->chunk = s->chunks;
    s->packing = s->slabs;
    int64_t packs = begin_slab(r, s, most);
    gdb_share(r->crew, multiply_or_pack, s, packs);
    while (s->packing->count) {
        s->multiplied = s->packing;
        s->packing = s->slabs + (s->packing == s->slabs);
        packs = begin_slab(r, s, most);
        s->products = choose_size(s, tasks_for(r, 2 * rows * columns * s->multiplied->count));
        gdb_share(r->crew, multiply_or_pack, s, s->products + packs);
    }
}

static void add_some_columns(void *context, int64_t number, char *scratch) {
    const sum *s = context;
    const int64_t first = number * s->size;
    scratch += multiple(s->record->count * sizeof(gdb_chunk), LINE); /* the owner's has the chunks */
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

/* Run a MATRIX, ROW or SCATTER record. */
static void run_sum(const run *r, const int64_t *code) {
    const gdb_sum_record *record = (const gdb_sum_record *)code;
    const gdb_sum_chunk *from = (const gdb_sum_chunk *)(record + 1);
    gdb_chunk *chunks = (gdb_chunk *)r->crew->scratch;
    char *scratch = r->crew->scratch + multiple(record->count * sizeof *chunks, LINE);
    sum s = {.record = record, .kernels = gdb_kernels_of(record->dtype), .chunks = chunks,
             .target = at(record->target, r->bases), .pairs = (gdb_pair *)scratch};
    int64_t rows = 0;
    for (int64_t i = 0; i < record->count; i++) {
        chunks[i] = (gdb_chunk){from[i].rows, at(from[i].left, r->bases), from[i].left_pitch,
                                at(from[i].right, r->bases), from[i].right_pitch};
        if (from[i].numbering.base >= 0) {
            const numbering *n = (const numbering *)at(from[i].numbering, r->bases);
            chunks[i].rows = from[i].rows / n->rows * n->distinct;
        }
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
        s.size = size_of_parts(record->columns, tasks_for(r, bytes * GDB_COPY_WORK), LINE);
        gdb_share(r->crew, record->record == GDB_SCATTER ? scatter_some : add_rows, &s,
                  parts_of(record->columns, s.size));
    }
}

/* ------------------------------------------------------------------ records */

/* Run a task of a ROWS, PACK or LAUNCH record, which is cut into so many; return how many there are
 * if `number` is negative. */
static int64_t run_part(const run *r, const int64_t *code, int64_t number, int64_t count) {
    int64_t tiles;
    if (code[0] == GDB_ROWS) {
        copies c = share_copies(r, (const gdb_rows_record *)code, count);
        if (number >= 0) run_pieces(&c, number, r->crew->scratch);
        return c.tasks;
    }
    if (code[0] == GDB_PACK) {
        packing p = share_packing(r, (const gdb_pack_record *)code, count);
        if (number >= 0) run_packing(&p, number, r->crew->scratch);
        return larger(parts_of(p.record->columns, p.size), 1);
    }
    launch l = {code, r->bases, INT64_MAX, work_of_launch(code, INT64_MAX, &tiles), count};
    l.tasks = larger(smaller(count, tiles), 1);
    if (number >= 0) run_rows(&l, number, r->crew->scratch);
    return l.tasks;
}

typedef struct {
    const run *run;
    const int64_t *code;
    int64_t tasks;
} shared_record;

static void run_some(void *context, int64_t number, char *scratch) {
    const shared_record *s = context;
    gdb_crew alone = {.processors = 1, .scratch = scratch};
    const run r = {s->run->bases, &alone};
    run_part(&r, s->code, number, s->tasks);
}

static void run_record(const run *r, const int64_t *code) {
    shared_record s = {r, code, 0};
    switch (code[0]) {
    case GDB_LAUNCH: run_launch(r, code, INT64_MAX); break;
    case GDB_DISTINCT: run_distinct(r, code); break;
    case GDB_ROWS:
    case GDB_PACK:
        s.tasks = tasks_for(r, gdb_work_of_record(code));
        gdb_share(r->crew, run_some, &s, run_part(r, code, -1, s.tasks));
        break;
    default: run_sum(r, code);
    }
}

/* ------------------------------------------------------------------ phases */

/* A task of a phase: whole records, or one of the tasks of one record. */
typedef struct {
    int64_t first, stop; /* records */
    int64_t number, count;
} piece_of_phase;

/* The records of a phase that run at the same time, and the tasks that they are cut into. */
typedef struct {
    const int64_t *code;
    const gdb_placed *records;
    char **bases;
    int64_t count;
    piece_of_phase tasks[2 * MOST_TASKS];
} phase;

static void run_piece_of_phase(void *context, int64_t number, char *scratch) {
    const phase *p = context;
    const piece_of_phase *task = &p->tasks[number];
    gdb_crew alone = {.processors = 1, .scratch = scratch};
    const run r = {p->bases, &alone};
    for (int64_t i = task->first; i < task->stop; i++) {
        const int64_t *code = p->code + p->records[i].at;
        if (task->count > 1)
            run_part(&r, code, task->number, task->count);
        else
            run_record(&r, code);
    }
}

/* Return whether a record of a phase is shared better by itself: a sum, which has phases of its own,
 * or a launch of few rows and much work. */
static int is_better_alone(const run *r, const int64_t *code, int64_t work) {
    const int64_t tasks = tasks_for(r, work);
    int64_t tiles;
    if (tasks < 2 || code[0] == GDB_ROWS || code[0] == GDB_PACK) return 0;
    if (code[0] != GDB_LAUNCH) return 1;
    work_of_launch(code, INT64_MAX, &tiles);
    return is_shared_by_steps(r, code, code[3], tiles, tasks);
}

static void share_phase(const run *r, phase *p) {
    gdb_share(r->crew, run_piece_of_phase, p, p->count);
    p->count = 0;
}

/* Cut the records of a phase into at most `most` tasks each, of at least `share` operations; those
 * that are better alone run at once. */
static void cut_phase(const run *r, phase *p, int64_t records, int64_t share, int64_t most) {
    int64_t open = 0; /* the work of the last task, if whole records may still be added */
    for (int64_t i = 0; i < records; i++) {
        const int64_t *code = p->code + p->records[i].at;
        const int64_t work = p->records[i].work;
        const int64_t parts = larger(1, smaller(work / share, most));
        if (p->count + parts > 2 * MOST_TASKS) {
            share_phase(r, p);
            open = 0;
        }
        if (is_better_alone(r, code, work)) {
            run_record(r, code);
            open = 0;
        } else if (parts > 1) {
            const int64_t count = run_part(r, code, -1, parts);
            for (int64_t k = 0; k < count; k++)
                p->tasks[p->count++] = (piece_of_phase){i, i + 1, k, count > 1 ? parts : 1};
            open = 0;
        } else {
            if (!open) p->tasks[p->count++] = (piece_of_phase){i, i, 0, 1};
            p->tasks[p->count - 1].stop = i + 1;
            open += larger(work, 1);
            if (open >= share) open = 0;
        }
    }
}

/* Run records of one level at the same time. */
static void run_phase(const run *r, const int64_t *code, const gdb_placed *records, int64_t count) {
    phase p;
    int64_t work = 0;
    for (int64_t i = 0; i < count; i++) work += records[i].work;
    const int64_t tasks = tasks_for(r, work);
    if (tasks < 2 || count < 2) {
        for (int64_t i = 0; i < count; i++) run_record(r, code + records[i].at);
        return;
    }
    p.code = code, p.records = records, p.bases = r->bases, p.count = 0;
    cut_phase(r, &p, count, larger(work / tasks, 1), tasks);
    share_phase(r, &p);
}

static void run_group(const run *r, const int64_t *code, const gdb_placed *record,
                      const gdb_placed *end) {
    while (record < end) {
        const gdb_placed *first = record;
        while (record < end && record->level == first->level) record++;
        run_phase(r, code, first, record - first);
    }
}

void gdb_run_records(const int64_t *code, int64_t low, int64_t high,
                     const struct gdb_groups *groups, char **bases, gdb_crew *crew) {
    const run r = {bases, crew};
    const gdb_group *group = groups ? groups->groups : NULL;
    const gdb_group *last = groups ? group + groups->count : NULL;
    while (low < high) {
        while (group < last && group->begin < low) group++;
        if (group < last && group->begin == low && group->end <= high
            && tasks_for(&r, group->work) > 1 && gdb_has_help(crew)) {
            run_group(&r, code, groups->records + group->first, groups->records + group->stop);
            low = group->end;
            continue;
        }
        const int64_t *record = code + low, *next = gdb_next_record(record);
        run_record(&r, record);
        if (record[0] == GDB_DISTINCT) next = gdb_next_record(next); /* its launch */
        low = next - code;
    }
}
