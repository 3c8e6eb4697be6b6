# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""The parts of scheduling that look at every unit or at every pair of groups.

Units are numbered topologically; `offsets` and `preds` are as in `Dependencies`.
"""

cimport cython
from cpython.array cimport array, clone
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef array INT, LONG
INT, LONG = array("i"), array("q")


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


def agenda(
    const int64_t[::1] offsets, const int32_t[::1] succs, const int32_t[::1] signature,
    const int32_t[::1] depth, int32_t[::1] groups,
):
    """Launch what is ready, the signature of least average depth first, until nothing is left.

    `offsets` and `succs` are lists of successors.  `groups` comes as the number of units that each
    unit waits for.
    """
    cdef Ready ready = Ready(signature)
    cdef int32_t signatures = largest(signature) + 1, s, chosen
    cdef int32_t unit, following, launch = 0, left = groups.shape[0]
    #: Per signature: units not launched yet, and the sum of their depths.
    cdef int64_t[::1] count = clone(LONG, signatures, True), depths = clone(LONG, signatures, True)
    cdef Py_ssize_t k
    for unit in range(groups.shape[0]):
        count[signature[unit]] += 1
        depths[signature[unit]] += depth[unit]
        if groups[unit] == 0:
            ready.add(unit)
    while left:
        chosen = -1
        for s in range(signatures):
            if ready.first[s] >= 0:
                if chosen < 0 or depths[s] * count[chosen] < depths[chosen] * count[s]:
                    chosen = s
        unit = ready.take(chosen)
        while unit >= 0:
            left -= 1
            count[chosen] -= 1
            depths[chosen] -= depth[unit]
            following = ready.next[unit]
            groups[unit] = launch
            for k in range(offsets[unit], offsets[unit + 1]):
                groups[succs[k]] -= 1
                if groups[succs[k]] == 0:
                    ready.add(succs[k])
            unit = following
        launch += 1


include "merging.pxi"
