/* What runs the records of each kind, and how they are cut into tasks: for `records.c`, which runs
 * programs.
 *
 * Launches are in `launches.c`, those on distinct rows only in `distinct.c`, copies and packed
 * matrices in `copies.c`, and sums over rows in `sums.c`.
 */
#ifndef GDB_RUN_H
#define GDB_RUN_H

#include "phases.h"
#include "sizes.h"

enum {
    /* Operations of a task at least, some 10 us: about ten times what it takes to hand one out. */
    GDB_TASK_WORK = 1000000,
    GDB_TASKS_PER_THREAD = 4, /* so that threads that are held up do less */
    GDB_LINE = 64
};

/* A run of records: the addresses of its arrays, and the threads that share it. A plain value on the
 * stack of a thread, which owns neither. */
typedef struct {
    char **bases;
    gdb_crew *crew;
    int64_t phase; /* of which it runs a task */
} gdb_run;

/* Return a number that no other phase has. */
int64_t gdb_new_phase(void);

static inline char *at(gdb_spot spot, char **bases) { return bases[spot.base] + spot.offset; }

/* Return into how many tasks to share work. Numbers of threads change who does what, but no result:
 * each element is computed in the same way in any task. */
static inline int64_t tasks_for(const gdb_run *r, int64_t work) {
    if (r->crew->processors < 2) return 1;
    return larger(1, smaller(work / GDB_TASK_WORK, GDB_TASKS_PER_THREAD * r->crew->processors));
}

/* Return the work of a record before task `number` of `count`. Tasks that `shrink` have 2 count - 1,
 * 2 count - 3, ... and 1 parts of count x count, so that all threads end at about the same time. */
static inline int64_t work_before(int64_t work, int64_t number, int64_t count, int shrink) {
    return shrink ? work * number / count * (2 * count - number) / count : work / count * number;
}

/* Return the size of the parts of a range that is shared into so many tasks: a multiple of
 * `unit`. */
static inline int64_t size_of_parts(int64_t count, int64_t tasks, int64_t unit) {
    return larger(multiple(parts_of(count, tasks), unit), unit);
}

/* Run task `number` of a record that is cut into `count` at most; return how many there are. If
 * `number` is negative, run none. */
int64_t gdb_run_launch_task(const gdb_run *r, const int64_t *code, int64_t number, int64_t count);
int64_t gdb_run_copy_task(const gdb_run *r, const int64_t *code, int64_t number, int64_t count);
int64_t gdb_run_pack_task(const gdb_run *r, const int64_t *code, int64_t number, int64_t count);

/* Run a LAUNCH, at most `limit` rows of each part, shared with the crew. */
void gdb_run_launch(const gdb_run *r, const int64_t *code, int64_t limit);

/* Return whether a LAUNCH is shared step by step rather than cut into so many tasks. */
int gdb_is_shared_by_steps(const gdb_run *r, const int64_t *code, int64_t tasks);

/* Run the launch after a DISTINCT record on distinct rows. */
void gdb_run_distinct(const gdb_run *r, const int64_t *code);

/* Return how many of the rows that a sum takes, a multiple of those in a numbering, are distinct. */
int64_t gdb_distinct_rows(gdb_spot numbering, int64_t rows, char **bases);

/* Run a MATRIX, ROW or SCATTER record. */
void gdb_run_sum(const gdb_run *r, const int64_t *code);

#endif
