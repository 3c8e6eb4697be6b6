# Plain arrays: new ones, and parts of them in place; a part of `recording.pyx`.

#: Row numbers are 32-bit integers in MXNet's library.
cdef int64_t MOST_ROWS = 2 ** 32


cdef object new_array(void *handle, bint numpy=False):
    """Return the plain array of a handle; with `numpy`, one of ``mx.np``."""
    owner = handle_type(<size_t>handle)
    array_ = PyType_GenericAlloc(numpy_type if numpy else array_type, 0)
    fill_slot(array_, handle_at, owner)
    fill_slot(array_, writable_at, True)
    # These cannot be in a cycle, as they refer to nothing else.
    PyObject_GC_UnTrack(<PyObject *>owner)
    if not numpy:  # one of `mx.np` may get attributes
        PyObject_GC_UnTrack(<PyObject *>array_)
    return array_


def arrays_of(list handles not None):
    """Return a plain array for each handle, a number; the arrays own the handles."""
    return [new_array(<void *><size_t>handle) for handle in handles]


def sizes_of(list arrays not None):
    """Return the number of elements of each of some real arrays."""
    cdef list found = []
    cdef int64_t size
    cdef const int64_t *sizes
    cdef int dimensions, i, failed
    for array_ in arrays:
        # The sizes are in memory of this thread that its next such call writes to, so no Python
        # code may run before they are read.
        failed = mxnet.shape(handle_of(array_), &dimensions, &sizes)
        if failed:
            check_call(failed)
        size = 1
        for i in range(dimensions):
            size *= sizes[i]
        found.append(size)
    return found


def type_ids_of(list arrays not None):
    """Return the type id of each of some real arrays."""
    return [type_id_of(array_) for array_ in arrays]


def distinct(list objects not None):
    """Return the different ones of some objects, and per object its number among these."""
    cdef dict known = {}
    cdef array numbers = clone(array("q"), len(objects), False)
    cdef Py_ssize_t i
    cdef int64_t number = 0
    last = known  # no object of the list
    for i, item in enumerate(objects):
        if item is not last:
            last = item
            number = known.setdefault(<size_t><PyObject *>item, len(known))
        numbers.data.as_longlongs[i] = number
    return [<object><PyObject *><size_t>identity for identity in known], numbers


def shared_array(array_):
    """Return an array of ``mx.np`` with the memory and the gradient of a real array."""
    cdef void *handle = NULL
    check_call(mxnet.share(handle_of(array_), &handle))
    return new_array(handle, True)


cdef object rows_at(object array_, int64_t start, int64_t stop=0):
    """Return rows as a view, or the row `start` without axis 0; None if MXNet refuses."""
    if is_lazy(array_):
        array_ = array_.real()
    cdef void *handle = handle_of(array_)
    cdef void *view = NULL
    cdef int failed, recorded = 0
    with nogil:
        # For an array without gradients, MXNet would prepare to record but record nothing.
        if not has_node(<size_t>handle):
            mxnet.set_recording(0, &recorded)
        if stop:
            failed = mxnet.rows(handle, <unsigned>start, <unsigned>stop, &view)
        else:
            failed = mxnet.row(handle, <unsigned>start, &view)
        if recorded:
            mxnet.set_recording(1, &recorded)
    return None if failed else new_array(view, is_numpy(array_))


cdef object checked(object view, object array_):
    if view is None:
        raise IndexError(f"an array of shape {array_.shape} has no such rows")
    return view


def part(array_, int64_t start, int64_t stop):
    """Return ``array[start:stop]``, which has to be within the array and not empty."""
    return checked(rows_at(array_, start, stop), array_)


def first_elements(array_, int64_t count, tuple shape not None):
    """Return the first elements of a flat array as a view of a shape; autograd must not record."""
    return in_shape(part(array_, 0, count), shape)


cdef object in_shape(object array_, tuple shape):
    """Return a plain array as a view of a shape; autograd must not record."""
    cdef array sizes = array("q", shape)
    cdef void *handle = NULL
    cdef void *flat = handle_of(array_)
    cdef int failed
    with nogil:
        failed = mxnet.reshape(
            flat, sizes.ob_size, <const int64_t *>sizes.data.as_longlongs, False, &handle)
    check_call(failed)
    return new_array(handle)


def empty(tuple shape not None, int dtype, int device, int number, bint numpy=False):
    """Return an uninitialized array; type and device are MXNet's numbers.

    With `numpy`, it is one of ``mx.np``.
    """
    return empty_of(array("q", shape), dtype, device, number, numpy)


cdef object empty_of(array sizes, int dtype, int device, int number, bint numpy):
    """Do as `empty`, given the sizes of the axes."""
    cdef void *handle = NULL
    cdef int failed
    with nogil:
        failed = mxnet.create(
            <const int64_t *>sizes.data.as_longlongs, sizes.ob_size, device, number, False, dtype,
            &handle)
    check_call(failed)
    return new_array(handle, numpy)


def arrays_like(array_, list kinds not None):
    """Return uninitialized arrays with the dtype and the context of another one.

    Kinds are pairs: the shape, and whether it is an array of ``mx.np``.
    """
    cdef int dtype = 0, device = 0, number = 0
    cdef void *handle = handle_of(array_)
    mxnet.dtype(handle, &dtype)
    mxnet.context(handle, &device, &number)
    last, found = None, []
    for kind in kinds:
        if kind is not last:
            last, sizes = kind, array("q", kind[0])
        found.append(empty_of(sizes, dtype, device, number, kind[1]))
    return found


def are_numpy(list arrays not None):
    """Return a byte per array: 1 if it is one of ``mx.np``, else 0."""
    return bytes(bytearray([is_numpy(array_) for array_ in arrays]))


def plain_view(array_, key):
    """Return ``array[key]`` for a row or a slice of rows; None if MXNet's own indexing has to.

    If the array is in MXNet's graph, and autograd records, other keys may be known, too.
    """
    if type(array_) is not array_type and type(array_) is not numpy_type or not array_.writable:
        return None
    if is_all(key):
        return array_
    if is_known(array_):
        view = excerpt_part(array_, key)
        if view is not None:
            return view
    if type(key) is int:
        return rows_at(array_, key) if 0 <= key < MOST_ROWS else None
    if type(key) is slice and key.step is None and type(key.start) is type(key.stop) is int:
        # MXNet's own indexing clips slices and raises errors.
        if 0 <= key.start < key.stop < MOST_ROWS:
            return rows_at(array_, key.start, key.stop)
    return None
