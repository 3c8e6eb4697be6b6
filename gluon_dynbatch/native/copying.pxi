"""Code that copies, adds and clears pieces of arrays: a part of `assembling.pyx`."""


cdef struct CopyRecord:
    # A record of one piece: a plain value in the code of a program.
    RowsRecord record
    gdb_piece piece


def code_of_pieces(
    str dtype not None, const int64_t[:, ::1] pieces, int64_t first, int64_t base, int64_t offset
):
    """Return code that writes a table of pieces, as in `Plan`, to a base from a byte on.

    In the place of arenas, the table has bases, counted from `first`.
    """
    cdef const PieceRow *row
    cdef int64_t i, count = pieces.shape[0], size = itemsize(dtype)
    cdef Code code = Code()
    cdef RowsRecord *record = <RowsRecord *>code.grow(
        sizeof(RowsRecord) + count * sizeof(gdb_piece))
    cdef gdb_piece *piece = <gdb_piece *>(record + 1)
    record[0] = RowsRecord(
        record=ROWS, dtype=kind_of(dtype), element_size=size, count=count,
        target=Spot(base, offset), in_order=0, elements=0, end=0)
    for i in range(count):
        row = <const PieceRow *>&pieces[i, 0]
        piece[i] = gdb_piece(
            operation=row.action, target=row.target,
            source=Spot(first + row.arena, row.element * size), count=row.length)
    return code


def code_of_copies(
    str dtype not None, const int64_t[::1] starts not None, const int64_t[::1] elements not None
):
    """Return code that copies elements of base 0 to bases 1, 2, ..., for each from a start on."""
    cdef int64_t i, count = len(starts), size = itemsize(dtype), kind = kind_of(dtype)
    cdef Code code = Code()
    cdef CopyRecord *copy = <CopyRecord *>code.grow(count * sizeof(CopyRecord))
    for i in range(count):
        copy[i].record = RowsRecord(
            record=ROWS, dtype=kind, element_size=size, count=1, target=Spot(i + 1, 0),
            in_order=0, elements=0, end=0)
        copy[i].piece = gdb_piece(
            operation=COPY, target=0, source=Spot(0, starts[i] * size), count=elements[i])
    return code
