# External arrays, and lazy arrays that are kept in arenas; a part of `recording.pyx`.

cdef class Keeper(Owner):
    """Arenas that hold the values of lazy arrays: base of the classes of `run.keep`.

    Owned by its lazy arrays, and by the chain of its scope.
    """

    #: The arenas, and where they go once nothing uses them; None if nothing needs them again.
    cdef readonly list arenas
    cdef Shelf shelf
    #: Handles and addresses of the arenas; those of other arrays may follow.
    cdef array handles, addresses
    #: Bytes per element of each arena.
    cdef array sizes
    #: Whether the arrays may get gradients.
    cdef public bint recorded
    #: By arena, its elements as an array of NumPy, from the first read on.
    cdef dict elements

    def __init__(
        self, list arenas, array handles, array addresses, list sizes, Shelf shelf=None,
    ):
        self.lazies, self.handles, self.addresses = [], handles, addresses
        self.arenas, self.shelf, self.elements = arenas, shelf, {}
        self.sizes = array("q", sizes)

    def __dealloc__(self):
        # None after the collector has cleared this object.
        if self.shelf is not None and self.arenas is not None:
            if Py_REFCNT(<PyObject *>self.arenas) == 1:
                self.shelf.give(self.arenas)

    cdef object member(self, lazy):
        reference = PyWeakref_NewRef(lazy, None)
        # For the same reason as in `new_lazy`.
        PyObject_GC_UnTrack(<PyObject *>reference)
        return reference

    cpdef object elements_of(self, arena):
        """Return the elements of an arena; the first read waits for it."""
        elements = self.elements.get(arena)
        if elements is None:
            elements = self.elements[arena] = (<object>self).wait_for(arena)
        return elements


cdef inline void *content_of(PyObject *handle) noexcept:
    """Return the content of an object of `handle_type`: the address of it follows the header."""
    return (<void ***>(<char *>handle + sizeof(PyObject)))[0][0]


cdef void *handle_of(object array_) except NULL:
    """Return the handle of a real array, or of a lazy one that has become real."""
    cdef void *handle
    if is_lazy(array_):
        array_ = owner_of(array_)
        if not PyObject_TypeCheck(array_, <PyTypeObject *>array_type):
            raise RuntimeError("a lazy array that is not real yet has no handle")
    owner = slot(array_, handle_at)[0]
    if owner is NULL or not PyObject_TypeCheck(<object>owner, <PyTypeObject *>handle_type):
        raise AttributeError("handle")
    handle = content_of(owner)
    if handle is NULL:
        raise ValueError("the handle of an array is NULL")
    return handle


cdef inline void fetch_handle(list arrays, Py_ssize_t i) noexcept:
    """Fetch to the cache what is read of arrays that come soon after one, up to their nodes.

    That is the object, its handle, the content of that, and the array in MXNet's library.
    """
    cdef PyObject *handle
    if i + 4 * AHEAD < len(arrays):
        prefetch(PyList_GET_ITEM(arrays, i + 4 * AHEAD))
    if i + 3 * AHEAD < len(arrays):
        handle = slot(<object>PyList_GET_ITEM(arrays, i + 3 * AHEAD), handle_at)[0]
        if handle is not NULL:
            prefetch(handle)
    if i + 2 * AHEAD < len(arrays):
        handle = slot(<object>PyList_GET_ITEM(arrays, i + 2 * AHEAD), handle_at)[0]
        if handle is not NULL and type_pointer(<object>handle) is <PyTypeObject *>handle_type:
            prefetch((<void **>(<char *>handle + sizeof(PyObject)))[0])
    if i + AHEAD < len(arrays):
        handle = slot(<object>PyList_GET_ITEM(arrays, i + AHEAD), handle_at)[0]
        if handle is not NULL and type_pointer(<object>handle) is <PyTypeObject *>handle_type:
            prefetch(content_of(handle))
            prefetch(<char *>content_of(handle) + node_at)


cdef enum:
    #: Types that are found without a dictionary, and the most axes of their arrays.
    TYPES_KEPT = 128
    FEW_AXES = 4

cdef struct KeptType:
    # A plain value: the properties of arrays, which begin with one more than the number of axes; the
    # size of each axis, and 0 for those that are missing; and the type id.
    int[4] properties
    int64_t[FEW_AXES] sizes
    int64_t type_id

cdef KeptType[TYPES_KEPT] types_kept


cdef int64_t type_id_of(object array_) except -1:
    """Return the type id of a real array."""
    cdef KeptType found
    cdef KeptType *kept
    cdef const int64_t *sizes
    cdef int axes = 0, i
    cdef uint64_t mixed = 0
    cdef void *handle = handle_of(array_)
    memset(&found, 0, sizeof(found))
    # The sizes are in memory of this thread that its next such call writes to.
    if mxnet.shape(handle, &axes, &sizes) or axes < 0 or axes > FEW_AXES:
        return find_type(array_, handle)
    for i in range(axes):
        found.sizes[i] = sizes[i]
        mixed = (mixed ^ <uint64_t>sizes[i]) * <uint64_t>0x9E3779B97F4A7C15
    found.properties[0] = axes + 1
    if mxnet.dtype(handle, &found.properties[1]):
        return find_type(array_, handle)
    if mxnet.context(handle, &found.properties[2], &found.properties[3]):
        return find_type(array_, handle)
    kept = &types_kept[(mixed ^ mixed >> 32 ^ <uint64_t>found.properties[1]) % TYPES_KEPT]
    if memcmp(kept, &found, sizeof(found.properties) + sizeof(found.sizes)):
        found.type_id = find_type(array_, handle)
        kept[0] = found
        return found.type_id
    return kept.type_id


