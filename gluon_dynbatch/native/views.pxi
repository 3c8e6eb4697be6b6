# Views of lazy arrays; a part of `recording.pyx`.

@cython.binding(True)  # becomes a method of lazy arrays
def index(self, key):
    """Return a view from the cache, or else call the method `_index` of the lazy array."""
    cdef dict views
    owner = owner_of(self)
    if isinstance(owner, FlatTape):
        lazy = known_rows(self, <FlatTape>owner, key)
        if lazy is not None:
            return lazy
    if is_all(key):
        return self
    detached = slot(self, detached_from_at)[0] is not <PyObject *>None
    if has_views(owner) and not leaves_graph(self) and (not detached or type(owner) is Constant):
        cache_key = view_key(<object>slot(self, type_at)[0], key)
        views = known_views if type(self) is lazy_type else known_numpy_views
        view = None if cache_key is None else views.get(cache_key)
        if view is not None:
            remember_rows(self, key, <tuple>view)
            lazy = view_of(self, (<tuple>view)[0], (<tuple>view)[1])
            if lazy is not None:
                return lazy
    return self._index(key)


cdef bint is_all(object key) except -1:
    """Return whether MXNet returns the array itself for a key, rather than a view."""
    cdef PySliceObject *rows = <PySliceObject *>key
    if type(key) is tuple:
        return not <tuple>key
    if type(key) is not slice or rows.start is not <PyObject *>None:
        return False
    return rows.stop is <PyObject *>None and (<object>rows.step is None or <object>rows.step == 1)


cdef enum:
    #: The size of the table of rows.
    ROWS_KEPT = 256

cdef struct RowsOfType:
    # A plain value: the rows of the arrays of a type, and the elements of a row; and the type id of
    # so many rows of them, which it owns, or of a row without axis 0.
    int64_t type_id, count, rows, size
    bint numpy
    PyObject *type

cdef RowsOfType[ROWS_KEPT] rows_kept


cdef inline RowsOfType *place_of_rows(int64_t type_id, int64_t count, bint numpy) noexcept:
    return &rows_kept[<uint64_t>(type_id * 5 + count * 2 + numpy) % ROWS_KEPT]


cdef bint read_rows(object key, int64_t *start, int64_t *count) except -1:
    """Read a row or a slice of rows, from first to last; the count of a row is 0."""
    cdef PySliceObject *rows = <PySliceObject *>key
    cdef int overflow = 0, overflows = 0
    count[0] = 0
    if type(key) is int:
        start[0] = PyLong_AsLongLongAndOverflow(key, &overflow)
        return not overflow and start[0] >= 0
    if type(key) is not slice or rows.step is not <PyObject *>None:
        return False
    if type(<object>rows.start) is not int or type(<object>rows.stop) is not int:
        return False
    start[0] = PyLong_AsLongLongAndOverflow(<object>rows.start, &overflow)
    count[0] = PyLong_AsLongLongAndOverflow(<object>rows.stop, &overflows)
    if overflow or overflows or start[0] < 0 or count[0] <= start[0]:
        return False
    count[0] -= start[0]
    return True


cdef object known_rows(object array_, FlatTape tape, object key):
    """Return rows of an array of a tape as a view; None if they are not known, or it may need more."""
    cdef unsigned char recording = 0
    cdef int64_t start, count, offset
    cdef bint numpy = type(array_) is lazy_numpy_type
    cdef Calls recorder = recorder_here()
    if recorder is None or recorder.tape is not tape or not tape.open:
        return None
    if slot(array_, detached_from_at)[0] is not <PyObject *>None:
        return None
    mxnet.is_recording(&recording)
    if not recording and (tape.trained or recorder.tracing is not None):
        return None  # see `leaves_graph`
    if not read_rows(key, &start, &count):
        return None
    offset = <object>slot(array_, type_at)[0]
    rows = place_of_rows(offset, count, numpy)
    if rows.type is NULL or rows.type_id != offset or rows.count != count or rows.numpy != numpy:
        return None
    if start + (count or 1) > rows.rows:
        return None
    offset = <int64_t><object>slot(array_, offset_at)[0] + start * rows.size
    value, type_id = <object>slot(array_, value_at)[0], <object>rows.type
    lazy = new_lazy(tape, value, integer(offset), type_id, numpy)
    # As in `view_of`.
    if owner_of(array_) is not tape or recorder.tape is not tape or not tape.open:
        return None
    tape.lazies.append(lazy)
    return lazy


cdef int remember_rows(object array_, object key, tuple view) except -1:
    """Keep the type of the rows that a known view has, if it has rows from first to last."""
    cdef int64_t start, count
    cdef bint numpy = type(array_) is lazy_numpy_type
    cdef PyObject *before
    type_id = <object>slot(array_, type_at)[0]
    shape = <tuple>array_types[type_id].shape
    if not shape or not read_rows(key, &start, &count) or start + (count or 1) > shape[0]:
        return 0
    rows = place_of_rows(type_id, count, numpy)
    before = rows.type
    Py_INCREF(view[1])
    rows.type_id, rows.count, rows.numpy, rows.type = type_id, count, numpy, <PyObject *>view[1]
    rows.rows = shape[0]
    rows.size = element_counts.data.as_longlongs[<int64_t>type_id] // rows.rows
    if before is not NULL:
        Py_DECREF(<object>before)  # a number
    return 0


