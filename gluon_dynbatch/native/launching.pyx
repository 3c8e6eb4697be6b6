# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Kernels in the form in which they are run, a block of rows at a time."""

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free

from .pointwise cimport gdb_access, gdb_instruction, gdb_loop, loop_scratch, run_loop
from .products cimport run_multiply, run_multiply_few
from .rowwise cimport Dots, choose_rows, dots_scratch, run_dots

cdef extern from *:
    """
    #define RELEASE(counter) __atomic_sub_fetch(counter, 1, __ATOMIC_ACQ_REL)
    """
    int64_t RELEASE(int64_t *counter) nogil

cdef enum:
    #: Rows of a launch are run in blocks whose values stay in a cache of about this size, but of no
    #: fewer rows than products need to be fast, unless that were too much memory.
    CACHE = 1 << 19
    MOST_BYTES = 1 << 26
    #: What a function of an element takes, in operations of products.
    FUNCTION = 16

cdef int64_t *SIZES = [4, 8, 4, 8]


cdef void release_kernel(Kernel_ *kernel) noexcept nogil:
    cdef int64_t i
    if RELEASE(&kernel.references):
        return
    for i in range(kernel.steps_count):
        free(<void *>kernel.steps[i].loop.loads)
        free(<void *>kernel.steps[i].loop.instructions)
        free(<void *>kernel.steps[i].loop.stores)
    free(kernel.steps)
    free(kernel.pitch)
    free(kernel.dtype)
    free(kernel.local)
    free(kernel)


cdef void *room(int64_t count, int64_t size) except NULL:
    cdef void *found = calloc(max(count, 1), size)
    if found == NULL:
        raise MemoryError()
    return found