cdef int64_t find_type(object array_, void *handle) except -1:
    """Do as `type_id_of` for any array, given its handle."""
    cdef int[4] properties  # number of dimensions, dtype, device type, device id
    cdef const int64_t *sizes
    cdef char *text
    cdef int failed = mxnet.shape(handle, &properties[0], &sizes)
    failed = failed or mxnet.dtype(handle, &properties[1])
    if failed or mxnet.context(handle, &properties[2], &properties[3]) or properties[0] < 0:
        return type_of(array_)
    key = PyBytes_FromStringAndSize(NULL, sizeof(properties) + 8 * properties[0])
    text = key
    memcpy(text, properties, sizeof(properties))
    if properties[0]:
        memcpy(text + sizeof(properties), sizes, 8 * properties[0])
    type_id = known_types.get(key)
    if type_id is None:
        type_id = known_types[key] = type_of(array_)
    return type_id


cdef bint has_axes(object array_) except -1:
    """Return whether a real array has a shape, and this has an axis."""
    cdef int axes
    cdef const int64_t *sizes
    return not mxnet.shape(handle_of(array_), &axes, &sizes) and axes > 0


cpdef object plain_array(object array_):
    """Return an array of ``mx.np`` as an array of ``mx.nd`` with the same memory and gradient.

    An array without axes gets one: without NumPy's semantics, MXNet does not know such arrays.  Any
    other one lends its handle, as to make and to free one takes longer than to record a call.
    """
    if not is_numpy(array_):
        return array_
    if is_lazy(array_):
        array_ = array_.real()
    if not has_axes(array_):
        return without_axes(array_)
    borrowed = PyType_GenericAlloc(borrowed_type, 0)
    fill_slot(borrowed, handle_at, <object>slot(array_, handle_at)[0])
    fill_slot(borrowed, writable_at, True)
    fill_slot(borrowed, lender_at, array_)
    return borrowed


cpdef Py_ssize_t external(FlatTape tape, object array_, int64_t type_id=-1) except -1:
    """Return the value of an array that is not a result of this tape; add it if it is new.

    It is not an array of a `Constant`, see `locate`.  The type of the array is found unless it is given.
    """
    owner = owner_of(array_) if is_lazy(array_) else None
    if owner is not None and not isinstance(owner, Keeper):
        array_ = array_.real() if isinstance(owner, Owner) else owner
    cdef uint64_t identity = <size_t><PyObject *>array_
    cdef Py_ssize_t result = tape.external_ids.find(identity)
    if result >= 0:
        return result
    operand = array_
    if isinstance(owner, Keeper):
        # The flush reads a new lazy array: this one may become real and be written to before.
        value, offset = <object>slot(array_, value_at)[0], <object>slot(array_, offset_at)[0]
        type_id = <object>slot(array_, type_at)[0]
        operand = new_lazy(<Owner>owner, value, offset, <object>slot(array_, type_at)[0], False)
    elif type(array_) is not array_type:
        if type(array_) is not numpy_type:
            check_array(array_)
        # An array of `mx.np` with axes stays one: native code reads its memory, and MXNet's operators
        # `Execution.external`.
        if not has_axes(array_):
            operand = plain_array(array_)
    if type_id < 0:
        type_id = type_id_of(array_)
    result = tape.value_type.ob_size
    reserve(tape.value_type, 1)
    reserve(tape.external_values, 1)
    if operand is not array_ and is_lazy(operand):
        tape.kept.append(integer(len(tape.externals)))
    tape.originals.append(array_)
    tape.externals.append(operand)
    tape.external_ids.add(identity, <int32_t>result)
    put(tape.external_values, result)
    put(tape.value_type, type_id)
    return result


def keep(
    list lazies not None, Keeper keeper not None, const int64_t[:] term_of,
    const int32_t[:] region_of, const int32_t[:] element_of, const int64_t[:, :] regions,
):
    """Transfer lazy arrays of a computed tape to the arenas that hold their values.

    `term_of` has the term of each value of the tape; negative ones count from the last term.  The
    other tables are those of `plan.plan.Plan`.
    """
    cdef int64_t term, region, first
    for lazy in lazies:
        term = term_of[<int64_t><object>slot(lazy, value_at)[0]]
        if term < 0:
            term += region_of.shape[0]
        region = region_of[term]
        if region < 0:
            raise RuntimeError("a lazy array has no value in any arena")
        first = regions[region, 2] * regions[region, 4] + element_of[term]
        keeper.lazies.append(keeper.member(lazy))
        change_slot(lazy, owner_at, keeper)
        change_slot(lazy, value_at, regions[region, 1])
        change_slot(lazy, offset_at, first + <object>slot(lazy, offset_at)[0])


