/* Launches on distinct rows: equal rows are numbered alike, and moved before and after.
 *
 * What the tasks of a record share is a plain value on the stack of the thread that runs it, which
 * waits until all of them are done. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

/* A plain value in an array of the program. */
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
static void move_rows(const gdb_run *r, const numbering *n, const gdb_moved *moved,
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

void gdb_run_distinct(const gdb_run *r, const int64_t *code) {
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
    gdb_run_launch(r, (const int64_t *)(moved + record->moved), n->distinct);
    for (int64_t i = 0; i < record->moved; i++)
        if (moved[i].operation > GDB_TOTAL) move_rows(r, n, &moved[i], keys);
}

int64_t gdb_distinct_rows(gdb_spot spot, int64_t rows, char **bases) {
    const numbering *n = (const numbering *)at(spot, bases);
    return rows / n->rows * n->distinct;
}
