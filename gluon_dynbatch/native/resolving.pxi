# Allocate regions, and resolve operands; a part of `planning.pyx`.

def reserve_rows(int64_t[:, ::1] regions, const int64_t[::1] kind, const int64_t[::1] order):
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
        regions[k, TYPE], regions[k, FIRST], regions[k, SECOND] = tables.REGION, number, sizes[number]
        sizes[number] += regions[k, ROWS]
    return dict(zip(numbers, sizes))


@cython.final
cdef class Resolver:
    """Resolves operands, given their reads.

    Owned by one call of `resolve`.  Its columns keep the arrays of the plan alive, which it
    does not change; it owns the rest.
    """

    cdef const int64_t[:, ::1] regions
    #: Columns of `Reads`.
    cdef const int32_t[::1] region, target, length, element
    #: All reads by operand: in their order, and in an order in which each operand is covered from
    #: its first element on.
    cdef int32_t[::1] by_operand, sweep
    #: Per operand, one more at the end: its first read there.
    cdef int64_t[::1] first
    #: Per read: the end of what earlier reads of the sweep cover of its elements.
    cdef int64_t[::1] covered
    cdef array pieces

    def __init__(self, int64_t operands, regions, reads):
        cdef const int32_t[::1] operand = reads.operand, target = reads.target
        cdef int64_t i, k, low, high, most = 0, count = operand.shape[0]
        self.regions, self.region, self.target = regions, reads.region, target
        self.length, self.element = reads.length, reads.element
        self.pieces, self.covered = array("q"), clone(LONG, count, False)
        self.by_operand, self.sweep = clone(INT, count, False), clone(INT, count, False)
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

    cdef inline int64_t count(self) noexcept:
        return self.pieces.ob_size * sizeof(int64_t) // sizeof(PieceRow)

    cdef inline PieceRow *piece(self, int64_t number) noexcept:
        """Return the address of a piece, which is valid until another one is added."""
        return <PieceRow *>self.pieces.data.as_longlongs + number

    cdef inline int add(
        self, int64_t first, int64_t what, int64_t target, int64_t arena, int64_t element,
        int64_t length,
    ) except -1:
        """Add a piece, or extend the last one if it has a number of at least `first`."""
        cdef int64_t count = self.count()
        cdef PieceRow *last
        if length == 0:
            return 0
        if count > first:
            last = self.piece(count - 1)
            if last.action == what and last.target + last.length == target:
                if what == tables.ZERO or (
                    last.arena == arena and last.element + last.length == element
                ):
                    last.length += length
                    return 0
        resize_smart(self.pieces, self.pieces.ob_size + sizeof(PieceRow) // sizeof(int64_t))
        self.piece(count)[0] = PieceRow(what, target, arena, element, length)
        return 0

    cdef inline int64_t arena(self, int64_t read) noexcept:
        """Return the arena of a read."""
        return self.regions[self.region[read], FIRST]

    cdef inline int64_t start(self, int64_t read) noexcept:
        """Return the first element of a read within its arena."""
        cdef int64_t k = self.region[read]
        return self.regions[k, SECOND] * self.regions[k, ROW_SIZE] + self.element[read]

    cdef int list_pieces(self, int64_t low, int64_t high, int64_t size) except -1:
        """List the pieces of an operand: first those that set each element, then all additions."""
        cdef int64_t i, k, end, start, done = 0, first = self.count()
        cdef bint adds = False
        for k in range(low, high):
            i = self.sweep[k]
            end = self.target[i] + self.length[i]
            if self.target[i] < 0 or end > size:
                raise ValueError("a read leaves its target")
            if self.target[i] > done:
                self.add(first, tables.ZERO, done, 0, 0, self.target[i] - done)
                done = self.target[i]
            start = self.covered[i] = min(done, end)
            self.add(
                first, tables.COPY, start, self.arena(i), self.start(i) + start - self.target[i],
                end - start)
            adds |= start > self.target[i]
            done = max(done, end)
        self.add(first, tables.ZERO, done, 0, 0, size - done)
        for k in range(low, high if adds else low):
            i = self.by_operand[k]
            self.add(
                first, tables.ADD, self.target[i], self.arena(i), self.start(i),
                self.covered[i] - self.target[i])
        return 0


def resolve(int64_t[:, ::1] operands, regions, reads):
    """Resolve operands to slices of arenas, or to pieces, which are returned as a flat array."""
    cdef Resolver resolver = Resolver(operands.shape[0], regions, reads)
    cdef int64_t k, low, high, size, first
    cdef const PieceRow *piece
    for k in range(operands.shape[0]):
        low, high = resolver.first[k], resolver.first[k + 1]
        size = operands[k, ROWS] * operands[k, ROW_SIZE]
        if low == high:
            continue
        first = resolver.count()
        resolver.list_pieces(low, high, size)
        operands[k, TYPE], operands[k, FIRST] = tables.TOGETHER, first
        operands[k, SECOND] = resolver.count() - first
        piece = resolver.piece(first)
        if operands[k, SECOND] == 1 and piece.action == tables.COPY and piece.length == size:
            # All elements are contiguous in one arena: they are read in place.
            operands[k, TYPE] = tables.SLICE
            operands[k, FIRST], operands[k, SECOND] = piece.arena, piece.element
            resolver.pieces.ob_size = first * sizeof(PieceRow) // sizeof(int64_t)
    return resolver.pieces
