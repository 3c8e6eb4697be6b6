"""A program in native memory, and a push of it, which the engine owns: a part of `executing.pyx`."""


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
