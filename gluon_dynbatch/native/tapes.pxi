# Tapes, as flat arrays, and the owners of lazy arrays; a part of `recording.pyx`.

cdef class Owner:
    """The owner of lazy arrays until they are real.

    Owned by its arrays: each holds a reference to it, in a slot.
    """

    #: The lazy arrays that were ever added.  A tape holds references, so an array whose reference
    #: count is 1 is held by the tape alone; other owners hold weak references.
    cdef public list lazies

    cdef object member(self, lazy):
        """Return what has to be appended to `lazies` to add a lazy array."""
        return lazy


@cython.final
cdef class Identities:
    """Numbers of arrays by their ids: a hash table, as a dictionary makes an object of each id.

    Owned by a tape, which holds the arrays.
    """

    #: Ids, 0 where there is none, and numbers; as many as `mask` and one, a power of two.
    cdef uint64_t *ids
    cdef int32_t *numbers
    cdef Py_ssize_t mask, count

    def __cinit__(self):
        self.mask = -1

    def __dealloc__(self):
        PyMem_Free(self.ids)
        PyMem_Free(self.numbers)

    cdef inline Py_ssize_t place(self, uint64_t identity) noexcept:
        """Return the place of an id, or the one that it would have; there is a table."""
        cdef Py_ssize_t i = <Py_ssize_t>(identity * <uint64_t>0x9E3779B97F4A7C15 >> 32) & self.mask
        while self.ids[i] and self.ids[i] != identity:
            i = (i + 1) & self.mask
        return i

    cdef inline int32_t find(self, uint64_t identity) noexcept:
        """Return the number of an array, or -1."""
        cdef Py_ssize_t i
        if not self.count:
            return -1
        i = self.place(identity)
        return self.numbers[i] if self.ids[i] else -1

    cdef int add(self, uint64_t identity, int32_t number) except -1:
        """Add an array that is new; runs no Python code."""
        cdef Py_ssize_t i
        if 2 * self.count >= self.mask:
            self.grow()
        i = self.place(identity)
        self.ids[i], self.numbers[i] = identity, number
        self.count += 1
        return 0

    cdef int grow(self) except -1:
        """Make the table four times as large."""
        cdef Py_ssize_t i, k, before = self.mask + 1, size = max(4 * before, 64)
        cdef uint64_t *ids = self.ids
        cdef int32_t *numbers = self.numbers
        new_ids = <uint64_t *>PyMem_Calloc(size, sizeof(uint64_t))
        new_numbers = <int32_t *>PyMem_Calloc(size, sizeof(int32_t))
        if new_ids == NULL or new_numbers == NULL:
            PyMem_Free(new_ids)
            PyMem_Free(new_numbers)
            raise MemoryError("no memory for the arrays of a tape")
        self.ids, self.numbers, self.mask = new_ids, new_numbers, size - 1
        for i in range(before):
            if ids[i]:
                k = self.place(ids[i])
                self.ids[k], self.numbers[k] = ids[i], numbers[i]
        PyMem_Free(ids)
        PyMem_Free(numbers)
        return 0

    def get(self, identity):
        """Return the number of an array, or None."""
        number = self.find(identity)
        return None if number < 0 else number


#: After so many calls, the recorder decides whether to compute them during recording.
CALLS_PER_CHECK = 1024


