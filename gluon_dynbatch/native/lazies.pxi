# Lazy arrays; included by `recording.pyx`.

cdef inline bint is_lazy(object array_) noexcept:
    """Return whether an array is lazy, or was before it became real."""
    return type(array_) is lazy_type or type(array_) is lazy_numpy_type


cdef inline bint is_numpy(object array_) noexcept:
    """Return whether an array is one of ``mx.np``."""
    if type(array_) is lazy_type or type(array_) is array_type:  # most arrays, at no cost
        return False
    return PyObject_TypeCheck(array_, <PyTypeObject *>numpy_type)


cdef inline PyObject **slot(object lazy, Py_ssize_t offset) noexcept:
    """Return the address of a slot, which has a borrowed reference."""
    return <PyObject **>(<char *><PyObject *>lazy + offset)


cdef inline void fill_slot(object lazy, Py_ssize_t offset, object value) noexcept:
    """Write to a slot that is empty, or whose old reference the caller releases."""
    Py_INCREF(value)
    slot(lazy, offset)[0] = <PyObject *>value


cdef inline void change_slot(object lazy, Py_ssize_t offset, object value):
    """Replace the value of a slot."""
    old = <object>slot(lazy, offset)[0]
    fill_slot(lazy, offset, value)
    Py_DECREF(old)


cdef enum:
    #: Integers that are made once: the values and offsets of a minibatch would be made and freed.
    MOST_COUNTED = 16384

cdef list counted = []


cdef inline object integer(int64_t number):
    """Return a number as an object; runs no Python code."""
    if 0 <= number < MOST_COUNTED:
        while len(counted) <= number:
            counted.append(len(counted))
        return <object>PyList_GET_ITEM(counted, number)
    return number


cdef inline object owner_of(object lazy):
    """Return the owner of a lazy array, or the real array that it has become.

    Once this has succeeded, no slot is empty: only an array that `new_lazy` did not make has empty
    slots.
    """
    owner = slot(lazy, owner_at)[0]
    if owner is NULL:
        raise AttributeError("_owner")
    return <object>owner


#: Lazy arrays that nothing references any more, and their largest number.  To free those of a
#: minibatch took half of its analysis.
cdef list spares = [], numpy_spares = []
cdef enum:
    MOST_SPARES = 16384
    #: Lazy arrays ahead of the one at hand that are fetched to the cache, which has lost them since
    #: the last flush; and the bytes of a line of the cache.
    AHEAD = 8
    LINE = 64


cdef inline void fetch(list lazies, Py_ssize_t i) noexcept:
    """Fetch a lazy array to the cache, if the list has it."""
    cdef char *lazy
    if 0 <= i < len(lazies):
        lazy = <char *>PyList_GET_ITEM(lazies, i)
        prefetch(lazy)
        prefetch(lazy + LINE)


cdef int drop(object lazy, FlatTape tape, list dropped) except -1:
    """Give up the references of a lazy array that nothing else references; keep it if possible.

    Runs no Python code: what would be freed is appended to `dropped`.
    """
    owner = <object>slot(lazy, owner_at)[0]
    # Perhaps a real array that it has become, or the arenas of many of them.
    if owner is not tape and not (dropped and dropped[len(dropped) - 1] is owner):
        dropped.append(owner)
    detached_from = <object>slot(lazy, detached_from_at)[0]
    if detached_from is not None:
        dropped.append(detached_from)
        change_slot(lazy, detached_from_at, None)
        if Py_REFCNT(<PyObject *>detached_from) > 2:
            dropped.pop()  # an array that is held elsewhere, perhaps only by the tape
    kept = spares_for(lazy)
    if kept is not None and len(<list>kept) < MOST_SPARES:
        change_slot(lazy, owner_at, None)
        change_slot(lazy, value_at, None)
        change_slot(lazy, offset_at, None)
        (<list>kept).append(lazy)
    else:
        dropped.append(lazy)
    return 0


cdef int spare(list arrays, list numbers) except -1:
    """Keep lazy arrays for reuse that only a list references, which nothing else does.

    `numbers` are their numbers in the list, which has None in their places afterwards.
    """
    cdef list dropped = []
    for number in numbers:
        lazy = arrays[number]
        if Py_REFCNT(<PyObject *>lazy) == 2:  # that of the list, and the one here
            arrays[number] = None
            drop(lazy, None, dropped)
    return 0


def places_of(list lazies not None):
    """Return the value, the offset and the type id of each lazy array, as 64-bit integers."""
    cdef array places = clone(array("q"), 3 * len(lazies), False)
    cdef int64_t *place = <int64_t *>places.data.as_longlongs
    for lazy in lazies:
        owner_of(lazy)  # no slot is empty
        place[0] = <object>slot(lazy, value_at)[0]
        place[1] = <object>slot(lazy, offset_at)[0]
        place[2] = <object>slot(lazy, type_at)[0]
        place += 3
    return places


cdef inline list spares_for(object lazy):
    """Return the list that keeps a lazy array for reuse; None if it has more than its slots."""
    cdef PyObject **attributes
    if type(lazy) is lazy_type:
        return spares if slot(lazy, weak_at)[0] is NULL else None
    # Unlike those of `mx.nd`, arrays of `mx.np` may have attributes.
    attributes = _PyObject_GetDictPtr(lazy)
    plain = attributes is NULL or attributes[0] is NULL
    return numpy_spares if plain and slot(lazy, weak_numpy_at)[0] is NULL else None


cdef Owner nobody = Owner()


def as_lazy(array_):
    """Return a real array as one of a lazy class, whose calls are recorded in a scope."""
    lazy = new_lazy(nobody, 0, 0, type_id_of(array_), is_numpy(array_))
    change_slot(lazy, owner_at, array_)
    return lazy


cdef object new_lazy(Owner owner, object value, object offset, object type_id, bint numpy):
    """Return a new lazy array that its owner does not know of; with `numpy`, one of ``mx.np``."""
    cdef list kept = numpy_spares if numpy else spares
    if kept:
        lazy = kept.pop()
        fetch(kept, len(kept) - AHEAD)
        change_slot(lazy, owner_at, owner)
        change_slot(lazy, value_at, value)
        change_slot(lazy, offset_at, offset)
        change_slot(lazy, type_at, type_id)
        return lazy
    lazy = PyType_GenericAlloc(lazy_numpy_type if numpy else lazy_type, 0)
    fill_slot(lazy, owner_at, owner)
    fill_slot(lazy, value_at, value)
    fill_slot(lazy, offset_at, offset)
    fill_slot(lazy, type_at, type_id)
    fill_slot(lazy, detached_from_at, None)
    # A tape drops all of them when it is closed.  If they were tracked, thousands of them per flush
    # would make the collector scan the whole heap again and again.
    PyObject_GC_UnTrack(<PyObject *>lazy)
    return lazy