cdef class Kernel:
    """A kernel in the form in which it is run.

    Parameters
    ----------
    slots : list of (int, int)
        Elements per row (0: one row for all rows of a launch) and type (0 float32, 1 float64,
        and only read 2 int32, 3 int64).
    widths : list of int
        Elements per row of what may stand in scratch, 0 of what may not.
    steps : list of tuple
        ("product", dtype, rows, column, matrix, rows of a table to choose from, inputs, units,
        result, column, bias or -1, adds, parts, whether the matrix is not packed but the transpose
        of its slot), ("dots", what `Dots` has), or ("pointwise", dtype, width, registers, loads, instructions, stores).
    """

    def __cinit__(self, list slots, list widths, list steps):
        cdef int64_t i, bytes_per_row = 0, at = 0, loops = 0
        self.kernel = kernel = <Kernel_ *>room(1, sizeof(Kernel_))
        kernel.references = 1
        kernel.slots_count, kernel.steps_count = len(slots), len(steps)
        kernel.steps = <Step *>room(len(steps), sizeof(Step))
        kernel.pitch = <int64_t *>room(len(slots), 8)
        kernel.dtype = <int32_t *>room(len(slots), 4)
        kernel.local = <int64_t *>room(len(slots), 8)
        for i, (pitch, dtype) in enumerate(slots):
            kernel.pitch[i], kernel.dtype[i] = pitch, dtype
            bytes_per_row += pitch * SIZES[dtype]
        kernel.block = max(ROWS_AT_ONCE, CACHE // max(bytes_per_row, 1))
        kernel.block -= kernel.block % ROWS_AT_ONCE
        kernel.block = max(min(kernel.block, MOST_BYTES // max(bytes_per_row, 1)), 1)
        for i, step in enumerate(steps):
            if step[0] == "product":
                self.add_product(&kernel.steps[i], step)
            elif step[0] == "dots":
                self.add_dots(&kernel.steps[i].dots, step)
                loops = max(loops, dots_scratch(&kernel.steps[i].dots))
            else:
                self.add_loop(&kernel.steps[i], step)
                loops = max(loops, loop_scratch(&kernel.steps[i].loop))
        at = (loops + 63) // 64 * 64
        for i, width in enumerate(widths):
            kernel.local[i] = at
            at += (width * SIZES[kernel.dtype[i]] * kernel.block + 63) // 64 * 64
        kernel.pointers = at
        kernel.scratch = at + 8 * len(slots)

    cdef add_product(self, Step *step, tuple given):
        step.product = True
        (_, step.dtype, step.rows, step.column, step.matrix, step.table, step.inputs, step.units,
         step.result, step.result_column, step.bias, step.adds, step.parts, step.unpacked) = given
        self.kernel.work += 2 * step.inputs * step.units * step.parts

    cdef add_dots(self, Dots *dots, tuple given):
        (_, dots.dtype, dots.left, dots.left_column, dots.right, dots.right_column, dots.result,
         dots.result_column, dots.count, dots.m, dots.k, dots.n, dots.turn_left, dots.turn_right,
         dots.gradient) = given
        self.kernel.work += 2 * dots.count * dots.m * dots.k * dots.n

    cdef add_loop(self, Step *step, tuple given):
        cdef gdb_loop *loop = &step.loop
        cdef gdb_instruction *found
        _, dtype, width, registers, loads, instructions, stores = given
        loop.dtype, loop.width, loop.n_registers = dtype, width, registers
        loop.n_loads, loop.n_stores = len(loads), len(stores)
        loop.n_instructions = len(instructions)
        self.kernel.work += FUNCTION * width * len(instructions)
        loop.loads = accesses(loads)
        loop.stores = accesses(stores)
        found = <gdb_instruction *>room(len(instructions), sizeof(gdb_instruction))
        loop.instructions = found
        for i, (code, target, a, b, c, value, value2) in enumerate(instructions):
            found[i] = gdb_instruction(code, target, a, b, c, value, value2)

    def __dealloc__(self):
        if self.kernel != NULL:
            release_kernel(self.kernel)

    @property
    def address(self):
        return <uintptr_t>self.kernel


cdef gdb_access *accesses(list given) except NULL:
    cdef gdb_access *found = <gdb_access *>room(len(given), sizeof(gdb_access))
    for i, (register, slot, column, how) in enumerate(given):
        found[i] = gdb_access(register, slot, column, how)
    return found


cdef void run_block(
    const int64_t *parts, int64_t part, const int64_t *places, char **bases, char *scratch,
    int64_t low, int64_t high,
) noexcept nogil:
    """Run rows of a part of a launch.

    Parts are a kernel and its rows, and kernels have the same slots; places are a base and an
    offset in bytes per slot, where the first part begins.
    """
    cdef Kernel_ *kernel = <Kernel_ *><uintptr_t>parts[2 * part]
    cdef Kernel_ *before
    cdef char **slots = <char **>(scratch + kernel.pointers)
    cdef int64_t s, i
    for s in range(kernel.slots_count):
        if places[2 * s] < 0:
            slots[s] = scratch + kernel.local[s]
        else:
            slots[s] = bases[places[2 * s]] + places[2 * s + 1]
            slots[s] += low * kernel.pitch[s] * SIZES[kernel.dtype[s]]
            for i in range(part):
                before = <Kernel_ *><uintptr_t>parts[2 * i]
                slots[s] += parts[2 * i + 1] * before.pitch[s] * SIZES[kernel.dtype[s]]
    for s in range(kernel.steps_count):
        run_step(kernel, &kernel.steps[s], slots, high - low, scratch)


cdef void run_step(
    Kernel_ *kernel, Step *step, char **slots, int64_t rows, char *scratch
) noexcept nogil:
    cdef int64_t size = SIZES[step.dtype], a_row, c_row
    if step.dots.count:
        run_dots(&step.dots, slots, kernel.pitch, rows, scratch)
        return
    if not step.product:
        run_loop(&step.loop, slots, kernel.pitch, kernel.dtype, rows, scratch)
        return
    a_row, c_row = kernel.pitch[step.rows], kernel.pitch[step.result]
    if step.parts > 1:
        a_row, c_row = step.inputs, step.units
    cdef char *source = slots[step.rows] + step.column * size
    cdef char *target = slots[step.result] + step.result_column * size
    cdef char *bias = NULL if step.bias < 0 else slots[step.bias]
    if step.table:
        choose_rows(step.dtype, rows, step.parts, step.units, slots[step.matrix], step.table,
                    kernel.dtype[step.rows], slots[step.rows], kernel.pitch[step.rows], step.column,
                    target, kernel.pitch[step.result], step.adds)
    elif step.unpacked:
        run_multiply_few(step.dtype, rows * step.parts, step.units, step.inputs, source, a_row,
                         slots[step.matrix], step.inputs, target, c_row, bias, step.adds)
    else:
        run_multiply(step.dtype, rows * step.parts, step.units, step.inputs, source, a_row,
                     slots[step.matrix], target, c_row, bias, step.adds)
