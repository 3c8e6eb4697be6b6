# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Run programs of native steps in MXNet's engine.

A program is an array of integers: which kernel runs on how many rows of which arrays, which rows
are copied and added up where, which matrices are packed.  Addresses are given when it is pushed.
The engine runs it in a thread of its own, without Python; what it needs is counted by hand.
"""

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from .pointwise cimport gdb_access, gdb_instruction, gdb_loop, loop_scratch, run_loop
from .products cimport (
    packed_elements, run_bias_gradient, run_multiply, run_pack, run_weight_gradient,
    weight_gradient_scratch,
)
from .rowwise cimport Dots, add_to_chosen, choose_rows, dots_scratch, run_dots

cdef extern from *:
    """
    #define RETAIN(counter) __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED)
    #define RELEASE(counter) __atomic_sub_fetch(counter, 1, __ATOMIC_ACQ_REL)
    """
    int64_t RETAIN(int64_t *counter) nogil
    int64_t RELEASE(int64_t *counter) nogil

#: First number of each record of a program.
LAUNCH, ROWS, PACK, MATRIX, ROW, ZERO, CHOSEN = range(7)

cdef enum:
    DO_LAUNCH, DO_ROWS, DO_PACK, DO_MATRIX, DO_ROW, DO_ZERO, DO_CHOSEN
    #: Rows of a launch are run in blocks whose values stay in a cache of about this size, but of no
    #: fewer rows than products need to be fast, unless that were too much memory.
    CACHE = 1 << 19
    ROWS_AT_ONCE = 24
    MOST_BYTES = 1 << 26

cdef int64_t *SIZES = [4, 8, 4, 8]


cdef struct Step:
    # A product, dots if there are some, or a loop. If a table has rows, those of the product are chosen from them.
    bint product
    int64_t table
    int32_t dtype, adds, rows, packed, result, bias
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
    #: Where addresses of slots stand in scratch, and how much of that is needed.
    int64_t pointers
    int64_t scratch


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
        ("product", dtype, rows, column, packed, table, inputs, units, result, column, bias or -1, adds,
        parts), ("dots", what `Dots` has), or ("pointwise", dtype, width, registers, loads,
        instructions, stores).
    """

    cdef Kernel_ *kernel

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
        (_, step.dtype, step.rows, step.column, step.packed, step.table, step.inputs, step.units,
         step.result, step.result_column, step.bias, step.adds, step.parts) = given

    cdef add_dots(self, Dots *dots, tuple given):
        (_, dots.dtype, dots.left, dots.left_column, dots.right, dots.right_column, dots.result,
         dots.result_column, dots.count, dots.m, dots.k, dots.n, dots.turn_left, dots.turn_right,
         dots.gradient) = given

    cdef add_loop(self, Step *step, tuple given):
        cdef gdb_loop *loop = &step.loop
        cdef gdb_instruction *found
        _, dtype, width, registers, loads, instructions, stores = given
        loop.dtype, loop.width, loop.n_registers = dtype, width, registers
        loop.n_loads, loop.n_stores = len(loads), len(stores)
        loop.n_instructions = len(instructions)
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


cdef struct Program_:
    int64_t references
    int64_t length
    int64_t scratch
    int64_t *code
    int64_t kernels_count
    Kernel_ **kernels


cdef struct Push:
    Program_ *program
    int64_t low, high
    char **bases


cdef void release_program(Program_ *program) noexcept nogil:
    cdef int64_t i
    if RELEASE(&program.references):
        return
    for i in range(program.kernels_count):
        release_kernel(program.kernels[i])
    free(program.kernels)
    free(program.code)
    free(program)


cdef void release_push(void *given) noexcept nogil:
    cdef Push *push = <Push *>given
    release_program(push.program)
    free(push.bases)
    free(push)


