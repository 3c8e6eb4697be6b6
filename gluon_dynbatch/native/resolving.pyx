# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Resolve operands: read in place, or gathered and summed from pieces of arenas.

Arrays and tables of places are as in `plan.plan.Plan` and in `Graph`.
"""

cimport cython
from cpython.array cimport array, clone, resize_smart
from libc.stdint cimport int32_t, int64_t

import numpy

include "sorting.pxi"

cdef array LONG = array("q")

#: Actions of pieces.
COPY, ADD, ZERO = range(3)

cdef enum:
    DO_COPY, DO_ADD, DO_ZERO
    #: Columns of a table of pieces: action, first element in the operand, arena, first element of
    #: the source, number of elements.
    FIELDS = 5
    #: Columns of a table of places, and numbers of the types of places.
    TYPE = 0
    FIRST, SECOND, ROWS, ROW_SIZE
    NOTHING = 0
    IS_WHOLE, IS_SLICE, IS_ROWS, IS_REGION
    #: Columns of `plan.plan.Ports` from `row_size` on, and that of `shared`.
    COLUMNS = 5
    SHARED = 2

WHOLE, SLICE, TOGETHER = IS_WHOLE, IS_SLICE, IS_ROWS


def reserve(int64_t[:, ::1] regions, const int64_t[::1] kind, const int64_t[::1] order):
    """Allocate arena rows to regions, in `order`.

    Returns the number of rows of each arena, by row size and number of the kind.
    """
    cdef int64_t i, k, number
    cdef dict numbers = {}
    cdef list sizes = []
    for i in range(order.shape[0]):
        k = order[i]
        number = numbers.setdefault((regions[k, ROW_SIZE], kind[k]), len(sizes))
        if number == len(sizes):
            sizes.append(0)
        regions[k, TYPE], regions[k, FIRST], regions[k, SECOND] = IS_REGION, number, sizes[number]
        sizes[number] += regions[k, ROWS]
    return dict(zip(numbers, sizes))


def lay_out(
    list tables, const int64_t[::1] part0, const int64_t[::1] segment, const int64_t[::1] rows,
):
    """Return the columns of `plan.plan.Ports`, and a table of places, of the ports of launches.

    `tables` has the inputs or the outputs of each segment, as in `Segment.columns`.  Launches are
    given by their parts, as in `plan.plan.Members`.
    """
    cdef Py_ssize_t launch, launches = part0.shape[0] - 1, count = 0, i, k, column, part
    cdef const int64_t *port
    cdef int64_t size
    cdef int64_t[::1] first = clone(LONG, launches + 1, False)
    for launch in range(launches):
        first[launch] = count
        count += len(<bytes>tables[segment[part0[launch]]]) // (8 * COLUMNS)
    first[launches] = count
    ports, places = numpy.empty((COLUMNS, count), numpy.int64), numpy.zeros((count, 5), numpy.int64)
    cdef int64_t[:, ::1] columns = ports, place = places
    for launch in range(launches):
        for part in range(part0[launch], part0[launch + 1]):
            port = <const int64_t *><const char *><bytes>tables[segment[part]]
            for i in range(first[launch], first[launch + 1]):
                if part == part0[launch]:
                    for column in range(COLUMNS):
                        columns[column, i] = port[column]
                # Rows of several sizes become rows of their greatest common divisor.
                size = gcd(place[i, ROW_SIZE], port[0]) or 1
                place[i, ROWS] *= place[i, ROW_SIZE] // size
                place[i, ROWS] += rows[part] * (port[0] // size)
                place[i, ROW_SIZE] = size
                port += COLUMNS
    for i in range(count):
        place[i, ROWS] = 1 if columns[SHARED, i] else place[i, ROWS]
    return (numpy.asarray(first), *ports), places


cdef int64_t gcd(int64_t a, int64_t b) noexcept:
    """Return the greatest common divisor."""
    while b:
        a, b = b, a % b
    return a


cdef struct Member:
    #: The first and the last term that a member of a launch reads as an operand, and where its part
    #: of the operand begins.
    int64_t term, end, target


cdef struct Located:
    #: What a term reads, its region and first element there, the first element in the operand, the
    #: number of elements, and the offset of the term.
    int64_t number, region, element, target, length, offset


@cython.final
cdef class Reader:
    """Collects the reads of all launches, in order; for the arguments, see `plan.make`."""

    cdef const int32_t[::1] input0, slot0, term0, term, outside_kind
    cdef const int64_t[::1] term_offset, term_size, slot_size, outside_size
    cdef const int64_t[::1] units, first, port0, output0, shared, concat
    #: A table of places, where operands that are whole external arrays are marked.
    cdef int64_t[:, ::1] operands
    #: Output: per term its region, or -1, and its first element there.
    cdef int64_t[::1] region, element
    #: Output: the columns of `plan.plan.Reads`.
    cdef int64_t[:, ::1] columns
    #: Numbers of fills by row size and number of the kind.
    cdef readonly dict fill_of
    #: Per fill, the external arrays that are copied, in order of first use, and their elements.
    cdef readonly list filled, sizes
    #: Number of reads.
    cdef readonly int64_t reads
    #: Scratch for the members of a launch, and for what they read.
    cdef array members, located

    def __init__(
        self, graph, members, inputs, outputs, outside, operands, region, element, columns,
    ):
        self.input0, self.slot0, self.term0 = graph.input0, graph.slot0, graph.term0
        self.term, self.term_offset, self.term_size = graph.term, graph.term_offset, graph.term_size
        self.slot_size, self.outside_size = graph.slot_size, outside.size
        self.outside_kind = outside.kind
        self.units, self.first, self.port0 = members.units, members.first, inputs.first
        self.output0, self.shared, self.concat = outputs.first, inputs.shared, inputs.concat
        self.operands, self.region, self.element, self.columns = operands, region, element, columns
        self.fill_of, self.filled, self.sizes = {}, [], []
        cdef int64_t launch, port, widest = 0
        for launch in range(self.first.shape[0] - 1):
            widest = max(widest, self.first[launch + 1] - self.first[launch])
        self.members = clone(LONG, widest * sizeof(Member) // 8, False)
        self.located = clone(LONG, widest * sizeof(Located) // 8, False)
        for launch in range(self.first.shape[0] - 1):
            for port in range(self.output0[launch], self.output0[launch + 1]):
                self.place(launch, port)
            for port in range(self.port0[launch], self.port0[launch + 1]):
                self.read(launch, port)

    cdef void place(self, int64_t launch, int64_t port) noexcept:
        """Fill in the locations of the results of a port."""
        cdef int64_t member, slot, done = 0
        for member in range(self.first[launch], self.first[launch + 1]):
            slot = self.slot0[self.units[member]] + port - self.output0[launch]
            self.region[slot], self.element[slot] = port, done
            done += self.slot_size[slot]

    cdef int read(self, int64_t launch, int64_t port) except -1:
        """List the reads of an operand: all first summands, then all second ones, and so on.

        A shared operand is listed for the first member only.  If a port concatenates, its terms
        follow each other.
        """
        cdef const int32_t *term0 = &self.term0[port - self.port0[launch]]
        cdef Member *members = <Member *>self.members.data.as_longlongs
        cdef int64_t low = self.first[launch], count = self.first[launch + 1] - low
        cdef int64_t i, k, done = 0, level = 0
        count = 1 if self.shared[port] else count
        # Loops without branches, as most of what they read is not in the cache.
        for i in range(count):
            k = self.input0[self.units[low + i]]
            members[i].term, members[i].end = term0[k], term0[k + 1]
        if self.concat[port]:
            for i in range(count):
                for k in range(members[i].term, members[i].end):
                    members[0] = Member(k, k + 1, done)
                    done += self.term_size[k]
                    self.locate(port, 1, 0)
            return 0
        for i in range(count):
            members[i].target = done
            done += self.term_size[members[i].term]
        while count:
            count = self.locate(port, count, level)
            level += 1
        return 0

    cdef int64_t locate(self, int64_t port, int64_t count, int64_t level) except -1:
        """Add the reads of one summand each of the first members.

        Returns how many of the first members have all further summands.
        """
        cdef const Member *member = <const Member *>self.members.data.as_longlongs
        cdef Located *located = <Located *>self.located.data.as_longlongs
        cdef int64_t i, k, number, last = 0, terms = 0, total = self.region.shape[0]
        for i in range(count):
            k = member.term + level
            if k < member.end:
                number = self.term[k]
                number += total if number < 0 else 0
                located[terms] = Located(
                    number, self.region[number], self.element[number] + self.term_offset[k],
                    member.target, self.term_size[k], self.term_offset[k])
                terms += 1
            last = i + 1 if k + 1 < member.end else last
            member += 1
        for i in range(terms):
            self.add(port, located)
            located += 1
        return last

    cdef inline int add(self, int64_t port, const Located *read) except -1:
        """Add the read of a term; it is merged with the last read if both sides are contiguous."""
        cdef int64_t k = self.reads - 1, region = read.region, element = read.element
        cdef int64_t external = self.region.shape[0] - 1 - read.number
        if external < self.outside_size.shape[0]:
            if self.shared[port]:
                self.operands[port, TYPE], self.operands[port, FIRST] = IS_WHOLE, external
                return 0
            if self.region[read.number] < 0:
                self.fill(port, read.number, external)
            region, element = self.region[read.number], self.element[read.number] + read.offset
        # The columns are operand, region, target, length and element.
        if (
            k >= 0 and self.columns[0, k] == port and self.columns[1, k] == region
            and self.columns[2, k] + self.columns[3, k] == read.target
            and self.columns[4, k] + self.columns[3, k] == element
        ):
            self.columns[3, k] += read.length
            return 0
        k += 1
        self.columns[0, k], self.columns[1, k], self.columns[2, k] = port, region, read.target
        self.columns[3, k], self.columns[4, k] = read.length, element
        self.reads += 1
        return 0

    cdef int fill(self, int64_t port, int64_t number, int64_t external) except -1:
        """Add an external array to the fill of its kind and of the row size it is read with."""
        cdef int64_t fill = self.fill_of.setdefault(
            (self.operands[port, ROW_SIZE], self.outside_kind[external]), len(self.sizes))
        if fill == len(self.sizes):
            self.sizes.append(0)
            self.filled.append([])
        self.region[number] = self.output0[self.output0.shape[0] - 1] + fill
        self.element[number] = self.sizes[fill]
        self.sizes[fill] += self.outside_size[external]
        (<list>self.filled[fill]).append(external)
        return 0


@cython.final
cdef class Resolver:
    """Resolves operands, given their reads."""

    cdef const int64_t[:, ::1] regions
    #: Columns of `Reads`.
    cdef const int64_t[::1] region, target, length, element
    #: All reads by operand: in their order, and in an order in which each operand is covered from
    #: its first element on.
    cdef int64_t[::1] by_operand, sweep
    #: Per operand, one more at the end: its first read there.
    cdef int64_t[::1] first
    #: Per read: the end of what earlier reads of the sweep cover of its elements.
    cdef int64_t[::1] covered
    cdef array pieces

    def __init__(
        self, int64_t operands, regions, const int64_t[::1] operand, region,
        const int64_t[::1] target, length, element,
    ):
        cdef int64_t i, k, low, high, most = 0, count = operand.shape[0]
        self.regions, self.region, self.target = regions, region, target
        self.length, self.element = length, element
        self.pieces, self.covered = array("q"), clone(LONG, count, False)
        self.by_operand, self.sweep = clone(LONG, count, False), clone(LONG, count, False)
        self.first = clone(LONG, operands + 2, True)
        for i in range(count):
            if operand[i] < 0 or operand[i] >= operands:
                raise ValueError("a read without target")
            self.first[operand[i] + 2] += 1
        for i in range(operands):
            most = max(most, self.first[i + 2])
            self.first[i + 2] += self.first[i + 1]
        for i in range(count):
            self.by_operand[self.first[operand[i] + 1]] = i
            self.first[operand[i] + 1] += 1
        cdef bytearray scratch = bytearray(2 * most * sizeof(Keyed))
        cdef Keyed *items = <Keyed *><char *>scratch
        self.sweep[:] = self.by_operand
        for i in range(operands):
            low, high = self.first[i], self.first[i + 1]
            if self.in_order(low, high):
                continue
            for k in range(low, high):
                items[k - low] = Keyed(target[self.by_operand[k]], self.by_operand[k])
            radix_sort(items, items + (high - low), high - low)
            for k in range(low, high):
                self.sweep[k] = items[k - low].unit

    cdef bint in_order(self, int64_t low, int64_t high) noexcept:
        """Return whether each read either extends what all before it cover, or lies within that."""
        cdef int64_t i, k, end, done = 0
        for k in range(low, high):
            i = self.by_operand[k]
            end = self.target[i] + self.length[i]
            if self.target[i] == done:
                done = end
            elif end > done:
                return False
        return True

    cdef int64_t count(self):
        return self.pieces.ob_size // FIELDS

    cdef int add(
        self, int64_t first, int64_t what, int64_t target, int64_t arena, int64_t element,
        int64_t length,
    ) except -1:
        """Add a piece, or extend the last one if it has a number of at least `first`."""
        cdef int64_t at = self.pieces.ob_size
        cdef int64_t *last = <int64_t *>self.pieces.data.as_longlongs + at - FIELDS
        if length == 0:
            return 0
        if at > first * FIELDS and last[0] == what and last[1] + last[4] == target:
            if what == DO_ZERO or (last[2] == arena and last[3] + last[4] == element):
                last[4] += length
                return 0
        resize_smart(self.pieces, at + FIELDS)
        last = <int64_t *>self.pieces.data.as_longlongs + at
        last[0], last[1], last[2], last[3], last[4] = what, target, arena, element, length
        return 0

    cdef inline int64_t arena(self, int64_t read) noexcept:
        """Return the arena of a read."""
        return self.regions[self.region[read], FIRST]

    cdef inline int64_t start(self, int64_t read) noexcept:
        """Return the first element of a read within its arena."""
        cdef int64_t k = self.region[read]
        return self.regions[k, SECOND] * self.regions[k, ROW_SIZE] + self.element[read]

    cdef bint in_place(self, int64_t low, int64_t high, int64_t size):
        """Return whether all elements of an operand are contiguous in one arena."""
        cdef int64_t i, k, done = 0, first = self.sweep[low]
        for k in range(low, high):
            i = self.sweep[k]
            if self.target[i] != done or self.arena(i) != self.arena(first):
                return False
            if self.start(i) != self.start(first) + done:
                return False
            done += self.length[i]
        return done == size

    cdef int list_pieces(self, int64_t low, int64_t high, int64_t size) except -1:
        """List the pieces of an operand: first those that set each element, then all additions."""
        cdef int64_t i, k, end, start, done = 0, first = self.count()
        for k in range(low, high):
            i = self.sweep[k]
            end = self.target[i] + self.length[i]
            if self.target[i] < 0 or end > size:
                raise ValueError("a read leaves its target")
            if self.target[i] > done:
                self.add(first, DO_ZERO, done, 0, 0, self.target[i] - done)
                done = self.target[i]
            start = self.covered[i] = min(done, end)
            self.add(
                first, DO_COPY, start, self.arena(i), self.start(i) + start - self.target[i],
                end - start)
            done = max(done, end)
        self.add(first, DO_ZERO, done, 0, 0, size - done)
        for k in range(low, high):
            i = self.by_operand[k]
            self.add(
                first, DO_ADD, self.target[i], self.arena(i), self.start(i),
                self.covered[i] - self.target[i])
        return 0


def resolve(int64_t[:, ::1] operands, regions, operand, region, target, length, element):
    """Resolve operands to slices of arenas, or to pieces, which are returned as a flat array.

    The last five arguments are the columns of `plan.plan.Reads`.
    """
    cdef Resolver reads = Resolver(
        operands.shape[0], regions, operand, region, target, length, element)
    cdef int64_t k, low, high, read, size
    for k in range(operands.shape[0]):
        low, high = reads.first[k], reads.first[k + 1]
        size = operands[k, ROWS] * operands[k, ROW_SIZE]
        if low == high:
            continue
        if reads.in_place(low, high, size):
            read = reads.sweep[low]
            operands[k, TYPE], operands[k, FIRST] = IS_SLICE, reads.arena(read)
            operands[k, SECOND] = reads.start(read)
        else:
            operands[k, TYPE], operands[k, FIRST] = IS_ROWS, reads.count()
            reads.list_pieces(low, high, size)
            operands[k, SECOND] = reads.count() - operands[k, FIRST]
    return reads.pieces