def regions_held(
    list lazies not None, const int64_t[:] term_of, const int32_t[:] region_of
):
    """Return the regions that contain lazy arrays of a tape, as a set; tables are as for `keep`."""
    cdef set regions = set()
    cdef int64_t term, region, last = -1
    for lazy in lazies:
        term = term_of[<int64_t><object>slot(lazy, value_at)[0]]
        region = region_of[term if term >= 0 else term + region_of.shape[0]]
        if region != last:
            regions.add(region)
            last = region
    return regions


def held_by(list references not None, owner, other):
    """Return the lazy arrays of some weak references that belong to one of two owners."""
    cdef list held = []
    cdef PyObject *lazy
    cdef PyObject *its_owner
    for reference in references:
        lazy = PyWeakref_GetObject(reference)
        if lazy is not <PyObject *>None:
            its_owner = slot(<object>lazy, owner_at)[0]
            if its_owner is <PyObject *>owner or its_owner is <PyObject *>other:
                held.append(<object>lazy)
    return held


def kept_heads(list heads not None):
    """Return the arenas that hold some lazy arrays, as a set, and the numbers of the arrays' types.

    Returns None if there is another array among them, one that is detached from others, or one twice.
    """
    cdef set owners = set(), identities = set()
    cdef list kinds = []
    for head in heads:
        if not is_unrealised(head) or slot(head, detached_from_at)[0] is not <PyObject *>None:
            return None
        owner = <object>slot(head, owner_at)[0]
        if not isinstance(owner, Keeper):
            return None
        owners.add(owner)
        identities.add(<size_t><PyObject *>head)
        kinds.append(<object>slot(head, type_at)[0])
    return None if len(identities) < len(heads) else (owners, kinds)


def become(list lazies not None, list reals not None):
    """Make lazy arrays real: each takes the values and memory of a real array, for good."""
    for lazy, real in zip(lazies, reals):
        if type(lazy) is lazy_numpy_type and not is_numpy(real):
            real = as_numpy(real, lazy.shape)
        change_slot(lazy, owner_at, real)


cpdef bint is_unrealised(object array_) except -1:
    """Return whether an array is lazy and not real yet: it has no handle."""
    return is_lazy(array_) and isinstance(owner_of(array_), Owner)


def handle_of_lazy(lazy):
    """Return the handle of the real array, an object; a pending array is computed first."""
    real = owner_of(lazy)
    if isinstance(real, Owner):
        real = lazy.real()
    return real.handle


def addresses_and_handles(list arrays not None, bytes uses not None):
    """Return the addresses and the handles of some arrays, as two arrays of integers.

    MXNet may not have allocated an array that it has not computed yet.  To ask for its address then
    would allocate it twice.  The letters ``a``, ``R`` and ``W`` avoid this.

    The arrays are real, lazy ones that are kept in arenas, or handles.  `uses` has a letter per array: ``w``
    if it is written, ``r`` if it is read, ``a`` if it is read and has to be waited for; ``W`` and
    ``R`` if the address is left 0, because the engine asks for it.  Arrays with other letters, such
    as ``p`` (see `arrays_of_bases`), may be None: address and handle are 0.
    """
    cdef array addresses = clone(array("Q"), len(uses), True)
    cdef array handles = clone(array("Q"), len(uses), True)
    cdef unsigned long long *address = addresses.data.as_ulonglongs
    cdef unsigned long long *handle = handles.data.as_ulonglongs
    cdef const char *use = uses
    cdef Py_ssize_t i, arena, first, count = len(uses)
    cdef bint failed = False
    cdef Keeper keeper
    if len(arrays) != count:
        raise ValueError(f"{len(arrays)} arrays have {count} uses")
    for i in range(count):
        if use[i] not in b"wraWR":
            continue
        array_ = arrays[i]
        if type(array_) is int:
            handle[i] = array_
        elif is_unrealised(array_):
            keeper = <Keeper?><object>slot(array_, owner_at)[0]
            arena = <object>slot(array_, value_at)[0]
            first = <object>slot(array_, offset_at)[0]
            address[i] = keeper.addresses.data.as_ulonglongs[arena]
            address[i] += keeper.sizes.data.as_longlongs[arena] * first
            handle[i] = keeper.handles.data.as_ulonglongs[arena]
        else:
            handle[i] = <size_t>handle_of(array_)
    with nogil:
        for i in range(count):
            if i + AHEAD < count and handle[i + AHEAD]:
                prefetch((<void **>handle[i + AHEAD])[0])
            if use[i] == b"a" and not address[i]:
                failed |= mxnet.wait(<void *>handle[i])
            if use[i] in b"wra" and not address[i] and not failed:
                failed |= mxnet.data(<void *>handle[i], <void **>&address[i])
    if failed:
        check_call(-1)  # raises MXNet's last error, such as that of the operator that made an array
    return addresses, handles