cdef void run_launch(const int64_t *code, char **bases, char *scratch) noexcept nogil:
    cdef Kernel_ *kernel = <Kernel_ *><uintptr_t>code[1]
    cdef int64_t rows = code[2], low = 0, count, s
    cdef const int64_t *places = code + 3
    cdef char **slots = <char **>(scratch + kernel.pointers)
    while low < rows:
        count = min(kernel.block, rows - low)
        for s in range(kernel.slots_count):
            if places[2 * s] < 0:
                slots[s] = scratch + kernel.local[s]
            else:
                slots[s] = bases[places[2 * s]] + places[2 * s + 1]
                slots[s] += low * kernel.pitch[s] * SIZES[kernel.dtype[s]]
        for s in range(kernel.steps_count):
            run_step(kernel, &kernel.steps[s], slots, count, scratch)
        low += count


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
    if step.table:
        choose_rows(
            step.dtype, rows, step.parts, step.units, slots[step.packed], step.table,
            kernel.dtype[step.rows], slots[step.rows], kernel.pitch[step.rows], step.column,
            slots[step.result] + step.result_column * size, kernel.pitch[step.result], step.adds)
        return
    run_multiply(
        step.dtype, rows * step.parts, step.units, step.inputs,
        slots[step.rows] + step.column * size, a_row,
        slots[step.packed],
        slots[step.result] + step.result_column * size, c_row,
        NULL if step.bias < 0 else slots[step.bias], step.adds)


cdef void add_rows(int64_t kind, char *target, const char *source, int64_t count) noexcept nogil:
    cdef int64_t i
    if kind == 0:
        for i in range(count):
            (<float *>target)[i] += (<const float *>source)[i]
    elif kind == 1:
        for i in range(count):
            (<double *>target)[i] += (<const double *>source)[i]
    elif kind == 2:
        for i in range(count):
            (<int32_t *>target)[i] += (<const int32_t *>source)[i]
    else:
        for i in range(count):
            (<int64_t *>target)[i] += (<const int64_t *>source)[i]


cdef const int64_t *run_rows(const int64_t *code, char **bases) noexcept nogil:
    """ROWS, type, bytes of an element, entries, then per entry: what to do (0 copy, 1 add,
    2 zeros), target, source, each a base and an offset in bytes, and elements."""
    cdef int64_t kind = code[1], size = code[2], count = code[3], i
    cdef char *target
    cdef const char *source
    code += 4
    for i in range(count):
        target = bases[code[1]] + code[2]
        source = bases[code[3]] + code[4]
        if code[0] == 0:
            memcpy(target, source, code[5] * size)
        elif code[0] == 1:
            add_rows(kind, target, source, code[5])
        else:
            memset(target, 0, code[5] * size)
        code += 6
    return code


