# What MXNet's tape knows of arrays: nodes and gradients; a part of `recording.pyx`.

cdef enum:
    #: MXNet's number for the storage of arrays that are not sparse.
    DENSE = 0
    #: The bytes of a node of MXNet's tape that are fetched to the cache.
    NODE_BYTES = 256


cdef inline void fetch_node(const size_t *handles, Py_ssize_t i, Py_ssize_t count) noexcept:
    """Fetch an array to the cache that comes soon after one, and the node of one that comes sooner.

    A thousand parameters are in no cache.
    """
    cdef char *node
    cdef Py_ssize_t line
    if i + 2 * AHEAD < count:
        prefetch(<void *>(handles[i + 2 * AHEAD]))
        prefetch(<void *>(handles[i + 2 * AHEAD] + node_at))
    if i + AHEAD < count:
        node = (<char **>(handles[i + AHEAD] + node_at))[0]
        for line in range(0, NODE_BYTES, LINE):
            prefetch(node + line)


cdef inline bint has_node(size_t handle) noexcept nogil:
    """Return whether an array is in MXNet's tape."""
    return (<void **>(handle + node_at))[0] is not NULL


@cython.final
cdef class Gradients:
    """The gradients of variables among some real arrays.

    Owned by the `run.variables.Variables` of a backward pass, until that is pushed.  To make an array
    of Python for each of a thousand, and to free it, takes longer than all else that is done with
    it, so this owns handles.
    """

    #: Per array, the handle of its gradient, or 0; this object frees those that `array` has not
    #: given to arrays.
    cdef readonly list handles
    #: By number, the arrays that own the other handles.
    cdef dict arrays
    #: Per array a byte: whether its gradient is wanted; and whether, if so, it may be written to its
    #: place: neither is it added, nor has an earlier one the same place.
    cdef bytearray wanted, written

    def __cinit__(self, Py_ssize_t count):
        self.handles, self.arrays = [0] * count, {}
        self.wanted, self.written = bytearray(count), bytearray(count)

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(len(self.handles)):
            if self.handles[i] and i not in self.arrays:
                mxnet.free(<void *><size_t>self.handles[i])

    def marks(self):
        """Return two texts, with a byte per array: whether a gradient is wanted; and written."""
        return bytes(self.wanted), bytes(self.written)

    def array(self, Py_ssize_t number):
        """Return the gradient of an array, which has one, as an array of ``mx.nd``."""
        array_ = self.arrays.get(number)
        if array_ is None:
            array_ = self.arrays[number] = new_array(<void *><size_t>self.handles[number])
        return array_

    cdef bint find(self, Py_ssize_t number, void *handle) except -1:
        """Find the gradient of a variable; return whether it is dense."""
        cdef void *gradient = NULL
        cdef int storage = DENSE
        cdef int failed = mxnet.gradient(handle, &gradient) if has_node(<size_t>handle) else 0
        if gradient is not NULL:
            self.handles[number] = <size_t>gradient
            failed |= mxnet.storage(gradient, &storage)
        if failed:
            check_call(failed)
        return storage == DENSE


def find_gradients(
    list arrays not None, dict grad_reqs not None, reached, is_leaf, int null, int add
):
    """Return the `Gradients` of variables among real arrays; None if nothing is known of one.

    `grad_reqs` has what is to be done with the gradient of each variable, by its node, among which
    are `null` and `add`.  Those that are not `reached`, if this is given, keep the gradients they have.
    Returns None as well if an operator has computed one of the arrays, or one is sparse.
    """
    cdef Gradients found = Gradients(len(arrays))
    cdef set seen = set()
    cdef array handles = clone(array("Q"), len(arrays), False)
    cdef size_t *known = <size_t *>handles.data.as_voidptr
    cdef size_t handle
    cdef Py_ssize_t i
    for i in range(len(arrays)):
        known[i] = <size_t>handle_of(arrays[i])
    for i in range(len(arrays)):
        fetch_node(known, i, len(arrays))
        handle = known[i]
        if not found.find(i, <void *>handle):
            return None
        node = (<size_t *>(handle + node_at))[0]
        if not found.handles[i]:
            if node and not is_leaf(node) or arrays[i].stype != "default":
                return None
            continue
        grad_req = grad_reqs.get(node)
        if grad_req is None:
            return None
        if grad_req != null and (reached is None or reached[i]):
            found.wanted[i] = True
            found.written[i] = grad_req != add and node not in seen
            seen.add(node)
    return found


def mark_fresh(list arrays not None, bytes wanted not None):
    """Mark the gradients of wanted real arrays as new, for ``Trainer.step``."""
    cdef const char *marks = wanted
    cdef Py_ssize_t i
    cdef int failed
    for i in range(len(arrays)):
        failed = mxnet.mark_fresh(handle_of(arrays[i]), 1) if marks[i] else 0
        if failed:
            check_call(failed)


def in_graph(list arrays not None):
    """Return a byte per array: 1 if MXNet's tape may receive a gradient of the array, else 0.

    The arrays are real, or lazy ones that are kept in arenas.
    """
    cdef bytearray marks = bytearray(len(arrays))
    cdef Py_ssize_t i
    for i, array_ in enumerate(arrays):
        fetch_handle(arrays, i)
        marks[i] = may_get_gradient(array_)
    return bytes(marks)


cdef bint may_get_gradient(object array_) except -1:
    """Do as `in_graph` for one array."""
    if is_unrealised(array_):
        return (<Keeper?><object>slot(array_, owner_at)[0]).recorded
    return has_node(<size_t>handle_of(array_))
