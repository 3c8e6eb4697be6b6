# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""The parts of scheduling that look at every unit or at every pair of groups.

Units are numbered topologically; `offsets` and `preds` are as in `Dependencies`.
"""

cimport cython
from cpython.array cimport array, clone
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

cdef array INT, LONG, DOUBLE, WORD
INT, LONG, DOUBLE, WORD = array("i"), array("q"), array("d"), array("Q")


cdef int32_t largest(const int32_t[::1] numbers) noexcept:
    """Return the largest number, -1 if there is none."""
    cdef int32_t most = -1
    cdef Py_ssize_t i
    for i in range(numbers.shape[0]):
        most = max(most, numbers[i])
    return most


def depths(const int64_t[::1] offsets, const int32_t[::1] preds, int32_t[::1] depth):
    """Fill in the number of units on the longest path to each unit, without itself."""
    cdef Py_ssize_t unit, k
    cdef int32_t deepest
    for unit in range(depth.shape[0]):
        deepest = 0
        for k in range(offsets[unit], offsets[unit + 1]):
            deepest = max(deepest, depth[preds[k]] + 1)
        depth[unit] = deepest


def quick_bound(
    const int64_t[::1] offsets, const int32_t[::1] preds, const int32_t[::1] signature,
    const int32_t[::1] depth,
):
    """Count the units of a longest path and the signatures that none of them has."""
    cdef bytearray held = bytearray(largest(signature) + 1)
    cdef char *elsewhere = held
    cdef int32_t unit, last = 0
    cdef Py_ssize_t k
    if depth.shape[0] == 0:
        return 0
    for unit in range(depth.shape[0]):
        elsewhere[signature[unit]] = True
        if depth[unit] > depth[last]:
            last = unit
    unit = last
    elsewhere[signature[unit]] = False
    while depth[unit]:
        k = offsets[unit]
        while depth[preds[k]] < depth[unit] - 1:
            k += 1
        unit = preds[k]
        elsewhere[signature[unit]] = False
    return depth[last] + 1 + held.count(True)


def group(const int32_t[::1] level, const int32_t[::1] signature, int32_t[::1] groups):
    """Fill in each unit's position among the distinct pairs of level and signature, ascending."""
    cdef int32_t units = level.shape[0], levels = largest(level) + 1, unit, own, first = -1
    cdef int32_t signatures = largest(signature) + 1
    cdef Py_ssize_t at
    #: All units in the order of their signatures, and where those of the next one go.
    cdef int32_t[::1] order = clone(INT, units, False), start = clone(INT, signatures + 1, True)
    #: Per level, how many signatures it has so far, and the last of them.
    cdef int32_t[::1] count = clone(INT, levels, True), last = clone(INT, levels, False)
    last[:] = -1
    for unit in range(units):
        start[signature[unit] + 1] += 1
    for at in range(signatures):
        start[at + 1] += start[at]
    for unit in range(units):
        order[start[signature[unit]]] = unit
        start[signature[unit]] += 1
    for at in range(units):
        unit = order[at]
        own = level[unit]
        if last[own] != signature[unit]:
            last[own] = signature[unit]
            count[own] += 1
        groups[unit] = count[own]
    for at in range(levels):
        # From here on, one less than the first group of the level.
        own, count[at] = count[at], first
        first += own
    for unit in range(units):
        groups[unit] += count[level[unit]]


def singles_in_order(int32_t[::1] groups):
    """Number neighbouring groups of one unit each in the order of their units."""
    cdef int32_t count = largest(groups) + 1, group, begin
    cdef int32_t[::1] size = clone(INT, count, True)
    #: Per group the first of its neighbours, and there the next number that is free.
    cdef int32_t[::1] first = clone(INT, count, False), free = clone(INT, count, False)
    cdef Py_ssize_t unit
    for unit in range(groups.shape[0]):
        size[groups[unit]] += 1
    for group in range(count):
        first[group] = free[group] = group
        if group and size[group] == 1 and size[group - 1] == 1:
            first[group] = first[group - 1]
    for unit in range(groups.shape[0]):
        if size[groups[unit]] == 1:
            begin = first[groups[unit]]
            groups[unit] = free[begin]
            free[begin] += 1


# ---------------------------------------------------------------- longest-path counts

cdef enum:
    #: Numbers held at once: 8 MB, unless a single column needs more.
    CELLS = 1 << 21


