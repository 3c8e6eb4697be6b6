/* Threads that help with one piece of work at a time, and sleep in between. */
#ifndef GDB_TEAM_H
#define GDB_TEAM_H

/* How many threads work may be split over, the calling one included: OMP_NUM_THREADS, as for MXNet
 * itself, or as many as there are processors. With `most` above 0 it is that from now on: for tests. */
int gdb_threads(int most);

/* Call `work` in up to `count` threads at once, and return when all calls have returned; the calling
 * thread is number 0. There may be fewer: no thread can be made, or the others are at work for
 * somebody else. So `work` has to take what is to be done piece by piece, until nothing is left. */
void gdb_together(void (*work)(void *given, int number), void *given, int count);

#endif
