#ifndef GDB_ENGINE_H
#define GDB_ENGINE_H

/* Functions of MXNet; and of its two engines that have threads, the tables of virtual functions and
 * the function `PushToExecute` in them. */
typedef struct {
    void *(*engine)(void);
    void (*push)(void), (*flush_bulk)(void *);
    void *tables[2];
    void (*executes[2])(void);
} gdb_engine_symbols;

/* Make pushes to MXNet's engine atomic; return whether they are. */
int gdb_make_pushes_atomic(const gdb_engine_symbols *symbols);

#endif
