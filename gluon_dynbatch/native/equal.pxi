"""What is known of equal rows: a part of `assembling.pyx`."""


cdef struct Gathered:
    # A plain value: rows of an arena that were gathered from a table: their launch, where its code
    # begins, their first element, the end of the last, and how they were gathered.  There are no
    # table rows if indices that do not fit are errors, which only that launch reports.
    int64_t launch, code, arena, row_size, start, stop
    RowKey key
    Spot table
    int64_t table_rows


cdef enum:
    #: Results that are registered at most, as each piece is looked for among them.
    MOST_GATHERED = 64
    #: No table has this number or a larger one.
    AFTER_TABLES = 1 << 30


@cython.final
cdef class EqualRows:
    """Which rows of arenas are equal: those that equal indices, or numbers, chose.

    Owned by the `Forward` that registers rows.
    """

    #: Entries of `Gathered`.
    cdef Code gathered
    #: Entries of `RowKey`, those of the operand at hand; and the number of the entry that all of
    #: its rows were chosen like, if that is in a table, or -1.
    cdef Code keys
    cdef int64_t table

    def __init__(self):
        self.gathered, self.keys = Code(), Code()
        self.begin_keys()

    cdef void begin_keys(self) noexcept:
        """Begin another operand."""
        self.keys.size, self.table = 0, -1

    cdef int64_t count(self) noexcept:
        return self.gathered.count(sizeof(Gathered))

    cdef const Gathered *rows(self, int64_t number) noexcept:
        """Return an entry; it is valid until another one is added."""
        return <const Gathered *>self.gathered.numbers + number

    cdef Gathered *add(self, const TableRow *region, int64_t launch) except NULL:
        """Add the rows of a region, in no table; return the entry, whose key the caller fills in."""
        cdef Gathered *gathered = <Gathered *>self.gathered.grow(sizeof(Gathered))
        gathered.launch, gathered.code, gathered.table_rows = launch, 0, 0
        gathered.arena, gathered.row_size = region.first, region.row_size
        gathered.start = region.second * gathered.row_size
        gathered.stop = gathered.start + region.rows * gathered.row_size
        return gathered

    cdef bint add_key(
        self, int64_t arena, int64_t element, int64_t rows, int64_t row_size
    ) except -1:
        """Add the key of some rows of an arena; return whether they were gathered from a table."""
        cdef RowKey *key = <RowKey *>self.keys.grow(sizeof(RowKey))
        cdef const Gathered *gathered = self.rows(0)
        cdef int64_t i, table = -1
        key[0] = RowKey(-1, Spot(0, 0), rows, 0)
        for i in range(self.count()):
            if (
                gathered[i].arena == arena and gathered[i].row_size == row_size
                and element >= gathered[i].start and element + rows * row_size <= gathered[i].stop
            ):
                key[0], key.rows = gathered[i].key, rows
                key.numbers.offset += (element - gathered[i].start) // row_size * key.size
                table = i
        if self.keys.size == numbers_in(sizeof(RowKey)):
            self.table = table if table >= 0 and gathered[table].table_rows else -1
        elif self.table >= 0 and key.table != gathered[self.table].key.table:
            self.table = -1
        return key.table >= 0
