/* Launches: kernels on rows, cut into tasks by rows or, if there are few, step by step.
 *
 * What the tasks of a record share is a plain value on the stack of the thread that runs it, which
 * waits until all of them are done. */
#include <stdlib.h>

#include "run.h"

/* Where a task of a launch begins: at a row of a part. */
typedef struct {
    const int64_t *part;
    int64_t row;
} cut;

/* Some rows of all parts of a LAUNCH record, at most `limit` of each, in tasks of equal work or in
 * tasks that shrink. */
typedef struct {
    const int64_t *record;
    char **bases;
    int64_t limit, work, tasks;
    int shrink;
    int64_t phase; /* its number */
} launch;

/* The part that this thread has run last, and the number of the phase: if it is the same phase, nothing
 * else has used the thread's scratch since. A plain value. */
static __thread struct {
    int64_t phase;
    const int64_t *part;
} last_run;

int64_t gdb_new_phase(void) {
    static int64_t phases;
    return __atomic_add_fetch(&phases, 1, __ATOMIC_RELAXED);
}

/* Return whether two parts run one kernel, with the same arrays that all rows share. */
static int shares_arrays(const int64_t *part, const int64_t *other) {
    const gdb_kernel *kernel = gdb_kernel_of(part);
    if (part == other) return 1;
    if (kernel != gdb_kernel_of(other)) return 0;
    for (int64_t s = 0; s < kernel->slots_count; s++) {
        const gdb_spot *own = (const gdb_spot *)(part + 2) + s;
        const gdb_spot *before = (const gdb_spot *)(other + 2) + s;
        if (kernel->slots[s].array.pitch) continue;
        if (own->base != before->base || own->offset != before->offset) return 0;
    }
    return 1;
}

static void run_blocks(const int64_t *part, const launch *l, char *scratch, int64_t low,
                       int64_t high) {
    const gdb_kernel *kernel = gdb_kernel_of(part);
    int again = last_run.phase == l->phase && shares_arrays(part, last_run.part);
    for (; low < high; low += kernel->block_rows, again = 1)
        gdb_run_block(kernel, part + 2, l->bases, scratch, low,
                      smaller(low + kernel->block_rows, high), again);
    last_run.phase = l->phase, last_run.part = part;
}

/* Find where a task begins; the one after the last begins at the end. */
static cut find_cut(const launch *l, int64_t number) {
    const int64_t *part = l->record + 2;
    int64_t before = work_before(l->work, number, l->tasks, l->shrink); /* by other tasks */
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
        run_blocks(part, l, scratch, low, smaller(part[1], l->limit));
    if (low < last.row) run_blocks(part, l, scratch, low, last.row);
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
    gdb_run_product(p, b->slots, b->rows, number * b->size,
                    smaller((number + 1) * b->size, p->units), scratch);
}

static void run_step_rows(void *context, int64_t number, char *scratch) {
    const block *b = context;
    const int64_t low = number * b->size;
    gdb_array *slots = (gdb_array *)(scratch + b->kernel->arrays);
    for (int64_t s = 0; s < b->kernel->slots_count; s++) {
        slots[s] = b->slots[s];
        slots[s].data += low * slots[s].pitch * gdb_size_of(slots[s].dtype);
    }
    gdb_run_step(b->step, gdb_next_step(b->step), slots, smaller(b->size, b->rows - low), scratch, 0);
}

static void share_block(const gdb_run *r, const gdb_kernel *kernel, const int64_t *places, int64_t low,
                        int64_t rows) {
    char *scratch = r->crew->scratch;
    /* The tasks of the owner overwrite its own slots. */
    gdb_array *slots = malloc(larger(kernel->slots_count, 1) * sizeof *slots);
    block b = {kernel, kernel->steps, slots, rows, 0};
    if (!slots) {
        gdb_run_block(kernel, places, r->bases, scratch, low, low + rows, 0);
        return;
    }
    gdb_place_slots(kernel, places, r->bases, scratch, low, slots);
    for (; b.step < kernel->end; b.step = gdb_next_step(b.step)) {
        const int64_t tasks = tasks_for(r, rows * gdb_work_of(b.step));
        const gdb_product *p = (const gdb_product *)b.step;
        if (b.step->kind == GDB_PRODUCT) {
            const int64_t panel = gdb_kernels_of(p->step.dtype)->panel_columns;
            const int64_t unit = p->matrix_is == GDB_FEW ? GDB_LINE : panel;
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
static int is_shared_by_steps(const gdb_run *r, const int64_t *code, int64_t rows, int64_t tiles,
                              int64_t tasks) {
    const gdb_kernel *kernel = gdb_kernel_of(code + 2);
    int64_t by_rows = GDB_TASK_WORK, by_steps = 0;
    if (code[1] != 1 || kernel->tile_rows < 2 || tasks < 2 || tiles >= tasks || !tiles) return 0;
    by_rows += rows * kernel->work / tiles * parts_of(tiles, r->crew->processors);
    for (const gdb_step *step = kernel->steps; step < kernel->end; step = gdb_next_step(step)) {
        const int64_t work = rows * gdb_work_of(step), parts = tasks_for(r, work);
        by_steps += parts > 1 ? GDB_TASK_WORK + work / smaller(parts, r->crew->processors) : work;
    }
    return by_steps < by_rows;
}

void gdb_run_launch(const gdb_run *r, const int64_t *code, int64_t limit) {
    const gdb_kernel *kernel = gdb_kernel_of(code + 2);
    const int64_t rows = smaller(code[3], limit);
    int64_t tiles;
    const int64_t work = work_of_launch(code, limit, &tiles), tasks = tasks_for(r, work);
    launch l = {code, r->bases, limit, work, larger(smaller(tasks, tiles), 1), 0,
                gdb_new_phase()};
    l.shrink = l.tasks > r->crew->processors;
    if (!is_shared_by_steps(r, code, rows, tiles, tasks)) {
        gdb_share(r->crew, run_rows, &l, l.tasks);
        return;
    }
    for (int64_t low = 0; low < rows; low += kernel->block_rows)
        share_block(r, kernel, code + 4, low, smaller(kernel->block_rows, rows - low));
}

int gdb_is_shared_by_steps(const gdb_run *r, const int64_t *code, int64_t tasks) {
    int64_t tiles;
    work_of_launch(code, INT64_MAX, &tiles);
    return is_shared_by_steps(r, code, code[3], tiles, tasks);
}

int64_t gdb_run_launch_task(const gdb_run *r, const int64_t *code, int64_t number, int64_t count) {
    int64_t tiles;
    launch l = {code, r->bases, INT64_MAX, work_of_launch(code, INT64_MAX, &tiles), count, 0,
                r->phase};
    l.tasks = larger(smaller(count, tiles), 1);
    l.shrink = l.tasks >= GDB_TASKS_PER_THREAD;
    if (number >= 0) run_rows(&l, number, r->crew->scratch);
    return l.tasks;
}
