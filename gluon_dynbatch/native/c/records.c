/* Runs the records of programs, one after another or those of a phase at the same time.
 *
 * What the tasks of a record share is a plain value on the stack of the thread that runs it, which
 * waits until all of them are done. */
#include "records.h"

#include "run.h"
#include "steps.h"

enum {
    MOST_TASKS = GDB_TASKS_PER_THREAD * GDB_MOST_THREADS,
    SHARES_PER_THREAD = 2 /* of what is left of a phase, of which a task is one */
};

/* ------------------------------------------------------------------ sizes */

const int64_t *gdb_next_record(const int64_t *code) {
    const gdb_rows_record *rows = (const gdb_rows_record *)code;
    const gdb_sum_record *sums = (const gdb_sum_record *)code;
    const gdb_distinct_record *distinct = (const gdb_distinct_record *)code;
    const int64_t *part = code + 2;
    switch (code[0]) {
    case GDB_LAUNCH:
        for (int64_t i = 0; i < code[1]; i++) part = gdb_next_part(part);
        return part;
    case GDB_ROWS: return (const int64_t *)((const gdb_piece *)(rows + 1) + rows->count);
    case GDB_PACK: return code + sizeof(gdb_pack_record) / 8;
    case GDB_DISTINCT:
        return (const int64_t *)((const gdb_moved *)((const gdb_key *)(distinct + 1)
                                                     + distinct->keys) + distinct->moved);
    default: return (const int64_t *)((const gdb_sum_chunk *)(sums + 1) + sums->count);
    }
}

static int64_t work_of_sum(const gdb_sum_record *record) {
    const gdb_sum_chunk *chunk = (const gdb_sum_chunk *)(record + 1);
    int64_t rows = 0;
    for (int64_t i = 0; i < record->count; i++) rows += chunk[i].rows;
    if (record->record == GDB_MATRIX)
        return 2 * rows * record->rows * record->columns * larger(record->option >> 1, 1);
    return rows * record->columns * gdb_size_of(record->dtype) * GDB_COPY_WORK;
}

int64_t gdb_work_of_record(const int64_t *code) {
    const gdb_rows_record *rows = (const gdb_rows_record *)code;
    const gdb_pack_record *pack = (const gdb_pack_record *)code;
    const int64_t *part = code + 2;
    int64_t work = 0;
    switch (code[0]) {
    case GDB_LAUNCH:
        for (int64_t i = 0; i < code[1]; i++, part = gdb_next_part(part))
            work += part[1] * larger(gdb_kernel_of(part)->work, 1);
        return work;
    case GDB_ROWS: return rows->elements * rows->element_size * GDB_COPY_WORK;
    case GDB_PACK: return pack->rows * pack->columns * gdb_size_of(pack->dtype) * GDB_COPY_WORK;
    case GDB_DISTINCT: return 0;
    default: return work_of_sum((const gdb_sum_record *)code);
    }
}

/* ------------------------------------------------------------------ records */

/* Run a task of a ROWS, PACK or LAUNCH record, which is cut into so many; return how many there are
 * if `number` is negative. */
static int64_t run_part(const gdb_run *r, const int64_t *code, int64_t number, int64_t count) {
    if (code[0] == GDB_ROWS) return gdb_run_copy_task(r, code, number, count);
    if (code[0] == GDB_PACK) return gdb_run_pack_task(r, code, number, count);
    return gdb_run_launch_task(r, code, number, count);
}

typedef struct {
    const gdb_run *run;
    const int64_t *code;
    int64_t tasks;
} shared_record;

static void run_some(void *context, int64_t number, char *scratch) {
    const shared_record *s = context;
    gdb_crew alone = {.processors = 1, .scratch = scratch};
    const gdb_run r = {s->run->bases, &alone, 0};
    run_part(&r, s->code, number, s->tasks);
}

static void run_record(const gdb_run *r, const int64_t *code) {
    shared_record s = {r, code, 0};
    switch (code[0]) {
    case GDB_LAUNCH: gdb_run_launch(r, code, INT64_MAX); break;
    case GDB_DISTINCT: gdb_run_distinct(r, code); break;
    case GDB_ROWS:
    case GDB_PACK:
        s.tasks = tasks_for(r, gdb_work_of_record(code));
        gdb_share(r->crew, run_some, &s, run_part(r, code, -1, s.tasks));
        break;
    default: gdb_run_sum(r, code);
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
    int64_t count, number;
    piece_of_phase tasks[2 * MOST_TASKS];
} phase;

static void run_piece_of_phase(void *context, int64_t number, char *scratch) {
    const phase *p = context;
    const piece_of_phase *task = &p->tasks[number];
    gdb_crew alone = {.processors = 1, .scratch = scratch};
    const gdb_run r = {p->bases, &alone, p->number};
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
static int is_better_alone(const gdb_run *r, const int64_t *code, int64_t work) {
    const int64_t tasks = tasks_for(r, work);
    if (tasks < 2 || code[0] == GDB_ROWS || code[0] == GDB_PACK) return 0;
    if (code[0] != GDB_LAUNCH) return 1;
    return gdb_is_shared_by_steps(r, code, tasks);
}

static void share_phase(const gdb_run *r, phase *p) {
    gdb_share(r->crew, run_piece_of_phase, p, p->count);
    p->count = 0;
}

/* Cut the records of a phase, which have `left` operations, into at most `most` tasks each; those that are
 * better alone run at once. A task has a share of what is left, so that the last ones are small, and
 * threads end at about the same time. */
static void cut_phase(const gdb_run *r, phase *p, int64_t records, int64_t left, int64_t most) {
    const int64_t parts_of_left = SHARES_PER_THREAD * r->crew->processors;
    int64_t open = 0; /* the work of the last task, if whole records may still be added */
    for (int64_t i = 0; i < records; left -= p->records[i++].work) {
        const int64_t *code = p->code + p->records[i].at;
        const int64_t work = p->records[i].work, share = larger(left / parts_of_left, GDB_TASK_WORK);
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
static void run_phase(const gdb_run *r, const int64_t *code, const gdb_placed *records,
                      int64_t count) {
    phase p;
    int64_t work = 0;
    for (int64_t i = 0; i < count; i++) work += records[i].work;
    const int64_t tasks = tasks_for(r, work);
    if (tasks < 2 || count < 2) {
        for (int64_t i = 0; i < count; i++) run_record(r, code + records[i].at);
        return;
    }
    p.code = code, p.records = records, p.bases = r->bases, p.count = 0;
    p.number = gdb_new_phase();
    cut_phase(r, &p, count, work, tasks);
    share_phase(r, &p);
}

static void run_group(const gdb_run *r, const int64_t *code, const gdb_placed *record,
                      const gdb_placed *end) {
    while (record < end) {
        const gdb_placed *first = record;
        while (record < end && record->level == first->level) record++;
        run_phase(r, code, first, record - first);
    }
}

void gdb_run_records(const int64_t *code, int64_t low, int64_t high,
                     const struct gdb_groups *groups, char **bases, gdb_crew *crew) {
    const gdb_run r = {bases, crew, 0};
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
