/* Threads that help with one piece of work. */
#ifndef GDB_TEAM_H
#define GDB_TEAM_H

enum { GDB_MOST_THREADS = 64 };

/* Call `work` in up to `count` threads at once, at most GDB_MOST_THREADS, and return when all calls
 * have returned; the calling thread is number 0. There are fewer if no more can be made. So `work` has
 * to take what is to be done piece by piece, until nothing is left. */
void gdb_together(void (*work)(void *given, int number), void *given, int count);

#endif
