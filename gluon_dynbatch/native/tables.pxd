"""The tables of plans, which `planning` writes and `assembling` reads: rows of 64-bit integers.

Arrays of NumPy own them (`plan.plan.Plan`).  A row is read as a struct, and columns of places are
written by number; `tests/kernel/test_layouts.py` compares both with those of `plan.launch`.
"""

from libc.stdint cimport int64_t

cdef extern from "c/records.h":
    cdef enum:
        #: What is done with the elements of a piece.
        COPY "GDB_COPY"
        ADD "GDB_ADD"
        ZERO "GDB_ZERO"

cdef enum:
    #: What a place is: none, a whole external array, a slice of an arena, elements that are put
    #: together, or a region.
    NOTHING, WHOLE, SLICE, TOGETHER, REGION

cdef enum:
    #: Columns of a table of places.
    TYPE, FIRST, SECOND, ROWS, ROW_SIZE


cdef struct TableRow:
    # A place; plain values, in the order of the columns.
    int64_t what, first, second, rows, row_size


cdef struct PieceRow:
    # A piece: what is done, the first element in the operand, the arena, the first element of the
    # source there, and the number of elements; plain values.
    int64_t action, target, arena, element, length
