# Small external arrays, side by side; a part of `recording.pyx`.

cdef inline void fetch_values(void **handle, Py_ssize_t i, Py_ssize_t count) noexcept nogil:
    """Fetch to the cache what is soon read of arrays.

    An array begins with the address of its memory's description, and that with the address of the
    values.
    """
    cdef char *memory
    if i + 3 * AHEAD < count:
        prefetch(handle[i + 3 * AHEAD])
    if i + 2 * AHEAD < count:
        memory = (<char **>handle[i + 2 * AHEAD])[0]
        prefetch(memory)
        prefetch(memory + LINE)
        prefetch(memory + 2 * LINE)
    if i + AHEAD < count:
        memory = (<char **>handle[i + AHEAD])[0]
        if memory is not NULL:
            prefetch((<void **>memory)[0])


def gather(
    list arrays not None, const int64_t[::1] numbers, const int64_t[::1] elements, int64_t size,
    target,
):
    """Copy elements of `size` bytes of some real arrays side by side, once all are computed.

    `numbers` are those of the arrays in the list, `elements` how many each has; `target` is an
    array of all of them.  Returns False if one is a lazy array that is kept in an arena: the
    engine may not have computed it, and nothing waits for that.
    """
    cdef Py_ssize_t i, count = numbers.shape[0]
    cdef array handles = clone(array("Q"), count, False)
    cdef void **handle = <void **>handles.data.as_voidptr
    cdef char *source = NULL
    cdef char *place = NULL
    cdef int failed = mxnet.data(handle_of(target), <void **>&place)
    for i in range(count):
        array_ = arrays[numbers[i]]
        if is_unrealised(array_):
            return False
        handle[i] = handle_of(array_)
    with nogil:
        for i in range(count):
            fetch_values(handle, i, count)
            failed = failed or mxnet.wait(handle[i]) or mxnet.data(handle[i], <void **>&source)
            if failed:
                break
            memcpy(place, source, elements[i] * size)
            place += elements[i] * size
    if failed:
        check_call(-1)  # raises MXNet's last error, such as that of the operator that made an array
    return True