cpdef bint has_views(owner) except -1:
    """Return whether views of an owner's arrays need no handle: only another offset and type."""
    if not isinstance(owner, FlatTape) or not (<FlatTape>owner).open:
        return isinstance(owner, Keeper) or type(owner) is Constant or type(owner) is Excerpt
    recorder = (<FlatTape>owner).recorder
    return isinstance(recorder, Calls) and (<Calls>recorder).tape is owner  # else it is flushed


cpdef bint leaves_graph(array_) except -1:
    """Return whether a view of a lazy array, made now, gets no gradient though the array may get one.

    In MXNet, it is in no graph if autograd does not record.
    """
    cdef unsigned char recording = 0
    cdef FlatTape tape = None
    owner = owner_of(array_)
    mxnet.is_recording(&recording)
    if recording:
        return False
    if type(owner) is Excerpt:
        return True
    detached = slot(array_, detached_from_at)[0] is not <PyObject *>None
    if isinstance(owner, Keeper):
        return (<Keeper>owner).recorded and not detached
    value = <object>slot(array_, value_at)[0]
    if isinstance(owner, FlatTape):
        tape = <FlatTape>owner
        if tape.trained and tape.open and not detached and is_trained(tape, value):
            return True
    if tape is None or tape.recorder is None:
        recorder = state.recorder
    else:
        recorder = tape.recorder
    if recorder is not None and (<Calls?>recorder).tracing is not None:
        recorder.tracing.see_bare_view(value if tape is (<Calls>recorder).tape else -1)
    return False


cdef bint is_trained(FlatTape tape, int32_t value) except -1:
    """Return whether a value of a tape may get a gradient."""
    cdef Py_ssize_t node = bisect_right(tape.node_value0, value) - 1
    if not tape.open:
        return False  # its external arrays are gone, and it takes no calls
    if node >= 0:
        entry = tape.entries[tape.node_entry.data.as_ints[node]]
        if value < tape.node_value0.data.as_ints[node] + len((<tuple>entry.recorded)[1]):
            return entry.mode & recording_bit
    return may_get_gradient(tape.externals[bisect_right(tape.external_values, value) - 1])


cpdef object view_of(
    array_, offset, type_id, detached_from=None, bint other_class=False, Keeper keeper=None,
):
    """Return a lazy array of the same value, with another offset and type.

    With `other_class`, it is one of ``mx.np`` if the array is one of ``mx.nd``, and the reverse.
    With `keeper`, that owns it, which has the arenas of the owner.
    Returns None if that needs a handle, as `has_views` says.
    """
    cdef Owner owner_of_view
    cdef bint numpy = is_numpy(array_) != other_class
    while True:
        owner = owner_of(array_)
        if not has_views(owner):
            return None
        offset_there = <object>slot(array_, offset_at)[0] + offset
        if type(owner) is Constant:
            whole = <object>slot(array_, detached_from_at)[0]
            whole = array_ if whole is None else whole
            return (<Constant>owner).make(offset_there, type_id, whole, True if numpy else False)
        value = <object>slot(array_, value_at)[0]
        if type(owner) is Excerpt:
            return new_lazy(<Excerpt>owner, value, offset_there, type_id, numpy)
        owner_of_view = <Owner>owner if keeper is None else keeper
        lazy = new_lazy(owner_of_view, value, offset_there, type_id, numpy)
        if detached_from is not None:
            change_slot(lazy, detached_from_at, detached_from)
        member = owner_of_view.member(lazy)
        # The collector may have run Python code, which computed the array.
        if owner_of(array_) is owner and has_views(owner):
            owner_of_view.lazies.append(member)
            return lazy


cpdef object view_key(object type_id, object key):
    """Return the key of a view in `known_views`; None unless it has only integers and slices."""
    cdef list parts
    if type(key) is not tuple:
        part = axis_key(key)
        return None if part is None else (type_id, part)
    parts = [type_id]
    for axis in <tuple>key:
        part = axis_key(axis)
        if part is None:
            return None
        parts.append(part)
    return tuple(parts)


cdef object axis_key(object key):
    """Return a hashable form of an integer or a slice without a step, else None."""
    cdef PySliceObject *rows = <PySliceObject *>key
    if type(key) is int:
        return key
    if type(key) is not slice or rows.step is not <PyObject *>None:
        return None
    start, stop = <object>rows.start, <object>rows.stop
    plain = (start is None or type(start) is int) and (stop is None or type(stop) is int)
    return (start, stop) if plain else None
