"""The arrays that a program works on: a part of `executing.pyx`."""

cdef array UNSIGNED = array("Q")


cdef struct Accesses:
    # A plain value, in a table of `Bases.__cinit__`: what a program does with one memory: handles of arrays that have it, one that is written, one
    # that is read, and one that is read and not deferred; 0 without one.
    uintptr_t memory, written, read, lent


cdef struct PlacedParameter:
    # A row of `recording.arrays_of_bases`, a plain value: the base of a parameter; its array and its
    # memory; and what counts the references to that, NULL if the array is deferred.
    int64_t base
    void *handle
    Memory *memory
    int32_t *counts


cdef enum:
    #: How many arrays are on their way to the cache, and the bytes that are read of each.
    FETCHED_AHEAD = 12
    ARRAY_BYTES = 256


cdef inline void fetch_placed(const PlacedParameter *placed, int64_t i, int64_t count) noexcept nogil:
    """Fetch MXNet's records of memory to the cache that come soon after one."""
    if i + FETCHED_AHEAD < count:
        FETCH(placed[i + FETCHED_AHEAD].memory)
        FETCH(<char *>placed[i + FETCHED_AHEAD].memory + 64)
        FETCH(placed[i + FETCHED_AHEAD].counts)


cdef void find_placed(
    const PlacedParameter *placed, int64_t count, char **addresses, char **copies
) noexcept nogil:
    """Find the addresses of parameters, at their bases; copies are as those of a `Push`."""
    cdef const Memory *memory
    cdef int64_t i
    for i in range(count):
        fetch_placed(placed, i, count)
        memory = placed[i].memory
        copies[i] = copy_in_order(memory)
        if copies[i] == NULL and memory.address == NULL:
            # What should have written it has failed; so will who reads what comes of it.
            copies[i] = <char *>calloc(memory.size + 1, 1)
            if copies[i] == NULL:
                give_up(b"gluon_dynbatch: no memory for a parameter that has failed\n")
        addresses[placed[i].base] = memory.address if copies[i] == NULL else copies[i]


cdef Accesses *accesses_of(Accesses *table, int64_t mask, uintptr_t memory) noexcept nogil:
    """Return the entry of a memory in a hash table, a new one if it has none."""
    cdef int64_t i = <int64_t>((<uint64_t>memory * 0x9E3779B97F4A7C15ULL) >> 32) & mask
    while table[i].memory != memory and table[i].memory:
        i = (i + 1) & mask
    table[i].memory = memory
    return &table[i]


cdef inline int append_number(array numbers, uintptr_t number) noexcept:
    """Append to an array that has room."""
    numbers.data.as_ulonglongs[numbers.ob_size] = number
    numbers.ob_size += 1
    return 0


cdef array room_for(Py_ssize_t count):
    """Return an empty array with room for some numbers."""
    cdef array numbers = clone(UNSIGNED, count, False)
    numbers.ob_size = 0
    return numbers


