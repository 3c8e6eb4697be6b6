# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Run programs of native steps in MXNet's engine.

A program is an array of integers: which kernel runs on how many rows of which arrays, which rows
are copied and added up where, which matrices are packed.  Addresses are given when it is pushed.
The engine runs it in a thread of its own, without Python; what it needs is counted by hand.  Records
run one after another, wide ones in several threads.
"""

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy, memset

from .launching cimport ROWS_AT_ONCE, Kernel, Kernel_, release_kernel, room, run_block
from .products cimport (
    packed_elements, run_bias_gradient, run_pack, run_weight_gradient, weight_gradient_scratch,
)
from .rowwise cimport add_to_chosen

cdef extern from *:
    """
    #define RETAIN(counter) __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED)
    #define RELEASE(counter) __atomic_sub_fetch(counter, 1, __ATOMIC_ACQ_REL)
    #define TAKE(counter) __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED)
    """
    int64_t RETAIN(int64_t *counter) nogil
    int64_t RELEASE(int64_t *counter) nogil
    int64_t TAKE(int64_t *counter) nogil

cdef extern from "c/team.h" nogil:
    int gdb_threads(int most)
    void gdb_together(void (*work)(void *, int) noexcept nogil, void *given, int count)

#: First number of each record of a program.
LAUNCH, ROWS, PACK, MATRIX, ROW, ZERO, CHOSEN = range(7)

cdef enum:
    DO_LAUNCH, DO_ROWS, DO_PACK, DO_MATRIX, DO_ROW, DO_ZERO, DO_CHOSEN
    #: Operations that are worth another thread, which takes some 20 us to wake up.
    WORTH = 4000000

cdef int64_t *SIZES = [4, 8, 4, 8]


#: MXNet's ``MXNDArrayDetach`` and ``MXNDArrayFree``.
ctypedef int (*Detach)(void *, void **) noexcept nogil
ctypedef int (*Free)(void *) noexcept nogil
cdef Detach detach_array
cdef Free free_array


def connect(uintptr_t detach, uintptr_t release):
    """Take the addresses of two functions of MXNet's."""
    global detach_array, free_array
    detach_array, free_array = <Detach>detach, <Free>release


cdef struct Held:
    # Arrays of our own for what is read.  The engine knows of its own memory when it may go, but
    # not of memory that is lent, by NumPy or others: that may go with the last array.
    int64_t count
    void **arrays


cdef int hold(Held *held, void **handles, int64_t count) except -1:
    cdef int64_t i
    held.arrays = <void **>room(count, 8)
    for i in range(count):
        if detach_array(handles[i], &held.arrays[i]):
            raise MemoryError("an array is gone")
        held.count += 1
    return 0


cdef void let_go(Held *held) noexcept nogil:
    cdef int64_t i
    for i in range(held.count):
        free_array(held.arrays[i])
    free(held.arrays)


cdef struct Program_:
    int64_t references
    int64_t length
    #: Bytes of scratch of each thread, and how many threads there is scratch for.
    int64_t scratch, threads
    int64_t *code
    int64_t kernels_count
    Kernel_ **kernels


cdef struct Push:
    Program_ *program
    int64_t low, high
    char **bases
    Held held


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
    let_go(&push.held)
    release_program(push.program)
    free(push.bases)
    free(push)


cdef struct Split:
    # A record in pieces, of which each thread takes the next one until there are no more.
    const int64_t *code
    char **bases
    #: Each thread has its own.
    char *scratch
    int64_t scratch_each
    #: Rows of a piece at most, rows of all pieces, and the piece that is next.
    int64_t piece, rows, next


cdef void run_parts(void *given, int number) noexcept nogil:
    """Run pieces of the parts of a launch, none of which has rows of two parts."""
    cdef Split *split = <Split *>given
    cdef char *scratch = split.scratch + number * split.scratch_each
    cdef const int64_t *parts = split.code + 2
    cdef int64_t count = split.code[1], part = 0, before = 0, taken, size, low
    while True:
        taken = TAKE(&split.next)
        while True:
            if part == count:
                return
            size = min(split.piece, (<Kernel_ *><uintptr_t>parts[2 * part]).block)
            low = (taken - before) * size
            if low < parts[2 * part + 1]:
                break
            before += (parts[2 * part + 1] + size - 1) // size
            part += 1
        run_block(parts, part, parts + 2 * count, split.bases, scratch, low,
                  min(low + size, parts[2 * part + 1]))


