# The arrays of a program, of which a thousand may be parameters; a part of `recording.pyx`.
#
# What is read of a parameter is in eight places of memory, one after another, which no cache has if
# there are many.  So a segment knows where the arrays of its parameters are, for as long as these
# have the same attributes.

cdef enum:
    #: How many parameters are on their way to the cache.
    PARAMETERS_AHEAD = 8
    #: Words of a row of `arrays_of_bases`.
    PLACE_WORDS = 4


cdef inline void fetch_owner(list owners, const int64_t *owned, Py_ssize_t i) noexcept:
    """Fetch to the cache what is read of parameters that come soon after one."""
    cdef SegmentBrief owner
    cdef ParameterPlace *place
    cdef PyObject *parameter
    cdef Py_ssize_t count = len(owners)
    if i + 3 * PARAMETERS_AHEAD < count:
        prefetch(PyList_GET_ITEM(owners, i + 3 * PARAMETERS_AHEAD))
        prefetch(<char *>PyList_GET_ITEM(owners, i + 3 * PARAMETERS_AHEAD) + 64)
    if i + 2 * PARAMETERS_AHEAD < count:
        owner = <SegmentBrief>PyList_GET_ITEM(owners, i + 2 * PARAMETERS_AHEAD)
        prefetch(<void *>owner.parameters)
        prefetch(owner.places + owned[2 * (i + 2 * PARAMETERS_AHEAD) + 1])
    if i + PARAMETERS_AHEAD < count:
        owner = <SegmentBrief>PyList_GET_ITEM(owners, i + PARAMETERS_AHEAD)
        parameter = PyTuple_GET_ITEM(owner.parameters, owned[2 * (i + PARAMETERS_AHEAD) + 1])
        place = owner.places + owned[2 * (i + PARAMETERS_AHEAD) + 1]
        # Python 3.11 has where the attributes are before the object.
        prefetch(<char *>parameter - 32)
        prefetch(parameter)
        prefetch(place.attributes)
        prefetch(place.array)


cdef PyObject *dictionary_of(object owner) noexcept:
    """Return the dictionary of an object; NULL if it has none."""
    cdef PyObject **place = _PyObject_GetDictPtr(owner)
    return NULL if place is NULL else place[0]


cdef object find_place(SegmentBrief owner, Py_ssize_t number, ParameterPlace *place):
    """Find the array of a parameter, and where it is if that is known to stay.

    It is taken from the parameter, which is faster than ``data``, if it is on one device only.
    """
    cdef const int64_t *sizes
    cdef int axes
    cdef int64_t size
    cdef void *handle
    cdef PyObject *attributes
    parameter = owner.parameters[number]
    copies = parameter._data
    place.version = 0
    if type(copies) is not list or len(<list>copies) != 1:
        return parameter.data(owner.context)
    array_ = (<list>copies)[0]
    attributes = dictionary_of(parameter)
    if (
        not owner.plain or attributes is NULL or parameter._stype != "default"
        or type(array_) is not array_type and type(array_) is not numpy_type
    ):
        return array_
    handle = handle_of(array_)
    size = np.dtype(array_.dtype).itemsize
    # The sizes are in memory of this thread that its next such call writes to.
    check_call(mxnet.shape(handle, &axes, &sizes))
    for i in range(axes):
        size *= sizes[i]
    # The first members of an array: its memory, which has its size after its address, and counts.
    # An array of all of the memory begins at its beginning.
    if size == (<int64_t **>handle)[0][1]:
        place.version, place.attributes = version_of(attributes), attributes
        place.array, place.handle = <PyObject *>array_, handle
        place.memory, place.counts = (<void **>handle)[0], (<void **>handle)[1]
    return array_


def arrays_of_bases(
    tuple bases not None, list owners not None, array owned not None, list arenas not None,
    list externals not None, array_at,
):
    """Return the array of each base of a program, and where the parameters are.

    Those at bases that are no parameters, arenas and external arrays are what `array_at` returns for
    their kind and key.  Parameters are known by their owners, see `Addressing`.  Each has a row of
    integers: its base, its handle, its memory, and what counts the references to that, which is 0
    if the array may be a part of its memory.
    """
    cdef list arrays = []
    cdef array places = clone(array("Q"), PLACE_WORDS * len(owners), False)
    cdef unsigned long long *row = places.data.as_ulonglongs
    cdef const int64_t *numbers = <const int64_t *>owned.data.as_longlongs
    cdef SegmentBrief owner
    cdef ParameterPlace *place
    cdef PyObject *attributes
    cdef Py_ssize_t i
    for base in bases:
        kind = (<tuple>base)[0]
        if kind == "parameter":
            arrays.append(None)
        elif kind == "arena":
            arrays.append(arenas[(<tuple>base)[1]])
        elif kind == "external":
            arrays.append(externals[(<tuple>base)[1]])
        else:
            arrays.append(array_at(*<tuple>base))
    for i in range(len(owners)):
        fetch_owner(owners, numbers, i)
        owner = owners[i]
        place = owner.places + numbers[2 * i + 1]
        attributes = NULL
        if place.version:
            parameter = <object>PyTuple_GET_ITEM(owner.parameters, numbers[2 * i + 1])
            attributes = dictionary_of(parameter)
        if attributes is NULL or version_of(attributes) != place.version:
            array_ = find_place(owner, numbers[2 * i + 1], place)
        else:
            array_ = <object>place.array
        arrays[numbers[2 * i]] = array_
        row[0], row[3] = numbers[2 * i], 0
        if place.version:
            row[1], row[2], row[3] = <size_t>place.handle, <size_t>place.memory, <size_t>place.counts
        else:
            row[1] = <size_t>handle_of(array_)
            row[2] = (<size_t *>row[1])[0]
        row += PLACE_WORDS
    return arrays, places
