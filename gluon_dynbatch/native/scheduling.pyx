# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""The parts of scheduling that visit every unit or every pair of groups.

Units are numbered topologically; `offsets` and `preds` are as in `Dependencies`.
"""

cimport cython
from cpython.array cimport array, clone
from libc.stdint cimport int32_t, int64_t

cdef array INT, LONG
INT, LONG = array("i"), array("q")


cdef int32_t largest(const int32_t[::1] numbers) noexcept:
    """Return the largest number; -1 if there is none."""
    cdef int32_t most = -1
    cdef Py_ssize_t i
    for i in range(numbers.shape[0]):
        most = max(most, numbers[i])
    return most


def depths(const int64_t[::1] offsets, const int32_t[::1] preds, int32_t[::1] depth):
    """Fill in the number of edges on the longest path from a source to each unit."""
    cdef Py_ssize_t unit, k
    cdef int32_t deepest
    for unit in range(depth.shape[0]):
        deepest = 0
        for k in range(offsets[unit], offsets[unit + 1]):
            deepest = max(deepest, depth[preds[k]] + 1)
        depth[unit] = deepest


def group(const int32_t[::1] level, const int32_t[::1] signature, int32_t[::1] groups):
    """Fill in each unit's position among the distinct pairs of level and signature, ascending."""
    cdef int32_t units = level.shape[0], levels = largest(level) + 1, unit, unit_level
    cdef int32_t signatures = largest(signature) + 1, count_of_level, before = -1
    cdef Py_ssize_t k
    #: All units, sorted by signature; per signature, the position of its next unit.
    cdef int32_t[::1] order = clone(INT, units, False), start = clone(INT, signatures + 1, True)
    #: Per level, the number of its signatures so far, and the last of them.
    cdef int32_t[::1] count = clone(INT, levels, True), last = clone(INT, levels, False)
    last[:] = -1
    for unit in range(units):
        start[signature[unit] + 1] += 1
    for k in range(signatures):
        start[k + 1] += start[k]
    for unit in range(units):
        order[start[signature[unit]]] = unit
        start[signature[unit]] += 1
    for k in range(units):
        unit = order[k]
        unit_level = level[unit]
        if last[unit_level] != signature[unit]:
            last[unit_level] = signature[unit]
            count[unit_level] += 1
        groups[unit] = count[unit_level]
    for k in range(levels):
        # From here on, `count` is the last group before the level; units are numbered from 1.
        count_of_level, count[k] = count[k], before
        before += count_of_level
    for unit in range(units):
        groups[unit] += count[level[unit]]


@cython.final
cdef class Ready:
    """The units that can be launched, in a linked list per signature."""

    cdef const int32_t[::1] signature
    #: Per signature its first ready unit, and per unit the next one; -1 if there is none.
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
        """Remove all units of a signature; return the first, which `next` links to the others."""
        cdef int32_t unit = self.first[signature]
        self.first[signature] = -1
        return unit


def agenda(
    const int64_t[::1] offsets, const int32_t[::1] succs, const int32_t[::1] signature,
    const int32_t[::1] depth, int32_t[::1] groups,
):
    """Fill in groups: repeatedly launch all ready units of the signature of least average depth.

    `offsets` and `succs` list the successors of each unit.  On entry, `groups` has the number of
    predecessors of each unit.
    """
    cdef Ready ready = Ready(signature)
    cdef int32_t signatures = largest(signature) + 1, s, chosen
    cdef int32_t unit, following, launch = 0, left = groups.shape[0]
    #: Per signature, the number of units that are not launched yet, and the sum of their depths.
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
