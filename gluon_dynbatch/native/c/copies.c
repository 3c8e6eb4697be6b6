/* Copied, added and cleared pieces of arrays, and packed matrices.
 *
 * What the tasks of a record share is a plain value on the stack of the thread that runs it, which
 * waits until all of them are done. */
#include <string.h>

#include "run.h"

/* ------------------------------------------------------------------ pieces */

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
static void run_pieces(const copies *c, int64_t number) {
    const gdb_rows_record *record = c->record;
    const gdb_piece *pieces = (const gdb_piece *)(record + 1), *end = pieces + record->count;
    char *target = at(record->target, c->bases);
    int64_t first = INT64_MIN, last = INT64_MAX;
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
static copies share_copies(const gdb_run *r, const gdb_rows_record *record, int64_t tasks) {
    copies c = {record, r->bases, tasks, 0};
    if (record->in_order) {
        c.tasks = smaller(tasks, larger(record->count, 1));
    } else {
        c.size = size_of_parts(record->end, tasks, larger(GDB_LINE / record->element_size, 1));
        c.tasks = larger(parts_of(record->end, c.size), 1);
    }
    return c;
}

int64_t gdb_run_copy_task(const gdb_run *r, const int64_t *code, int64_t number, int64_t count) {
    copies c = share_copies(r, (const gdb_rows_record *)code, count);
    if (number >= 0) run_pieces(&c, number);
    return c.tasks;
}

/* ------------------------------------------------------------------ packed matrices */

/* A matrix in parts of `columns`; if there are fewer panels of columns than tasks, a part is a panel, and
 * has several tasks of `rows` each. */
typedef struct {
    const gdb_pack_record *record;
    char **bases;
    int64_t columns, rows;
} packing;

static void run_packing(const packing *p, int64_t number) {
    const gdb_pack_record *record = p->record;
    const gdb_kernels *kernels = gdb_kernels_of(record->dtype);
    const int64_t size = gdb_size_of(record->dtype), parts = larger(parts_of(record->rows, p->rows), 1);
    const int64_t column = number / parts * p->columns, row = number % parts * p->rows;
    const int64_t columns = smaller(p->columns, record->columns - column);
    kernels->pack(at(record->source, p->bases)
                      + (column * record->column_stride + row * record->row_stride) * size,
                  record->row_stride, record->column_stride, smaller(p->rows, record->rows - row),
                  columns,
                  at(record->target, p->bases)
                      + (column * record->rows + kernels->packed_elements(row, columns)) * size);
}

/* Return the packing of a record, in about so many tasks. */
static packing share_packing(const gdb_run *r, const gdb_pack_record *record, int64_t tasks) {
    const int64_t panel = gdb_kernels_of(record->dtype)->panel_columns;
    const int64_t panels = larger(parts_of(record->columns, panel), 1);
    packing p = {record, r->bases, size_of_parts(record->columns, tasks, panel),
                 larger(record->rows, 1)};
    if (panels < tasks)
        p.rows = size_of_parts(record->rows, tasks / panels, GDB_LINE / gdb_size_of(record->dtype));
    return p;
}

int64_t gdb_run_pack_task(const gdb_run *r, const int64_t *code, int64_t number, int64_t count) {
    packing p = share_packing(r, (const gdb_pack_record *)code, count);
    if (number >= 0) run_packing(&p, number);
    return larger(parts_of(p.record->columns, p.columns) * parts_of(p.record->rows, p.rows), 1);
}
