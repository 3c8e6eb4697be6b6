# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Who reads what, and how operands are read: in place, or by copying and adding up pieces of arenas.

Launches have their members from `first` on, and their ports from `port0` on; other arrays are as in
`Graph`.
"""

cimport cython
from cpython.array cimport array, clone, resize_smart
from libc.stdint cimport int32_t, int64_t, uint8_t

include "named.pxi"
include "sorting.pxi"

cdef array LONG = array("q")

#: What a piece does with the elements that it is for: the first number of each.
COPY, ADD, ZERO = range(3)

cdef enum:
    DO_COPY, DO_ADD, DO_ZERO
    #: Numbers per piece: what it does, first element in the operand, arena, first element there,
    #: and how many elements.
    FIELDS = 5
    #: Columns of a table of places, see `plan.plan.Ports`, and what a place may be.
    WHAT = 0
    FIRST, SECOND, ROWS, ROW_SIZE
    NOTHING = 0
    IS_WHOLE, IS_SLICE, IS_ROWS, IS_REGION

WHOLE, SLICE = IS_WHOLE, IS_SLICE


@cython.final
cdef class Layout:
    """Arenas being laid out."""

    #: The number of each arena, by elements of a row and number of its kind, in its order.
    cdef readonly dict numbers
    #: Rows reserved so far.
    cdef readonly list sizes

    def __init__(self):
        self.numbers, self.sizes = {}, []

    cpdef tuple add(self, int64_t row_size, int64_t kind, int64_t rows):
        """Reserve the next rows of an arena; return its number, the first row and the rows."""
        cdef Py_ssize_t number = self.numbers.setdefault((row_size, kind), len(self.sizes))
        if number == len(self.sizes):
            self.sizes.append(0)
        start = self.sizes[number]
        self.sizes[number] = start + rows
        return number, start, rows

    def reserve(
        self, int64_t[:, ::1] places, const int64_t[::1] kind, const int64_t[::1] order,
    ):
        """Give some places of a table rows of arenas, in an order; each is of a kind."""
        cdef int64_t i, k
        for i in range(order.shape[0]):
            k = order[i]
            places[k, WHAT] = IS_REGION
            places[k, FIRST], places[k, SECOND], _ = self.add(
                places[k, ROW_SIZE], kind[k], places[k, ROWS])


cdef tuple listed(const int64_t[:, ::1] places, int64_t low, int64_t high, tuple types):
    """Return some places as what they are."""
    cdef int64_t i
    cdef const int64_t *place
    cdef list found = []
    for i in range(low, high):
        place = &places[i, 0]
        if place[WHAT] == NOTHING:
            found.append(None)
        elif place[WHAT] == IS_WHOLE:
            found.append(named(types[IS_WHOLE], (place[FIRST],)))
        elif place[WHAT] == IS_REGION:
            found.append(named(types[IS_REGION], (place[FIRST], place[SECOND], place[ROWS])))
        else:
            found.append(named(types[place[WHAT]], (
                place[FIRST], place[SECOND], place[ROWS], place[ROW_SIZE])))
    return tuple(found)


def objects(const int64_t[:, ::1] places, tuple types):
    """Return places of a table as what they are: None, or named tuples of the types."""
    return listed(places, 0, places.shape[0], types)


def launches(
    type kind, tuple types, list begun, const int64_t[:, ::1] operands,
    const int64_t[::1] operand0, const int64_t[:, ::1] outputs, const int64_t[::1] output0,
):
    """Return launches, given their first four fields, and what they read and write.

    The number of a launch tells where its places begin in two tables.
    """
    cdef object launch
    cdef int64_t k
    found = []
    for launch in begun:
        k = (<tuple>launch)[0]
        found.append(named(kind, (
            *(<tuple>launch)[:4],
            listed(operands, operand0[k], operand0[k + 1], types),
            listed(outputs, output0[k], output0[k + 1], types))))
    return tuple(found)


def terms(
    const int64_t[::1] first, const int64_t[::1] port0, const int64_t[::1] shared,
    const int64_t[::1] joins, const int64_t[::1] units, const int32_t[::1] input0,
    const int32_t[::1] term0, const int64_t[::1] size, int32_t[::1] operand, int32_t[::1] at,
    int64_t[::1] target,
):
    """List the terms that launches read: fill in who reads each, and where to; count them.

    Of an operand, first summands come first, then second ones.  What all members share is listed
    for the first only; what a port `joins` stands one after another.
    """
    cdef int64_t launch, port, member, item, term, done, level, stop, last, count = 0
    for launch in range(first.shape[0] - 1):
        for port in range(port0[launch], port0[launch + 1]):
            level, stop = 0, first[launch] + 1 if shared[port] else first[launch + 1]
            while stop > first[launch]:
                done, last = 0, first[launch]
                for member in range(first[launch], stop):
                    item = input0[units[member]] + port - port0[launch]
                    term = term0[item] + level
                    while term < term0[item + 1]:
                        operand[count], at[count], target[count] = port, term, done
                        count += 1
                        term += 1
                        if not joins[port]:
                            last = member + 1 if term < term0[item + 1] else last
                            break
                        done += size[term - 1]
                    done += 0 if joins[port] else size[term0[item]]
                # Nobody behind the last one that has more.
                level, stop = level + 1, last
    return count


def slots(
    const int64_t[::1] first, const int64_t[::1] port0, const int64_t[::1] units,
    const int32_t[::1] slot0, const int64_t[::1] size, const int64_t[:, ::1] regions,
    int64_t[:, ::1] places,
):
    """Fill in where results lie, those of each port in a region: arena, first element, and port."""
    cdef int64_t launch, port, member, slot, done
    for launch in range(first.shape[0] - 1):
        for port in range(port0[launch], port0[launch + 1]):
            done = regions[port, SECOND] * regions[port, ROW_SIZE]
            for member in range(first[launch], first[launch + 1]):
                slot = slot0[units[member]] + port - port0[launch]
                places[0, slot], places[1, slot] = regions[port, FIRST], done
                places[2, slot] = port
                done += size[slot]


def externals(
    const int32_t[::1] operand, const int32_t[::1] at, const int32_t[::1] term,
    const int64_t[::1] shared, const int64_t[::1] row_size, const int32_t[::1] kind,
    int64_t[::1] found, int64_t[::1] pair,
):
    """Fill in which arrays from outside have to stand in arenas, as the terms listed come to them.

    They are those that are not shared.  Each has a number of a pair: the row size it is read with,
    and its kind.  Returns the pairs, and fills in -1 for arrays that are not found.
    """
    cdef int64_t i, k, count = 0
    cdef dict pairs = {}
    pair[:] = -1
    for i in range(operand.shape[0]):
        k = -1 - term[at[i]]
        if k >= 0 and pair[k] < 0 and not shared[operand[i]]:
            pair[k] = pairs.setdefault((row_size[operand[i]], kind[k]), len(pairs))
            found[count] = k
            count += 1
    return count, list(pairs)


def runs(
    const int32_t[::1] operand, const int32_t[::1] at, const int64_t[::1] target,
    const int32_t[::1] term, const int64_t[::1] offset, const int64_t[::1] size,
    const int64_t[::1] shared, const int64_t[:, ::1] places, int64_t[:, ::1] found,
    int64_t[:, ::1] operands,
):
    """Fill in what operands read of arenas, given the terms listed; count it.

    Terms that lie side by side and are read side by side are one read, if one target has them all.
    Rows of `places` are tables of a `plan.plan.Plan`, those of what is filled in columns of `Reads`.
    Shared arrays from outside are read as they are, which is noted in the table of operands.
    """
    cdef int64_t i, k, number, element, count = -1, terms = places.shape[1]
    for i in range(operand.shape[0]):
        k, number = at[i], term[at[i]]
        if number < 0 and shared[operand[i]]:
            operands[operand[i], WHAT], operands[operand[i], FIRST] = IS_WHOLE, -1 - number
            continue
        number += terms if number < 0 else 0
        element = places[1, number] + offset[k]
        if (
            count >= 0 and found[0, count] == operand[i] and found[1, count] == places[2, number]
            and found[2, count] + found[3, count] == target[i]
            and found[5, count] + found[3, count] == element
        ):
            found[3, count] += size[k]
            continue
        count += 1
        found[0, count], found[1, count], found[2, count] = operand[i], places[2, number], target[i]
        found[3, count], found[4, count], found[5, count] = size[k], places[0, number], element
    return count + 1


def transposed(
    const int64_t[::1] order, const int64_t[::1] low, const int64_t[::1] high,
    const int64_t[:, ::1] gradients, const int64_t[::1] operand, const int64_t[::1] source, const int64_t[::1] target,
    const int64_t[::1] length, const int64_t[::1] element, const uint8_t[::1] wanted,
    const int64_t[::1] start, int64_t[:, ::1] found,
):
    """Fill in what wanted targets read of the gradients of operands; count it.

    Operands have their reads from `low` to `high`, and their gradients are places of a table.  Reads
    are as in `plan.plan.Reads`, of targets that have their first elements at `start`.  What is
    filled in are the columns of such reads.
    """
    cdef int64_t number, i, to, first, count = 0
    for number in range(order.shape[0]):
        first = gradients[order[number], SECOND] * gradients[order[number], ROW_SIZE]
        for i in range(low[number], high[number]):
            to = source[i]
            if not wanted[to]:
                continue
            found[0, count], found[1, count] = to, operand[i]
            found[2, count], found[3, count] = element[i] - start[to], length[i]
            found[4, count] = gradients[order[number], FIRST]
            found[5, count] = first + target[i]
            count += 1
    return count


@cython.final
cdef class Resolver:
    """Finds out how operands are read."""

    #: Per read.
    cdef const int64_t[::1] target, length, arena, element
    #: Reads by operand, as they were given, and in an order in which they cover it.
    cdef int64_t[::1] given, taken
    #: Per operand, one more at the end: its first read there.
    cdef int64_t[::1] first
    #: Per read: up to where others have been copied before it.
    cdef int64_t[::1] covered
    cdef array pieces

    def __init__(
        self, int64_t operands, const int64_t[::1] operand, const int64_t[::1] target,
        const int64_t[::1] length, const int64_t[::1] arena, const int64_t[::1] element,
    ):
        cdef int64_t i, k, low, high, most = 0, count = operand.shape[0]
        self.target, self.length, self.arena, self.element = target, length, arena, element
        self.pieces, self.covered = array("q"), clone(LONG, count, False)
        self.given, self.taken = clone(LONG, count, False), clone(LONG, count, False)
        self.first = clone(LONG, operands + 2, True)
        for i in range(count):
            if operand[i] < 0 or operand[i] >= operands:
                raise ValueError("a read without target")
            self.first[operand[i] + 2] += 1
        for i in range(operands):
            most = max(most, self.first[i + 2])
            self.first[i + 2] += self.first[i + 1]
        for i in range(count):
            self.given[self.first[operand[i] + 1]] = i
            self.first[operand[i] + 1] += 1
        cdef bytearray room = bytearray(2 * most * sizeof(Keyed))
        cdef Keyed *items = <Keyed *><char *>room
        self.taken[:] = self.given
        for i in range(operands):
            low, high = self.first[i], self.first[i + 1]
            if self.in_order(low, high):
                continue
            for k in range(low, high):
                items[k - low] = Keyed(target[self.given[k]], self.given[k])
            radix_sort(items, items + (high - low), high - low)
            for k in range(low, high):
                self.taken[k] = items[k - low].unit

    cdef bint in_order(self, int64_t low, int64_t high) noexcept:
        """Whether each read either follows on all before it, or adds to what they cover."""
        cdef int64_t i, k, end, done = 0
        for k in range(low, high):
            i = self.given[k]
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
        """Add a piece; it may become part of the last one, if that is not before `first`."""
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

    cdef bint in_place(self, int64_t low, int64_t high, int64_t size):
        """Whether all that is read lies side by side."""
        cdef int64_t i, k, done = 0, one = self.taken[low]
        for k in range(low, high):
            i = self.taken[k]
            if self.target[i] != done or self.arena[i] != self.arena[one]:
                return False
            if self.element[i] != self.element[one] + done:
                return False
            done += self.length[i]
        return done == size

    cdef int list_pieces(self, int64_t low, int64_t high, int64_t size) except -1:
        """List the pieces of a target: first one for each element, then what is added to it."""
        cdef int64_t i, k, end, start, done = 0, first = self.count()
        for k in range(low, high):
            i = self.taken[k]
            end = self.target[i] + self.length[i]
            if self.target[i] < 0 or end > size:
                raise ValueError("a read leaves its target")
            if self.target[i] > done:
                self.add(first, DO_ZERO, done, 0, 0, self.target[i] - done)
                done = self.target[i]
            start = self.covered[i] = min(done, end)
            self.add(
                first, DO_COPY, start, self.arena[i], self.element[i] + start - self.target[i],
                end - start)
            done = max(done, end)
        self.add(first, DO_ZERO, done, 0, 0, size - done)
        for k in range(low, high):
            i = self.given[k]
            self.add(
                first, DO_ADD, self.target[i], self.arena[i], self.element[i],
                self.covered[i] - self.target[i])
        return 0


def resolve(int64_t[:, ::1] places, operand, target, length, arena, element):
    """Find out how operands are read: in place, or put together from pieces, which are returned.

    The operands are places of a table, those of them that are read in arenas, and the reads are
    columns of `plan.plan.Reads`.
    """
    cdef Resolver reads = Resolver(places.shape[0], operand, target, length, arena, element)
    cdef int64_t k, low, high, one, size
    for k in range(places.shape[0]):
        low, high, size = reads.first[k], reads.first[k + 1], places[k, ROWS] * places[k, ROW_SIZE]
        if low == high:
            continue
        if reads.in_place(low, high, size):
            one = reads.taken[low]
            places[k, WHAT], places[k, FIRST] = IS_SLICE, reads.arena[one]
            places[k, SECOND] = reads.element[one]
        else:
            places[k, WHAT], places[k, FIRST] = IS_ROWS, reads.count()
            reads.list_pieces(low, high, size)
            places[k, SECOND] = reads.count() - places[k, FIRST]
    return reads.pieces
