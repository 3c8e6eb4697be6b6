# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""The order of units within launches, and sweeps over dependencies; arrays as in `Graph`."""

cimport cython
from cpython.array cimport array, clone
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef array INT, LONG
INT, LONG = array("i"), array("q")


def ancestors(
    const int64_t[::1] offsets, const int32_t[::1] preds, const uint8_t[::1] through,
    uint8_t[::1] reached,
):
    """Mark the ancestors of all marked units; paths continue only behind units in `through`."""
    cdef Py_ssize_t unit, k
    for unit in range(reached.shape[0] - 1, -1, -1):
        if reached[unit] and through[unit]:
            for k in range(offsets[unit], offsets[unit + 1]):
                reached[preds[k]] = True


def flow(
    const int64_t[::1] first, const int64_t[::1] differentiable, const uint8_t[::1] recorded,
    const int64_t[::1] operand, const int64_t[::1] source, const int64_t[::1] maker,
    uint8_t[::1] passing, uint8_t[::1] flowing, uint8_t[::1] reached,
):
    """Mark the launches that take part in a backward pass, and the operands that pass gradients on.

    Reads are sorted by operand; `source` numbers the regions that they read, and `maker` has per
    region its launch, or one of two numbers for fills.  On entry, `flowing` marks the makers that
    train something themselves, and `reached` those with heads.  A forward sweep propagates
    `flowing`, a backward sweep `reached`; on return, `flowing` marks the makers that have both.
    """
    cdef int64_t launch, k, i = 0
    for launch in range(first.shape[0] - 1):
        for k in range(first[launch], first[launch + 1]):
            while i < operand.shape[0] and operand[i] == k:
                if recorded[launch] and differentiable[k] and flowing[maker[source[i]]]:
                    passing[k] = flowing[launch] = True
                i += 1
    for launch in range(first.shape[0] - 2, -1, -1):
        flowing[launch] &= reached[launch]
        for k in range(first[launch + 1] - 1, first[launch] - 1, -1):
            passing[k] &= flowing[launch]
            while i > 0 and operand[i - 1] == k:
                i -= 1
                if passing[k]:
                    reached[maker[source[i]]] = True


include "sorting.pxi"


