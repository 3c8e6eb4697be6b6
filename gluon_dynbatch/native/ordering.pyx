# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""The order of units within launches, and sweeps over dependencies; arrays as in `Graph`."""

cimport cython
from cpython.array cimport array, clone, resize_smart
from libc.stdint cimport int32_t, int64_t, uint8_t

import numpy

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


def externals_read(
    const uint8_t[::1] units, const int32_t[::1] input0, const int32_t[::1] term0,
    const int32_t[::1] terms, uint8_t[::1] read,
):
    """Mark the external arrays that marked units read; terms of these are negative numbers."""
    cdef Py_ssize_t unit, i
    for unit in range(units.shape[0]):
        if units[unit]:
            for i in range(term0[input0[unit]], term0[input0[unit + 1]]):
                if terms[i] < 0:
                    read[-1 - terms[i]] = True


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


cdef enum:
    #: Integers of a port in `Segment.columns`, and the position of its number of elements and of
    #: whether it concatenates.
    PORT = 5
    ROW_SIZE = 0
    CONCAT = 4
    #: The claim of no reader.
    UNREAD = -2147483648


cdef struct Leader:
    #: The term by which the leader of a unit reads it, and the strength of its claim: the launch of
    #: the leader, counted from 1, or the negative of that if others read the same slot.
    int32_t term, claim


cdef bytearray find_leaders(
    const int32_t[::1] groups, const int32_t[::1] input0, const int32_t[::1] term0,
    const int32_t[::1] terms, const int32_t[::1] slot_unit, Ordering ordering,
):
    """Mark the terms by which units are led; units without leader get their positions."""
    cdef array scratch = clone(LONG, groups.shape[0], False)
    cdef array reads = clone(INT, slot_unit.shape[0], True)
    cdef bytearray marks = bytearray(terms.shape[0])
    cdef char *leads = marks
    cdef Leader *leaders = <Leader *>scratch.data.as_longlongs
    cdef Leader *leader
    cdef const int32_t *term = &terms[0]
    cdef Py_ssize_t unit, i
    cdef int32_t claim
    for i in range(terms.shape[0]):
        if term[i] >= 0:
            reads.data.as_ints[term[i]] += 1
    for unit in range(groups.shape[0]):
        leaders[unit] = Leader(-1, UNREAD)
        for i in range(term0[input0[unit]], term0[input0[unit + 1]]):
            if term[i] >= 0:
                leader = &leaders[slot_unit[term[i]]]
                claim = groups[unit] + 1
                claim = claim if reads.data.as_ints[term[i]] == 1 else -claim
                if claim > leader.claim or claim == leader.claim and claim > 0:
                    leader[0] = Leader(i, claim)
    for unit in range(groups.shape[0] - 1, -1, -1):
        if leaders[unit].claim == UNREAD:
            ordering.put(unit)
        else:
            leads[leaders[unit].term] = True
    return marks


