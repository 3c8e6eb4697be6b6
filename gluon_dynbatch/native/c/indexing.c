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

static void fail(int64_t mode, int64_t index, int64_t axis, int64_t size) {
    pthread_mutex_lock(&failure_lock);
    if (!failed) {
        /* As MXNet words it; Python finds the class of the error at the beginning. */
        if (mode == GDB_STRICT)
            snprintf(failure, sizeof failure,
                     "MXNetError: take operator contains indices out of bound: index %" PRId64
                     " does not fit size %" PRId64, index, size);
        else
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
    __atomic_store_n(&failed, 0, __ATOMIC_RELAXED);
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

int64_t gdb_table_row(const gdb_array *index, int64_t row, int64_t column, int64_t table_rows,
                      int64_t mode, int lenient) {
    const int64_t chosen = gdb_load_index(index, row, column);
    if (mode != GDB_STRICT)
        return gdb_row_at(chosen, table_rows, mode == GDB_WRAP);
    /* Compared before fractions are cut off, as MXNet does; a number that is none does not fit. */
    const double number = gdb_load(index, row, column);
    if (number >= 0 && number <= (double)(table_rows - 1))
        return chosen;
    if (!lenient)
        fail(mode, chosen, 0, table_rows);
    return -1;
}

/* Return the product of the sizes of the indexed axes. */
static inline int64_t count_of(const gdb_indexed *d) {
    int64_t count = 1;
    for (int64_t axis = 0; axis < d->axes; axis++)
        count *= d->sizes[axis];
    return count;
}

/* Return the position of an index along an axis of some size, -1 if the index does not fit. */
static inline int64_t position(const gdb_indexed *d, const gdb_array *array, int64_t row,
                               int64_t column, int64_t axis) {
    const int64_t size = d->each ? count_of(d) : d->sizes[axis];
    int64_t index;
    if (d->mode != GDB_CHECKED && d->mode != GDB_TRUNCATED)
        return gdb_table_row(array, row, column, size, d->mode, d->lenient);
    index = whole(array, row, column, d->mode);
    if (index >= -size && index < size)
        return index < 0 ? index + size : index;
    if (!d->lenient)
        fail(d->mode, index, axis, size);
    return -1;
}

/* Return the position that index `j` of each axis says among all `count` ones, -1 if one of them
 * does not fit. */
static inline int64_t position_of_block(const gdb_indexed *d, const gdb_array *index, int64_t row,
                                        int64_t j) {
    int64_t chosen = 0;
    for (int64_t axis = 0; axis < d->axes; axis++) {
        const int64_t column = d->index.column + axis * d->number + j;
        const int64_t at = position(d, index, row, column, axis);
        if (at < 0)
            return -1;
        chosen = chosen * d->sizes[axis] + at;
    }
    return chosen;
}

/* Return the byte of what an index that does not fit stands for: not a number, or the integer -1. */
static inline int no_value(const gdb_indexed *d) { return d->lenient ? 0 : 0xff; }

/* Move a block of elements between position `numbered` of the chosen ones and `indexed` of all. A
 * gathered block without a position, `indexed` -1, gets no value. */
static inline void move_inner(const gdb_indexed *d, const char *read, char *written,
                              int64_t numbered, int64_t indexed, int64_t count) {
    const int64_t size = gdb_size_of(d->step.dtype);
    if (indexed < 0)
        memset(written + numbered * size, no_value(d), count * size);
    else if (d->operation == GDB_GATHERED)
        memcpy(written + numbered * size, read + indexed * size, count * size);
    else if (d->operation == GDB_WRITTEN)
        memcpy(written + indexed * size, read + numbered * size, count * size);
    else
        gdb_add(d->step.dtype, written + indexed * size, read + numbered * size, count);
}

void gdb_run_indexed(const gdb_indexed *d, const gdb_array *slots, int64_t rows) {
    const int64_t size = gdb_size_of(d->step.dtype), chosen_count = d->outer * d->number * d->inner;
    const gdb_array *from = &slots[d->source.slot], *to = &slots[d->result.slot];
    const gdb_array *index = &slots[d->index.slot];
    const int gathers = d->operation == GDB_GATHERED;
    const int64_t count = count_of(d);
    for (int64_t row = 0; row < rows; row++) {
        const char *read = from->data + (row * from->pitch + d->source.column) * size;
        char *written = to->data + (row * to->pitch + d->result.column) * size;
        const int64_t bytes = d->outer * count * d->inner * size;
        int fits = 1;
        if (!gathers)
            memset(written, 0, bytes);
        for (int64_t at = 0; d->each && at < chosen_count; at++) {
            const int64_t chosen = position(d, index, row, d->index.column + at, 0);
            const int64_t outer = at / (d->number * d->inner), inner = at % d->inner;
            const int64_t indexed = (outer * count + chosen) * d->inner + inner;
            fits &= chosen >= 0;
            if (gathers || chosen >= 0)
                move_inner(d, read, written, at, chosen < 0 ? -1 : indexed, 1);
        }
        for (int64_t j = 0; !d->each && j < d->number; j++) {
            const int64_t chosen = position_of_block(d, index, row, j);
            fits &= chosen >= 0;
            for (int64_t o = 0; o < d->outer && (gathers || chosen >= 0); o++)
                move_inner(d, read, written, (o * d->number + j) * d->inner,
                     chosen < 0 ? -1 : (o * count + chosen) * d->inner, d->inner);
        }
        if (!gathers && !fits && !d->lenient) /* any element may lack a term */
            memset(written, no_value(d), bytes);
    }
}

/* ------------------------------------------------------------------ positions by value */

/* Find the positions of the elements of one column, `r->inner` elements apart: by insertion, if they
 * are few or all are wanted; else the first of the largest or the least ones. */
#define RANK(T) \
    { \
        const T *const x = (const T *)from; \
        const int64_t stride = r->inner; \
        int64_t best = 0; \
        if (r->order == GDB_ARGMAX || r->order == GDB_ARGMIN) { \
            for (int64_t i = 1; i < r->count && x[best * stride] == x[best * stride]; i++) { \
                const T a = x[i * stride], b = x[best * stride]; \
                if (a != a || (r->order == GDB_ARGMAX ? a > b : a < b)) \
                    best = i; \
            } \
            chosen[0] = best; \
        } else if (r->count >= 8 * r->number) { \
            for (int64_t i = 1; i < r->count; i++) { \
                const T a = x[i * stride], b = x[best * stride]; \
                if (r->order == GDB_DESCENDING ? a > b : a < b) \
                    best = i; \
            } \
            chosen[0] = best; \
        } else { \
            for (int64_t i = 0; i < r->count; i++) { \
                const T a = x[i * stride], first = x[chosen[0] * stride]; \
                const int to_front = i && (r->order == GDB_DESCENDING ? a > first : a < first); \
                int64_t at = i; \
                for (; at > 0; at--) { \
                    const T b = x[chosen[at - 1] * stride]; \
                    if (!to_front && !(r->order == GDB_DESCENDING ? a > b : a < b)) \
                        break; \
                    chosen[at] = chosen[at - 1]; \
                } \
                chosen[at] = i; \
            } \
        } \
    }

#define STORE(T) ((T *)to)[at] = (T)chosen[j];

void gdb_run_ranked(const gdb_ranked *r, const gdb_array *slots, int64_t rows) {
    const gdb_array *source = &slots[r->source.slot], *result = &slots[r->result.slot];
    const int64_t size = gdb_size_of(source->dtype), result_size = gdb_size_of(result->dtype);
    int64_t chosen[GDB_MOST_SORTED] = {0};
    for (int64_t row = 0; row < rows; row++) {
        char *to = result->data + (row * result->pitch + r->result.column) * result_size;
        for (int64_t o = 0; o < r->outer; o++)
            for (int64_t i = 0; i < r->inner; i++) {
                const char *from = source->data
                    + (row * source->pitch + r->source.column + o * r->count * r->inner + i) * size;
                if (source->dtype == GDB_FLOAT64)
                    RANK(double)
                else
                    RANK(float)
                for (int64_t j = 0; j < r->number; j++) {
                    const int64_t at = (o * r->number + j) * r->inner + i;
                    GDB_BY_TYPE(result->dtype, STORE)
                }
            }
    }
}
