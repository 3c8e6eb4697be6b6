"""What programs are made of: `assembling` writes these records, and `executing` runs them.

A program knows arrays by number; who runs it gives the address of each, which is its *base*.
"""

from libc.stdint cimport int64_t

cpdef enum:
    #: First number of each record of a program.
    LAUNCH, ROWS, PACK, MATRIX, ROW, CHOSEN, DISTINCT

cpdef enum:
    #: What DISTINCT does with rows that are equal.  Before the launch, the first ones or the totals
    #: are put side by side; after it, rows go where all equal ones belong, or just the first.
    PICK, TOTAL, REPEAT, SINGLE


cdef struct Spot:
    # A base, and an offset in bytes.  Base -1 stands for none.
    int64_t base, offset


cdef struct RowsRecord:
    # Pieces follow; a size is that of an element.
    int64_t record, kind, size, count
    Spot target


cdef struct Piece:
    # What is done (0 copy, 1 add, 2 zeros), the first element of the target, the source, and how
    # many elements.
    int64_t what, target
    Spot source
    int64_t count


cdef struct PackRecord:
    int64_t record, kind
    Spot source
    int64_t row_stride, column_stride, rows, columns
    Spot target


cdef struct DistinctRecord:
    # Keys follow, then what is moved, then a LAUNCH of one part, which runs on as many rows as are
    # different.  If equal numbers chose rows from one table, they are equal, and so is what is
    # computed of them; unless they are few.  Without keys, it is known, from where it is kept.
    int64_t record
    Spot kept
    int64_t rows, keys, moved


cdef struct Key:
    # What tells so many rows apart: the table from which they were chosen, or -1, and the numbers by
    # which they were, each of so many bytes.
    int64_t table
    Spot numbers
    int64_t rows, size


cdef struct Moved:
    # What is done with an array of the launch, where it has it, and where that comes from.
    int64_t what, kind, width
    Spot target, source


cdef struct SumRecord:
    # MATRIX, ROW or CHOSEN; chunks follow.  The last number says whether the second of two rows is
    # the gradient, plus twice the columns of matrices if rows are matrices whose columns are
    # multiplied; of CHOSEN, it is the type of places.
    int64_t record, kind, rows, columns
    Spot target
    int64_t last, count


cdef struct Chunk:
    # What is added up: rows, where DISTINCT has kept which of them are equal, if it is known, and
    # both arrays, with elements from row to row.
    int64_t rows
    Spot kept
    Spot gradient
    int64_t gradient_pitch
    Spot other
    int64_t other_pitch
