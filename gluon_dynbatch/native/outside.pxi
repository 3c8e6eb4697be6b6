# Arrays from outside, and those that are kept in arenas; a part of `recording.pyx`.

cdef class Keeper(Owner):
    """Arenas in which values of lazy arrays are kept: see `run.keep.Kept`."""

    #: Per arena, and perhaps of other arrays behind them.
    cdef array handles, addresses
    cdef array sizes

    def __init__(self, array handles, array addresses, list sizes):
        self.lazies, self.handles, self.addresses = [], handles, addresses
        self.sizes = array("q", sizes)

    cdef int add(self, lazy) except -1:
        reference = PyWeakref_NewRef(lazy, None)
        # For the reason for which lazy arrays are not tracked.
        PyObject_GC_UnTrack(<PyObject *>reference)
        self.lazies.append(reference)
        return 0


cdef class Constant(Owner):
    """What all arrays belong to that a creation operator made with equal attributes.

    They are one array from outside; who looks into one, or writes to it, gets a copy.
    """

    #: The operator with its attributes, the array, and its type.
    cdef readonly object token, made, type

    def __init__(self, token, made):
        self.token, self.made, self.type = token, made, type_id_of(made)

    cdef int add(self, lazy) except -1:
        return 0  # there is nothing to compute

    def realise(self, lazy):
        """Give an array memory of its own."""
        become([lazy], [self.made.copy()])


cdef object type_id_of(object array_):
    cdef int[4] told  # how many dimensions, type of elements, kind of device and its number
    cdef const int64_t *sizes
    cdef char *text
    cdef void *handle = <void *><size_t>array_.handle.value
    if (
        mxnet.shape(handle, &told[0], &sizes)
        or mxnet.dtype(handle, &told[1])
        or mxnet.context(handle, &told[2], &told[3])
        or told[0] < 0
    ):
        return type_of(array_)
    key = PyBytes_FromStringAndSize(NULL, sizeof(told) + 8 * told[0])
    text = key
    memcpy(text, told, sizeof(told))
    memcpy(text + sizeof(told), sizes, 8 * told[0])
    known = known_types.get(key)
    if known is None:
        known = known_types[key] = type_of(array_)
    return known


cpdef Py_ssize_t external(Tape tape, object array_, object type_id=None) except -1:
    """Return the value of an array that no call of this tape makes, whose type may be known.

    Raises
    ------
    ArgumentError
        The array is sparse, or one of ``mx.np``.
    """
    owner = <object>slot(array_, owner_at)[0] if type(array_) is lazy_type else None
    if isinstance(owner, Constant):
        array_ = (<Constant>owner).made
    elif owner is not None and not isinstance(owner, Keeper):
        array_ = array_.real()
    identity = <size_t><PyObject *>array_
    known = tape.external_ids.get(identity)
    if known is not None:
        return known
    stands = array_
    if isinstance(owner, Keeper):
        # A copy stands for it on the tape: it may become real, and be written to.
        value, offset = <object>slot(array_, value_at)[0], <object>slot(array_, offset_at)[0]
        type_id = <object>slot(array_, type_at)[0]
        stands = new_lazy(<Owner>owner, value, offset, type_id)
    elif type(array_) is not array_type:
        check_array(array_)
    if type_id is None:
        type_id = type_id_of(array_)
    cdef Py_ssize_t number = tape.value_type.ob_size
    reserve(tape.value_type, 1)
    reserve(tape.external_values, 1)
    tape.given.append(array_)
    tape.externals.append(stands)
    tape.external_ids[identity] = number
    put(tape.external_values, number)
    put(tape.value_type, type_id)
    return number


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
        at = term[<int64_t><object>slot(lazy, value_at)[0]]
        if at < 0:
            at += arena_of.shape[0]
        keeper.add(lazy)
        change_slot(lazy, owner_at, keeper)
        change_slot(lazy, value_at, arena_of[at])
        change_slot(lazy, offset_at, element_of[at] + <object>slot(lazy, offset_at)[0])


def become(list lazies not None, list reals not None):
    """Let lazy arrays take the values of real ones, for good."""
    cdef Py_ssize_t i
    for i, lazy in enumerate(lazies):
        change_slot(lazy, owner_at, reals[i])


cpdef bint is_to_come(object array_) noexcept:
    """Whether an array is lazy and not real yet."""
    return type(array_) is lazy_type and isinstance(<object>slot(array_, owner_at)[0], Owner)


def places(list arrays not None, bytes uses not None):
    """Return addresses and handles of some arrays, each as an array of integers.

    An array of MXNet's that is not computed yet may have no memory; asked for its address, it would
    be given it twice.

    Parameters
    ----------
    arrays : list of NDArray or None
        Real arrays, or lazy ones that are kept in arenas.
    uses : bytes
        A letter for each: ``w`` if it is written, ``r`` if it is read, ``a`` if it is read and is to
        be waited for.  The addresses of ``W`` and ``R`` are left open, as 0: the engine asks for
        them.  Anything else is of no use.
    """
    cdef array addresses = clone(array("Q"), len(uses), True)
    cdef array handles = clone(array("Q"), len(uses), True)
    cdef unsigned long long *address = addresses.data.as_ulonglongs
    cdef unsigned long long *handle = handles.data.as_ulonglongs
    cdef const char *use = uses
    cdef Py_ssize_t i, which, count = len(uses)
    cdef int64_t first
    cdef bint failed = False
    cdef Keeper keeper
    for i in range(count):
        if use[i] not in b"wraWR":
            continue
        array_ = arrays[i]
        if is_to_come(array_):
            keeper = <Keeper?><object>slot(array_, owner_at)[0]
            which = <object>slot(array_, value_at)[0]
            first = <object>slot(array_, offset_at)[0]
            address[i] = keeper.addresses.data.as_ulonglongs[which]
            address[i] += keeper.sizes.data.as_longlongs[which] * first
            handle[i] = keeper.handles.data.as_ulonglongs[which]
        else:
            handle[i] = array_.handle.value
    with nogil:
        for i in range(count):
            if use[i] == b"a" and not address[i]:
                failed |= mxnet.wait(<void *>handle[i])
            if use[i] in b"wra" and not address[i] and not failed:
                failed |= mxnet.data(<void *>handle[i], <void **>&address[i])
    if failed:
        raise MemoryError("an array has no memory")
    return addresses, handles


cdef inline bint has_node(size_t handle) noexcept nogil:
    """Whether an array is in MXNet's tape."""
    return (<void **>(handle + node_at))[0] is not NULL


def in_graph(list arrays not None):
    """Tell of each array by a byte whether a gradient may go from it to MXNet's tape.

    Parameters
    ----------
    arrays : list of NDArray
        Real arrays, or lazy ones that are kept in arenas.
    """
    cdef bytearray found = bytearray(len(arrays))
    cdef Py_ssize_t i
    for i in range(len(arrays)):
        array_ = arrays[i]
        if is_to_come(array_):
            found[i] = (<object>slot(array_, owner_at)[0]).recorded
        else:
            found[i] = has_node(array_.handle.value)
    return bytes(found)
