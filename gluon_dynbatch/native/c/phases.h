/* Which records of a program may run at the same time.
 *
 * A *stage* is a launch or a sum, with the copies and packed matrices before it, which it is for.
 * A *group* is neighbouring stages of which none depends on another. Its records run in the order
 * of their levels, and those of one level, a *phase*, in any order or at the same time: first
 * copies and packed matrices, which have levels of their own where one reads what another writes,
 * then launches, then sums.
 */
#ifndef GDB_PHASES_H
#define GDB_PHASES_H

#include "records.h"
#include "steps.h"

/* The levels of launches and of sums; those below are of copies and packed matrices. */
enum { GDB_LEVEL_OF_LAUNCHES = 8, GDB_LEVEL_OF_SUMS };

/* A record of a group: where its code begins, its level, and its operations, roughly. A plain
 * value. */
typedef struct {
    int64_t at, level, work;
} gdb_placed;

/* Code [begin, end), and the numbers of its records, the lowest levels first. A plain value. */
typedef struct {
    int64_t begin, end, first, stop, work;
} gdb_group;

/* All groups of at least two stages, in the order of the code. Owned by the program, with what it
 * points to, until `gdb_release_groups`; it never changes. */
struct gdb_groups {
    int64_t count;
    gdb_group *groups;
    gdb_placed *records;
};

enum { GDB_COPY_WORK = 16 }; /* of a byte that is copied, in operations of products */

static inline const gdb_kernel *gdb_kernel_of(const int64_t *part) {
    return (const gdb_kernel *)(uintptr_t)part[0];
}

/* Return the end of a part of a launch: a kernel, rows, and a spot per slot. */
static inline const int64_t *gdb_next_part(const int64_t *part) {
    return part + 2 + 2 * gdb_kernel_of(part)->slots_count;
}

#endif