@cython.final
cdef class Ordering:
    """Orders units by launch, and within a launch by who reads them; see `plan.order`."""

    cdef const int32_t[::1] groups, segment, input0, term0
    #: Per segment: its rank by the size of its arrays, and whether it has inputs that concatenate.
    cdef int64_t[::1] rank, concatenates
    #: All units, by launch; and per launch, one more at the end, where its units begin.
    cdef int64_t[::1] units, first
    #: Per launch, where those of its units begin that have their positions already.
    cdef int64_t[::1] begins
    cdef Py_ssize_t launches

    def __init__(self, list columns, groups, segment, input0, term0):
        cdef Py_ssize_t unit, count = len(columns), number, i
        cdef bytearray items = bytearray(2 * count * sizeof(Keyed))
        cdef Keyed *sizes = <Keyed *><char *>items
        cdef const int64_t *ports
        self.groups, self.segment, self.input0, self.term0 = groups, segment, input0, term0
        self.rank, self.concatenates = clone(LONG, count, False), clone(LONG, count, True)
        for number, sides in enumerate(columns):
            sizes[number].unit = number
            for table in <tuple>sides:
                ports = <const int64_t *><const char *><bytes>table
                for i in range(0, len(<bytes>table) // 8, PORT):
                    sizes[number].key += ports[i + ROW_SIZE]
                    self.concatenates[number] |= ports[i + CONCAT]
        radix_sort(sizes, sizes + count, count)
        for i in range(count):
            self.rank[sizes[i].unit] = i
        for unit in range(self.groups.shape[0]):
            self.launches = max(self.launches, self.groups[unit] + 1)
        self.units = clone(LONG, self.groups.shape[0], False)
        self.first = clone(LONG, self.launches + 1, True)
        for unit in range(self.groups.shape[0]):
            self.first[self.groups[unit] + 1] += 1
        for i in range(self.launches):
            self.first[i + 1] += self.first[i]
        self.begins = self.first[1:].copy()

    cdef inline int64_t summands(self, int64_t unit) noexcept:
        """Return the number of summands of all inputs of a unit."""
        if self.concatenates[self.segment[unit]]:
            return 0
        return self.term0[self.input0[unit + 1]] - self.term0[self.input0[unit]]

    cdef inline void put(self, int64_t unit) noexcept:
        """Put a unit before those of its launch that have their positions."""
        cdef int64_t launch = self.groups[unit]
        self.begins[launch] -= 1
        self.units[self.begins[launch]] = unit

    cdef int sort(self, int64_t *members, int64_t count) except -1:
        """Sort members by segment and by number of summands; stable."""
        cdef int64_t i, most = 0
        cdef bint equal = True
        for i in range(count):
            most = max(most, self.summands(members[i]))
            equal = equal and self.segment[members[i]] == self.segment[members[0]]
            equal = equal and most == self.summands(members[i]) == self.summands(members[0])
        if equal:
            return 0
        cdef bytearray scratch = bytearray(2 * count * sizeof(Keyed))
        cdef Keyed *items = <Keyed *><char *>scratch
        for i in range(count):
            items[i].unit = members[i]
            items[i].key = self.rank[self.segment[members[i]]] * (most + 1)
            items[i].key += most - self.summands(members[i])
        radix_sort(items, items + count, count)
        for i in range(count):
            members[i] = items[i].unit
        return 0

    cdef int follow(
        self, const int32_t[::1] term, const int32_t[::1] slot_unit, const char *leads,
    ) except -1:
        """Order all launches, from the last to the first: each after those that read it."""
        cdef array scratch = clone(LONG, self.units.shape[0], False)
        cdef int64_t *led = <int64_t *>scratch.data.as_longlongs
        cdef int64_t *end
        cdef int64_t *members
        cdef int64_t launch, count, port
        for launch in range(self.launches - 1, -1, -1):
            members = &self.units[self.first[launch]]
            count = self.first[launch + 1] - self.first[launch]
            self.sort(members, count)
            end = led
            for port in range(self.input0[members[0] + 1] - self.input0[members[0]]):
                end = self.list_led(port, members, count, term, slot_unit, leads, end)
            while end > led:
                end -= 1
                self.put(end[0])
        return 0

    cdef int64_t *list_led(
        self, int64_t port, const int64_t *members, int64_t count, const int32_t[::1] term,
        const int32_t[::1] slot_unit, const char *leads, int64_t *led,
    ) noexcept:
        """List the units that members lead by what an input reads: by summand, then by member."""
        cdef int64_t level = 0, last, i, at, end
        while count:
            last = 0
            for i in range(count):
                at = self.term0[self.input0[members[i]] + port] + level
                end = self.term0[self.input0[members[i]] + port + 1]
                if at < end and leads[at]:
                    led[0] = slot_unit[term[at]]
                    led += 1
                last = i + 1 if at + 1 < end else last
            # No member behind the last one with a further summand has to be visited again.
            level, count = level + 1, last
        return led

    cdef tuple members(self, const int64_t[::1] unit_rows):
        """Return the columns of `plan.plan.Members`, but for the first."""
        cdef array part0 = array("q"), segment = array("q"), rows = array("q")
        cdef int64_t launch, i, unit
        for launch in range(self.launches):
            append(part0, segment.ob_size)
            for i in range(self.first[launch], self.first[launch + 1]):
                unit = self.units[i]
                if (
                    i == self.first[launch]
                    or self.segment[unit] != self.segment[self.units[i - 1]]
                ):
                    append(segment, self.segment[unit])
                    append(rows, 0)
                rows.data.as_longlongs[rows.ob_size - 1] += unit_rows[unit]
        append(part0, segment.ob_size)
        columns = self.units.base, self.first.base, part0, segment, rows
        return tuple([numpy.asarray(column) for column in columns])


cdef int append(array numbers, int64_t number) except -1:
    """Append to an array of 64-bit integers."""
    resize_smart(numbers, numbers.ob_size + 1)
    numbers.data.as_longlongs[numbers.ob_size - 1] = number
    return 0


def order(
    list columns, groups, segment, unit_rows, input0, term0, const int32_t[::1] term,
    const int32_t[::1] slot_unit,
):
    """Return the columns of `plan.plan.Members`, but for the first.

    `columns` are those of the segments; `groups` has the launch of each unit.
    """
    cdef Ordering ordering = Ordering(columns, groups, segment, input0, term0)
    cdef bytearray leads = find_leaders(groups, input0, term0, term, slot_unit, ordering)
    ordering.follow(term, slot_unit, leads)
    return ordering.members(unit_rows)
