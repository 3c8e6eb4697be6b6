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
include "pushes.pxi"


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
        memset(&push, 0, sizeof(push))
        push.program, push.bases = self.program, <char **>&bases[0]
        push.high, push.recorder = self.program.length, gdb_no_recorder()
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
