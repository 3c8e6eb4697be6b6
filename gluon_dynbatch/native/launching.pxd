"""Kernels, for who runs programs."""

from libc.stdint cimport int32_t, int64_t

from .pointwise cimport gdb_loop
from .rowwise cimport Dots

cdef enum:
    ROWS_AT_ONCE = 24


cdef struct Step:
    # A product, dots if there are some, or a loop.  If a table has rows, those of the product are
    # chosen from them.
    bint product, unpacked
    int64_t table
    int32_t dtype, adds, rows, matrix, result, bias
    int64_t column, result_column, parts, units, inputs
    Dots dots
    gdb_loop loop


cdef struct Kernel_:
    int64_t references
    int64_t steps_count, slots_count
    Step *steps
    #: Per slot: elements per row, 0 for one row for all; type; where a block of its rows stands in
    #: scratch if it is nowhere else.
    int64_t *pitch
    int32_t *dtype
    int64_t *local
    int64_t block
    #: Operations of a row, about.
    int64_t work
    #: Where addresses of slots stand in scratch, and how much of that is needed.
    int64_t pointers
    int64_t scratch


cdef void release_kernel(Kernel_ *kernel) noexcept nogil
cdef void *room(int64_t count, int64_t size) except NULL
cdef void run_block(
    const int64_t *parts, int64_t part, const int64_t *places, char **bases, char *scratch,
    int64_t low, int64_t high) noexcept nogil


cdef class Kernel:
    cdef Kernel_ *kernel
    cdef add_product(self, Step *step, tuple given)
    cdef add_dots(self, Dots *dots, tuple given)
    cdef add_loop(self, Step *step, tuple given)