cdef class FlatTape(Owner):
    """The flat arrays of `record.tape.Tape`.

    Owned by its recorder while it takes calls, and by each flush while it computes them.  It is in
    cycles with its recorder and with its lazy arrays, which the collector does not see; `close`
    ends both.  The flat arrays only grow, and stay when it is closed; their addresses are valid
    until they grow.
    """

    #: Whether calls may still be recorded; and whether one of its values may get a gradient.
    cdef public bint open
    cdef bint trained
    #: Computes the values when a lazy array of this tape is read.
    cdef public object recorder
    #: Why the lazy arrays have no values, if computing them failed.
    cdef public object error
    #: Time of the first call, by ``time.perf_counter``, plus the time spent waiting for values
    #: since then; 0 before the first call.
    cdef public double started
    #: Number of calls at which the recorder is asked next: see `CALLS_PER_CHECK`.
    cdef public Py_ssize_t next_check
    #: The operations of products in the first calls, and how many calls that are: see
    #: `lowering.work_of`.
    cdef public double work
    cdef public Py_ssize_t weighed
    #: Per node: id of its entry, and its first value.
    cdef readonly array node_entry, node_value0
    #: Per operand, in the order of nodes: value and offset in elements.
    cdef readonly array sources, offsets
    #: Per value: type id.
    cdef readonly array value_type
    #: The entries of all nodes, by id.
    cdef readonly dict entries
    #: Per node: the number of the `Place` of the user's call.
    cdef readonly array node_place
    #: The places in `Calls.read_places` at which samples read values and wait for this tape.
    cdef readonly list awaited_places
    #: Per external array: the array that was passed, held so that its id is not reused.
    cdef readonly list originals
    #: Per external array: the array that a flush reads, see `external`; and its value.
    cdef public list externals
    cdef readonly array external_values
    #: Numbers of the external arrays that are lazy ones, kept in arenas.
    cdef readonly list kept
    #: Values of the arrays in `originals`, by id of the array.
    cdef readonly Identities external_ids
    #: See `next_serial`.
    cdef uint64_t serial
    #: One more than the numbers of some of the entries that `entries` has.
    cdef int64_t[256] noted
    #: By dtype and device, the chunk that takes the next constant; and, by value, the chunk or
    #: constant that it is.
    cdef dict chunks, holders

    def __cinit__(self):
        self.open, self.serial = True, next_serial()
        self.chunks, self.holders = {}, {}
        self.node_entry, self.node_value0, self.node_place = array("i"), array("i"), array("i")
        self.sources, self.offsets = array("i"), array("q")
        self.value_type, self.external_values = array("i"), array("i")
        self.entries, self.external_ids = {}, Identities()
        self.lazies, self.externals, self.originals = [], [], []
        self.kept, self.awaited_places = [], []
        self.next_check = CALLS_PER_CHECK

    def __init__(self, recorder=None):
        self.recorder = recorder

    cdef inline bint has_noted(self, int64_t number) noexcept:
        """Return whether the entry of a number is known to be among those of all nodes."""
        return self.noted[<size_t>(number + 1) % 256] == number + 1

    cdef inline int note_entry(self, object number, object entry) except -1:
        """Add an entry to those of all nodes, given its number."""
        if not self.has_noted(number):
            self.entries[number] = entry
            self.noted[<size_t>(<int64_t>number + 1) % 256] = <int64_t>number + 1
        return 0

    def place(self, Py_ssize_t node):
        """Return the `Place` of a node: that of the user's call."""
        return known_places[<int64_t>self.node_place[node]]

    @property
    def external_type(self):
        """Type ids of the external arrays; shape (externals,), int32."""
        return np.array(self.value_type)[np.array(self.external_values)]

    def constant_at(self, value, offset):
        """Return the `Constant` that has an element of a value, and its first one; None if none."""
        holder = self.holders.get(value)
        if type(holder) is not Chunk:
            return None if holder is None else (holder, 0)
        at = bisect_right((<Chunk>holder).starts, offset) - 1
        return (<Chunk>holder).constants[at], (<Chunk>holder).starts[at]

    def realise(self, lazy):
        """Compute a lazy array: from then on, its owner is a `Keeper`, or it is real."""
        parked = self.open and park_at_known_place(self, <Calls?>self.recorder)
        if not parked or slot(lazy, owner_at)[0] is <PyObject *>self:
            self.recorder.compute(lazy)

    def close(self, error=None):
        """Stop recording and drop the arrays; `error` says why lazy arrays have no values.

        Once it is closed, as by a flush that an interrupt then ends, this does nothing.
        """
        if not self.open:
            return
        self.open, self.error = False, error
        # Not cleared, as others may still use these lists: the flush, and code in the middle of
        # which the collector has run the flush.
        externals, self.externals = self.externals, []
        self.lazies, self.originals = [], []
        self.chunks, self.holders = {}, {}
        if Py_REFCNT(<PyObject *>externals) == 1:
            spare(externals, self.kept)

    def held(self, Py_ssize_t first=0):
        """Return the lazy arrays from index `first` on that are referenced elsewhere and pending.

        Drops those that only the tape references.
        """
        cdef list lazies = self.lazies, held = [], dropped = []
        cdef PyObject *item
        cdef Py_ssize_t i, count = len(lazies)
        # Backwards, as a detached array references an earlier one.  Python code, such as callbacks
        # of weak references, runs only once the list is complete.
        for i in range(count - 1, first - 1, -1):
            fetch(lazies, i - AHEAD)
            item = PyList_GET_ITEM(lazies, i)
            if Py_REFCNT(item) > 1:
                held.append(<object>item)
            else:
                drop(<object>item, self, dropped)
        held.reverse()
        PyList_SetSlice(lazies, first, count, held)
        dropped.clear()
        return [lazy for lazy in held if slot(lazy, owner_at)[0] is <PyObject *>self]


cdef void *grow(array numbers, Py_ssize_t more) except NULL:
    """Append `more` numbers that are yet to be written; return their address."""
    if (<arrayobject *>numbers).ob_exports:
        raise BufferError("cannot grow while a buffer is exported")
    resize_smart(numbers, numbers.ob_size + more)
    return numbers.data.as_chars + (numbers.ob_size - more) * numbers.ob_descr.itemsize


cdef inline int reserve(array numbers, Py_ssize_t more) except -1:
    """Make room for `more` numbers, which `put` and `take_room` need."""
    memory = <arrayobject *>numbers
    if numbers.ob_size + more > memory.allocated or memory.ob_exports:
        grow(numbers, more)
        numbers.ob_size -= more
    return 0


cdef inline void *take_room(array numbers, Py_ssize_t more) noexcept:
    """Append `more` numbers that are yet to be written, and have room; return their address."""
    cdef char *end = numbers.data.as_chars + numbers.ob_size * numbers.ob_descr.itemsize
    numbers.ob_size += more
    return end


cdef inline void put(array numbers, int32_t number) noexcept:
    """Append to an array of 32-bit integers that has room."""
    numbers.data.as_ints[numbers.ob_size] = number
    numbers.ob_size += 1


cdef inline void put_wide(array numbers, int64_t number) noexcept:
    """Append to an array of 64-bit integers that has room."""
    numbers.data.as_longlongs[numbers.ob_size] = number
    numbers.ob_size += 1
