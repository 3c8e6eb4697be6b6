# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""The parts of scheduling that visit every unit or every pair of groups.

Units are numbered topologically; `offsets` and `preds` are as in `Dependencies`.
"""

cimport cython
from cpython.array cimport array, clone
from libc.stdint cimport int32_t, int64_t

include "sorting.pxi"

cdef array INT, LONG
INT, LONG = array("i"), array("q")


cpdef int32_t largest(const int32_t[::1] numbers) noexcept:
    """Return the largest number; -1 if there is none."""
    cdef int32_t most = -1
    cdef Py_ssize_t i
    for i in range(numbers.shape[0]):
        most = max(most, numbers[i])
    return most


cpdef void depths(const int64_t[::1] offsets, const int32_t[::1] preds, int32_t[::1] depth):
    """Fill in the number of edges on the longest path from a source to each unit."""
    cdef Py_ssize_t unit, k
    cdef int32_t deepest
    for unit in range(depth.shape[0]):
        deepest = 0
        for k in range(offsets[unit], offsets[unit + 1]):
            deepest = max(deepest, depth[preds[k]] + 1)
        depth[unit] = deepest


def group(
    const int64_t[::1] offsets, const int32_t[::1] preds, const int32_t[::1] signature,
    int32_t[::1] groups,
):
    """Fill in each unit's position among the distinct pairs of depth and signature, ascending.

    Returns the number of pairs, and a lower bound on launches: each unit of a longest path needs
    one, and so does each signature that is not on the path.
    """
    cdef int32_t units = groups.shape[0], count = 0, slots = 1, unit, following, bound = 0
    cdef int64_t key, at
    cdef Py_ssize_t k
    while slots < 2 * units:
        slots *= 2
    #: A hash table of the pairs, which are numbered from 1 on in the order of their first units.
    cdef int32_t[::1] table = clone(INT, slots, True), number = clone(INT, units, False)
    cdef int32_t[::1] depth = clone(INT, units, False)
    #: The pairs with their first units, and as much scratch.
    cdef array items = clone(LONG, 4 * units, False)
    cdef Keyed *pairs = <Keyed *>items.data.as_longlongs
    cdef bytearray counted = bytearray(largest(signature) + 1)
    depths(offsets, preds, depth)
    for unit in range(units):
        key = <int64_t>depth[unit] << 32 | signature[unit]
        # An odd factor, so that pairs of many depths and of few have different places.
        at = (<int64_t>depth[unit] * 40503 + signature[unit]) & (slots - 1)
        while table[at] and pairs[table[at] - 1].key != key:
            at = (at + 1) & (slots - 1)
        if not table[at]:
            pairs[count].key, pairs[count].unit = key, unit
            count += 1
            table[at] = count
        groups[unit] = table[at] - 1
    radix_sort(pairs, pairs + units, count)
    for k in range(count):
        number[groups[pairs[k].unit]] = k
    unit = pairs[count - 1].unit if count else -1
    while unit >= 0:
        bound, counted[signature[unit]], following = bound + 1, True, -1
        for k in range(offsets[unit], offsets[unit + 1]):
            if depth[preds[k]] + 1 == depth[unit]:
                following = preds[k]
        unit = following
    for k in range(count):
        bound += not counted[signature[pairs[k].unit]]
        counted[signature[pairs[k].unit]] = True
    for unit in range(units):
        groups[unit] = number[groups[unit]]
    return count, bound


def order_singles(const int32_t[::1] groups, int32_t[::1] ordered):
    """Fill in `ordered`: `groups`, with runs of groups of one unit each in the order of the units.

    Returns whether there is such a run.
    """
    cdef int32_t count = largest(groups) + 1, group
    #: Per group: the number of its units, and the first group of its run; per run its next number.
    cdef int32_t[::1] members = clone(INT, count, True), run = array("i", range(count))
    cdef int32_t[::1] following = array("i", range(count))
    cdef Py_ssize_t unit
    cdef bint found = False
    for unit in range(groups.shape[0]):
        members[groups[unit]] += 1
    for group in range(1, count):
        if members[group - 1] == members[group] == 1:
            run[group], found = run[group - 1], True
    for unit in range(groups.shape[0] if found else 0):
        group = groups[unit]
        ordered[unit] = following[run[group]]
        following[run[group]] += members[group] == 1
    return found


@cython.final
cdef class Ready:
    """The units that can be launched, in a linked list per signature.

    Owned by one call of `agenda` or `drop_groups`.
    """

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