cdef void run_pieces(void *given, int number) noexcept nogil:
    cdef Split *split = <Split *>given
    cdef char *scratch = split.scratch + number * split.scratch_each
    cdef int64_t low
    while True:
        low = TAKE(&split.next) * split.piece
        if low >= split.rows:
            return
        run_matrix(split.code, split.bases, scratch, low, min(low + split.piece, split.rows))


cdef int64_t even(int64_t rows, int64_t parts) noexcept nogil:
    """Return the rows of a piece of so many; products compute whole blocks of them alike."""
    return ((rows + parts - 1) // parts + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE * ROWS_AT_ONCE


cdef const int64_t *run_launch(Split *split, int64_t threads) noexcept nogil:
    """LAUNCH, number of parts, per part kernel and rows, then per slot a base, -1 for a block of
    rows of scratch, and an offset in bytes."""
    cdef const int64_t *parts = split.code + 2
    cdef Kernel_ *kernel = NULL
    cdef int64_t count = split.code[1], work = 0, i
    split.rows, split.next = 0, 0
    for i in range(count):
        kernel = <Kernel_ *><uintptr_t>parts[2 * i]
        split.rows += parts[2 * i + 1]
        work += parts[2 * i + 1] * kernel.work
    threads = max(min(threads, work // WORTH), 1)
    split.piece = even(split.rows, threads)
    gdb_together(run_parts, split, threads)
    return parts + 2 * count + 2 * kernel.slots_count


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
    """ROWS, type, bytes of an element, entries, target (base, offset), then per entry: what to do
    (0 copy, 1 add, 2 zeros), first element in the target, source (base, offset), elements."""
    cdef int64_t kind = code[1], size = code[2], count = code[3], i
    cdef char *first = bases[code[4]] + code[5]
    cdef char *target
    cdef const char *source
    code += 6
    for i in range(count):
        target = first + code[1] * size
        source = bases[code[2]] + code[3]
        if code[0] == 0:
            memcpy(target, source, code[4] * size)
        elif code[0] == 1:
            add_rows(kind, target, source, code[4])
        else:
            memset(target, 0, code[4] * size)
        code += 5
    return code


cdef const int64_t *run_sum(Split *split, int64_t threads) noexcept nogil:
    """MATRIX, ROW or CHOSEN, type, units, inputs, target (base, offset, elements per row), whether
    the second of two rows is the gradient (of CHOSEN the type of places), chunks, then per chunk:
    rows, and gradient and rows, each a base, an offset in bytes and elements per row."""
    cdef const int64_t *code = split.code
    cdef int64_t work = 0, i
    split.rows, split.piece, split.next = code[2], code[2], 0
    if code[0] == DO_MATRIX:
        for i in range(code[8]):
            work += 2 * code[2] * code[3] * code[9 + 7 * i]
        threads = max(min(threads, work // WORTH), 1)
        split.piece = even(split.rows, threads)
        gdb_together(run_pieces, split, threads)
    else:
        run_matrix(code, split.bases, split.scratch, 0, code[2])
    return code + 9 + 7 * code[8]


cdef void run_matrix(
    const int64_t *code, char **bases, char *scratch, int64_t low, int64_t high
) noexcept nogil:
    """Compute some rows of the sum of a MATRIX record, or that of another record."""
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
            add_to_chosen(code[1], target, code[2], code[3], rows[i], dy[i], dy_row[i], code[7],
                          x[i], x_row[i])
    elif code[0] == DO_ROW:
        run_bias_gradient(code[1], code[2], chunks, rows, dy, dy_row, target, 1)
    else:
        run_weight_gradient(
            code[1], code[2], code[3], low, high, chunks, rows, dy, dy_row, x, x_row, target,
            code[6], 1 | 2 * code[7], scratch + (40 * chunks + 63) // 64 * 64)


cdef void run_program(void *context, void *given) noexcept nogil:
    """Run the records of a push, one after another."""
    cdef Push *push = <Push *>given
    cdef char **bases = push.bases
    cdef int64_t threads = min(push.program.threads, <int64_t>gdb_threads(0))
    cdef Split split = Split(
        push.program.code + push.low, bases, bases[0], push.program.scratch, 0, 0, 0)
    cdef const int64_t *code = split.code
    cdef const int64_t *end = push.program.code + push.high
    while code < end:
        split.code = code
        if code[0] == DO_LAUNCH:
            code = run_launch(&split, threads)
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
            code = run_sum(&split, threads)


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
        self.program.scratch = (scratch + 63) // 64 * 64
        self.program.threads = gdb_threads(0)

    def __dealloc__(self):
        if self.program != NULL:
            release_program(self.program)

    @property
    def scratch(self):
        """Bytes of scratch that a push takes."""
        return self.program.scratch * self.program.threads

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
        hold(&push.held, <void **>&read[0] if read.shape[0] else NULL, read.shape[0])
        return (<PushFunction>function)(
            run_program, push, release_push, CPU,
            <void **>&read[0] if read.shape[0] else NULL, read.shape[0],
            <void **>&written[0] if written.shape[0] else NULL, written.shape[0],
            NULL, 0, name)


cdef struct Gather:
    int64_t count
    char *target
    #: Where each piece is, and its bytes.
    char **sources
    int64_t *sizes
    Held held


cdef void run_gather(void *context, void *given) noexcept nogil:
    cdef Gather *gather = <Gather *>given
    cdef char *target = gather.target
    cdef int64_t i
    for i in range(gather.count):
        memcpy(target, gather.sources[i], gather.sizes[i])
        target += gather.sizes[i]


cdef void release_gather(void *given) noexcept nogil:
    cdef Gather *gather = <Gather *>given
    let_go(&gather.held)
    free(gather.sources)
    free(gather.sizes)
    free(gather)


cdef int by_memory(const void *one, const void *other) noexcept nogil:
    cdef uintptr_t a = (<uintptr_t **>one)[0][0], b = (<uintptr_t **>other)[0][0]
    return (a > b) - (a < b)


def gather(
    uintptr_t function, const uintptr_t[::1] sources, uintptr_t[::1] handles,
    const int64_t[::1] counts, int64_t size, uintptr_t target, uintptr_t target_handle,
):
    """Let the engine copy pieces of memory side by side; return its error code.

    Parameters
    ----------
    function : int
        Address of ``MXEnginePushSyncND``.
    sources, handles
        Where the pieces are, and handles of their arrays, which this sorts.
    counts : numpy.ndarray of int64
        Elements of each.
    size : int
        Bytes of an element.
    target, target_handle : int
        Where they are to stand, and the handle of that array.
    """
    cdef Gather *made = <Gather *>room(1, sizeof(Gather))
    cdef int64_t count = sources.shape[0], distinct = 0, i
    cdef uintptr_t **known = <uintptr_t **>&handles[0]
    made.count, made.target = count, <char *>target
    made.sources = <char **>room(count, 8)
    made.sizes = <int64_t *>room(count, 8)
    for i in range(count):
        made.sources[i], made.sizes[i] = <char *>sources[i], counts[i] * size
    qsort(known, count, 8, by_memory)
    for i in range(count):
        # The engine wants each memory once, and what is written not among what is read.
        if known[i][0] != (<uintptr_t *>target_handle)[0]:
            if distinct == 0 or known[i][0] != known[distinct - 1][0]:
                known[distinct] = known[i]
                distinct += 1
    hold(&made.held, <void **>known, distinct)
    return (<PushFunction>function)(
        run_gather, made, release_gather, CPU, <void **>known, distinct,
        <void **>&target_handle, 1, NULL, 0, b"gluon_dynbatch fill")


def use_threads(int most):
    """Use up to so many threads from now on; for tests."""
    gdb_threads(most)


def packed_bytes(int dtype, int64_t inputs, int64_t units):
    """Return how much memory a packed matrix takes."""
    return packed_elements(dtype, inputs, units) * SIZES[dtype]


def sum_scratch(int dtype, int64_t units, int64_t inputs, int64_t chunks):
    """Return how much scratch a MATRIX or ROW record takes."""
    return 40 * chunks + 128 + weight_gradient_scratch(dtype, units, inputs)


def memory_of(uintptr_t handle):
    """Return a number that arrays share if they share memory: MXNet's first member of an array."""
    return (<uintptr_t *>handle)[0]
