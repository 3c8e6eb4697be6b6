/* MXNet's engine queues an operation at each of its variables, one after another.  If another thread
 * pushes at the same time, the two operations may be in opposite orders at two variables that one
 * of them writes.  Then each waits for the other, forever.  It takes no scope: a thread that trains
 * a model and one that calls it are enough.  A lock around pushes makes all queues have one order.
 *
 * The lock is not held while an operation runs, which `Push` may do at once: the operation could
 * need Python's global lock, for which other threads that push do not wait. */
#include "engine.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* `ThreadedEngine::Push` and `PushToExecute`; a context is two int32. */
typedef void (*push_function)(void *engine, void *operator, uint64_t context, int, bool);
typedef void (*execute_function)(void *engine, void *block, bool by_pusher);

enum { TABLE_WORDS = 40, BEFORE_TABLE = 2 };

static push_function push;
static execute_function execute;
static void (*flush_bulk)(void *engine);
static void *table[TABLE_WORDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Whether this thread holds the lock. */
static __thread bool holds;

static void unlock(void *unused) {
    (void)unused;
    if (holds) {
        holds = false;
        pthread_mutex_unlock(&lock);
    }
}

static void push_atomically(
    void *engine, void *operator, uint64_t context, int priority, bool profiling) {
    flush_bulk(engine); /* `Push` begins with this, and it pushes */
    /* Also if C++ throws an exception. */
    __attribute__((cleanup(unlock))) char guard;
    (void)guard;
    pthread_mutex_lock(&lock);
    holds = true;
    push(engine, operator, context, priority, profiling);
}

static void execute_unlocked(void *engine, void *block, bool by_pusher) {
    unlock(NULL); /* the operation is in all queues now */
    execute(engine, block, by_pusher);
}

static void renew_lock(void) { pthread_mutex_init(&lock, NULL); }

static int find(void **words, void *function) {
    for (int i = BEFORE_TABLE; i < TABLE_WORDS; i++)
        if (words[i] == function) return i;
    return 0;
}

int gdb_make_pushes_atomic(const gdb_engine_symbols *symbols) {
    void ***object = symbols->engine(), **words = *object - BEFORE_TABLE;
    for (int i = 0; i < 2; i++) {
        if (words != symbols->tables[i]) continue;
        memcpy(table, words, sizeof table);
        int push_at = find(table, (void *)symbols->push);
        int execute_at = find(table, (void *)symbols->executes[i]);
        if (!push_at || !execute_at || pthread_atfork(NULL, NULL, renew_lock)) continue;
        push = (push_function)symbols->push, execute = (execute_function)symbols->executes[i];
        flush_bulk = symbols->flush_bulk;
        table[push_at] = (void *)push_atomically;
        table[execute_at] = (void *)execute_unlocked;
        __atomic_store_n(object, table + BEFORE_TABLE, __ATOMIC_RELEASE);
        return 1;
    }
    return 0;
}

struct gdb_notice {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int references;
    bool given;
};

gdb_notice *gdb_new_notice(void) {
    gdb_notice *notice = calloc(1, sizeof *notice);
    if (!notice) return NULL;
    pthread_mutex_init(&notice->lock, NULL);
    pthread_cond_init(&notice->changed, NULL);
    notice->references = 2;
    return notice;
}

void gdb_give_notice(void *unused, void *argument) {
    gdb_notice *notice = argument;
    (void)unused;
    pthread_mutex_lock(&notice->lock);
    notice->given = true;
    pthread_cond_broadcast(&notice->changed);
    pthread_mutex_unlock(&notice->lock);
}

int gdb_await_notice(gdb_notice *notice, double seconds) {
    struct timespec until;
    int64_t nanoseconds;
    clock_gettime(CLOCK_REALTIME, &until);
    nanoseconds = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    pthread_mutex_lock(&notice->lock);
    while (!notice->given && !pthread_cond_timedwait(&notice->changed, &notice->lock, &until)) {
    }
    bool given = notice->given;
    pthread_mutex_unlock(&notice->lock);
    return given;
}

void gdb_drop_notice(void *argument) {
    gdb_notice *notice = argument;
    gdb_give_notice(NULL, notice); /* the engine may have dropped the operation unrun */
    if (__atomic_sub_fetch(&notice->references, 1, __ATOMIC_ACQ_REL)) return;
    pthread_cond_destroy(&notice->changed);
    pthread_mutex_destroy(&notice->lock);
    free(notice);
}
