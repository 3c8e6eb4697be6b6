/* Notices that MXNet's engine gives when it gets to an operation, and for which other threads wait. */
#include "notice.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

/* Owned by its giver and its waiter, a reference each: the last one that is dropped frees it. */
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
    __atomic_store_n(&notice->given, true, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&notice->changed);
    pthread_mutex_unlock(&notice->lock);
}

int gdb_is_given(const gdb_notice *notice) {
    return __atomic_load_n(&notice->given, __ATOMIC_ACQUIRE);
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
