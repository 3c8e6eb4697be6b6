# Arrays of NumPy as arrays of MXNet, and the reverse; a part of `recording.pyx`.

cdef class Joined:
    """Arrays of NumPy of one dtype, which become views of one array of MXNet.

    Owned by `converted`.
    """

    #: By the id of an array: the array itself, and its number among `views`.
    cdef dict numbers
    cdef list arrays, views
    #: The number of elements of all arrays.
    cdef int64_t size

    def __init__(self):
        self.numbers, self.arrays, self.size = {}, [], 0

    cdef int add(self, object values, int64_t size) except -1:
        """Add an array, unless it is here."""
        if self.numbers.setdefault(<size_t><PyObject *>values, len(self.arrays)) == len(self.arrays):
            self.arrays.append(values)
            self.size += size
        return 0

    cdef int copy(self, flat, context, bint numpy) except -1:
        """Copy all to an array of MXNet in the memory of the host, and make the views."""
        cdef Py_buffer content
        cdef void *address = NULL
        cdef int64_t start = 0, stop, left = self.size
        cdef list sizes = []
        check_call(mxnet.data(handle_of(flat), &address))
        for values in self.arrays:
            if not values.flags.c_contiguous:
                values = np.ascontiguousarray(values)
            PyObject_GetBuffer(values, &content, PyBUF_SIMPLE)
            left -= content.len // content.itemsize
            if left < 0:  # another thread, or the collector, has made it larger
                PyBuffer_Release(&content)
                raise ValueError("an array of a sample changed its size while it was copied")
            memcpy(address, content.buf, content.len)
            address = <char *>address + content.len
            sizes.append(content.len // content.itemsize)
            PyBuffer_Release(&content)
        if context is not None:
            flat = flat.as_in_context(context)
        self.views = []
        for values, size in zip(self.arrays, sizes):
            stop = start + <int64_t>size
            view = part(flat, start, stop) if len(sizes) > 1 else flat
            shape = values.shape
            view = in_shape(view, shape) if len(<tuple>shape) > 1 else view
            self.views.append(as_numpy(view, shape) if numpy else view)
            start = stop
        return 0


def converted(list samples not None, frozenset dtypes not None, allocate, context, bint numpy):
    """Return samples with arrays of MXNet instead of NumPy's that have one of some dtypes.

    `allocate` returns memory of the host for a number of elements and a dtype.  The arrays are
    moved to `context`, unless it is None.  With `numpy`, they are arrays of ``mx.np``.
    """
    cdef dict joined = {}
    cdef Joined group
    cdef list found = []
    cdef int64_t size
    for sample in samples:
        for values in (<tuple>sample if type(sample) is tuple else (sample,)):
            if type(values) is not numpy_array:
                continue
            dtype, size = values.dtype, values.size
            if not size or dtype not in dtypes or not (numpy or values.ndim):
                continue
            group = joined.get(dtype)
            if group is None:
                group = joined[dtype] = Joined()
            group.add(values, size)
    for dtype, group in joined.items():
        group.copy(allocate(group.size, dtype), context, numpy)
    for sample in samples:
        if type(sample) is tuple:
            found.append(tuple([converted_array(joined, values) for values in <tuple>sample]))
        else:
            found.append(converted_array(joined, sample))
    return found


cdef object converted_array(dict joined, object values):
    """Return the array of MXNet for an array of NumPy that is converted, or else the argument."""
    cdef Joined group
    if type(values) is numpy_array:
        group = joined.get(values.dtype)
        number = None if group is None else group.numbers.get(<size_t><PyObject *>values)
        if number is not None:
            return group.views[number]
    return values


#: MXNet's numbers of the kinds of memory that native code can read and write: those of a CPU.
cdef tuple HOST_MEMORY = (1, 3, 5)


def elements_in(array_, dict dtypes not None):
    """Wait for a real array, and return its elements, flat and in place.

    None if no CPU has this memory.  The result does not hold the array.  NumPy's types are in `dtypes`, by MXNet's numbers.
    """
    cdef int device = 0, number = 0, dtype = 0, axes = 0, i
    cdef int64_t size = 1
    cdef const int64_t *sizes
    cdef void *data = NULL
    cdef int failed
    cdef void *handle = handle_of(array_)
    check_call(mxnet.context(handle, &device, &number))
    if device not in HOST_MEMORY:
        return None
    with nogil:
        failed = mxnet.wait(handle)
    check_call(failed or mxnet.dtype(handle, &dtype) or mxnet.data(handle, &data))
    # The sizes are in memory of this thread that its next such call writes to.
    check_call(mxnet.shape(handle, &axes, &sizes))
    for i in range(axes):
        size *= sizes[i]
    kind = dtypes[dtype]
    size *= <int64_t>kind.itemsize
    return np.frombuffer(PyMemoryView_FromMemory(<char *>data, size, PyBUF_WRITE), kind)
