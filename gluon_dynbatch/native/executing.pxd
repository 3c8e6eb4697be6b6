"""The records of programs: `assembling` writes them, and `executing` runs them.

A program refers to each array by its *base*, the index of its address.  The caller passes the
addresses when it runs the program.
"""

from libc.stdint cimport int64_t

cpdef enum:
    #: The kind of a record, its first number.
    LAUNCH, ROWS, PACK, MATRIX, ROW, SCATTER, DISTINCT

cpdef enum:
    #: What DISTINCT does with equal rows.  Before the launch, PICK compacts an array to the first
    #: of equal rows, and TOTAL to their sums.  After it, REPEAT copies each computed row to all
    #: rows that are equal, and SINGLE to the first of them, with zeros for the others.
    PICK, TOTAL, REPEAT, SINGLE


cdef struct Spot:
    # A base, or -1 for none, and an offset in bytes.
    int64_t base, offset


cdef struct RowsRecord:
    # Followed by `count` Pieces.
    int64_t record, dtype, element_size, count
    Spot target


cdef struct Piece:
    # The operation (0 copy, 1 add, 2 fill with zeros), the first element of the target, the source,
    # and the number of elements.
    int64_t operation, target
    Spot source
    int64_t count


cdef struct PackRecord:
    int64_t record, dtype
    Spot source
    int64_t row_stride, column_stride, rows, columns
    Spot target


cdef struct DistinctRecord:
    # Followed by `keys` Keys, `moved` Moved, and a LAUNCH of one part, which runs only on distinct
    # rows.  Rows are equal if equal indices chose them from one table; then so are their results.
    # If few rows are equal, all count as distinct.  The numbering of the rows (see `Numbering`) is
    # written to a spot, or read from there if there are no keys.
    int64_t record
    Spot numbering
    int64_t rows, keys, moved


cdef struct Key:
    # The origin of some rows: the number of the table from which they were chosen and of the type
    # of indices, or -1, and their indices, of `size` bytes each.
    int64_t table
    Spot numbers
    int64_t rows, size


cdef struct Moved:
    # An array of the launch, where it comes from, and what DISTINCT does with its rows.
    int64_t operation, dtype, width
    Spot target, source


cdef struct SumRecord:
    # Followed by `count` Chunks.  MATRIX adds left^T right to a matrix, ROW the rows of left to a
    # vector, SCATTER each row of left to the row of a matrix that an index in right chooses.
    # For SCATTER, `option` is 2 times the type of the indices, plus 1 if they wrap.  For MATRIX it is 1 if the gradient is right
    # instead of left, plus twice the number of columns if rows are matrices whose columns are
    # multiplied.
    int64_t record, dtype, rows, columns
    Spot target
    int64_t option, count


cdef struct Chunk:
    # Rows to add up, the numbering of DISTINCT for them (base -1: none), and both arrays.  A pitch
    # is the number of elements between rows.
    int64_t rows
    Spot numbering
    Spot left
    int64_t left_pitch
    Spot right
    int64_t right_pitch
