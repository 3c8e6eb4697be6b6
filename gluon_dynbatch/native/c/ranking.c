/* Positions of elements by value.
 *
 * The order of equal elements, and of those that are not numbers, is that of MXNet's operators: they
 * sort positions by introsort (D. R. Musser, "Introspective sorting and selection algorithms",
 * Software: Practice and Experience 27, 1997), or select some by a heap, as the GNU library of C++
 * does. An element that is not a number equals all others, so that loops have bounds here where they
 * have none there. */
#include <stdint.h>

#include "steps.h"

/* Where a part of `FEW` elements remains, insertion sorts it. */
enum { FEW = 16 };

/* An element, a plain value: what it is compared by, and where it was. */
typedef struct {
    double key;
    int64_t position;
} element;

static void swap(element *x, int64_t a, int64_t b) {
    const element kept = x[a];
    x[a] = x[b];
    x[b] = kept;
}

/* ------------------------------------------------------------------ a heap, the last one on top */

static void move_down(element *heap, int64_t hole, int64_t count, element moved) {
    const int64_t top = hole;
    int64_t child = hole;
    while (child < (count - 1) / 2) {
        child = 2 * (child + 1);
        if (heap[child].key < heap[child - 1].key)
            child--;
        heap[hole] = heap[child];
        hole = child;
    }
    if (count % 2 == 0 && child == (count - 2) / 2) {
        child = 2 * child + 1;
        heap[hole] = heap[child];
        hole = child;
    }
    while (hole > top && heap[(hole - 1) / 2].key < moved.key) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = moved;
}

static void make_heap(element *x, int64_t count) {
    for (int64_t parent = (count - 2) / 2; count > 1 && parent >= 0; parent--)
        move_down(x, parent, count, x[parent]);
}

static void sort_heap(element *heap, int64_t count) {
    for (int64_t last = count - 1; last > 0; last--) {
        const element moved = heap[last];
        heap[last] = heap[0];
        move_down(heap, 0, last, moved);
    }
}

/* ------------------------------------------------------------------ introsort */

static void insert(element *x, int64_t at) {
    const element moved = x[at];
    if (moved.key < x[0].key) /* which need not be the order of neighbours, if some are no numbers */
        for (; at > 0; at--)
            x[at] = x[at - 1];
    else
        for (; at > 0 && moved.key < x[at - 1].key; at--)
            x[at] = x[at - 1];
    x[at] = moved;
}

static void insert_beyond_few(element *x, int64_t at) {
    const element moved = x[at];
    for (; at > 0 && moved.key < x[at - 1].key; at--)
        x[at] = x[at - 1];
    x[at] = moved;
}

static int64_t median(const element *x, int64_t a, int64_t b, int64_t c) {
    if (x[a].key < x[b].key)
        return x[b].key < x[c].key ? b : x[a].key < x[c].key ? c : a;
    return x[a].key < x[c].key ? a : x[b].key < x[c].key ? c : b;
}

/* Split the elements from `first` on at a pivot; return where the second part begins. */
static int64_t split(element *x, int64_t first, int64_t last) {
    const int64_t stop = last;
    double pivot;
    swap(x, first, median(x, first + 1, first + (last - first) / 2, last - 1));
    pivot = x[first++].key;
    for (;; first++) {
        while (first < stop && x[first].key < pivot)
            first++;
        last--;
        while (last > 0 && pivot < x[last].key)
            last--;
        if (first >= last)
            return first;
        swap(x, first, last);
    }
}

static void split_until_few(element *x, int64_t first, int64_t last, int depth) {
    while (last - first > FEW) {
        int64_t cut;
        if (depth-- == 0) {
            make_heap(x + first, last - first);
            sort_heap(x + first, last - first);
            return;
        }
        cut = split(x, first, last);
        split_until_few(x, cut, last, depth);
        last = cut;
    }
}

static void sort(element *x, int64_t count) {
    int depth = 0;
    while (count >> (depth + 1))
        depth++;
    split_until_few(x, 0, count, 2 * depth);
    for (int64_t at = 1; at < count; at++)
        if (at < FEW)
            insert(x, at);
        else
            insert_beyond_few(x, at);
}

/* ------------------------------------------------------------------ the step */

/* Read an element of a column; for the largest first, with the sign changed. */
static element read(const gdb_ranked *r, int dtype, const char *from, int64_t position) {
    const int64_t at = position * r->inner;
    const double key = dtype == GDB_FLOAT64 ? ((const double *)from)[at] : ((const float *)from)[at];
    const int falls = r->order == GDB_ARGMAX || r->order == GDB_DESCENDING;
    return (element){falls ? -key : key, position};
}

/* Find the first element that no other comes before, or the first that is not a number. */
static element find_first(const gdb_ranked *r, int dtype, const char *from) {
    element best = read(r, dtype, from, 0);
    for (int64_t i = 1; i < r->count && best.key == best.key; i++) {
        const element next = read(r, dtype, from, i);
        if (next.key < best.key || next.key != next.key)
            best = next;
    }
    return best;
}

static void select_by_heap(const gdb_ranked *r, int dtype, const char *from, element *chosen) {
    for (int64_t i = 0; i < r->number; i++)
        chosen[i] = read(r, dtype, from, i);
    make_heap(chosen, r->number);
    for (int64_t i = r->number; i < r->count; i++) {
        const element next = read(r, dtype, from, i);
        if (next.key < chosen[0].key)
            move_down(chosen, 0, r->number, next);
    }
    sort_heap(chosen, r->number);
}

static void rank(const gdb_ranked *r, int dtype, const char *from, element *chosen) {
    if (r->order == GDB_ARGMAX || r->order == GDB_ARGMIN) {
        chosen[0] = find_first(r, dtype, from);
    } else if (r->count >= 8 * r->number) {
        select_by_heap(r, dtype, from, chosen);
    } else {
        for (int64_t i = 0; i < r->count; i++)
            chosen[i] = read(r, dtype, from, i);
        sort(chosen, r->count);
    }
}

#define STORE(T) ((T *)to)[at] = (T)chosen[j].position;

void gdb_run_ranked(const gdb_ranked *r, const gdb_array *slots, int64_t rows) {
    const gdb_array *source = &slots[r->source.slot], *result = &slots[r->result.slot];
    const int64_t size = gdb_size_of(source->dtype), result_size = gdb_size_of(result->dtype);
    element chosen[GDB_MOST_SORTED];
    for (int64_t row = 0; row < rows; row++) {
        char *to = result->data + (row * result->pitch + r->result.column) * result_size;
        for (int64_t o = 0; o < r->outer; o++)
            for (int64_t i = 0; i < r->inner; i++) {
                const int64_t column = r->source.column + o * r->count * r->inner + i;
                rank(r, source->dtype, source->data + (row * source->pitch + column) * size, chosen);
                for (int64_t j = 0; j < r->number; j++) {
                    const int64_t at = (o * r->number + j) * r->inner + i;
                    GDB_BY_TYPE(result->dtype, STORE)
                }
            }
    }
}
