/* The thread that records what a program belongs to. While it is busy, its processor is left to it. */
#ifndef GDB_RECORDER_H
#define GDB_RECORDER_H

#include <stdint.h>
#include <time.h>

enum { GDB_ANYWHERE = -1 }; /* the processor of a thread that is not bound to one, or not known */

/* A thread that records, as last seen. A plain value. */
typedef struct {
    clockid_t clock;
    int64_t at, used; /* nanoseconds, of the wall and of the thread; used -1: it is never busy */
    int processor;
} gdb_recorder;

/* Return the calling thread, if it records, or else the one that recorded last: MXNet pushes backward
 * passes in a thread of its own, while that one goes on. */
gdb_recorder gdb_find_recorder(int is_this_thread);

/* Return what stands for no thread: it is never busy. */
gdb_recorder gdb_no_recorder(void);

/* Return the processor on which the calling thread runs. */
int gdb_this_processor(void);

/* Return the time that the thread has used so far, or -1 if it is never busy. */
int64_t gdb_time_used(const gdb_recorder *recorder);

/* Return whether the thread, which has used so much time by now, was busy for at least half of a
 * stretch that has just ended, and that began when it was last seen, or later. */
static inline int gdb_was_busy(const gdb_recorder *recorder, int64_t used, int64_t stretch) {
    return used >= 0 && 2 * (used - recorder->used) > stretch;
}

/* Return the time of a clock in nanoseconds, or -1 if there is no such clock. */
static inline int64_t gdb_read_clock(clockid_t clock) {
    struct timespec time;
    return clock_gettime(clock, &time) ? -1 : time.tv_sec * 1000000000LL + time.tv_nsec;
}

static inline int64_t gdb_now(void) { return gdb_read_clock(CLOCK_MONOTONIC); }

#endif
