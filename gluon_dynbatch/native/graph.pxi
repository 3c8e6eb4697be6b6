# What MXNet's tape knows of arrays: nodes and gradients; a part of `recording.pyx`.

cdef enum:
    #: MXNet's number for the storage of arrays that are not sparse.
    DENSE = 0


cdef inline bint has_node(size_t handle) noexcept nogil:
    """Return whether an array is in MXNet's tape."""
    return (<void **>(handle + node_at))[0] is not NULL


def nodes_of(list arrays not None):
    """Return the address of the node of each of some real arrays in MXNet's tape, 0 without one."""
    cdef array nodes = clone(array("Q"), len(arrays), False)
    cdef Py_ssize_t i
    for i, array_ in enumerate(arrays):
        nodes[i] = <size_t>(<void **>(<char *>handle_of(array_) + node_at))[0]
    return nodes


def gradients_of(list arrays not None):
    """Return the gradient of each of some real arrays as one of ``mx.nd``, None without one.

    Returns None if one of them is sparse.
    """
    cdef list gradients = []
    cdef void *handle
    cdef void *gradient
    cdef int storage, failed
    for array_ in arrays:
        handle, gradient, storage = handle_of(array_), NULL, DENSE
        failed = mxnet.gradient(handle, &gradient) if has_node(<size_t>handle) else 0
        gradients.append(None if gradient is NULL else new_array(gradient))
        if gradient is not NULL:
            failed |= mxnet.storage(gradient, &storage)
        if failed:
            check_call(failed)
        if storage != DENSE:
            return None
    return gradients


def mark_fresh(list arrays not None):
    """Mark the gradients of some real arrays as new, for ``Trainer.step``."""
    cdef int failed
    for array_ in arrays:
        failed = mxnet.mark_fresh(handle_of(array_), 1)
        if failed:
            check_call(failed)


def in_graph(list arrays not None):
    """Return a byte per array: 1 if MXNet's tape may receive a gradient of the array, else 0.

    The arrays are real, or lazy ones that are kept in arenas.
    """
    cdef bytearray marks = bytearray(len(arrays))
    cdef Py_ssize_t i
    for i, array_ in enumerate(arrays):
        marks[i] = may_get_gradient(array_)
    return bytes(marks)


cdef bint may_get_gradient(object array_) except -1:
    """Do as `in_graph` for one array."""
    if is_unrealised(array_):
        return (<Keeper?><object>slot(array_, owner_at)[0]).recorded
    return has_node(<size_t>handle_of(array_))
