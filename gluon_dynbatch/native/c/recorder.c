#ifdef __linux__
#define _GNU_SOURCE
#include <sched.h>
#endif

#include "recorder.h"

#include <pthread.h>

gdb_recorder gdb_no_recorder(void) {
    return (gdb_recorder){.at = gdb_now(), .used = -1, .processor = GDB_ANYWHERE};
}

#ifdef __linux__

int gdb_this_processor(void) { return sched_getcpu(); }

gdb_recorder gdb_find_recorder(int is_this_thread) {
    static clockid_t last_clock;
    static int has_last, last_processor;
    gdb_recorder found = {.at = gdb_now(), .used = -1, .processor = gdb_this_processor()};
    if (is_this_thread && !pthread_getcpuclockid(pthread_self(), &found.clock)) {
        __atomic_store_n(&last_clock, found.clock, __ATOMIC_RELAXED);
        __atomic_store_n(&last_processor, found.processor, __ATOMIC_RELAXED);
        __atomic_store_n(&has_last, 1, __ATOMIC_RELEASE);
    }
    if (__atomic_load_n(&has_last, __ATOMIC_ACQUIRE)) {
        found.clock = __atomic_load_n(&last_clock, __ATOMIC_RELAXED);
        found.processor = __atomic_load_n(&last_processor, __ATOMIC_RELAXED);
        found.used = gdb_read_clock(found.clock); /* -1 if the thread has ended */
    }
    return found;
}

int64_t gdb_time_used(const gdb_recorder *recorder) {
    return recorder->used < 0 ? -1 : gdb_read_clock(recorder->clock);
}

#else

int gdb_this_processor(void) { return GDB_ANYWHERE; }

gdb_recorder gdb_find_recorder(int is_this_thread) {
    (void)is_this_thread;
    return gdb_no_recorder();
}

int64_t gdb_time_used(const gdb_recorder *recorder) {
    (void)recorder;
    return -1;
}

#endif
