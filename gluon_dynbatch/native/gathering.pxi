# Small external arrays, side by side; a part of `recording.pyx`.

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
            if i + AHEAD < count:
                prefetch((<void **>handle[i + AHEAD])[0])
            failed = failed or mxnet.wait(handle[i]) or mxnet.data(handle[i], <void **>&source)
            if failed:
                break
            memcpy(place, source, elements[i] * size)
            place += elements[i] * size
    if failed:
        check_call(-1)  # raises MXNet's last error, such as that of the operator that made an array
    return True
