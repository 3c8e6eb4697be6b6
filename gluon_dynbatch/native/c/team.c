#include "team.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 64 };

static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; /* held by whom the others work for */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static pthread_cond_t begin = PTHREAD_COND_INITIALIZER, end = PTHREAD_COND_INITIALIZER;
static int members;              /* threads that were made */
static int wanted, running;      /* that are to work, and that have not ended */
static unsigned turn, seen[MOST]; /* of the team; that each thread has taken part in, or left out */
static void (*current)(void *, int);
static void *argument;

static int threads; /* 0: nobody has asked yet */

/* In the child of a fork there are no others, and locks are as some thread may have left them. */
static void forked(void)
{
    pthread_mutex_init(&busy, NULL);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&begin, NULL);
    pthread_cond_init(&end, NULL);
    members = 0;
}

int gdb_threads(int most)
{
    int found = __atomic_load_n(&threads, __ATOMIC_RELAXED);
    if (most <= 0 && found) return found;
    if (most <= 0) {
        const char *given = getenv("OMP_NUM_THREADS");
        most = given ? atoi(given) : 0;
        if (most <= 0) most = (int)sysconf(_SC_NPROCESSORS_ONLN);
    }
    found = most < 1 ? 1 : most > MOST ? MOST : most;
    __atomic_store_n(&threads, found, __ATOMIC_RELAXED);
    return found;
}

static void *help(void *given)
{
    int number = (int)(intptr_t)given;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (seen[number] == turn) pthread_cond_wait(&begin, &lock);
        seen[number] = turn;
        if (number >= wanted) continue;
        pthread_mutex_unlock(&lock);
        current(argument, number);
        pthread_mutex_lock(&lock);
        if (--running == 0) pthread_cond_signal(&end);
    }
    return NULL;
}

/* Make threads until there are so many, the calling one included; return how many there are. */
static int grow(int count)
{
    static int registered;
    sigset_t all, before;
    pthread_t made;
    if (!registered) registered = !pthread_atfork(NULL, NULL, forked);
    sigfillset(&all); /* signals are for the threads of the program */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (members + 1 < count) {
        seen[members + 1] = turn;
        if (pthread_create(&made, NULL, help, (void *)(intptr_t)(members + 1))) break;
        pthread_detach(made);
        members++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return count < members + 1 ? count : members + 1;
}

void gdb_together(void (*work)(void *, int), void *given, int count)
{
    if (count < 2 || pthread_mutex_trylock(&busy)) {
        work(given, 0);
        return;
    }
    pthread_mutex_lock(&lock);
    wanted = grow(count < MOST ? count : MOST);
    running = wanted - 1;
    current = work;
    argument = given;
    turn++;
    pthread_cond_broadcast(&begin);
    pthread_mutex_unlock(&lock);
    work(given, 0);
    pthread_mutex_lock(&lock);
    while (running) pthread_cond_wait(&end, &lock);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&busy);
}