def path_counts(
    const int64_t[::1] offsets, const int32_t[::1] preds, const int32_t[::1] column,
    int32_t[::1] count,
):
    """Count the most units of each unit's own signature on a path that starts with it.

    `column` numbers the signatures to look at, and is -1 for the units of others.  Returns the sum
    over these signatures of the largest count.
    """
    cdef Py_ssize_t units = column.shape[0], unit, k, width, low, w
    cdef int32_t columns = largest(column) + 1, c
    cdef int32_t[::1] most = clone(INT, columns, True)
    width = columns if units * columns <= CELLS else max(1, CELLS // units)
    cdef array table = clone(INT, units * width, False)
    cdef int32_t *row
    cdef int32_t *before
    for low in range(0, columns, max(width, 1)):
        memset(table.data.as_ints, 0, units * width * sizeof(int32_t))
        for unit in range(units - 1, -1, -1):
            row = <int32_t *>table.data.as_ints + unit * width
            c = column[unit]
            if low <= c < low + width:
                row[c - low] += 1
                count[unit] = row[c - low]
                most[c] = max(most[c], count[unit])
            for k in range(offsets[unit], offsets[unit + 1]):
                before = <int32_t *>table.data.as_ints + preds[k] * width
                for w in range(width):
                    before[w] = before[w] if before[w] > row[w] else row[w]
    return sum(most)


# ------------------------------------------------------------------------------- ready

@cython.final
cdef class Ready:
    """The units that can be launched, in a list per signature."""

    cdef const int32_t[::1] signature
    #: Per signature its first ready unit, and per unit the one after it; -1 if there is none.
    cdef int32_t[::1] first, next

    def __init__(self, const int32_t[::1] signature):
        self.signature = signature
        self.first = clone(INT, largest(signature) + 1, False)
        self.first[:] = -1
        self.next = clone(INT, signature.shape[0], False)

    cdef inline void add(self, int32_t unit) noexcept:
        self.next[unit] = self.first[self.signature[unit]]
        self.first[self.signature[unit]] = unit

    cdef inline int32_t take(self, int32_t signature) noexcept:
        """Take all units off a signature; return the first, others are `next`."""
        cdef int32_t unit = self.first[signature]
        self.first[signature] = -1
        return unit


# ------------------------------------------------------------------------------ agenda

@cython.final
cdef class Agenda:
    """What is ready and what is left."""

    cdef const int32_t[::1] signature, depth, count
    #: Whether counts decide, not the average depth alone.
    cdef bint counted
    cdef Ready ready
    #: Per signature: units not launched yet, the largest count of one, the sum of their depths.
    cdef int32_t[::1] left, top
    cdef int64_t[::1] depth_left
    #: By signature and count, a signature from `start` on: units not launched yet; those ready.
    cdef int32_t[::1] start, left_at, ready_at
    #: Per signature, how urgent it is, lower is sooner; negative if that is to be found anew.
    cdef double[::1] urgency
    #: What the average depth is divided by to decide ties only.
    cdef double scale

    def __init__(
        self, const int32_t[::1] signature, const int32_t[::1] depth, const int32_t[::1] count
    ):
        cdef int32_t units = signature.shape[0], signatures = largest(signature) + 1
        cdef int32_t unit, s, start = 0
        self.signature, self.depth, self.count = signature, depth, count
        self.counted = count.shape[0] > 0
        self.ready, self.start = Ready(signature), clone(INT, signatures, False)
        self.left, self.top = clone(INT, signatures, True), clone(INT, signatures, True)
        self.depth_left, self.urgency = clone(LONG, signatures, True), clone(DOUBLE, signatures, True)
        # The counts of a signature are at most its units, and a place more is for zero.
        self.left_at = clone(INT, units + signatures, True)
        self.ready_at = clone(INT, units + signatures, True)
        self.scale = 1e3 * (largest(depth) + 1)
        for unit in range(units):
            s = signature[unit]
            self.left[s] += 1
            self.depth_left[s] += depth[unit]
            if self.counted:
                self.top[s] = max(self.top[s], count[unit])
        for s in range(signatures):
            self.urgency[s], self.start[s] = INFINITY, start
            start += self.top[s] + 1
        for unit in range(units):
            self.left_at[self.place(unit)] += 1

    cdef inline int32_t place(self, int32_t unit) noexcept:
        return self.start[self.signature[unit]] + (self.count[unit] if self.counted else 0)

    cdef void make_ready(self, int32_t unit) noexcept:
        self.ready.add(unit)
        self.ready_at[self.place(unit)] += 1
        self.urgency[self.signature[unit]] = -1.0

    cdef int32_t most_urgent(self) noexcept:
        """Return the signature with the lowest urgency, of equals the first."""
        cdef int32_t s, top, chosen = 0
        for s in range(self.urgency.shape[0]):
            if self.urgency[s] < 0:
                self.urgency[s] = <double>self.depth_left[s] / self.left[s]
                if self.counted:
                    top = self.start[s] + self.top[s]
                    self.urgency[s] = (
                        1.0 - <double>self.ready_at[top] / self.left_at[top]
                    ) + self.urgency[s] / self.scale
            if self.urgency[s] < self.urgency[chosen]:
                chosen = s
        return chosen

    cdef int32_t take_ready(self, int32_t s) noexcept:
        """Take the ready units off a signature; return the first of them."""
        cdef int32_t taken = self.ready.take(s), unit = taken
        self.urgency[s] = INFINITY
        while unit >= 0:
            self.left[s] -= 1
            self.depth_left[s] -= self.depth[unit]
            self.left_at[self.place(unit)] -= 1
            self.ready_at[self.place(unit)] -= 1
            unit = self.ready.next[unit]
        while self.top[s] and not self.left_at[self.start[s] + self.top[s]]:
            self.top[s] -= 1
        return taken


def agenda(
    const int64_t[::1] offsets, const int32_t[::1] succs, const int32_t[::1] signature,
    const int32_t[::1] depth, const int32_t[::1] count, int32_t[::1] groups,
):
    """Launch what is ready, the most urgent signature first, until nothing is left.

    `offsets` and `succs` are lists of successors.  `groups` comes as the number of units that each
    unit waits for.  Without counts, the average depth decides alone.
    """
    cdef Agenda a = Agenda(signature, depth, count)
    cdef int32_t unit, following, launch = 0, left = groups.shape[0]
    cdef Py_ssize_t k
    for unit in range(groups.shape[0]):
        if groups[unit] == 0:
            a.make_ready(unit)
    while left:
        unit = a.take_ready(a.most_urgent())
        while unit >= 0:
            left -= 1
            following = a.ready.next[unit]
            groups[unit] = launch
            for k in range(offsets[unit], offsets[unit + 1]):
                groups[succs[k]] -= 1
                if groups[succs[k]] == 0:
                    a.make_ready(succs[k])
            unit = following
        launch += 1


include "merging.pxi"
