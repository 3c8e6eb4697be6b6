# Values that are kept in arenas; a part of `recording.pyx`.

cdef class Keeper:
    """Arenas in which values of lazy arrays are kept: see `run.keep.Kept`."""

    cdef list handles, addresses, sizes

    def __init__(self, list handles, list addresses, list sizes):
        self.handles, self.addresses, self.sizes = handles, addresses, sizes


cdef Py_ssize_t kept_value(Tape tape, object lazy) except -1:
    """Return the value of a lazy array whose values are kept in an arena.

    A copy stands for it on the tape: it may become real, and be written to.
    """
    place = PyType_GenericAlloc(lazy_type, 0)
    for at in (tape_at, value_at, offset_at, type_at, real_at):
        fill_slot(place, at, <object>slot(lazy, at)[0])
    tape.kept.append(lazy)
    return add_external(
        tape, place, None, <size_t><PyObject *>lazy, <object>slot(lazy, type_at)[0])


cdef inline void change_slot(object lazy, Py_ssize_t offset, object value):
    old = <object>slot(lazy, offset)[0]
    fill_slot(lazy, offset, value)
    Py_DECREF(old)


def keep(
    list lazies not None, Keeper keeper not None,
    const int64_t[:] term, const int64_t[:] arena_of, const int64_t[:] element_of,
):
    """Let lazy arrays belong to arenas from now on.

    Parameters
    ----------
    lazies : list of LazyNDArray
        Arrays of a tape that has been computed.
    keeper : Keeper
        The arenas.
    term : per value of the tape, the term that stands for it
    arena_of, element_of : per term, where it is
    """
    cdef int64_t at
    for lazy in lazies:
        at = term[<object>slot(lazy, value_at)[0]]
        if at < 0:
            at += arena_of.shape[0]
        change_slot(lazy, tape_at, keeper)
        change_slot(lazy, value_at, arena_of[at])
        change_slot(lazy, offset_at, element_of[at] + <object>slot(lazy, offset_at)[0])


def places(arrays, tuple numbers not None, size_t get_data):
    """Return addresses and handles of some arrays of one type, each as bytes of integers.

    Parameters
    ----------
    arrays : list or dict of NDArray
        Real arrays, or lazy ones that are kept in arenas.
    numbers : tuple of int
        Which of them.
    get_data : int
        Address of MXNet's ``MXNDArrayGetData``.
    """
    cdef array addresses = array("Q", bytes(8 * len(numbers)))
    cdef array handles = array("Q", bytes(8 * len(numbers)))
    cdef void *handle
    cdef void *data
    cdef Py_ssize_t i, number
    for i in range(len(numbers)):
        number = numbers[i]
        array_ = arrays[number]
        if type(array_) is lazy_type and slot(array_, real_at)[0] is <PyObject *>None:
            keeper = <Keeper?><object>slot(array_, tape_at)[0]
            which = <object>slot(array_, value_at)[0]
            addresses.data.as_ulonglongs[i] = (
                keeper.addresses[which] + keeper.sizes[which] * <object>slot(array_, offset_at)[0])
            handles.data.as_ulonglongs[i] = keeper.handles[which]
        else:
            handle = <void *><size_t>array_.handle.value
            if (<GetData>get_data)(handle, &data):
                raise MemoryError("an array has no memory")
            addresses.data.as_ulonglongs[i] = <size_t>data
            handles.data.as_ulonglongs[i] = <size_t>handle
    return addresses, handles
