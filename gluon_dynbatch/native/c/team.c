#include <pthread.h>
#include <signal.h>

#include "kernels.h"

typedef struct {
    void (*work)(void *, int);
    void *context;
    int number;
} job;

static void *run_job(void *argument) {
    const job *own_job = argument;
    own_job->work(own_job->context, own_job->number);
    return NULL;
}

void gdb_run_in_threads(void (*work)(void *, int), void *context, int count) {
    pthread_t threads[GDB_MOST_THREADS];
    job jobs[GDB_MOST_THREADS];
    sigset_t all, before;
    int running = 1;
    if (count > 1) {
        sigfillset(&all); /* the process's own threads handle signals */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (; running < count; running++) {
            jobs[running] = (job){work, context, running};
            if (pthread_create(&threads[running], NULL, run_job, &jobs[running])) break;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    work(context, 0);
    while (--running) pthread_join(threads[running], NULL);
}
