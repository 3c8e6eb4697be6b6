# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Who reads what, and how operands are read: in place, or by copying and adding up pieces of arenas.

Launches have their members from `first` on, and their ports from `port0` on; other arrays are as in
`Graph`.
"""

cimport cython
from cpython.array cimport array, clone, resize_smart
from libc.stdint cimport int32_t, int64_t, uint8_t

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
    const int32_t[::1] segment, const int64_t[::1] size0, const int64_t[::1] size,
    const int64_t[::1] units, const int64_t[::1] rows, const int64_t[::1] input0,
    const int64_t[::1] term0, int64_t[::1] operand, int64_t[::1] at, int64_t[::1] target, int64_t[::1] length,
):
    """Fill in, for each term that launches read, who reads it, where to and how much; count them.

    What all members share is listed for the first only.  A unit's port has rows of `size`, at
    `size0` of its segment and the port.
    """
    cdef int64_t launch, port, member, unit, item, term, done, elements, count = 0
    for launch in range(first.shape[0] - 1):
        for port in range(port0[launch], port0[launch + 1]):
            done = 0
            for member in range(first[launch], first[launch + 1]):
                unit = units[member]
                elements = size[size0[segment[unit]] + port - port0[launch]]
                elements *= 1 if shared[port] else rows[unit]
                item = input0[unit] + port - port0[launch]
                for term in range(term0[item], term0[item + 1]):
                    operand[count], at[count] = port, term
                    target[count], length[count] = done, elements
                    count += 1
                done += elements
                if shared[port]:
                    break
    return count


def places(
    const int64_t[::1] at, const int64_t[::1] term, const int64_t[::1] term_offset,
    const int64_t[::1] arena_of, const int64_t[::1] element_of,
    int64_t[::1] arena, int64_t[::1] element,
):
    """Fill in where the terms that are read lie."""
    cdef int64_t i, place
    for i in range(at.shape[0]):
        place = term[at[i]]
        place += arena_of.shape[0] if place < 0 else 0
        arena[i], element[i] = arena_of[place], element_of[place] + term_offset[at[i]]


def slots(
    const int64_t[::1] first, const int64_t[::1] units, const int64_t[::1] rows,
    const int32_t[::1] segment, const int64_t[::1] size0, const int64_t[::1] size,
    const int64_t[::1] slot0, const int64_t[:, ::1] outputs,
    int64_t[::1] arena, int64_t[::1] element,
):
    """Fill in where results lie; `outputs` are launches, numbers, arenas, elements."""
    cdef int64_t i, member, unit, done
    for i in range(outputs.shape[0]):
        done = outputs[i, 3]
        for member in range(first[outputs[i, 0]], first[outputs[i, 0] + 1]):
            unit = units[member]
            arena[slot0[unit] + outputs[i, 1]] = outputs[i, 2]
            element[slot0[unit] + outputs[i, 1]] = done
            done += rows[unit] * size[size0[segment[unit]] + outputs[i, 1]]


cdef int64_t gcd(int64_t a, int64_t b) noexcept:
    while b:
        a, b = b, a % b
    return a


@cython.final
cdef class Reads:
    """What is read: where in which target, how many elements, and where they lie."""

    cdef const int64_t[::1] operand, target, length, arena, element

    def __init__(self, operand, target, length, arena, element):
        self.operand, self.target, self.length = operand, target, length
        self.arena, self.element = arena, element

    cdef int64_t[::1] sort(self, int64_t[::1] ends):
        """Return the reads by operand, as they come; fill in where those of each end."""
        cdef int64_t[::1] numbers = clone(LONG, self.operand.shape[0], False)
        cdef int64_t i, operands = ends.shape[0] - 1
        for i in range(numbers.shape[0]):
            if not 0 <= self.operand[i] < operands:
                raise ValueError("a read without target")
            ends[self.operand[i] + 1] += 1
        for i in range(operands):
            ends[i + 1] += ends[i]
        for i in range(numbers.shape[0]):
            numbers[ends[self.operand[i]]] = i
            ends[self.operand[i]] += 1
        return numbers


@cython.final
cdef class Pieces:
    """Pieces in the making; neighbours become one."""

    cdef array found

    def __init__(self):
        self.found = array("q")

    cdef int64_t count(self):
        return self.found.ob_size // FIELDS

    cdef int add(
        self, int64_t first, int64_t what, int64_t target, int64_t arena, int64_t element,
        int64_t length,
    ) except -1:
        """Add a piece; it may become part of the last one, if that is not before `first`."""
        cdef int64_t at = self.found.ob_size
        cdef int64_t *last = <int64_t *>self.found.data.as_longlongs + at - FIELDS
        if at > first * FIELDS and last[0] == what and last[1] + last[4] == target:
            if what == DO_ZERO or (last[2] == arena and last[3] + last[4] == element):
                last[4] += length
                return 0
        resize_smart(self.found, at + FIELDS)
        last = <int64_t *>self.found.data.as_longlongs + at
        last[0], last[1], last[2], last[3], last[4] = what, target, arena, element, length
        return 0


cdef object in_place(Reads reads, const int64_t *numbers, int64_t count, int64_t size):
    """Return the arena and the element where all that is read lies side by side, or None."""
    cdef int64_t i, read, arena = reads.arena[numbers[0]], done = 0
    cdef int64_t start = reads.element[numbers[0]] - reads.target[numbers[0]]
    for i in range(count):
        read = numbers[i]
        if reads.arena[read] != arena or reads.target[read] != done:
            return None
        if reads.element[read] != start + done:
            return None
        done += reads.length[read]
    return (arena, start) if done == size else None


cdef bint list_in_order(
    Pieces pieces, Reads reads, const int64_t *numbers, int64_t count, int64_t size
) except -1:
    """List the pieces of a target whose elements are read from first to last; False if not."""
    cdef int64_t i, read, end, done = 0, first = pieces.count()
    for i in range(count):
        end = reads.target[numbers[i]] + reads.length[numbers[i]]
        if reads.target[numbers[i]] == done:
            done = end
        elif end > done:
            return False
    if done != size:
        return False
    done = 0
    for i in range(count):
        read = numbers[i]
        if reads.target[read] == done:
            done += reads.length[read]
            pieces.add(
                first, DO_COPY, reads.target[read], reads.arena[read], reads.element[read],
                reads.length[read])
    done = 0
    for i in range(count):
        read = numbers[i]
        if reads.target[read] == done:
            done += reads.length[read]
        else:
            pieces.add(
                first, DO_ADD, reads.target[read], reads.arena[read], reads.element[read],
                reads.length[read])
    return True


cdef int list_pieces(
    Pieces pieces, Reads reads, const int64_t *numbers, int64_t count, int64_t size
) except -1:
    """List the pieces of a target: first one for each element, then what is added to it."""
    cdef int64_t i, k, read, grain = size, cells, low, first = pieces.count()
    cdef int64_t[::1] owner
    for i in range(count):
        read = numbers[i]
        grain = gcd(gcd(grain, reads.target[read]), reads.length[read])
    cells = size // grain
    #: Which read comes first in each cell, one more than its number.
    owner = clone(LONG, cells, True)
    for i in range(count):
        low = reads.target[numbers[i]] // grain
        for k in range(low, low + reads.length[numbers[i]] // grain):
            if owner[k] == 0:
                owner[k] = i + 1
    for k in range(cells):
        if owner[k] == 0:
            pieces.add(first, DO_ZERO, k * grain, 0, 0, grain)
            continue
        read = numbers[owner[k] - 1]
        low = k * grain - reads.target[read]
        pieces.add(first, DO_COPY, k * grain, reads.arena[read], reads.element[read] + low, grain)
    for i in range(count):
        read = numbers[i]
        low = reads.target[read] // grain
        for k in range(reads.length[read] // grain):
            if owner[low + k] != i + 1:
                pieces.add(
                    first, DO_ADD, (low + k) * grain, reads.arena[read],
                    reads.element[read] + k * grain, grain)
    return 0


def resolve(
    object slice, object rows_type, const int64_t[::1] rows, const int64_t[::1] row_sizes,
    operand, target, length, arena, element,
):
    """Name how operands of so many rows of some size are read, None for those without reads or rows.

    Each read has its `operand`, its first element there (`target`), its `length` in elements, and
    the `arena` and the `element` where that lies.  Returns operands of the two types, and the
    pieces of those of the second.
    """
    cdef Reads reads = Reads(operand, target, length, arena, element)
    cdef Pieces pieces = Pieces()
    cdef int64_t[::1] ends = clone(LONG, rows.shape[0] + 1, True)
    cdef int64_t[::1] numbers = reads.sort(ends)
    cdef int64_t k, i, low = 0, first, size
    operands = []
    for k in range(rows.shape[0]):
        size = rows[k] * row_sizes[k]
        if rows[k] < 0:
            operands.append(None)
            low = ends[k]
            continue
        for i in range(low, ends[k]):
            if reads.target[numbers[i]] < 0:
                raise ValueError("a read leaves its target")
            if reads.target[numbers[i]] + reads.length[numbers[i]] > size:
                raise ValueError("a read leaves its target")
        if ends[k] == low:
            operands.append(None)
            continue
        place = in_place(reads, &numbers[low], ends[k] - low, size)
        if place is not None:
            operands.append(slice(*place, rows[k], row_sizes[k]))
        else:
            first = pieces.count()
            if not list_in_order(pieces, reads, &numbers[low], ends[k] - low, size):
                list_pieces(pieces, reads, &numbers[low], ends[k] - low, size)
            operands.append(rows_type(first, pieces.count() - first, rows[k], row_sizes[k]))
        low = ends[k]
    return operands, pieces.found
