#ifndef GDB_ELEMENTS_H
#define GDB_ELEMENTS_H

/* How elements of arrays get into registers of a loop, and back: converted, broadcast, moved, or as
 * indices. */

#include <string.h>

#include "types.h"

enum { VECTOR = 16 }; /* functions take multiples of this many elements */

static inline void copy_same_type(gdb_array to, gdb_array from, int64_t rows, int64_t columns) {
    const int64_t size = gdb_size_of(to.dtype);
    int64_t bytes = columns * size;
    const int64_t to_pitch = to.pitch * size, from_pitch = from.pitch * size;
    if (to_pitch == bytes && from_pitch == bytes)
        bytes *= rows, rows = 1;
    for (int64_t row = 0; row < rows; row++)
        memcpy(to.data + row * to_pitch, from.data + row * from_pitch, bytes);
}

#define CONVERT_BY(D, S, RESULT) \
    for (int64_t row = 0; row < rows; row++) { \
        D *const t = (D *)to.data + row * to.pitch; \
        const S *const f = (const S *)from.data + row * from.pitch; \
        INDEPENDENT \
        for (int64_t i = 0; i < columns; i++) \
            t[i] = RESULT; \
    }
#define CONVERT(D, S) CONVERT_BY(D, S, (D)f[i])
#define CONVERT_TO_DOUBLE(S) CONVERT(double, S)
#define CONVERT_TO_FLOAT(S) CONVERT(float, S)
#define CONVERT_TO_INT32(S) CONVERT(int32_t, S)
#define CONVERT_TO_INT64(S) CONVERT(int64_t, S)
#define CONVERT_TO_BOOL(S) CONVERT_BY(uint8_t, S, f[i] != 0)
#define CONVERT_FROM_BOOL(D) CONVERT(D, uint8_t)

static inline __attribute__((always_inline)) void copy(gdb_array to, gdb_array from, int64_t rows,
                                                       int64_t columns) {
    if (to.dtype == from.dtype)
        copy_same_type(to, from, rows, columns);
    else if (to.dtype == GDB_BOOL)
        GDB_BY_TYPE(from.dtype, CONVERT_TO_BOOL)
    else if (from.dtype == GDB_BOOL)
        GDB_BY_TYPE(to.dtype, CONVERT_FROM_BOOL)
    else if (to.dtype == GDB_FLOAT32)
        GDB_BY_TYPE(from.dtype, CONVERT_TO_FLOAT)
    else if (to.dtype == GDB_FLOAT64)
        GDB_BY_TYPE(from.dtype, CONVERT_TO_DOUBLE)
    else if (to.dtype == GDB_INT32)
        GDB_BY_TYPE(from.dtype, CONVERT_TO_INT32)
    else
        GDB_BY_TYPE(from.dtype, CONVERT_TO_INT64)
}

/* Broadcast an element of each row to all columns of a register. If `first` is not negative, it is
 * the number of the first column, and each column adds its number. Whole vectors are written: the
 * next row overwrites the excess, and registers have room for it after the last row. */
#define LOAD_SPREAD(D) \
    for (int64_t row = 0; row < rows; row++) { \
        const D element = from.dtype == GDB_INT64 ? (D)((const int64_t *)from.data)[row * from.pitch] \
                                                  : (D)gdb_load(&from, row, 0); \
        D *const t = (D *)to.data + row * columns; \
        for (int64_t i = 0; i < columns; i += VECTOR) \
            for (int k = 0; k < VECTOR; k++) \
                t[i + k] = first < 0 ? element : element + (D)((int)(first + i) + k); \
    }

static void load_broadcast(gdb_array to, gdb_array from, int64_t first, int64_t rows,
                           int64_t columns) {
    GDB_BY_TYPE(to.dtype, LOAD_SPREAD)
}

typedef int32_t lanes __attribute__((vector_size(16)));
enum { LANES = 4 };

/* Return whether a vector of numbers of columns counts up by one. */
static inline int is_run(const int32_t *order) {
    lanes wanted = {0, 1, 2, 3}, differs = {0}, found;
    int64_t halves[2];
    wanted += order[0];
    for (int k = 0; k < VECTOR; k += LANES, wanted += LANES) {
        memcpy(&found, order + k, sizeof found);
        differs |= found ^ wanted;
    }
    memcpy(halves, &differs, sizeof halves);
    return order[0] >= 0 && !(halves[0] | halves[1]);
}

#define LOAD_MOVED(D) \
    for (int64_t row = 0; row < rows; row++) { \
        D *const t = (D *)to.data + row * columns; \
        const D *const f = (const D *)from.data + row * from.pitch; \
        for (int64_t i = 0, end; i < columns; i = end) { \
            end = columns - i < VECTOR ? columns : i + VECTOR; \
            if (end == i + VECTOR && is_run(order + i)) \
                memcpy(t + i, f + order[i], VECTOR * sizeof(D)); \
            else \
                for (int64_t k = i; k < end; k++) t[k] = order[k] < 0 ? 0 : f[order[k]]; \
        } \
    }

/* Gather elements of each row by index into a register of the same type: often these are rows of a
 * matrix, which follow those of another one. */
static void load_moved(gdb_array to, gdb_array from, const int32_t *order, int64_t rows,
                       int64_t columns) {
    GDB_BY_TYPE(to.dtype, LOAD_MOVED)
}

#define LOAD_INDICES(D) \
    for (int64_t row = 0; row < rows; row++) \
        for (int64_t i = 0; i < columns; i++) \
            ((D *)to.data)[row * columns + i] = (D)gdb_load_index32(&from, row, i);

static void load_indices(gdb_array to, gdb_array from, int64_t rows, int64_t columns) {
    GDB_BY_TYPE(to.dtype, LOAD_INDICES)
}

#endif
