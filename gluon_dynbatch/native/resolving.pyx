# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""How operands are read: rows of several arenas as slices, gathers and sums."""

cimport cython
from cpython.array cimport array, clone, resize_smart
from libc.stdint cimport int32_t, int64_t

cdef array INT, LONG
INT, LONG = array("i"), array("q")


cdef struct Source:
    # Where a row is read; element -1 for a row of zeros.
    int64_t arena
    int64_t element


cdef int64_t gcd(int64_t a, int64_t b) noexcept:
    while b:
        a, b = b, a % b
    return a


cdef Source *room_for(array memory, int64_t count) except NULL:
    """Make an array of eight-byte integers hold so many sources."""
    resize_smart(memory, 2 * count)
    return <Source *>memory.data.as_voidptr


@cython.final
cdef class Fetches:
    """Names reads of rows, and collects the indices of all gathers."""

    cdef object slice, gather, mixed
    cdef const int64_t[::1] row_size
    cdef array indices, part

    def __init__(self, slice, gather, mixed, const int64_t[::1] row_size):
        self.slice, self.gather, self.mixed, self.row_size = slice, gather, mixed, row_size
        self.indices, self.part = array("i"), array("q")

    cdef int add_index(self, int64_t index) except -1:
        resize_smart(self.indices, self.indices.ob_size + 1)
        self.indices.data.as_ints[self.indices.ob_size - 1] = <int>index
        return 0

    cdef object of(self, Source *sources, int64_t count, int64_t size):
        """Name rows; what is zero is read from any of their arenas."""
        cdef int64_t arena = -1, i
        cdef bint mixed = False
        for i in range(count):
            if sources[i].element >= 0:
                mixed = mixed or 0 <= arena != sources[i].arena
                arena = sources[i].arena if arena < 0 else arena
        if not mixed:
            return self.of_one(arena, sources, count, size)
        for i in range(count):
            if sources[i].element < 0:
                sources[i].arena = arena
        return self.of_several(sources, count, size)

    cdef object of_one(self, int64_t arena, Source *sources, int64_t count, int64_t size):
        """Name rows that lie in one arena, whose row 0 has as many zeros as it is long."""
        cdef int64_t row_size = self.row_size[arena], grain = gcd(size, row_size)
        cdef int64_t start = max(sources[0].element, 0), first = self.indices.ob_size, element, i, k
        cdef bint follows = True
        for i in range(count):
            element = max(sources[i].element, 0)
            follows = follows and element == start + i * size
            follows = follows and (sources[i].element >= 0 or size <= row_size)
        if follows:
            return self.slice(arena, start, count, size)
        for i in range(count):
            if sources[i].element >= 0 and sources[i].element % grain:
                grain = gcd(grain, sources[i].element)
        for i in range(count):
            for k in range(size // grain):
                self.add_index(0 if sources[i].element < 0 else sources[i].element // grain + k)
        return self.gather(arena, grain, first, self.indices.ob_size - first, count, size)

    cdef object of_several(self, Source *sources, int64_t count, int64_t size):
        """Name rows that lie in several arenas, and where each is among those of all arenas."""
        cdef Source *part = room_for(self.part, count)
        cdef array place = clone(LONG, count, False)
        cdef int64_t arena, i, members, done = 0, first
        parts = []
        for arena in range(self.row_size.shape[0]):
            members = 0
            for i in range(count):
                if sources[i].arena == arena:
                    place.data.as_longlongs[i] = done + members
                    part[members] = sources[i]
                    members += 1
            if members:
                parts.append(self.of_one(arena, part, members, size))
                done += members
        first = self.indices.ob_size
        for i in range(count):
            self.add_index(place.data.as_longlongs[i])
        return self.mixed(tuple(parts), first, count, size)


@cython.final
cdef class Target:
    """The rows of one operand, of the largest size of which every read of it is a multiple."""

    cdef int64_t rows, size, total, most
    #: Whether the reads are the rows, one after another.
    cdef bint plain
    cdef array memory
    #: Per row how many sources it has, and the first of them, one more at the end.
    cdef int64_t *count
    cdef int64_t *first
    #: The rows in their order: those with more sources may come first.
    cdef int64_t *row_at
    #: The sources of all rows, and those of a level.
    cdef Source *sources
    cdef Source *level_sources

    cdef int open(
        self, Reads reads, const int64_t *numbers, int64_t reads_count, int64_t rows, int64_t size
    ) except -1:
        """Find the size of rows, and make room for what `list_sources` fills in."""
        cdef int64_t end = rows * size, asked = size, target, length, i, row
        self.plain = reads_count == rows
        for i in range(reads_count):
            target, length = reads.target[numbers[i]], reads.length[numbers[i]]
            if target < 0 or target + length > end:
                raise ValueError("a read leaves its target")
            if target != i * asked or length != asked:
                self.plain = False
                if target % size or length % size:
                    size = gcd(gcd(size, target), length)
            self.total += length
        self.rows, self.size, self.total = end // size, size, self.total // size
        self.memory = clone(LONG, 5 * self.rows + 1 + 2 * self.total, False)
        self.count = <int64_t *>self.memory.data.as_longlongs
        self.row_at = self.count + self.rows
        self.first = self.row_at + self.rows
        self.sources = <Source *>(self.first + self.rows + 1)
        self.level_sources = self.sources + self.total
        for row in range(self.rows):
            self.count[row], self.row_at[row] = 0, row
        self.first[0] = 0
        return 0

    cdef void list_sources(
        self, Reads reads, const int64_t *numbers, int64_t reads_count
    ) noexcept:
        """List the sources of each row, as the reads come."""
        cdef int64_t i, k, row, read
        cdef Source *source
        if self.plain:
            self.most = 1
            for i in range(reads_count):
                read, self.count[i], self.first[i] = numbers[i], 1, i
                self.sources[i] = Source(reads.arena[read], reads.element[read])
            return
        for i in range(reads_count):
            row = reads.target[numbers[i]] // self.size
            for k in range(reads.length[numbers[i]] // self.size):
                self.count[row + k] += 1
        for row in range(self.rows):
            self.most = max(self.most, self.count[row])
            self.first[row + 1] = self.first[row] + self.count[row]
            self.count[row] = 0
        for i in range(reads_count):
            read = numbers[i]
            row = reads.target[read] // self.size
            for k in range(reads.length[read] // self.size):
                source = &self.sources[self.first[row + k] + self.count[row + k]]
                source.arena, source.element = reads.arena[read], reads.element[read] + k * self.size
                self.count[row + k] += 1

    cdef bint order_rows(self) noexcept:
        """Let rows with more sources come first if levels had many gaps; say whether it did."""
        cdef int64_t row, count, at = 0
        cdef bint gaps = False
        for row in range(1, self.rows):
            gaps = gaps or self.count[row] > self.count[row - 1]
        if not gaps or self.most == 1 or self.most * self.rows <= 2 * self.total:
            return False
        for count in range(self.most, -1, -1):
            for row in range(self.rows):
                if self.count[row] == count:
                    self.row_at[at] = row
                    at += 1
        return True

    cdef object level(self, int64_t number, Fetches fetches):
        """Name of each row the source of this number; rows with too few read zeros, or nothing."""
        cdef Source *sources = self.level_sources
        cdef int64_t rows = self.rows, i, row
        while number and self.count[self.row_at[rows - 1]] <= number:
            rows -= 1
        for i in range(rows):
            row = self.row_at[i]
            sources[i].element = -1
            if number < self.count[row]:
                sources[i] = self.sources[self.first[row] + number]
        return fetches.of(sources, rows, self.size)


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


cdef object resolve_target(Target t, Fetches fetches, object sum_, object scatter, int64_t most_levels):
    """Name what a target reads."""
    cdef int64_t row, k, first
    if t.most > most_levels:
        source = fetches.of(t.sources, t.total, t.size)
        first = fetches.indices.ob_size
        for row in range(t.rows):
            for k in range(t.count[row]):
                fetches.add_index(row)
        return scatter(source, first, t.rows)
    moved = t.order_rows()
    levels = [t.level(k, fetches) for k in range(t.most)]
    total = levels[0] if t.most == 1 else sum_(tuple(levels))
    if not moved:
        return total
    for k in range(t.rows):
        t.first[t.row_at[k]] = k
    first = fetches.indices.ob_size
    for row in range(t.rows):
        fetches.add_index(t.first[row])
    return fetches.mixed((total,), first, t.rows, t.size)


def resolve(
    tuple types, int64_t most_levels, const int64_t[::1] rows, const int64_t[::1] row_sizes,
    operand, target, length, arena, element, const int64_t[::1] arena_row_sizes,
):
    """Name how operands of so many rows of some size are read, None for those without reads.

    Each read has its `operand`, its first element there (`target`), its `length` in elements, and
    the `arena` and the `element` where that lies.  `types` are those of what is returned: slices,
    gathers, mixed, sums and scatters.  Returns operands, and the indices of their gathers.
    """
    cdef Reads reads = Reads(operand, target, length, arena, element)
    cdef Target t
    slice, gather, mixed, sum_, scatter = types
    cdef Fetches fetches = Fetches(slice, gather, mixed, arena_row_sizes)
    cdef int64_t[::1] ends = clone(LONG, rows.shape[0] + 1, True)
    cdef int64_t[::1] numbers = reads.sort(ends)
    cdef Py_ssize_t k, low = 0
    operands = []
    for k in range(rows.shape[0]):
        t = None
        if ends[k] > low:
            t = Target()
            t.open(reads, &numbers[low], ends[k] - low, rows[k], row_sizes[k])
            t.list_sources(reads, &numbers[low], ends[k] - low)
        operands.append(
            None if t is None else resolve_target(t, fetches, sum_, scatter, most_levels)
        )
        low = ends[k]
    return operands, fetches.indices
