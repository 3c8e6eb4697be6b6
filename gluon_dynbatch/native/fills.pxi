"""The code that fills arenas with external arrays: a part of `assembling.pyx`."""


cdef class Fills(Assembler):
    """Assembles the code that precedes all launches of a forward program.

    Owned by whoever owns the `Forward`, which is a subclass.
    """

    #: Per arena whether it is in host memory.
    cdef tuple on_host
    #: Numbers of external arrays that are kept in arenas of earlier flushes.
    cdef frozenset kept

    def __init__(self, plan, tuple on_host not None, frozenset kept not None):
        super().__init__(plan, plan.graph.briefs)
        self.on_host, self.kept = on_host, kept

    cdef int begin_fills(self) except -1:
        cdef int64_t number, pieces
        for number, (externals, _) in enumerate(self.plan.filled):
            if not self.on_host[self.region_of_fill(number).first]:
                self.device_fills.append(number)
                continue
            pieces = len(externals)
            if self.is_gathered(number, externals):
                self.gathered_fills.append(number)
                self.base(("gathered", number))
                pieces = 1
            self.code.grow(sizeof(RowsRecord) + pieces * sizeof(gdb_piece))

    cdef inline const TableRow *region_of_fill(self, int64_t number) noexcept:
        return self.output_of(self.output0.shape[0] - 1, number)

    cdef bint is_gathered(self, int64_t number, externals) except -1:
        """Return whether the thread that flushes copies the arrays of a fill: many that are small.

        It waits for external arrays anyway, unless earlier flushes compute them.
        """
        if len(externals) <= FEW_ARRAYS:
            return False
        cdef const TableRow *region = self.region_of_fill(number)
        cdef int64_t size = self.arena(region.first).size * region.rows * region.row_size
        return size <= FEW_BYTES * len(externals) and self.kept.isdisjoint(externals.tolist())

    cdef int write_fills(self) except -1:
        """Write the code of fills: each copies external arrays, which follow all other bases.

        If they are gathered, it copies these together.
        """
        cdef RowsRecord *record = <RowsRecord *>self.code.numbers
        cdef gdb_piece *piece
        cdef const TableRow *region
        cdef const int64_t[::1] sizes
        cdef int64_t number, i, base = self.first + len(self.bases), target
        for number, (externals, elements) in enumerate(self.plan.filled):
            region, sizes = self.region_of_fill(number), elements
            if not self.on_host[region.first]:
                continue
            record[0] = RowsRecord(
                ROWS, kind_of(self.plan.arenas[region.first].dtype), self.arena(region.first).size,
                sizes.shape[0], self.spot_of_region(region), 0, 0, 0)
            piece, target = <gdb_piece *>(record + 1), 0
            if number in self.gathered_fills:
                record.count = 1
                piece[0] = gdb_piece(
                    COPY, 0, Spot(self.base(("gathered", number)), 0), region.rows * region.row_size)
                record = <RowsRecord *>(piece + 1)
                continue
            for i in range(sizes.shape[0]):
                piece[i] = gdb_piece(COPY, target, Spot(base + i, 0), sizes[i])
                target += sizes[i]
            record, base = <RowsRecord *>(piece + sizes.shape[0]), base + sizes.shape[0]
            self.externals.extend(externals.tolist())
        return 0
