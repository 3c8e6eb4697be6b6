/* One thread at a time pushes to MXNet's engine, unless the one that does so waits there itself. */
#ifndef GDB_PUSHING_H
#define GDB_PUSHING_H

#include <stdint.h>

/* What a thread that waits for its turn to push has seen of the one that pushes. A plain value of the
 * waiter, all zero at first. */
typedef struct {
    int64_t push, used; /* the number of the push, and the time that its thread had used */
    int looks;          /* at which both were the same, and the thread slept */
} gdb_patience;

/* Begin a push and return 1; return 0 if another thread pushes. A thread may push within a push. */
int gdb_begin_push(void);
/* The same, but wait for a moment, and return -1 if this thread is to push beside the other one, which
 * waits within its push. */
int gdb_await_push(gdb_patience *patience);
/* End a push that this thread has begun, and that has not ended yet. */
void gdb_end_push(void);
/* End the only push of this thread, if it has begun one: its operation is queued, and this thread
 * runs it now, or waits for it. */
void gdb_end_push_queued(void);

#endif
