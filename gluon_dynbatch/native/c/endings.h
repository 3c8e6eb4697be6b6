/* What convolutions do last with their results: they add something, and keep what is above zero.
 *
 * Results are computed in the cache, and written once, in their order.
 */
#define END_ELEMENTS(read, result)                                                                 \
    INDEPENDENT                                                                                    \
    for (int64_t k = 0; k < n; k++) {                                                              \
        const T a = read;                                                                          \
        to[k] = result;                                                                            \
    }
#define END_WITH(result)                                                                           \
    if (added) {                                                                                   \
        END_ELEMENTS(from[k] + added[k], result)                                                   \
    } else {                                                                                       \
        END_ELEMENTS(from[k], result)                                                              \
    }

INLINE int F(has_ending)(gdb_ending ending) { return ending.added || ending.function; }

/* Return where what is added to a row of the result begins, from its i-th element on, or NULL. */
INLINE const T *F(added_to)(gdb_ending ending, int64_t row, int64_t i) {
    return ending.added ? (const T *)ending.added + row * ending.added_row + i : NULL;
}

/* Write `n` elements with the ending of a function. */
static void F(end_maps)(int64_t function, int64_t n, const T *from, const T *added, T *to) {
    switch (function) {
    case GDB_RELU: END_WITH(a <= 0 ? C(0.0) : a) break;
    case GDB_RECTIFIED: END_WITH(a > 0 ? a : C(0.0)) break;
    default: END_WITH(a)
    }
}

/* Which results are kept, although they are not above zero: all, or those that are not numbers. A
 * plain value. */
typedef struct {
    BIT_VECTOR always, if_no_number;
} F(cutoff);

static void F(set_cutoff)(F(cutoff) *cutoff, int64_t function) {
    const BITS always = function == GDB_AS_IT_IS ? ~(BITS)0 : 0;
    const BITS if_no_number = function == GDB_RELU ? ~(BITS)0 : 0;
    cutoff->always = (BIT_VECTOR){0} + always, cutoff->if_no_number = (BIT_VECTOR){0} + if_no_number;
}

INLINE void F(cut)(const F(cutoff) *cutoff, VECTOR *a) {
    const BIT_VECTOR above = (BIT_VECTOR)(*a > (VECTOR){0}), no_number = (BIT_VECTOR)(*a != *a);
    const BIT_VECTOR kept = above | (no_number & cutoff->if_no_number) | cutoff->always;
    *a = (VECTOR)((BIT_VECTOR)*a & kept);
}

INLINE void F(cut_four)(const F(cutoff) *cutoff, QUAD *a) {
    const FOUR_BITS always = *(const FOUR_BITS *)&cutoff->always;
    const FOUR_BITS if_no_number = *(const FOUR_BITS *)&cutoff->if_no_number;
    const FOUR_BITS above = (FOUR_BITS)(*a > (QUAD){0}), no_number = (FOUR_BITS)(*a != *a);
    *a = (QUAD)((FOUR_BITS)*a & (above | (no_number & if_no_number) | always));
}

/* Write four maps, of which vectors of positions have a lane each, four positions at a time. */
INLINE void F(write_four)(int64_t size, const T *from, const T *added, const F(cutoff) *cutoff,
                          T *to) {
    QUAD maps[4];
    for (int64_t i = 0; i < size; i += 4) {
        const int64_t at = i + 4 < size ? i : size - 4; /* the last overlap */
        F(transpose_four)(from + at * LANES, LANES, maps);
        UNROLL for (int f = 0; f < 4; f++) {
            if (added) maps[f] += *(const QUAD *)(added + f * size + at);
            F(cut_four)(cutoff, maps + f);
            *(QUAD *)(to + f * size + at) = maps[f];
        }
    }
}

/* Write maps of `size` positions, with their ending, from a vector of maps for each position. */
static void F(write_maps)(int64_t function, int64_t maps, int64_t size, const T *from,
                          const T *added, T *to) {
    enum { FOUR = LANES >= 4 };
    F(cutoff) cutoff;
    T map[LINE];
    F(set_cutoff)(&cutoff, function);
    for (int64_t f = 0, count; f < maps; f += count, to += count * size) {
        const T *lane = from + f / LANES * LANES * size + f % LANES;
        const T *more = added ? added + f * size : NULL;
        count = FOUR && size >= 4 && f + 4 <= maps ? 4 : 1;
        if (count == 4 && more)
            F(write_four)(size, lane, more, &cutoff, to);
        else if (count == 4)
            F(write_four)(size, lane, NULL, &cutoff, to);
        for (int64_t i = 0; i < size && count == 1; i += LINE) {
            const int64_t n = size - i < LINE ? size - i : LINE;
            for (int64_t k = 0; k < n; k++) map[k] = lane[(i + k) * LANES];
            F(end_maps)(function, n, map, more ? more + i : NULL, to + i);
        }
    }
}
