#ifndef GDB_NOTICE_H
#define GDB_NOTICE_H

/* An operation in the engine's queues gives a notice, and other threads wait for it. */
typedef struct gdb_notice gdb_notice;

/* Return a notice with two references, for its giver and for a waiter, or NULL. */
gdb_notice *gdb_new_notice(void);
void gdb_give_notice(void *unused, void *notice);
/* Wait for at most so many seconds; return whether the notice is given. */
int gdb_await_notice(gdb_notice *notice, double seconds);
/* Return whether it is given, without waiting. */
int gdb_is_given(const gdb_notice *notice);
/* Drop a reference; the giver's also gives the notice. */
void gdb_drop_notice(void *notice);

#endif
