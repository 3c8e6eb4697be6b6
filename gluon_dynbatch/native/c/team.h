/* The team: threads that help a thread of MXNet's engine with the program it runs.
 *
 * There is one team per process.  Its members are made when they are first needed, sleep while no
 * program has work for them, and end with the process.  The thread that runs a program, its
 * *owner*, publishes one phase after another: a number of tasks, which the owner and the members
 * take from a common counter.  The owner waits only for tasks that have been taken.  So a member
 * that comes late, because its processor does something else, finds nothing left.
 *
 * A program that starts while another one has the team runs in its own thread alone.
 */
#ifndef GDB_TEAM_H
#define GDB_TEAM_H

#include <stdint.h>

#include "recorder.h"

enum { GDB_MOST_THREADS = 64 };
#define GDB_MEMBER_NAME "gdb_team" /* of its threads, as Linux shows it */

/* Do task `number` of a phase. `scratch` is the thread's own. */
typedef void gdb_task(void *context, int64_t number, char *scratch);

/* The share of the team in the run of a program. Owned by the thread that runs it, on its stack, from
 * `gdb_join_team` to `gdb_leave_team`; only that uses it. The scratch is that of the program's run. */
typedef struct {
    int has_team;
    int processors;   /* that the process may use, or 1 without a team */
    uint64_t helpers; /* members who may take tasks now, a bit each */
    char *scratch;    /* of the owner */
    int64_t scratch_bytes;
    gdb_recorder recorder;
} gdb_crew;

/* Set the most threads that share a program, as far as the process may use as many processors; if
 * `processors` is not 0, it is taken for their number (for tests). */
void gdb_use_threads(int count, int processors);

/* Begin and end the run of a program. Each thread gets `scratch_bytes` of scratch; the owner brings
 * its own. */
gdb_crew gdb_join_team(char *scratch, int64_t scratch_bytes, gdb_recorder recorder);
void gdb_leave_team(gdb_crew *crew);

/* Return whether members may take tasks now; in tests, which give a number of processors, always. */
int gdb_has_help(gdb_crew *crew);

/* Do tasks [0, count) of a phase, in any order, and return when all are done. */
void gdb_share(gdb_crew *crew, gdb_task *task, void *context, int64_t count);

#endif
