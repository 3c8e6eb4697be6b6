# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Run programs of native steps in MXNet's engine.

A program is an array of integers: which kernel runs on how many rows of which arrays, which rows
are copied and added up where, which matrices are packed.  Addresses are given when it is pushed.
The engine runs it in a thread of its own, without Python; what it needs is counted by hand.  Records
run one after another, wide ones in several threads.
"""

import os

from cpython.array cimport array
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset

cdef extern from *:
    """
    #define RETAIN(counter) __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED)
    #define RELEASE(counter) __atomic_sub_fetch(counter, 1, __ATOMIC_ACQ_REL)
    #define TAKE(counter) __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED)
    """
    int64_t RETAIN(int64_t *counter) nogil
    int64_t RELEASE(int64_t *counter) nogil
    int64_t TAKE(int64_t *counter) nogil

cdef extern from "c/kernels.h" nogil:
    int MOST_THREADS "GDB_MOST_THREADS"
    void gdb_run_in_threads(void (*work)(void *, int) noexcept nogil, void *given, int count)

include "kernels.pxi"

cdef enum:
    #: Operations that are worth another thread, which takes some 20 us to make.
    WORTH = 4000000

#: MXNet's ``MXEnginePushSyncND``, ``MXNDArrayDetach``, ``MXNDArrayFree``, ``MXNDArrayGetData``, and
#: ``NDArray::Chunk::Reorder2Default``, NULL if MXNet has no oneDNN.
ctypedef int (*Push_)(
    void (*)(void *, void *) noexcept nogil, void *, void (*)(void *) noexcept nogil, void *,
    void **, int, void **, int, void *, int, const char *) noexcept
ctypedef int (*Detach)(void *, void **) noexcept nogil
ctypedef int (*Free)(void *) noexcept nogil
ctypedef int (*Get)(void *, void **) noexcept nogil
ctypedef void (*Reorder)(void *) noexcept nogil
cdef Push_ push_to_engine
cdef Detach detach_array
cdef Free free_array
cdef Get address_of_array
cdef Reorder put_in_order
cdef int32_t[2] CPU = [1, 0]


cdef int give_notice(void *notice) noexcept nogil:
    """Set a byte.

    MXNet calls this when it drops the last reference to a node of its tape.  That may be in a
    thread of its own, at any time: after a ``waitall``, while ``os.fork`` or the end of the process
    waits for that very thread and does not give up Python's global lock, when ``mx.profiler``
    changes its state (which no call of MXNet in another thread survives), or when there is no
    Python any more.  So it needs neither Python nor MXNet.
    """
    (<char *>notice)[0] = 1
    return 1


#: Its address.
GIVE = <uintptr_t>&give_notice


def connect(
    uintptr_t push, uintptr_t detach, uintptr_t release, uintptr_t get_data, uintptr_t reorder
):
    """Take the addresses of these functions of MXNet's."""
    global push_to_engine, detach_array, free_array, address_of_array, put_in_order
    push_to_engine = <Push_>push
    detach_array, free_array = <Detach>detach, <Free>release
    address_of_array, put_in_order = <Get>get_data, <Reorder>reorder


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
    #: Its scratch, and where the first line begins.
    void *memory
    char *scratch
    # Arrays of our own for what is read.  The engine knows of its own memory when it may go, but
    # not of memory that is lent, by NumPy or others: that may go with the last array.
    int64_t held_count
    void **held
    # Bases that are known when the program runs, and the arrays held from `late_held` on.  MXNet
    # gives an array memory when its operator runs; asked at that time, it may give it twice.
    int64_t late_count, late_held
    int64_t *late


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
    cdef int64_t i
    for i in range(push.held_count):
        free_array(push.held[i])
    free(push.held)
    free(push.late)
    free(push.memory)
    release_program(push.program)
    free(push.bases)
    free(push)


cdef int give_scratch(Push *push) except -1:
    push.memory = malloc(push.program.scratch * push.program.threads + 64)
    if push.memory == NULL:
        raise MemoryError("no memory for scratch")
    push.scratch = <char *>lines(<int64_t>push.memory)
    return 0


cdef void *copied(array numbers) except NULL:
    cdef void *found = room(len(numbers), 8)
    memcpy(found, numbers.data.as_voidptr, 8 * len(numbers))
    return found


cdef int hold(Push *push, array handles) except -1:
    """Make arrays of our own that share memory with some."""
    cdef Py_ssize_t i
    for i in range(len(handles)):
        if detach_array(handles_in(handles)[i], &push.held[push.held_count]):
            raise MemoryError("an array is gone")
        push.held_count += 1
    return 0


include "records.pxi"


