/* Arithmetic of sizes. */
#ifndef GDB_SIZES_H
#define GDB_SIZES_H

#include <stdint.h>

static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }
static inline int64_t multiple(int64_t count, int64_t size) { return parts_of(count, size) * size; }

#endif
