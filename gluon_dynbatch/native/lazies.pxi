# Lazy arrays; included by `recording.pyx`.

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
cdef list spares = []
cdef enum:
    MOST_SPARES = 16384


cdef int drop(object lazy, list dropped) except -1:
    """Give up the references of a lazy array that only its tape references; keep it if possible.

    Runs no Python code: what would be freed is appended to `dropped`.
    """
    detached_from = <object>slot(lazy, detached_from_at)[0]
    if detached_from is not None:
        dropped.append(detached_from)
        change_slot(lazy, detached_from_at, None)
        if Py_REFCNT(<PyObject *>detached_from) > 2:
            dropped.pop()  # an array that is held elsewhere, perhaps only by the tape
    if len(spares) < MOST_SPARES and slot(lazy, weak_at)[0] is NULL:
        change_slot(lazy, owner_at, None)
        change_slot(lazy, value_at, None)
        change_slot(lazy, offset_at, None)
        spares.append(lazy)
    else:
        dropped.append(lazy)
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


def free_spares():
    """Free all lazy arrays that are kept to be used again."""
    spares.clear()


cdef object new_lazy(Owner owner, object value, object offset, object type_id):
    """Return a new lazy array that its owner does not know of."""
    if spares:
        lazy = spares.pop()
        change_slot(lazy, owner_at, owner)
        change_slot(lazy, value_at, value)
        change_slot(lazy, offset_at, offset)
        change_slot(lazy, type_at, type_id)
        return lazy
    lazy = PyType_GenericAlloc(lazy_type, 0)
    fill_slot(lazy, owner_at, owner)
    fill_slot(lazy, value_at, value)
    fill_slot(lazy, offset_at, offset)
    fill_slot(lazy, type_at, type_id)
    fill_slot(lazy, detached_from_at, None)
    # A tape drops all of them when it is closed.  If they were tracked, thousands of them per flush
    # would make the collector scan the whole heap again and again.
    PyObject_GC_UnTrack(<PyObject *>lazy)
    return lazy