cdef class Bases:
    """The arrays that a program works on, in any number of pushes.

    Each has a letter for its use: see `recording.addresses_and_handles`.  Those of parameters are
    placed: see `recording.arrays_of_bases`.  Owned by
    the run of a plan, which pushes from it; nothing in it changes.  The engine may still work on the arrays when it
    is gone: each `Push` copies the addresses, and holds the memory that the engine does not.
    """

    #: Keeps the arrays alive.
    cdef object arrays
    #: Address (0 if it is deferred) and handle of each array; arrays may share memory.
    cdef readonly array addresses, handles
    #: Handles of arrays that are read, and written, one for each memory.
    cdef readonly array read, written
    #: Those that are read and not deferred.
    cdef array held
    #: Handles and bases of arrays whose addresses are unknown until the program runs; those that
    #: are read, `deferred_read`, come first.
    cdef array deferred, deferred_bases
    cdef int64_t deferred_read
    #: Entries of `PlacedParameter`, and their number.
    cdef array placed
    cdef int64_t placed_count
    #: Whether a base that is written shares memory with another one.
    cdef bint shares_memory

    def __cinit__(
        self, arrays, array addresses not None, array handles not None, bytes uses, array placed=None,
    ):
        cdef Py_ssize_t count = len(uses)
        cdef int64_t size = 4
        cdef Accesses *table
        while size < 2 * count:
            size *= 2
        self.arrays, self.addresses, self.handles = arrays, addresses, handles
        self.deferred, self.deferred_bases = room_for(count), room_for(count)
        self.placed = UNSIGNED if placed is None else placed
        self.placed_count = 8 * len(self.placed) // <int64_t>sizeof(PlacedParameter)
        self.defer(uses, b"R")
        self.place()
        self.deferred_read = len(self.deferred)
        self.defer(uses, b"W")
        self.written, self.read, self.held = room_for(count), room_for(count), room_for(count)
        table = <Accesses *>allocate_zeros(size, sizeof(Accesses))
        self.find_memories(uses, table, size)
        free(table)

    cdef int defer(self, bytes uses, char letter) noexcept:
        """Append the arrays of one use to those that are deferred."""
        cdef const char *use = uses
        cdef Py_ssize_t i
        for i in range(len(uses)):
            if use[i] == letter:
                append_number(self.deferred, self.handles.data.as_ulonglongs[i])
                append_number(self.deferred_bases, i)
        return 0

    cdef int place(self) noexcept:
        """Note the handles of parameters, and append those to the deferred arrays that have to be."""
        cdef PlacedParameter *placed = <PlacedParameter *>self.placed.data.as_voidptr
        cdef int64_t i
        for i in range(self.placed_count):
            self.handles.data.as_ulonglongs[placed[i].base] = <uintptr_t>placed[i].handle
            if placed[i].counts == NULL or release_memory == NULL:
                placed[i].counts = NULL
                append_number(self.deferred, <uintptr_t>placed[i].handle)
                append_number(self.deferred_bases, placed[i].base)
        return 0

    cdef int find_memories(self, bytes uses, Accesses *table, int64_t size) noexcept:
        """Find out which memories are read and written, given an empty table with room for them.

        The engine accepts each memory only once, either as read or as written.  Arrays that share
        memory have equal first members, which point to MXNet's record of the memory.
        """
        cdef const char *use = uses
        cdef Accesses *entry
        cdef const PlacedParameter *placed = <const PlacedParameter *>self.placed.data.as_voidptr
        cdef uintptr_t handle
        cdef Py_ssize_t i, writes = 0
        cdef int64_t k
        self.shares_memory = False
        for i in range(len(uses)):
            if use[i] not in b"wWRra":
                continue
            handle = self.handles.data.as_ulonglongs[i]
            entry = accesses_of(table, size - 1, (<uintptr_t *>handle)[0])
            if use[i] in b"wW":
                entry.written = handle
                writes += 1
            else:
                entry.read = handle
                if use[i] != b"R":
                    entry.lent = handle
        for k in range(self.placed_count):
            entry = accesses_of(table, size - 1, <uintptr_t>placed[k].memory)
            entry.read = <uintptr_t>placed[k].handle
        for k in range(size):
            entry = &table[k]
            if entry.written:
                append_number(self.written, entry.written)
                self.shares_memory |= entry.read != 0
            elif entry.read:
                append_number(self.read, entry.read)
                if entry.lent:
                    append_number(self.held, entry.lent)
        self.shares_memory |= writes > len(self.written)
        return 0

    cdef int64_t hold_placed(self, PlacedParameter *held) noexcept:
        """Add references to the memory of parameters, and return how many are noted in a table."""
        cdef const PlacedParameter *placed = <const PlacedParameter *>self.placed.data.as_voidptr
        cdef int64_t i, count = 0
        for i in range(self.placed_count):
            fetch_placed(placed, i, self.placed_count)
            if placed[i].counts != NULL:
                ADD_REFERENCE(placed[i].counts + 2)
                held[count] = placed[i]
                count += 1
        return count