cdef void run_program(void *context, void *given) noexcept nogil:
    """Run the records of a push, one after another."""
    cdef Push *push = <Push *>given
    cdef char **bases = push.bases
    cdef int64_t i
    cdef int64_t threads = push.program.threads
    cdef Split split = Split(
        push.program.code + push.low, bases, push.scratch, push.program.scratch, 0, 0, 0, INT64_MAX)
    cdef const int64_t *code = split.code
    cdef const int64_t *end = push.program.code + push.high
    cdef void *held
    for i in range(push.late_count):
        held = push.held[push.late_held + i]
        # oneDNN's convolutions leave their weights, and the gradients of these, in an order of their
        # own.  To be asked for the address, MXNet would wait for the engine, in a thread of it.
        if put_in_order != NULL:
            put_in_order((<void **>held)[0])
        address_of_array(held, <void **>&bases[push.late[i]])
    while code < end:
        split.code = code
        if code[0] == LAUNCH:
            code = run_launch(&split, threads)
        elif code[0] == DISTINCT:
            code = run_distinct(&split, threads)
        elif code[0] == ROWS:
            code = run_rows(code, bases)
        elif code[0] == PACK:
            code = run_pack(code, bases)
        else:
            code = run_sum(&split, threads)


cdef class Bases:
    """Arrays that a program works on, for as many pushes as there are.

    What is done with each is a letter of `recording.places`.
    """

    #: Holds them.
    cdef object arrays
    #: Of each, its address, if that is known, and its handle; several may share memory.
    cdef readonly array addresses, handles
    #: Handles of what is read and written, each memory once.
    cdef readonly array read, written
    #: Handles of what is late, and which bases these are.
    cdef array late, places

    def __cinit__(self, arrays, array addresses not None, array handles not None, bytes uses):
        cdef dict read = {}, written = {}
        cdef Py_ssize_t i
        cdef uintptr_t handle
        cdef char use
        self.arrays, self.addresses, self.handles = arrays, addresses, handles
        self.late, self.places = array("Q"), array("Q")
        for i in range(len(uses)):
            use, handle = uses[i], handles.data.as_ulonglongs[i]
            if use in b"RW":
                self.late.append(handle)
                self.places.append(i)
            # The engine wants each memory once, and what is written not among what is read.  Arrays
            # that share it have the first member of MXNet's array in common: what that points to
            # begins with an address, which is null as long as an operator is to give it memory.
            # What is late may be put in order first, which is writing.
            if use in b"wWR":
                written[(<uintptr_t *>handle)[0]] = handle
            elif use in b"ra":
                read[(<uintptr_t *>handle)[0]] = handle
        self.written = array("Q", written.values())
        self.read = array("Q", [read[memory] for memory in read.keys() - written.keys()])


cdef inline void **handles_in(array numbers) noexcept:
    return <void **>numbers.data.as_voidptr


cdef class Program:
    """What the engine is to do, without addresses: records, and the kernels that they name.

    MATRIX and ROW records need so many bytes of scratch.
    """

    cdef Program_ *program

    def __cinit__(self, const int64_t[::1] code, kernels=(), int64_t scratch=0):
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
        self.program.scratch = lines(scratch)
        self.program.threads = THREADS

    def __dealloc__(self):
        if self.program != NULL:
            release_program(self.program)

    def push(self, Bases bases not None, bytes name, int64_t low=0, int64_t high=-1):
        """Hand some numbers of the code to the engine, under a name that the profiler shows.

        Returns the engine's error code.
        """
        cdef Push *push = <Push *>room(1, sizeof(Push))
        RETAIN(&self.program.references)
        push.program = self.program
        push.low, push.high = low, self.program.length if high < 0 else high
        try:
            give_scratch(push)
            push.bases = <char **>copied(bases.addresses)
            push.held = <void **>room(len(bases.read) + len(bases.late), 8)
            hold(push, bases.read)
            push.late_held, push.late_count = push.held_count, len(bases.late)
            hold(push, bases.late)
            push.late = <int64_t *>copied(bases.places)
        except BaseException:
            release_push(push)
            raise
        return push_to_engine(
            run_program, push, release_push, CPU, handles_in(bases.read), len(bases.read),
            handles_in(bases.written), len(bases.written), NULL, 0, name)

    def run(self, const uintptr_t[::1] bases):
        """Run all records here and now; for tests."""
        cdef Push push
        push.program, push.bases = self.program, <char **>&bases[0]
        push.low, push.high, push.late_count = 0, self.program.length, 0
        give_scratch(&push)
        with nogil:
            run_program(NULL, &push)
        free(push.memory)


def use_threads(int most):
    """Let programs that are made from now on use up to so many threads; 0 for one per processor."""
    global THREADS
    THREADS = min(most or os.cpu_count() or 1, MOST_THREADS)


#: As many as MXNet itself uses.
cdef int64_t THREADS
_given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
use_threads(int(_given) if _given.isdigit() else 0)


def packed_bytes(int dtype, int64_t inputs, int64_t units):
    """Return how much memory a packed matrix takes."""
    return gdb_kernels_of(dtype).packed_elements(inputs, units) * SIZES[dtype]


def sum_scratch(int dtype, int64_t units, int64_t inputs, int64_t chunks):
    """Return how much scratch a MATRIX or ROW record takes."""
    return lines(chunks * sizeof(gdb_chunk)) + 64 + gdb_kernels_of(dtype).gradient_scratch(
        units, inputs)