@cython.final
cdef class Ordering:
    """Finds the leader of each unit: the reader whose order it follows.

    `plan.order` explains how the leader is chosen.
    """

    cdef const int32_t[::1] groups, segment
    #: Per segment: its rank by size, and whether it has inputs that concatenate.
    cdef const int64_t[::1] rank
    cdef const uint8_t[::1] concatenates
    cdef const int32_t[::1] input0, term0, term, slot_unit
    cdef int64_t units, launches, ports, levels, unread, most_extra
    #: Per unit: its leader, where the leader reads it (by launch, port and summand), and its
    #: position within its launch.
    cdef int32_t[::1] leader, position
    cdef int64_t[::1] place
    #: Per slot: how many terms read it.
    cdef int32_t[::1] reads

    def __init__(self, groups, segment, rank, concatenates, input0, term0, term, slot_unit):
        cdef int64_t unit, i
        self.groups, self.segment = groups, segment
        self.rank, self.concatenates = rank, concatenates
        self.input0, self.term0, self.term, self.slot_unit = input0, term0, term, slot_unit
        self.units = self.groups.shape[0]
        self.ports, self.levels = 1, 1
        for unit in range(self.units):
            self.launches = max(self.launches, self.groups[unit] + 1)
            self.ports = max(self.ports, self.input0[unit + 1] - self.input0[unit])
            self.most_extra = max(self.most_extra, self.extra(unit))
        for i in range(self.term0.shape[0] - 1):
            self.levels = max(self.levels, self.term0[i + 1] - self.term0[i])
        self.unread = self.launches * self.ports * self.levels
        self.leader, self.place = clone(INT, self.units, False), clone(LONG, self.units, False)
        self.position = clone(INT, self.units, False)
        self.reads = clone(INT, self.slot_unit.shape[0], True)
        for unit in range(self.units):
            self.leader[unit], self.position[unit], self.place[unit] = unit, unit, self.unread
        for i in range(self.term.shape[0]):
            if self.term[i] >= 0:
                self.reads[self.term[i]] += 1

    cdef int64_t extra(self, int64_t unit) noexcept:
        """Return how many summands the inputs of a unit have beyond the first."""
        cdef int64_t low = self.input0[unit], high = self.input0[unit + 1]
        if self.concatenates[self.segment[unit]]:
            return 0
        return self.term0[high] - self.term0[low] - (high - low)

    cdef void lead(self, const int64_t[::1] units) noexcept:
        """Make each of `units`, in order, the leader of what only it reads or what has no leader."""
        cdef const int32_t *term = &self.term[0] if self.term.shape[0] else NULL
        cdef const int32_t *term0 = &self.term0[0]
        cdef int64_t *places = &self.place[0]
        cdef int64_t i, unit, item, k, place
        cdef int32_t maker
        for i in range(self.units):
            unit = units[i]
            place = self.groups[unit] * self.ports * self.levels
            for item in range(self.input0[unit], self.input0[unit + 1]):
                for k in range(term0[item], term0[item + 1]):
                    if term[k] >= 0:
                        maker = self.slot_unit[term[k]]
                        if self.reads[term[k]] == 1 or places[maker] == self.unread:
                            self.leader[maker] = unit
                            places[maker] = place + k - term0[item]
                place += self.levels

    cdef void sort(self, int64_t *members, int64_t count, Keyed *items) noexcept:
        """Sort the members of a launch, after their readers; `items` is scratch for two each."""
        cdef int64_t i, unit, rank
        cdef bint mixed = False
        for i in range(count):
            unit = members[i]
            rank = (self.most_extra - self.extra(unit)) * (self.unread + 1) + self.place[unit]
            items[i].key, items[i].unit = rank << 32 | self.position[self.leader[unit]], unit
            mixed |= self.segment[unit] != self.segment[members[0]]
        radix_sort(items, items + count, count)
        if mixed:
            for i in range(count):
                items[i].key = self.rank[self.segment[items[i].unit]]
            radix_sort(items, items + count, count)
        for i in range(count):
            members[i] = items[i].unit
            self.position[members[i]] = i


def order(
    const int32_t[::1] groups, const int32_t[::1] segment, rank, concatenates, input0, term0,
    term, slot_unit, int64_t[::1] units, int64_t[::1] parts,
):
    """Fill in `units`: all units by launch, segment, number of summands, and leader.

    The members of a launch with one segment are a part; `parts` gets the first position of each.
    Returns the numbers of launches and of parts.
    """
    cdef Ordering ordering = Ordering(
        groups, segment, rank, concatenates, input0, term0, term, slot_unit)
    cdef int64_t unit, launch, i, widest = 0, count = 0
    cdef int64_t[::1] first = clone(LONG, ordering.launches + 1, True)
    cdef int64_t[::1] ends = clone(LONG, ordering.launches + 1, True)
    for unit in range(ordering.units):
        ends[groups[unit] + 1] += 1
    for launch in range(ordering.launches):
        widest = max(widest, ends[launch + 1])
        ends[launch + 1] += ends[launch]
    first[:] = ends
    for unit in range(ordering.units):
        units[ends[groups[unit]]] = unit
        ends[groups[unit]] += 1
    ordering.lead(units)
    cdef bytearray items = bytearray(2 * widest * sizeof(Keyed))
    for launch in range(ordering.launches - 1, -1, -1):
        i = first[launch]
        ordering.sort(&units[i], first[launch + 1] - i, <Keyed *><char *>items)
    for launch in range(ordering.launches):
        for i in range(first[launch], first[launch + 1]):
            if i == first[launch] or segment[units[i]] != segment[units[i - 1]]:
                parts[count] = i
                count += 1
    return ordering.launches, count
