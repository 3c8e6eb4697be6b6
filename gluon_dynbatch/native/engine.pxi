"""What native code calls of MXNet and its engine: a part of `executing.pyx`."""

cdef extern from "c/notice.h":
    ctypedef struct gdb_notice:
        pass
    gdb_notice *gdb_new_notice() noexcept
    void gdb_give_notice(void *unused, void *notice) noexcept nogil
    int gdb_is_given(const gdb_notice *notice) noexcept nogil
    int gdb_await_notice(gdb_notice *notice, double seconds) noexcept nogil
    void gdb_drop_notice(void *notice) noexcept nogil

cdef extern from "c/pushing.h" nogil:
    ctypedef struct Patience "gdb_patience":
        pass
    int gdb_begin_push()
    int gdb_await_push(Patience *patience)
    void gdb_end_push()
    void gdb_end_push_queued()

#: Functions of MXNet: ``MXEnginePushSyncND``, ``MXNDArrayDetach``, ``MXNDArrayFree``,
#: ``MXNDArrayGetData``, ``MXInvokeCachedOpEx``, and ``NDArray::Chunk::Reorder2Default``, NULL if MXNet
#: has no oneDNN; and what a ``std::shared_ptr`` does to the counts of references when it goes, NULL if
#: MXNet has it inline.
ctypedef int (*PushToEngine)(
    void (*)(void *, void *) noexcept nogil, void *, void (*)(void *) noexcept nogil, void *,
    void **, int, void **, int, void *, int, const char *) noexcept nogil
ctypedef int (*DetachArray)(void *, void **) noexcept nogil
ctypedef int (*FreeArray)(void *) noexcept nogil
ctypedef int (*GetData)(void *, void **) noexcept nogil
ctypedef int (*InvokeGraph)(void *, int, void **, int *, void ***, const int **) noexcept nogil
ctypedef void (*Reorder)(void *) noexcept nogil
ctypedef void (*ReleaseMemory)(void *) noexcept nogil
#: A function of C++ that throws an exception with a message.
ctypedef void (*Throw)(const char *) noexcept nogil
cdef PushToEngine push_to_engine
cdef DetachArray detach_array
cdef FreeArray free_array
cdef GetData get_data
cdef InvokeGraph invoke_graph
cdef Reorder restore_order
cdef ReleaseMemory release_memory
cdef Throw throw_error


cdef struct Memory:
    # The first members of MXNet's record of a memory: the address and the size in bytes; and the
    # layout, a ``std::shared_ptr``, whose second word counts references.  The layout is NULL unless
    # oneDNN has used the memory.  Owned by MXNet; a `Push` that reads it has a reference to the
    # array.
    char *address
    size_t size
    char[40] between
    void *layout
    int32_t *layout_counts
    char[16] more

#: Type and number of the device.
cdef int32_t[2] CPU = [1, 0]
#: MXNet's number for operations that also run if an array that they read has failed.
cdef int32_t NO_SKIP = 7
#: And for those that run in the thread that pushes them, if nothing else has to end first; they do not
#: run if an array that they read has failed.
cdef int32_t ASYNC = 4
#: How many operations have failed.
cdef int64_t failures = 0
#: Seconds after which a waiting thread looks for signals.
cdef double PATIENCE = 0.1


cdef int give_notice(void *notice) noexcept nogil:
    """Set a byte.

    MXNet calls this when it drops the last reference to a node of its tape.  That may happen in one
    of its threads, at any time: after a ``waitall``; while ``os.fork`` or the end of the process
    holds Python's global lock and waits for that thread; while ``mx.profiler`` changes its state,
    which no call of MXNet in another thread survives; or after Python is gone.  So this must use
    neither Python nor MXNet.
    """
    (<char *>notice)[0] = 1
    return 1


#: The address of `give_notice`.
GIVE = <uintptr_t>&give_notice


cdef void raise_failure(bint reports) noexcept nogil:
    """If an index has failed, throw an exception, which the engine keeps for a reader of a result.

    Without `reports`, drop the failure: a backward pass computes again what has been reported.

    Only for the end of an operation of the engine: what is above it on the stack is left at once.
    """
    cdef char[128] message
    global failures
    if take_failure(message, sizeof(message)) and reports and throw_error != NULL:
        failures += 1
        throw_error(message)


def count_failures():
    """Return how many programs have failed so far: the engine keeps that with their arrays."""
    return failures


def can_fail():
    """Return whether native code can report an index that does not fit."""
    return throw_error != NULL


def use_mxnet(
    uintptr_t push, uintptr_t detach, uintptr_t release, uintptr_t data, uintptr_t invoke,
    uintptr_t reorder, uintptr_t release_counted, uintptr_t throw,
):
    """Store the addresses of functions of MXNet and C++; the last three may be 0."""
    global push_to_engine, detach_array, free_array, get_data, restore_order, release_memory
    global throw_error, invoke_graph
    throw_error = <Throw>throw
    push_to_engine = <PushToEngine>push
    detach_array, free_array = <DetachArray>detach, <FreeArray>release
    get_data, restore_order = <GetData>data, <Reorder>reorder
    invoke_graph = <InvokeGraph>invoke
    release_memory = <ReleaseMemory>release_counted


