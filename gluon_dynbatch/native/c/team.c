#include <pthread.h>
#include <signal.h>

#include "kernels.h"

typedef struct {
    void (*work)(void *, int);
    void *given;
    int number;
} job;

static void *help(void *given)
{
    const job *own = given;
    own->work(own->given, own->number);
    return NULL;
}

void gdb_together(void (*work)(void *, int), void *given, int count)
{
    pthread_t made[GDB_MOST_THREADS];
    job jobs[GDB_MOST_THREADS];
    sigset_t all, before;
    int members = 1;
    if (count > 1) {
        sigfillset(&all); /* signals are for the threads of the program */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (; members < count; members++) {
            jobs[members] = (job){work, given, members};
            if (pthread_create(&made[members], NULL, help, &jobs[members])) break;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    work(given, 0);
    while (--members) pthread_join(made[members], NULL);
}
