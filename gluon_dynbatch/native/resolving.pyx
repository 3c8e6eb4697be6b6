# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Who reads what, and how operands are read: in place, or by copying and adding up pieces of arenas.

Launches have their members from `first` on, and their ports from `port0` on; other arrays are as in
`Graph`.
"""

cimport cython
from cpython.array cimport array, clone, resize_smart
from libc.stdint cimport int32_t, int64_t, uint8_t

include "sorting.pxi"

cdef array LONG = array("q")

#: What a piece does with the elements that it is for: the first number of each.
COPY, ADD, ZERO = range(3)

cdef enum:
    DO_COPY, DO_ADD, DO_ZERO
    #: Numbers per piece: what it does, first element in the operand, arena, first element there,
    #: and how many elements.
    FIELDS = 5


def reads(
    const int64_t[::1] first, const int64_t[::1] port0, const uint8_t[::1] shared,
    const uint8_t[::1] joins, const int64_t[::1] units, const int64_t[::1] input0,
    const int64_t[::1] term0, const int64_t[::1] size, int64_t[::1] operand, int64_t[::1] at,
    int64_t[::1] target, int64_t[::1] length, int64_t[::1] summand,
):
    """Fill in, for each term that launches read, who reads it, where to, how much and as which
    summand; count them.

    What all members share is listed for the first only; what a port `joins` stands one after
    another.
    """
    cdef int64_t launch, port, member, item, term, done, count = 0
    for launch in range(first.shape[0] - 1):
        for port in range(port0[launch], port0[launch + 1]):
            done = 0
            for member in range(first[launch], first[launch + 1]):
                item = input0[units[member]] + port - port0[launch]
                for term in range(term0[item], term0[item + 1]):
                    operand[count], at[count] = port, term
                    target[count], length[count] = done, size[term]
                    summand[count] = term - term0[item]
                    done += size[term] if joins[port] else 0
                    count += 1
                done += 0 if joins[port] else size[term0[item]]
                if shared[port]:
                    break
    return count


def slots(
    const int64_t[::1] first, const int64_t[::1] port0, const int64_t[::1] units,
    const int64_t[::1] slot0, const int64_t[::1] size, const int64_t[:, ::1] starts,
    int64_t[::1] arena, int64_t[::1] element, int64_t[::1] target,
):
    """Fill in where results lie, those of each port from an arena and an element on, and the port."""
    cdef int64_t launch, port, member, slot, done
    for launch in range(first.shape[0] - 1):
        for port in range(port0[launch], port0[launch + 1]):
            done = starts[port, 1]
            for member in range(first[launch], first[launch + 1]):
                slot = slot0[units[member]] + port - port0[launch]
                arena[slot], element[slot], target[slot] = starts[port, 0], done, port
                done += size[slot]


def externals(
    const int64_t[::1] operand, const int64_t[::1] term, const int64_t[::1] summand,
    const uint8_t[::1] shared, const int64_t[::1] row_size, const int32_t[::1] kind,
    int64_t[::1] found, int64_t[::1] pair,
):
    """Fill in which arrays from outside have to stand in arenas, as they are read first.

    They are those that are not shared; of an operand, first summands come first.  Each has a number
    of a pair: the row size it is read with, and its kind.  Returns the pairs, and fills in -1 for
    arrays that are not found.
    """
    cdef int64_t low = 0, high, i, k, one, most, count = 0
    cdef dict pairs = {}
    cdef bytearray room = bytearray(2 * operand.shape[0] * sizeof(Keyed))
    cdef Keyed *items = <Keyed *><char *>room
    pair[:] = -1
    while low < operand.shape[0]:
        high, one, most = low, operand[low], 0
        while high < operand.shape[0] and operand[high] == one:
            items[high - low] = Keyed(summand[high], high)
            most = max(most, summand[high])
            high += 1
        if not shared[one]:
            if most:
                radix_sort(items, items + (high - low), high - low)
            for i in range(high - low):
                k = -1 - term[items[i].unit]
                if k >= 0 and pair[k] < 0:
                    pair[k] = pairs.setdefault((row_size[one], kind[k]), len(pairs))
                    found[count] = k
                    count += 1
        low = high
    return count, list(pairs)


def transposed(
    const int64_t[::1] low, const int64_t[::1] high, const int64_t[:, ::1] starts,
    const int64_t[::1] at, const int64_t[::1] offset, const int64_t[::1] size,
    const int64_t[::1] element, const int64_t[::1] targets, const uint8_t[::1] wanted,
    const int64_t[::1] start, int64_t[:, ::1] found,
):
    """Fill in what wanted targets read of the gradients of operands; count it.

    Operands have their reads from `low` to `high`, and their gradients start at an arena and an
    element.  Reads and their places are as in `plan.plan.Reads`, each of one of the `targets`, which
    have their first elements at `start`.  What is filled in are the columns of such reads.
    """
    cdef int64_t number, i, to, count = 0
    for number in range(low.shape[0]):
        for i in range(low[number], high[number]):
            to = targets[i]
            if to < 0 or not wanted[to]:
                continue
            found[0, count], found[1, count] = to, at[i]
            found[2, count], found[3, count] = element[i] - start[to], size[i]
            found[4, count] = starts[0, number]
            found[5, count] = starts[1, number] + offset[i]
            count += 1
    return count


@cython.final
cdef class Resolver:
    """Finds out how operands are read."""

    #: Per read.
    cdef const int64_t[::1] target, length, arena, element
    #: Reads by operand, as they were given, and those of each by target.
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
        for i in range(operands):
            low, high = self.first[i], self.first[i + 1]
            for k in range(low, high):
                items[k - low] = Keyed(target[self.given[k]], self.given[k])
            radix_sort(items, items + (high - low), high - low)
            for k in range(low, high):
                self.taken[k] = items[k - low].unit

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


def resolve(
    object slice, object rows_type, const int64_t[::1] rows, const int64_t[::1] row_sizes,
    operand, target, length, arena, element,
):
    """Name how operands of so many rows of some size are read, None for those without reads or rows.

    The reads are columns of `plan.plan.Reads`.  Returns operands of the two types, and the pieces of
    those of the second.
    """
    cdef Resolver reads = Resolver(rows.shape[0], operand, target, length, arena, element)
    cdef int64_t k, low, high, one, size
    operands = []
    for k in range(rows.shape[0]):
        low, high, size = reads.first[k], reads.first[k + 1], rows[k] * row_sizes[k]
        if rows[k] < 0 or low == high:
            operands.append(None)
        elif reads.in_place(low, high, size):
            one = reads.taken[low]
            operands.append(slice(reads.arena[one], reads.element[one], rows[k], row_sizes[k]))
        else:
            one = reads.count()
            reads.list_pieces(low, high, size)
            operands.append(rows_type(one, reads.count() - one, rows[k], row_sizes[k]))
    return operands, reads.pieces