cdef int give_up(const char *message) noexcept nogil:
    """End the process: in a thread of the engine nothing can be raised, and to go on would write to any
    address.
    """
    fputs(message, stderr)
    abort()


cdef char *copy_in_order(const Memory *memory) noexcept nogil:
    """Return a copy of an array in the usual order; NULL if its memory is in that order.

    Others may be reading the memory.  So the order is restored in another record, which has only
    the layout in common with that of MXNet.  The caller owns the copy.
    """
    cdef Memory[4] record  # longer than MXNet's
    cdef int32_t *references
    if restore_order == NULL or memory.layout == NULL:
        return NULL
    memset(record, 0, sizeof(record))
    record[0] = memory[0]
    record[0].address = <char *>malloc(memory.size)
    if record[0].address == NULL:
        give_up(b"gluon_dynbatch: no memory for a parameter in the usual order\n")
    references = record[0].layout_counts + 2
    ADD_REFERENCE(references)
    restore_order(record)
    if record[0].layout == NULL:
        return record[0].address
    DROP_REFERENCE(references)  # it is not the last one
    free(record[0].address)
    return NULL


cdef int begin_push() except 0:
    """Wait until no other thread pushes; return 1, or -1 within a push of this thread."""
    cdef int begins = gdb_begin_push()
    cdef Patience patience
    if not begins:
        memset(&patience, 0, sizeof(patience))
    while not begins:
        with nogil:
            begins = gdb_await_push(&patience)
        if not begins:
            PyErr_CheckSignals()
    return begins


cdef int run_graph(
    void *graph, int count, void **read, int *written, void ***results, const int **kinds
) except? -2:
    """Call a `CachedOp` of MXNet with so many arrays, while no other thread pushes.

    Returns the error code of MXNet, and so many results with the kinds of their storage, in memory
    of this thread to which its next such call writes.
    """
    cdef int begins = begin_push(), failed
    with nogil:
        failed = invoke_graph(graph, count, read, written, results, kinds)
    if begins > 0:
        gdb_end_push()
    return failed


cdef class OneAtATime:
    """A function that pushes to the engine, and is called while no other one of these pushes.

    A thread whose push waits within MXNet lets others push meanwhile (`c/pushing.c`).  In native
    code, no interrupt can leave it the one that pushes.  Owned by who calls it.
    """

    cdef object function

    def __init__(self, function not None):
        self.function = function

    def __call__(self, *args):
        cdef int begins = begin_push()
        try:
            return self.function(*args)
        finally:
            if begins > 0:
                gdb_end_push()


cdef void do_nothing(void *run_context, void *context) noexcept nogil:
    pass


def give_back(list handles not None):
    """Push an operation that does nothing and counts as writing arrays, each with its own memory.

    It runs after all that was pushed earlier and reads or writes one of them, and before all that
    is pushed later and does.  Returns the error code of MXNet.
    """
    cdef array written = array("Q", handles)
    return push_to_engine(
        do_nothing, NULL, NULL, CPU, NULL, 0, handles_in(written), len(written), &NO_SKIP, 0,
        b"gluon_dynbatch return")


cdef class Notice:
    """Tells when the engine has done all that was pushed so far and writes some arrays.

    `handles` are those of the arrays.  Without them, it tells when a push of a program is done, to
    which `Program.push` ties it.  Errors of that work stay with the arrays.  Owned by who waits for
    the work, until it is done.
    """

    #: Owned by this object and by the engine, which drops its reference when it has run or refused
    #: the operation; the last of both frees it.  The engine's threads need no Python for that.
    cdef gdb_notice *notice
    #: Whether the giver's reference is still here.
    cdef bint has_givers

    def __cinit__(self, handles=None):
        cdef dict memories
        cdef array read
        self.notice = gdb_new_notice()
        if self.notice == NULL:
            raise MemoryError()
        self.has_givers = handles is None
        if handles is None:
            return
        # The engine accepts each memory only once.
        memories = {(<uintptr_t *><uintptr_t>handle)[0]: handle for handle in handles}
        read = array("Q", memories.values())
        if push_to_engine(
            gdb_give_notice, self.notice, gdb_drop_notice, CPU, handles_in(read), len(read), NULL,
            0, &NO_SKIP, 0, b"gluon_dynbatch notice",
        ):
            raise MemoryError("MXNet's engine took no notice")

    def __dealloc__(self):
        if self.has_givers:
            gdb_drop_notice(self.notice)
        if self.notice != NULL:
            gdb_drop_notice(self.notice)

    cdef void give(self) noexcept:
        """Give the notice, unless another thread is to do that."""
        gdb_drop_notice(self.hand_over())

    cdef gdb_notice *hand_over(self) noexcept:
        """Return the notice with the giver's reference, once."""
        if not self.has_givers:
            return NULL
        self.has_givers = False
        return self.notice

    @property
    def given(self):
        """Whether it is done."""
        return bool(gdb_is_given(self.notice))

    def wait(self):
        """Wait without Python's global lock."""
        cdef int given = gdb_is_given(self.notice)
        while not given:
            with nogil:
                given = gdb_await_notice(self.notice, PATIENCE)
            PyErr_CheckSignals()
