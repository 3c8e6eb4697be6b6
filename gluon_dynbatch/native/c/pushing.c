#ifdef __linux__
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "pushing.h"

#include <pthread.h>

#include "recorder.h"

enum {
    LOOK_EVERY = 10000000, /* nanoseconds */
    LOOKS = 3              /* at a thread that sleeps in one push, and uses no time meanwhile */
};

/* Owned by the process. All is guarded by the lock, which is never held while something is pushed. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int64_t number; /* of the last push */
    int depth;      /* pushes within each other; 0 if nothing is pushed */
    /* The thread that pushes. */
    pthread_t thread;
    clockid_t clock;
    int tid; /* as Linux numbers it; 0 if there is no clock */
} pushes = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, 0, 0};

/* Of the calling thread. */
static __thread int own_tid;

/* In the child of a fork, a thread that is gone may have pushed. */
static void forget_pushes(void) {
    pthread_mutex_init(&pushes.lock, NULL);
    pthread_cond_init(&pushes.ended, NULL);
    pushes.depth = 0;
    own_tid = 0;
}

static void forget_at_fork(void) { pthread_atfork(NULL, NULL, forget_pushes); }

/* Make the calling thread the one that pushes. */
static void take_turn(void) {
    pushes.number++;
    pushes.depth = 1;
    pushes.thread = pthread_self();
#ifdef __linux__
    if (!own_tid) own_tid = (int)syscall(SYS_gettid);
    pushes.tid = pthread_getcpuclockid(pushes.thread, &pushes.clock) ? 0 : own_tid;
#endif
}

int gdb_begin_push(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int begins = 1;
    pthread_once(&once, forget_at_fork);
    pthread_mutex_lock(&pushes.lock);
    if (!pushes.depth)
        take_turn();
    else if (pthread_equal(pushes.thread, pthread_self()))
        pushes.depth++;
    else
        begins = 0;
    pthread_mutex_unlock(&pushes.lock);
    return begins;
}

void gdb_end_push(void) {
    pthread_mutex_lock(&pushes.lock);
    /* In the child of a fork, it may have begun before. */
    if (pushes.depth && pthread_equal(pushes.thread, pthread_self()) && !--pushes.depth)
        pthread_cond_signal(&pushes.ended);
    pthread_mutex_unlock(&pushes.lock);
}

void gdb_end_push_queued(void) {
    pthread_mutex_lock(&pushes.lock);
    if (pushes.depth == 1 && pthread_equal(pushes.thread, pthread_self())) {
        pushes.depth = 0;
        pthread_cond_signal(&pushes.ended);
    }
    pthread_mutex_unlock(&pushes.lock);
}

/* Return whether the thread that pushes sleeps: true if nobody can tell. A thread that could run has
 * only lost its processor. */
static int sleeps(void) {
#ifdef __linux__
    char name[64], text[512];
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", pushes.tid);
    FILE *file = pushes.tid ? fopen(name, "r") : NULL;
    if (!file) return 1;
    const size_t read = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[read] = 0;
    const char *end = strrchr(text, ')'); /* of the thread's name; its state follows a space */
    return !end || !end[1] || end[2] == 'S';
#else
    return 1;
#endif
}

/* Look at the thread that pushes; return whether it has waited within this push for some time. Others
 * may then have to push, so that it goes on: an operator in Python, whose result it waits for. */
static int waits(gdb_patience *patience) {
    const int64_t used = pushes.tid ? gdb_read_clock(pushes.clock) : 0;
    if (!sleeps()) {
        patience->looks = 0;
        return 0;
    }
    if (patience->push != pushes.number || patience->used != used) patience->looks = 0;
    patience->push = pushes.number, patience->used = used;
    return ++patience->looks >= LOOKS;
}

int gdb_await_push(gdb_patience *patience) {
    struct timespec until;
    int begins = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_EVERY;
    until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&pushes.lock);
    while (pushes.depth && !pthread_cond_timedwait(&pushes.ended, &pushes.lock, &until)) {
    }
    if (!pushes.depth) {
        take_turn();
        begins = 1;
    } else if (waits(patience)) {
        begins = -1;
    }
    pthread_mutex_unlock(&pushes.lock);
    return begins;
}
