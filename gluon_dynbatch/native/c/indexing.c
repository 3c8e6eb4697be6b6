/* Elements chosen by index inside each row: gathers, and sums and writes by index. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "steps.h"

/* ------------------------------------------------------------------ indices that do not fit */

static pthread_mutex_t failure_lock = PTHREAD_MUTEX_INITIALIZER;
static char failure[128];
static int failed; /* read without the lock, so that programs without failures take none */

static void fail(int64_t index, int64_t axis, int64_t size) {
    pthread_mutex_lock(&failure_lock);
    if (!failed) {
        /* As MXNet words it; Python finds the class of the error at the beginning. */
        snprintf(failure, sizeof failure,
                 "IndexError: index %" PRId64 " is out of bounds for axis %" PRId64
                 " with size %" PRId64, index, axis, size);
        __atomic_store_n(&failed, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&failure_lock);
}

int gdb_take_failure(char *message, int64_t size) {
    int found;
    if (!__atomic_load_n(&failed, __ATOMIC_ACQUIRE))
        return 0;
    pthread_mutex_lock(&failure_lock);
    found = failed;
    snprintf(message, size, "%s", failure);
    failed = 0;
    pthread_mutex_unlock(&failure_lock);
    return found;
}

/* ------------------------------------------------------------------ positions */

/* Return the number that a checked index says: floats are rounded down, or towards zero. A number
 * that is too large, or that is not a number, is out of bounds. */
static inline int64_t whole(const gdb_array *array, int64_t row, int64_t column, int64_t mode) {
    int64_t index = gdb_load_index(array, row, column);
    if (mode == GDB_CHECKED && (array->dtype == GDB_FLOAT32 || array->dtype == GDB_FLOAT64))
        index -= index > INT64_MIN && (double)index > gdb_load(array, row, column);
    return index;
}

/* Return the position of an index along an axis of some size. */
static inline int64_t position(const gdb_array *array, int64_t row, int64_t column, int64_t mode,
                               int64_t axis, int64_t size) {
    int64_t index;
    if (mode == GDB_CLIP || mode == GDB_WRAP)
        return gdb_row_at(gdb_load_index(array, row, column), size, mode == GDB_WRAP);
    index = whole(array, row, column, mode);
    if (index >= -size && index < size)
        return index < 0 ? index + size : index;
    fail(index, axis, size);
    return 0;
}

void gdb_run_indexed(const gdb_indexed *d, const gdb_array *slots, int64_t rows) {
    const int64_t size = gdb_size_of(d->step.dtype), block = d->inner * size;
    const gdb_array *from = &slots[d->source.slot], *to = &slots[d->result.slot];
    int64_t count = 1;
    for (int64_t axis = 0; axis < d->axes; axis++)
        count *= d->sizes[axis];
    for (int64_t row = 0; row < rows; row++) {
        const char *read = from->data + (row * from->pitch + d->source.column) * size;
        char *written = to->data + (row * to->pitch + d->result.column) * size;
        if (d->operation != GDB_GATHERED)
            memset(written, 0, d->outer * count * block);
        for (int64_t j = 0; j < d->number; j++) {
            int64_t chosen = 0;
            for (int64_t axis = 0; axis < d->axes; axis++)
                chosen = chosen * d->sizes[axis]
                    + position(&slots[d->index.slot], row, d->index.column + axis * d->number + j,
                               d->mode, axis, d->sizes[axis]);
            for (int64_t o = 0; o < d->outer; o++) {
                const int64_t numbered = (o * d->number + j) * block;
                const int64_t indexed = (o * count + chosen) * block;
                if (d->operation == GDB_GATHERED)
                    memcpy(written + numbered, read + indexed, block);
                else if (d->operation == GDB_WRITTEN)
                    memcpy(written + indexed, read + numbered, block);
                else
                    gdb_add(d->step.dtype, written + indexed, read + numbered, d->inner);
            }
        }
    }
}
