# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False, auto_pickle=False
"""Run programs of native steps in MXNet's engine.

A program is an array of integers, the records of `executing.pxd`: which kernels run on which rows,
which rows are copied or added, which matrices are packed.  Each push passes the addresses of the
arrays.  The engine runs a program in one of its threads, without Python, so references to programs
and kernels are counted natively.  Records that do not depend on each other run at the same time
(`c/phases.h`), shared by the team of `c/team.h`.
"""

cimport cython
from cpython.array cimport array, clone
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.stdio cimport fputs, stderr
from libc.stdlib cimport abort, calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    #define RETAIN(counter) __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED)
    #define RELEASE(counter) __atomic_sub_fetch(counter, 1, __ATOMIC_ACQ_REL)
    """
    int64_t RETAIN(int64_t *counter) nogil
    int64_t RELEASE(int64_t *counter) nogil
    int32_t ADD_REFERENCE "RETAIN"(int32_t *counter) nogil
    int32_t DROP_REFERENCE "RELEASE"(int32_t *counter) nogil
    void FETCH "__builtin_prefetch"(const void *address) nogil

cdef extern from "c/team.h" nogil:
    ctypedef struct RecordingThread "gdb_recorder":
        int64_t used

    ctypedef struct Crew "gdb_crew":
        pass

    void gdb_use_threads(int count, int processors)
    RecordingThread gdb_find_recorder(int is_this_thread)
    RecordingThread gdb_no_recorder()
    Crew gdb_join_team(char *scratch, int64_t scratch_bytes, RecordingThread recorder)
    void gdb_leave_team(Crew *crew)

cdef extern from "c/records.h" nogil:
    int64_t gdb_sum_scratch(int64_t dtype, int64_t rows, int64_t columns, int64_t chunks)
    ctypedef struct PhaseGroups "struct gdb_groups"
    PhaseGroups *gdb_inspect(int64_t *code, int64_t length)
    void gdb_release_groups(PhaseGroups *groups)
    void gdb_run_records(
        const int64_t *code, int64_t low, int64_t high, const PhaseGroups *groups, char **bases,
        Crew *crew)

cdef extern from "c/phases.h" nogil:
    ctypedef struct Placed "gdb_placed":
        int64_t at, level

    ctypedef struct PhaseGroup "gdb_group":
        int64_t first, stop

    ctypedef struct PhaseGroups "struct gdb_groups":
        int64_t count
        PhaseGroup *groups
        Placed *records

include "code.pxi"
include "kernels.pxi"
include "engine.pxi"
include "bases.pxi"


cdef struct NativeProgram:
    # Owned by all that refer to it: the `Program` that made it, and each `Push` until the engine is
    # done, in any thread and without Python.  Nothing in it changes once it is made, but the count.
    # It owns its code and its groups, and a reference to each kernel.
    int64_t references
    int64_t length
    #: Bytes of scratch per thread.
    int64_t scratch
    int64_t *code
    #: Which records may run at the same time.
    PhaseGroups *groups
    int64_t kernels_count
    gdb_kernel **kernels


cdef struct Push:
    # A run of records [low, high) of a program, with all that it needs until the engine is done.
    # Owned by the engine, to which `Program.push` gives it: one of its threads runs it, without Python,
    # and then frees it by `release_push`.  It owns all that it points to.
    NativeProgram *program
    int64_t low, high
    #: Whether two bases that are written, or one that is and one that is read, share memory: then
    #: records run one after another.
    bint shares_memory
    #: Whether an index that fails is an error.
    bint reports
    RecordingThread recorder
    #: The address of each array.
    char **bases
    #: The allocation, and the scratch in it, aligned to a cache line.
    void *memory
    char *scratch
    # References to deferred arrays, then to those that are read.  The engine keeps its own memory
    # until readers are done, but not memory borrowed from NumPy or others: that may be freed with
    # the last array.
    int64_t held_count
    void **held
    # Bases whose addresses are unknown until the program runs; those that are read come first.
    # MXNet allocates an array when its operator runs; asking for the address at that time may
    # allocate_zeros it twice.
    int64_t deferred_count, deferred_read
    int64_t *deferred
    # Per deferred base that is read, and then per parameter, NULL or a copy of the array in the usual
    # order.
    char **copies
    # Parameters that are whole memories, which are known, with a reference to each.
    int64_t placed_count
    PlacedParameter *placed
    #: NULL, or the notice that it is done, with the giver's reference.
    gdb_notice *notice
    #: NULL, or set to 1 when it runs: by the pushing thread, or while that waits.
    int *has_run


cdef void release_program(NativeProgram *program) noexcept nogil:
    cdef int64_t i
    if RELEASE(&program.references):
        return
    for i in range(program.kernels_count):
        release_kernel(program.kernels[i])
    free(program.kernels)
    gdb_release_groups(program.groups)
    free(program.code)
    free(program)


cdef void release_push(void *context) noexcept nogil:
    cdef Push *push = <Push *>context
    cdef int64_t i
    for i in range(push.held_count):
        free_array(push.held[i])
    if push.copies != NULL:
        for i in range(push.deferred_read + push.placed_count):
            free(push.copies[i])
    for i in range(push.placed_count):
        fetch_placed(push.placed, i, push.placed_count)
        release_memory(push.placed[i].counts)
    free(push.placed)
    free(push.copies)
    free(push.held)
    free(push.deferred)
    free(push.memory)
    release_program(push.program)
    free(push.bases)
    if push.notice != NULL:
        gdb_drop_notice(push.notice)
    free(push)


cdef int allocate_scratch(Push *push) except -1:
    push.memory = malloc(push.program.scratch + 64)
    if push.memory == NULL:
        raise MemoryError("no memory for scratch")
    push.scratch = <char *>round_to_lines(<int64_t>push.memory)
    return 0


cdef void *copy_of(array numbers) except NULL:
    cdef void *memory = allocate_zeros(len(numbers), 8)
    if len(numbers):
        memcpy(memory, numbers.data.as_voidptr, 8 * len(numbers))
    return memory


cdef inline void fetch_array(void **arrays, int64_t i, int64_t count) noexcept nogil:
    """Fetch arrays to the cache that come soon after one, and MXNet's records of their memory.

    A program may read a thousand parameters, which no cache has, and waits for each of them else.
    """
    cdef char *array
    cdef int64_t line
    if i + 2 * FETCHED_AHEAD < count:
        array = <char *>arrays[i + 2 * FETCHED_AHEAD]
        for line in range(0, ARRAY_BYTES, 64):
            FETCH(array + line)
    if i + FETCHED_AHEAD < count:
        # The first members of an array: its memory, and what counts the references to that.
        array = <char *>arrays[i + FETCHED_AHEAD]
        FETCH((<char **>array)[0])
        FETCH((<char **>array)[0] + 64)
        FETCH((<char **>array)[1])


cdef int hold(Push *push, array handles) except -1:
    """Add references to the memory of arrays, which `release_push` drops."""
    cdef Py_ssize_t i, count = len(handles)
    for i in range(count):
        fetch_array(handles_in(handles), i, count)
        if detach_array(handles_in(handles)[i], &push.held[push.held_count]):
            raise MemoryError("MXNet cannot make another reference to an array")
        push.held_count += 1
    return 0



cdef void run_program(void *run_context, void *context) noexcept nogil:
    """Run the records of a push."""
    cdef Push *push = <Push *>context
    cdef char **bases = push.bases
    cdef int64_t i
    cdef Crew crew
    gdb_end_push_queued()
    if push.has_run != NULL:
        push.has_run[0] = 1
    for i in range(push.deferred_count):
        fetch_array(push.held, i, push.deferred_count)
        # oneDNN's convolutions leave weights, and their gradients, in a layout of its own.  Unless
        # the order is restored first, `get_data` waits for the engine, in a thread of it.
        if i < push.deferred_read:
            push.copies[i] = copy_in_order((<Memory **>push.held[i])[0])
            if push.copies[i] != NULL:
                bases[push.deferred[i]] = push.copies[i]
                continue
        elif restore_order != NULL:
            restore_order((<void **>push.held[i])[0])
        if get_data(push.held[i], <void **>&bases[push.deferred[i]]):
            give_up(b"gluon_dynbatch: no memory for a gradient\n")  # MXNet could not allocate_zeros it
    find_placed(push.placed, push.placed_count, bases, push.copies + push.deferred_read)
    crew = gdb_join_team(push.scratch, push.program.scratch, push.recorder)
    gdb_run_records(
        push.program.code, push.low, push.high,
        NULL if push.shares_memory else push.program.groups, bases, &crew)
    gdb_leave_team(&crew)
    if run_context != NULL:
        raise_failure(push.reports)


cdef inline void **handles_in(array numbers) noexcept:
    return <void **>numbers.data.as_voidptr


cdef class Program:
    """Records without addresses, and all kernels whose addresses its LAUNCH records contain.

    They are integers, or a `Code`, whose memory it takes.

    Owned by the prepared plan, or by who runs it once; the engine may still run its `NativeProgram`.

    `scratch` is what MATRIX, ROW and SCATTER records need, in bytes.  Unless records may run
    `together`, they run one after another, and which of them could is not looked for.
    """

    #: This object's reference.
    cdef NativeProgram *program

    def __cinit__(self, code, kernels=(), int64_t scratch=0, bint together=True):
        cdef NativeKernel kernel
        cdef Code words = code if isinstance(code, Code) else Code(code)
        cdef int64_t i
        kernels = tuple(kernels)  # as many as there is room for
        self.program = <NativeProgram *>allocate_zeros(1, sizeof(NativeProgram))
        self.program.references = 1
        self.program.length = words.size
        self.program.code = words.give()
        self.program.kernels = <gdb_kernel **>allocate_zeros(len(kernels), sizeof(void *))
        for i, kernel in enumerate(kernels):
            RETAIN(&kernel.kernel.references)
            self.program.kernels[i] = kernel.kernel
            self.program.kernels_count = i + 1
            scratch = max(scratch, kernel.kernel.scratch)
        self.program.scratch = round_to_lines(scratch)
        if together:
            self.program.groups = gdb_inspect(self.program.code, self.program.length)
            if self.program.groups == NULL:
                raise MemoryError()

    def __dealloc__(self):
        if self.program != NULL:
            release_program(self.program)

    def push(
        self, Bases bases not None, bytes name, int64_t low=0, int64_t high=-1, bint forward=True,
        Notice notice=None, bint here=False,
    ):
        """Push records [low, high) to the engine, under a name that the profiler shows.

        What runs forward is pushed by the thread that records calls.  It reports indices that do
        not fit, and also runs if an array that it reads has failed, so that all values which do not
        depend on the failure are right.  A new notice tells when the engine is done, and all results
        of this push are there or have failed.  If the calling thread needs the results now, it may
        run the records itself (`here`), as soon as the engine lets it: then it waits for no other
        thread to wake up.  Returns the error code of MXNet.
        """
        cdef int code, has_run = 0
        if here:
            code = self.run_here(bases, name, low, high, &has_run)
            if code or has_run:
                if notice is not None:
                    notice.give()
                return code
            # The engine skipped it, as an array has failed.
        cdef Push *push = self.prepared(bases, low, high, forward)
        if notice is not None:
            push.notice = notice.hand_over()
        return push_to_engine(
            run_program, push, release_push, CPU, handles_in(bases.read), len(bases.read),
            handles_in(bases.written), len(bases.written), &NO_SKIP if forward else NULL, 0, name)

    cdef int run_here(
        self, Bases bases, bytes name, int64_t low, int64_t high, int *has_run
    ) except? -1:
        """Run records in this thread, without Python's global lock, unless the engine skips them.

        If the engine runs something before that they need, it runs them, too, and this waits.
        """
        cdef Notice notice = Notice()
        cdef Push *push = self.prepared(bases, low, high, True)
        cdef void **read = handles_in(bases.read)
        cdef void **written = handles_in(bases.written)
        cdef int reads = len(bases.read), writes = len(bases.written), code
        cdef const char *shown = name
        push.recorder, push.has_run, push.notice = gdb_no_recorder(), has_run, notice.hand_over()
        with nogil:
            code = push_to_engine(
                run_program, push, release_push, CPU, read, reads, written, writes, &ASYNC, 0, shown)
            gdb_end_push_queued()
            while not (code or gdb_await_notice(notice.notice, PATIENCE)):
                pass  # a signal now would lose the results
        return code

    cdef Push *prepared(self, Bases bases, int64_t low, int64_t high, bint forward) except NULL:
        """Return a new push, which the engine is to own."""
        cdef Push *push = <Push *>allocate_zeros(1, sizeof(Push))
        RETAIN(&self.program.references)
        push.program = self.program
        push.low, push.high = low, self.program.length if high < 0 else high
        push.shares_memory = bases.shares_memory
        push.reports, push.recorder = forward, gdb_find_recorder(forward)
        try:
            allocate_scratch(push)
            push.bases = <char **>copy_of(bases.addresses)
            push.held = <void **>allocate_zeros(len(bases.deferred) + len(bases.held), 8)
            hold(push, bases.deferred)
            hold(push, bases.held)
            push.deferred = <int64_t *>copy_of(bases.deferred_bases)
            push.copies = <char **>allocate_zeros(
                bases.deferred_read + bases.placed_count, sizeof(char *))
            push.placed = <PlacedParameter *>allocate_zeros(
                bases.placed_count, sizeof(PlacedParameter))
            push.placed_count = bases.hold_placed(push.placed)
            push.deferred_count, push.deferred_read = len(bases.deferred), bases.deferred_read
        except BaseException:
            release_push(push)
            raise
        return push

    @property
    def groups(self):
        """For each group, the level and the place of its records, in the order of running.

        For tests.
        """
        cdef const PhaseGroups *groups = self.program.groups
        cdef const Placed *records = NULL if groups is NULL else groups.records
        cdef int64_t i, k
        return [] if groups is NULL else [
            [(records[k].level, records[k].at)
             for k in range(groups.groups[i].first, groups.groups[i].stop)]
            for i in range(groups.count)
        ]

    def run(self, const uintptr_t[::1] bases):
        """Run all records in the calling thread; for tests."""
        cdef Push push
        push.program, push.bases = self.program, <char **>&bases[0]
        push.low, push.high, push.deferred_count = 0, self.program.length, 0
        push.shares_memory, push.memory, push.scratch = False, NULL, NULL
        push.placed_count, push.deferred_read, push.copies = 0, 0, NULL
        push.recorder = gdb_find_recorder(True)
        push.recorder.used = -1  # it runs the program itself
        allocate_scratch(&push)
        with nogil:
            run_program(NULL, &push)
        free(push.memory)


def use_threads(int count, int processors=0):
    """Set the most threads that share a program, as far as the process may use as many processors.

    The number of these may be given (for tests).
    """
    gdb_use_threads(count, processors)


def packed_bytes(int dtype, int64_t inputs, int64_t units):
    """Return the bytes of a packed matrix."""
    return gdb_kernels_of(dtype).packed_elements(inputs, units) * SIZES[dtype]


def sum_scratch(int dtype, int64_t rows, int64_t columns, int64_t chunks):
    """Return the bytes of scratch of a MATRIX, ROW or SCATTER record."""
    return gdb_sum_scratch(dtype, rows, columns, chunks)
