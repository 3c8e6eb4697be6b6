#include "records.h"

#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "steps.h"

enum {
    /* Operations of a task at least, some 10 us: about ten times what it takes to hand one out. */
    TASK_WORK = 1000000,
    COPY_WORK = 16,      /* of a byte that is copied, in operations of products */
    FIND_WORK = 4096,    /* of a row of which one element is read, which is not in the cache */
    TASKS_PER_THREAD = 4, /* so that threads that are held up do less */
    MOST_TASKS = TASKS_PER_THREAD * GDB_MOST_THREADS,
    MOST_TOGETHER = 16, /* records */
    LINE = 64,
    SLAB_WORK = 20000000, /* of the pairs that are packed at once: so phases are few */
    MOST_BATCHES = 8
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

/* A part of a launch: a kernel, rows, and a spot per slot. */
static inline const gdb_kernel *kernel_of(const int64_t *part) {
    return (const gdb_kernel *)(uintptr_t)part[0];
}

static inline const int64_t *next_part(const int64_t *part) {
    return part + 2 + 2 * kernel_of(part)->slots_count;
}

/* Where a task of a launch begins: at a row of a part. */
typedef struct {
    const int64_t *part;
    int64_t row;
} cut;

typedef struct {
    char **bases;
    int64_t limit; /* rows of each part at most */
    cut cuts[MOST_TASKS + 1];
} launch;

static void run_blocks(const int64_t *part, char **bases, char *scratch, int64_t low,
                       int64_t high) {
    const gdb_kernel *kernel = kernel_of(part);
    for (; low < high; low += kernel->block_rows)
        gdb_run_block(kernel, part + 2, bases, scratch, low,
                      smaller(low + kernel->block_rows, high));
}

static void run_rows(void *context, int64_t number, char *scratch) {
    const launch *l = context;
    const cut *cuts = &l->cuts[number];
    const int64_t *part = cuts[0].part;
    int64_t low = cuts[0].row;
    for (; part < cuts[1].part; part = next_part(part), low = 0)
        run_blocks(part, l->bases, scratch, low, smaller(part[1], l->limit));
    if (low < cuts[1].row) run_blocks(part, l->bases, scratch, low, cuts[1].row);
}

/* Cut the rows of all parts into tasks of about equal work; return their number. */
static int64_t cut_rows(launch *l, const int64_t *part, const int64_t *end, int64_t work,
                        int64_t tasks) {
    const int64_t share = parts_of(work, tasks);
    int64_t count = 0, missing = 0; /* work until the next cut */
    for (; part < end; part = next_part(part)) {
        const gdb_kernel *kernel = kernel_of(part);
        const int64_t rows = smaller(part[1], l->limit), row_work = larger(kernel->work, 1);
        int64_t row = 0;
        while (row < rows) {
            if (missing <= 0 && count < tasks) {
                l->cuts[count++] = (cut){part, row};
                missing += share;
            }
            int64_t next = rows;
            if (count < tasks)
                next = smaller(rows, row + multiple(parts_of(missing, row_work), kernel->tile_rows));
            missing -= (next - row) * row_work;
            row = next;
        }
    }
    l->cuts[count] = (cut){end, 0};
    return count;
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

/* Run a LAUNCH, at most `limit` rows of each part; return the end of the record. */
static const int64_t *run_launch(const run *r, const int64_t *code, int64_t limit) {
    const int64_t *first = code + 2, *part = first;
    launch l;
    int64_t work = 0, tasks, rows = 0, tiles = 0;
    for (int64_t i = 0; i < code[1]; i++, part = next_part(part)) {
        rows = smaller(part[1], limit);
        work += rows * kernel_of(part)->work;
        tiles += parts_of(rows, kernel_of(part)->tile_rows);
    }
    tasks = tasks_for(r, work);
    if (code[1] == 1 && kernel_of(first)->tile_rows > 1 && tiles < tasks) {
        const gdb_kernel *kernel = kernel_of(first);
        for (int64_t low = 0; low < rows; low += kernel->block_rows)
            share_block(r, kernel, first + 2, low, smaller(kernel->block_rows, rows - low));
    } else {
        l.bases = r->bases, l.limit = limit;
        tasks = cut_rows(&l, first, part, work, tasks);
        gdb_share(r->crew, run_rows, &l, tasks);
    }
    return part;
}

/* Return the end of a record that is not run. */
static const int64_t *skip(const int64_t *code) {
    const gdb_rows_record *rows = (const gdb_rows_record *)code;
    const gdb_sum_record *sums = (const gdb_sum_record *)code;
    const gdb_distinct_record *distinct = (const gdb_distinct_record *)code;
    const int64_t *part = code + 2;
    switch (code[0]) {
    case GDB_LAUNCH:
        for (int64_t i = 0; i < code[1]; i++) part = next_part(part);
        return part;
    case GDB_ROWS: return (const int64_t *)((const gdb_piece *)(rows + 1) + rows->count);
    case GDB_PACK: return code + sizeof(gdb_pack_record) / 8;
    case GDB_DISTINCT:
        return (const int64_t *)((const gdb_moved *)((const gdb_key *)(distinct + 1)
                                                     + distinct->keys) + distinct->moved);
    default: return (const int64_t *)((const gdb_sum_chunk *)(sums + 1) + sums->count);
    }
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

static void expand_some(void *context, int64_t task, char *scratch) {
    const movement *m = context;
    const int64_t low = m->rows->distinct + task * m->size;
    (void)scratch;
    expand_rows(m, low, smaller(low + m->size, m->rows->rows));
}

/* Move the rows of an array before the launch (PICK, TOTAL), or after it (REPEAT, SINGLE). */
static void move_rows(const run *r, const numbering *n, const gdb_moved *moved) {
    const int64_t bytes = moved->width * gdb_size_of(moved->dtype), rest = n->rows - n->distinct;
    const int64_t tasks = tasks_for(r, rest * bytes * COPY_WORK);
    movement m = {n, moved, at(moved->target, r->bases), NULL, 0};
    if (moved->operation <= GDB_TOTAL) {
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

/* Run the launch after a DISTINCT record on distinct rows; return the end of that launch. */
static const int64_t *run_distinct(const run *r, const int64_t *code) {
    const gdb_distinct_record *record = (const gdb_distinct_record *)code;
    const gdb_key *keys = (const gdb_key *)(record + 1);
    const gdb_moved *moved = (const gdb_moved *)(keys + record->keys);
    numbering *n = (numbering *)at(record->numbering, r->bases);
    if (record->keys) {
        n->rows = (int32_t)record->rows;
        number_rows(n, keys, record->keys, r->bases);
    }
    for (int64_t i = 0; i < record->moved; i++)
        if (moved[i].operation <= GDB_TOTAL) move_rows(r, n, &moved[i]);
    const int64_t *end = run_launch(r, (const int64_t *)(moved + record->moved), n->distinct);
    for (int64_t i = 0; i < record->moved; i++)
        if (moved[i].operation > GDB_TOTAL) move_rows(r, n, &moved[i]);
    return end;
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

static int64_t work_of_copies(const gdb_rows_record *record) {
    return record->elements * record->element_size * COPY_WORK;
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

static void inspect_pieces(gdb_rows_record *record) {
    const gdb_piece *piece = (const gdb_piece *)(record + 1), *last = piece + record->count;
    record->in_order = 1, record->elements = record->end = 0;
    for (; piece < last; piece++) {
        record->in_order &= piece->target >= record->end;
        record->elements += piece->count;
        record->end = larger(record->end, piece->target + piece->count);
    }
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

static int64_t work_of_packing(const gdb_pack_record *record) {
    return record->rows * record->columns * gdb_size_of(record->dtype) * COPY_WORK;
}

/* Return the packing of a record, in about so many tasks. */
static packing share_packing(const run *r, const gdb_pack_record *record, int64_t tasks) {
    const int64_t panel = gdb_kernels_of(record->dtype)->panel_columns;
    return (packing){record, r->bases, size_of_parts(record->columns, tasks, panel)};
}

/* ------------------------------------------------------------------ several records at once */

/* Copies and packed matrices that do not depend on each other. */
typedef struct {
    gdb_task *task;
    int64_t end; /* the number after the last of its tasks */
    union {
        copies copies;
        packing packing;
    } context;
} joined;

static void run_joined(void *context, int64_t number, char *scratch) {
    joined *j = context;
    int64_t first = 0;
    for (; number >= j->end; j++) first = j->end;
    j->task(&j->context, number - first, scratch);
}

static inline int can_join(const int64_t *code) {
    return code[0] == GDB_ROWS || code[0] == GDB_PACK;
}

static inline int joins(const int64_t *code) {
    return code[0] == GDB_ROWS ? ((const gdb_rows_record *)code)->joins
                               : code[0] == GDB_PACK && ((const gdb_pack_record *)code)->joins;
}

/* Run a ROWS or PACK record together with those that join it; return the end of the last one. */
static const int64_t *run_together(const run *r, const int64_t *code, const int64_t *end) {
    joined all[MOST_TOGETHER];
    int64_t work[MOST_TOGETHER], total = 0, count = 0, tasks = 0;
    const int64_t *stop = code;
    do {
        work[count] = stop[0] == GDB_ROWS ? work_of_copies((const gdb_rows_record *)stop)
                                          : work_of_packing((const gdb_pack_record *)stop);
        total += work[count++];
        stop = skip(stop);
    } while (stop < end && joins(stop) && count < MOST_TOGETHER);
    const int64_t most = tasks_for(r, total), share = larger(total / most, 1);
    for (int64_t i = 0; i < count; i++, code = skip(code)) {
        const int64_t wanted = larger(1, smaller(most, work[i] / share));
        if (code[0] == GDB_ROWS) {
            const copies c = share_copies(r, (const gdb_rows_record *)code, wanted);
            all[i] = (joined){run_pieces, tasks += c.tasks, {.copies = c}};
        } else {
            const packing p = share_packing(r, (const gdb_pack_record *)code, wanted);
            tasks += parts_of(p.record->columns, p.size);
            all[i] = (joined){run_packing, tasks, {.packing = p}};
        }
    }
    if (most > 1)
        gdb_share(r->crew, run_joined, all, tasks);
    else
        for (int64_t number = 0; number < tasks; number++)
            run_joined(all, number, r->crew->scratch);
    return stop;
}

/* ------------------------------------------------------------------ sums over rows */

typedef struct {
    const gdb_sum_record *record;
    const gdb_kernels *kernels;
    const gdb_chunk *chunks;
    char *target;
    int64_t size; /* rows or columns of a task */
    /* A slab of pairs, for MATRIX: batches of GDB_PAIRS each but the last one, packed. */
    gdb_pair *pairs;
    char *packed;
    int64_t batch_bytes, batches, count, width;
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

int64_t gdb_sum_scratch(int64_t dtype, int64_t rows, int64_t columns, int64_t chunks) {
    const int64_t batches = most_batches(rows, columns);
    return multiple(chunks * sizeof(gdb_chunk), LINE)
        + multiple(batches * GDB_PAIRS * sizeof(gdb_pair), LINE)
        + batches * batch_bytes(gdb_kernels_of(dtype), dtype, rows, columns);
}

static inline int64_t pairs_in(const sum *s, int64_t batch) {
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

/* Find the next pairs, so many or all that are left. */
static void find_pairs(const run *r, sum *s, int64_t most) {
    s->count = 0;
    while (s->count < most) {
        const gdb_chunk *chunk = s->chunk;
        int64_t row = s->row;
        s->candidates = advance(s, &chunk, &row, most - s->count);
        if (s->candidates == 0) break;
        s->size = size_of_parts(s->candidates, tasks_for(r, s->candidates * FIND_WORK), 1);
        gdb_share(r->crew, find_some, s, parts_of(s->candidates, s->size));
        for (int64_t i = s->count, end = s->count + s->candidates; i < end; i++)
            if (s->pairs[i].dy) s->pairs[s->count++] = s->pairs[i];
        s->chunk = chunk, s->row = row;
    }
}

static void pack_some(void *context, int64_t number, char *scratch) {
    const sum *s = context;
    const int64_t per_batch = parts_of(GDB_PAIRS, s->size), batch = number / per_batch;
    const int64_t first = number % per_batch * s->size, count = pairs_in(s, batch);
    (void)scratch;
    s->kernels->pack_pairs(s->record->rows, s->record->columns, s->pairs + batch * GDB_PAIRS, first,
                           smaller(first + s->size, count), s->packed + batch * s->batch_bytes);
}

/* Multiply all batches, in their order, for some rows and columns of the target. */
static void multiply_some(void *context, int64_t number, char *scratch) {
    const sum *s = context;
    const int64_t across = parts_of(s->record->columns, s->width);
    const int64_t first = number / across * s->size, left = number % across * s->width;
    (void)scratch;
    for (int64_t batch = 0; batch < s->batches; batch++)
        s->kernels->multiply_pairs(
            s->record->rows, s->record->columns, pairs_in(s, batch),
            s->packed + batch * s->batch_bytes, first, smaller(first + s->size, s->record->rows),
            left, smaller(left + s->width, s->record->columns), s->target);
}

/* Choose the rows and columns of the target that a task computes. */
static void choose_size(sum *s, int64_t tasks) {
    const int64_t tile = s->kernels->tile_rows, panel = s->kernels->panel_columns;
    s->size = size_of_parts(s->record->rows, tasks, tile);
    const int64_t across = parts_of(tasks, parts_of(s->record->rows, s->size));
    s->width = size_of_parts(s->record->columns, across, panel);
}

static void run_matrix(const run *r, sum *s) {
    const gdb_sum_record *record = s->record;
    const int64_t rows = record->rows, columns = record->columns;
    const int64_t most = most_batches(rows, columns) * GDB_PAIRS;
    s->batch_bytes = batch_bytes(s->kernels, record->dtype, rows, columns);
    s->chunk = s->chunks, s->row = 0;
    do {
        find_pairs(r, s, most);
        s->batches = parts_of(s->count, GDB_PAIRS);
        const int64_t bytes = s->count * (rows + columns) * gdb_size_of(record->dtype);
        s->size = size_of_parts(GDB_PAIRS, parts_of(tasks_for(r, bytes * COPY_WORK),
                                                    larger(s->batches, 1)), 1);
        gdb_share(r->crew, pack_some, s, s->batches * parts_of(GDB_PAIRS, s->size));
        choose_size(s, tasks_for(r, 2 * rows * columns * s->count));
        gdb_share(r->crew, multiply_some, s,
                  s->count ? parts_of(rows, s->size) * parts_of(columns, s->width) : 0);
    } while (s->count == most);
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
                        last, &s->chunks[i], s->record->option >> 1, s->record->option & 1);
}

/* Run a MATRIX, ROW or SCATTER record; return its end. */
static const int64_t *run_sum(const run *r, const int64_t *code) {
    const gdb_sum_record *record = (const gdb_sum_record *)code;
    const gdb_sum_chunk *from = (const gdb_sum_chunk *)(record + 1);
    gdb_chunk *chunks = (gdb_chunk *)r->crew->scratch;
    char *scratch = r->crew->scratch + multiple(record->count * sizeof *chunks, LINE);
    sum s = {.record = record, .kernels = gdb_kernels_of(record->dtype), .chunks = chunks,
             .target = at(record->target, r->bases), .pairs = (gdb_pair *)scratch};
    int64_t rows = 0;
    s.packed = scratch + multiple(most_batches(record->rows, record->columns) * GDB_PAIRS
                                      * sizeof(gdb_pair), LINE);
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
        s.size = size_of_parts(record->columns, tasks_for(r, bytes * COPY_WORK), LINE);
        gdb_share(r->crew, record->record == GDB_SCATTER ? scatter_some : add_rows, &s,
                  parts_of(record->columns, s.size));
    }
    return (const int64_t *)(from + record->count);
}

/* ------------------------------------------------------------------ programs */

/* Return the number of bases that a ROWS or PACK record knows of. */
static int64_t bases_of_copies(const int64_t *code) {
    const gdb_rows_record *rows = (const gdb_rows_record *)code;
    const gdb_pack_record *pack = (const gdb_pack_record *)code;
    const gdb_piece *pieces = (const gdb_piece *)(rows + 1);
    int64_t last = -1;
    if (code[0] == GDB_PACK) return larger(pack->source.base, pack->target.base) + 1;
    if (code[0] != GDB_ROWS) return 0;
    for (int64_t i = 0; i < rows->count; i++) last = larger(last, pieces[i].source.base);
    return larger(last, rows->target.base) + 1;
}

/* What the records that run together read and write, while they are looked for. */
typedef struct {
    int64_t number; /* of the group */
    int32_t *read_by, *written_by; /* per base, the last group */
    int64_t count; /* records */
    struct {
        gdb_spot spot;
        int64_t bytes;
    } written[MOST_TOGETHER];
} group;

static int overlaps(const group *g, gdb_spot target, int64_t bytes) {
    for (int64_t i = 0; i < g->count; i++) {
        const gdb_spot other = g->written[i].spot;
        if (other.base == target.base && other.offset < target.offset + bytes
            && target.offset < other.offset + g->written[i].bytes)
            return 1;
    }
    return 0;
}

/* Return whether a record can join a group: it neither reads an array that the others write, nor
 * writes one that they read, nor what they write. */
static int fits(const group *g, const int64_t *code, gdb_spot target, int64_t bytes) {
    if (g->count == 0 || g->count == MOST_TOGETHER || g->read_by[target.base] == g->number
        || overlaps(g, target, bytes))
        return 0;
    if (code[0] == GDB_PACK)
        return g->written_by[((const gdb_pack_record *)code)->source.base] != g->number;
    const gdb_rows_record *rows = (const gdb_rows_record *)code;
    const gdb_piece *pieces = (const gdb_piece *)(rows + 1);
    for (int64_t i = 0; i < rows->count; i++)
        if (pieces[i].operation != GDB_ZERO && g->written_by[pieces[i].source.base] == g->number)
            return 0;
    return 1;
}

/* Let a ROWS or PACK record join the group of those before it, or else begin another one. */
static void join(group *g, int64_t *code) {
    gdb_rows_record *rows = (gdb_rows_record *)code;
    gdb_pack_record *pack = (gdb_pack_record *)code;
    const gdb_piece *pieces = (const gdb_piece *)(rows + 1);
    const int is_rows = code[0] == GDB_ROWS;
    const gdb_spot target = is_rows ? rows->target : pack->target;
    const int64_t bytes = is_rows ? rows->end * rows->element_size
                                  : gdb_kernels_of(pack->dtype)->packed_elements(
                                        pack->rows, pack->columns) * gdb_size_of(pack->dtype);
    const int joins = fits(g, code, target, bytes);
    *(is_rows ? &rows->joins : &pack->joins) = joins;
    if (!joins) g->number++, g->count = 0;
    g->written[g->count].spot = target, g->written[g->count++].bytes = bytes;
    g->written_by[target.base] = g->number;
    for (int64_t i = 0; is_rows && i < rows->count; i++)
        if (pieces[i].operation != GDB_ZERO) g->read_by[pieces[i].source.base] = g->number;
    if (!is_rows) g->read_by[pack->source.base] = g->number;
}

int gdb_inspect(int64_t *code, const int64_t *end) {
    group g = {0};
    int64_t bases = 0;
    for (const int64_t *record = code; record < end; record = skip(record))
        bases = larger(bases, bases_of_copies(record));
    g.read_by = calloc(2 * larger(bases, 1), sizeof *g.read_by);
    if (!g.read_by) return 0;
    g.written_by = g.read_by + bases;
    for (int64_t *next; code < end; code = next) {
        next = code + (skip(code) - code);
        if (code[0] == GDB_ROWS) inspect_pieces((gdb_rows_record *)code);
        if (can_join(code))
            join(&g, code);
        else
            g.number++, g.count = 0;
    }
    free(g.read_by);
    return 1;
}

void gdb_run_records(const int64_t *code, const int64_t *end, char **bases, gdb_crew *crew) {
    const run r = {bases, crew};
    while (code < end) switch (code[0]) {
        case GDB_LAUNCH: code = run_launch(&r, code, INT64_MAX); break;
        case GDB_DISTINCT: code = run_distinct(&r, code); break;
        case GDB_ROWS:
        case GDB_PACK: code = run_together(&r, code, end); break;
        default: code = run_sum(&r, code);
        }
}
