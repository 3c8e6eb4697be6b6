# Parts of plain arrays that autograd knows; a part of `recording.pyx`.
#
# Under ``autograd.record()``, MXNet puts each part that is taken of a variable on its tape.  Here, it
# is recorded when a call reads it, once per tape, as a call of ``take`` of its rows.

#: Bytes of the rows of the largest part.  MXNet makes larger ones, whose rows are not copied.
MOST_TAKEN = 4194304


@cython.final
cdef class Excerpt(Owner):
    """Rows of a plain array that is in MXNet's graph: the owner of parts that are within them.

    Owned by these parts, and by the recorder of the scope in which the first of them was taken.

    Parts have the memory of the array: one that is read, or written to, becomes MXNet's own part.
    """

    #: The plain array, its first row that is here, and the number of rows.
    cdef readonly object array
    cdef readonly int64_t first, count
    #: MXNet's own view of the rows, once the array may become another variable, else None.
    cdef object view
    #: The numbers of the rows, as an array of a `Constant`; None before they are needed.
    cdef object numbers
    #: The last tape that has read the rows, and the value that they are there.
    cdef uint64_t tape
    cdef int64_t value

    def __init__(self, array_ not None, int64_t first, int64_t count):
        self.array, self.first, self.count = array_, first, count
        # It is in no cycle.
        PyObject_GC_UnTrack(<PyObject *>self)

    def realise(self, lazy):
        """Make a part real, as a view of the array."""
        realise_excerpt(self, lazy)

    def rows(self):
        """Return a new view of the rows, which autograd records: each may be a head of its own."""
        cdef int before = 0
        mxnet.set_recording(1, &before)
        try:
            if self.view is not None:
                return part(self.view, 0, self.count)
            return part(self.array, self.first, self.first + self.count)
        finally:
            mxnet.set_recording(before, &before)

    cdef int settle(self) except -1:
        """Stay what this is, although the array is about to become another variable."""
        self.view = self.rows()
        return 0

    cdef int place(self, FlatTape tape) except -1:
        """Find out which value of a tape the rows are; record a call that takes them if none is."""
        cdef int before = 0
        if self.tape == tape.serial:
            return 0
        mxnet.set_recording(1, &before)
        try:
            taken = self.take(tape)
        finally:
            mxnet.set_recording(before, &before)
        if taken is None:  # the call before it has been computed, and the reader begins again
            self.tape = 0
        elif is_lazy(taken) and owner_of(taken) is tape:
            self.tape, self.value = tape.serial, <object>slot(taken, value_at)[0]
        else:
            self.value = external(tape, taken)
            self.tape = tape.serial
        return 0

    cdef object take(self, FlatTape tape):
        """Return the rows, as a result of the tape or an array; None if this is not the recorder's tape."""
        cdef Calls recorder = tape.recorder
        if self.view is not None:
            return self.view
        callee = callee_of_take(recorder, is_numpy(self.array))
        if self.numbers is None:
            self.numbers = numbers_of_rows(recorder, self)
        taken = call(recorder, <Callee?>callee, (self.array, self.numbers))
        if recorder.tape is not tape or not tape.open:
            return None
        return self.rows() if type(taken) is str else (<list>taken)[0]


cdef object excerpt_of(Calls recorder, array_, int64_t first, int64_t count):
    """Return the rows of an array, the same ones for all samples, unless their calls are traced."""
    tracing = 0 if recorder.tracing is None else recorder.tracing.serial
    key = <size_t><PyObject *>array_, first, count, tracing
    found = recorder.excerpts.get(key)
    if found is None:
        found = recorder.excerpts[key] = Excerpt(array_, first, count)
    return found


def excerpt_again(Calls recorder not None, array_, int64_t first, int64_t count):
    """Return the rows of an array, for a piece; None if it has none, or is in no graph."""
    if is_lazy(array_) or not has_node(<size_t>handle_of(array_)):
        return None
    return excerpt_of(recorder, array_, first, count) if first + count <= array_.shape[0] else None


def excerpt_at(Calls recorder not None, int64_t value):
    """Return the `Excerpt` that is a value of the recorder's tape, or None."""
    for excerpt in recorder.excerpts.values():
        if (<Excerpt>excerpt).tape == recorder.tape.serial and (<Excerpt>excerpt).value == value:
            return excerpt
    return None


def places_on(FlatTape tape not None, list lazies not None):
    """Return, by id of each lazy array that is a part of a plain one, its value on a tape."""
    cdef dict found = {}
    for lazy in lazies:
        owner = owner_of(lazy) if is_lazy(lazy) else None
        if type(owner) is Excerpt:
            (<Excerpt>owner).place(tape)
            found[<size_t><PyObject *>lazy] = (<Excerpt>owner).value
    return found


def settle_excerpts(Calls recorder not None, handles=None):
    """Let parts of arrays with some handles stay what they are; without handles, all that are used."""
    for key, excerpt in list(recorder.excerpts.items()):
        if handles is None or <size_t>handle_of((<Excerpt>excerpt).array) in handles:
            del recorder.excerpts[key]
            if Py_REFCNT(<PyObject *>excerpt) > 2:  # more than those of the list and of this loop
                (<Excerpt>excerpt).settle()


cdef inline bint is_known(object array_) except -1:
    """Return whether a part that is taken of a plain array now is in MXNet's graph."""
    cdef unsigned char recording = 0
    mxnet.is_recording(&recording)
    return recording and has_node(<size_t>handle_of(array_))


cdef object excerpt_part(object array_, object key):
    """Return a part of a plain array as a lazy one, if a scope records; None if MXNet has to make it."""
    cdef Calls recorder = recorder_here()
    cdef int64_t type_id, offset, size, first, count
    cdef bint numpy = is_numpy(array_)
    if recorder is None or not recorder.tape.open:
        return None
    type_id = type_id_of(array_)
    cache_key = view_key(type_id, key)
    views = known_numpy_views if numpy else known_views
    view = None if cache_key is None else views.get(cache_key)
    if view is None:
        view = view_of_type(type_id, key, numpy)
        if view is None:
            return None
    offset, kind = <tuple>view
    count = element_counts.data.as_longlongs[<int64_t>kind]
    size = element_counts.data.as_longlongs[type_id] // <int64_t>(<tuple>array_types[type_id].shape)[0]
    first = offset // size
    count = (offset + count - 1) // size + 1 - first
    if count * size * layout_of(type_id).itemsize > MOST_TAKEN:
        return None
    excerpt = excerpt_of(recorder, array_, first, count)
    return new_lazy(<Excerpt>excerpt, 0, integer(offset - first * size), kind, numpy)


def shares_memory(array_):
    """Return whether code that writes to an array may write to memory that pending calls read."""
    return not is_unrealised(array_) or type(owner_of(array_)) is Excerpt