cdef const int64_t *run_sum(const int64_t *code, char **bases, char *scratch) noexcept nogil:
    """MATRIX, ROW or CHOSEN, type, units, inputs, target (base, offset, elements per row), whether
    the second of two rows is the gradient (of CHOSEN the type of places), chunks, then per chunk: rows, and gradient and rows, each a base, an offset
    in bytes and elements per row."""
    cdef int64_t chunks = code[8], i
    cdef const int64_t *chunk = code + 9
    cdef int64_t *rows = <int64_t *>scratch
    cdef int64_t *dy_row = rows + chunks
    cdef int64_t *x_row = dy_row + chunks
    cdef const void **dy = <const void **>(x_row + chunks)
    cdef const void **x = dy + chunks
    for i in range(chunks):
        rows[i], dy_row[i], x_row[i] = chunk[0], chunk[3], chunk[6]
        dy[i] = bases[chunk[1]] + chunk[2]
        x[i] = bases[chunk[4]] + chunk[5]
        chunk += 7
    target = bases[code[4]] + code[5]
    if code[0] == DO_CHOSEN:
        for i in range(chunks):
            add_to_chosen(
                code[1], target, code[2], code[3], rows[i], dy[i], dy_row[i], code[7], x[i],
                x_row[i])
    elif code[0] == DO_ROW:
        run_bias_gradient(code[1], code[2], chunks, rows, dy, dy_row, target, 1)
    else:
        run_weight_gradient(
            code[1], code[2], code[3], 0, code[2], chunks, rows, dy, dy_row, x, x_row, target,
            code[6], 1 | 2 * code[7], scratch + (40 * chunks + 63) // 64 * 64)
    return chunk


cdef void run_program(void *context, void *given) noexcept nogil:
    """Run the records of a push, one after another."""
    cdef Push *push = <Push *>given
    cdef const int64_t *code = push.program.code + push.low
    cdef const int64_t *end = push.program.code + push.high
    cdef char **bases = push.bases
    cdef char *scratch = bases[0]
    while code < end:
        if code[0] == DO_LAUNCH:
            run_launch(code, bases, scratch)
            code += 3 + 2 * (<Kernel_ *><uintptr_t>code[1]).slots_count
        elif code[0] == DO_ROWS:
            code = run_rows(code, bases)
        elif code[0] == DO_PACK:
            # PACK, type, source (base, offset, strides), rows, columns, target (base, offset).
            run_pack(code[1], bases[code[2]] + code[3], code[4], code[5], code[6], code[7],
                     bases[code[8]] + code[9])
            code += 10
        elif code[0] == DO_ZERO:
            memset(bases[code[1]] + code[2], 0, code[3])
            code += 4
        else:
            code = run_sum(code, bases, scratch)


ctypedef int (*PushFunction)(
    void (*)(void *, void *) noexcept nogil, void *, void (*)(void *) noexcept nogil, void *,
    void **, int, void **, int, void *, int, const char *) noexcept

cdef int32_t[2] CPU = [1, 0]


cdef class Program:
    """What the engine is to do, without addresses.

    Parameters
    ----------
    code : numpy.ndarray of int64
        The records, one after another.
    kernels : list of Kernel
        The kernels that they name.
    scratch : int
        Bytes of scratch that MATRIX and ROW records need.
    """

    cdef Program_ *program
    cdef readonly int64_t scratch

    def __cinit__(self, const int64_t[::1] code, list kernels, int64_t scratch):
        cdef Kernel kernel
        cdef int64_t i
        self.program = <Program_ *>room(1, sizeof(Program_))
        self.program.references = 1
        self.program.length = code.shape[0]
        self.program.code = <int64_t *>room(code.shape[0], 8)
        if code.shape[0]:
            memcpy(self.program.code, &code[0], 8 * code.shape[0])
        self.program.kernels = <Kernel_ **>room(len(kernels), sizeof(void *))
        for i, kernel in enumerate(kernels):
            RETAIN(&kernel.kernel.references)
            self.program.kernels[i] = kernel.kernel
            self.program.kernels_count = i + 1
            scratch = max(scratch, kernel.kernel.scratch)
        self.scratch = scratch

    def __dealloc__(self):
        if self.program != NULL:
            release_program(self.program)

    def push(
        self, uintptr_t function, int64_t low, int64_t high, const uintptr_t[::1] bases,
        uintptr_t[::1] read, uintptr_t[::1] written, bytes name,
    ):
        """Hand records to the engine; `read` and `written` are handles of arrays.

        Of arrays that share memory one is named, as written if any is.  Base 0 is scratch.
        """
        cdef Push *push = <Push *>room(1, sizeof(Push))
        cdef int64_t i
        push.low, push.high = low, high
        push.bases = <char **>malloc(8 * bases.shape[0])
        memcpy(push.bases, &bases[0], 8 * bases.shape[0])
        RETAIN(&self.program.references)
        push.program = self.program
        return (<PushFunction>function)(
            run_program, push, release_push, CPU,
            <void **>&read[0] if read.shape[0] else NULL, read.shape[0],
            <void **>&written[0] if written.shape[0] else NULL, written.shape[0],
            NULL, 0, name)


def packed_bytes(int dtype, int64_t inputs, int64_t units):
    """Return how much memory a packed matrix takes."""
    return packed_elements(dtype, inputs, units) * SIZES[dtype]


def sum_scratch(int dtype, int64_t units, int64_t inputs, int64_t chunks):
    """Return how much scratch a MATRIX or ROW record takes."""
    return 40 * chunks + 128 + weight_gradient_scratch(dtype, units, inputs)


def memory_of(uintptr_t handle):
    """Return a number that arrays share if they share memory: MXNet's first member of an array."""
    return (<uintptr_t *>handle)[0]
