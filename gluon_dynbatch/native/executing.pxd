"""The records of programs: `assembling` writes them, and `executing` runs them."""

cimport cython
from libc.stdint cimport int64_t

cdef extern from "c/records.h":
    cpdef enum:
        LAUNCH "GDB_LAUNCH"
        ROWS "GDB_ROWS"
        PACK "GDB_PACK"
        MATRIX "GDB_MATRIX"
        ROW "GDB_ROW_SUM"
        SCATTER "GDB_SCATTER"
        DISTINCT "GDB_DISTINCT"

    cpdef enum:
        PICK "GDB_PICK"
        LOOK_UP "GDB_LOOK_UP"
        TOTAL "GDB_TOTAL"
        REPEAT "GDB_REPEAT"
        SINGLE "GDB_SINGLE"

    ctypedef struct Spot "gdb_spot":
        int64_t base, offset

    ctypedef struct RowsRecord "gdb_rows_record":
        int64_t record, dtype, element_size, count
        Spot target
        int64_t in_order, elements, end

    ctypedef struct gdb_piece:
        int64_t operation, target
        Spot source
        int64_t count

    ctypedef struct PackRecord "gdb_pack_record":
        int64_t record, dtype
        Spot source
        int64_t row_stride, column_stride, rows, columns
        Spot target

    ctypedef struct DistinctRecord "gdb_distinct_record":
        int64_t record
        Spot numbering
        int64_t rows, keys, moved

    ctypedef struct RowKey "gdb_key":
        int64_t table
        Spot numbers
        int64_t rows, size

    ctypedef struct Moved "gdb_moved":
        int64_t operation, dtype, width
        Spot target, source
        int64_t table_rows, index_dtype

    ctypedef struct SumRecord "gdb_sum_record":
        int64_t record, dtype, rows, columns
        Spot target
        int64_t option, count

    ctypedef struct SumChunk "gdb_sum_chunk":
        int64_t rows
        Spot numbering
        Spot left
        int64_t left_pitch
        Spot right
        int64_t right_pitch


cdef int run_graph(
    void *graph, int count, void **read, int *written, void ***results, const int **kinds
) except? -2

cdef inline int64_t numbers_in(int64_t bytes) noexcept:
    return bytes // sizeof(int64_t)


@cython.final
cdef class Code:
    #: Owned by this object, and moved when it grows, so no address in it lives longer than a call.
    #: Only the thread that assembles a program has it.
    cdef int64_t *numbers
    cdef readonly int64_t size
    cdef int64_t capacity

    cdef int reserve(self, int64_t bytes) except -1
    cdef void *grow(self, int64_t bytes) except NULL
    cdef int append(self, Code code) except -1
    cdef int64_t count(self, int64_t size) noexcept
    cdef int64_t *give(self) noexcept
