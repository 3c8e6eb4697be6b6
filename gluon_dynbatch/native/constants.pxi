# Arrays whose values are known when they are made; a part of `recording.pyx`.

#: Elements of the first chunk of a tape and of the largest ones, unless an array has more.
SMALLEST_CHUNK, LARGEST_CHUNK = 256, 65536
#: Bytes up to which an array that is made in a scope keeps its values until calls read them.  The
#: values of larger ones would be copied once more than MXNet does.
MOST_VALUES = 262144

#: `Layout` by type id.
cdef dict layouts = {}
#: By dtype, as users name it: the dtype of NumPy, its code in MXNet, and its size in bytes;
#: `record.constants` fills it.
known_dtypes = {}


@cython.final
cdef class Layout:
    """What native code has to know of a type.

    Owned by the table `layouts`, for good: types are numbered once in a process.
    """

    cdef tuple shape
    cdef int dtype, device_type, device
    cdef int64_t elements, itemsize
    #: Whether native code can write arrays of this type.
    cdef bint in_host_memory

    def __init__(
        self, tuple shape not None, int dtype, int device_type, int device, elements, itemsize,
        in_host_memory,
    ):
        self.shape, self.dtype = shape, dtype
        self.device_type, self.device = device_type, device
        self.elements, self.itemsize = elements, itemsize
        self.in_host_memory = in_host_memory


@cython.final
cdef class Chunk:
    """An external array of a tape that has the values of constants, end to end.

    Owned by its tape, until that is closed.
    """

    #: The memory of the array, which the tape holds.  No other thread writes to it.
    cdef char *data
    cdef int64_t room, used
    cdef Py_ssize_t value
    #: The constants, and the first element of each.
    cdef list constants
    cdef array starts


@cython.final
cdef class Constant(Owner):
    """Values that are known when an array is made: the owner of that array.

    Owned by its arrays, by the scope that made it, if its call may be repeated, and by pieces.

    They come from numbers, lists or NumPy arrays, or from a creation operator; equal calls of one
    share a constant.  Code that writes to an array of a constant, or asks for its memory, gets a
    copy.  A part of one has it as the array whose memory it shares.
    """

    #: The values as bytes, or None; an array of ``mx.nd`` that has them, if a tape needs one, with
    #: one axis if there are none; and the type id.
    cdef readonly object data, array, type
    #: Whether the array is one of ``mx.np``.
    cdef readonly bint numpy
    #: The call of the creation operator, or None.
    cdef readonly object token
    #: Later constants and tapes have larger numbers.
    cdef readonly uint64_t serial
    cdef Layout layout
    #: The last tape that has read it, and where its values are there.
    cdef uint64_t tape
    cdef int64_t value, offset

    def __init__(self, type_id, data=None, array_=None, token=None, bint numpy=False):
        self.type, self.data, self.array, self.token = type_id, data, array_, token
        self.numpy = numpy
        self.layout, self.serial = layout_of(type_id), next_serial()
        if data is not None and len(<bytes?>data) != self.layout.elements * self.layout.itemsize:
            raise ValueError("the values of a constant are not of its type")
        # It is in no cycle.
        PyObject_GC_UnTrack(<PyObject *>self)

    def __eq__(self, other):
        """Return whether both have equal types and values, bit by bit, as far as these are known."""
        if type(other) is not Constant or self.type != (<Constant>other).type:
            return False
        if self.numpy != (<Constant>other).numpy:
            return False
        if self.data is None or (<Constant>other).data is None:
            return self.token is not None and self.token == (<Constant>other).token
        return self.data == (<Constant>other).data

    cpdef object make(self, object offset=0, object type_id=None, whole=None, numpy=None):
        """Return a new lazy array, perhaps as a part of another one, and of the other class.

        Nothing has to be computed or copied when the scope ends.
        """
        cdef bint of_numpy = self.numpy if numpy is None else numpy is True
        type_id = self.type if type_id is None else type_id
        lazy = new_lazy(self, 0, offset, type_id, of_numpy)
        if whole is not None:
            change_slot(lazy, detached_from_at, whole)
        return lazy

    def realise(self, lazy):
        """Make a lazy array real, with memory of its own, or of the array that it is a part of."""
        realise_constant(self, lazy)

    def holds(self, lazy):
        """Return whether a lazy array still has the values of this constant."""
        return is_constant(lazy, self)

    def copy(self):
        """Return an array of ``mx.nd`` with memory of its own."""
        cdef char *data
        if self.data is None or not self.layout.in_host_memory:
            return self.stored().copy()
        array_ = uninitialized(self.layout.shape or (1,), self.layout, &data)
        memcpy(data, <const char *><bytes>self.data, len(<bytes>self.data))
        return array_ if self.layout.shape or self.numpy else array_.reshape(())

    cdef object stored(self):
        """Return an array that has the values, and to which nothing writes."""
        if self.array is None:
            self.array = store_constant(self)
        return self.array

    @property
    def nbytes(self):
        """The size of the values."""
        return self.layout.elements * self.layout.itemsize

    cdef int place(self, FlatTape tape) except -1:
        """Find out where a tape has the values; copy them there if this is its first read."""
        cdef Chunk chunk
        if self.tape == tape.serial:
            return 0
        if self.data is None or not self.layout.in_host_memory:
            self.value, self.offset = external(tape, self.stored(), -1), 0
            tape.holders[self.value] = self
        else:
            chunk = chunk_of(tape, self.layout)
            # Here and below, no Python code runs.
            chunk.constants.append(self)
            reserve(chunk.starts, 1)
            put_wide(chunk.starts, chunk.used)
            memcpy(chunk.data + chunk.used * self.layout.itemsize,
                   <const char *><bytes>self.data, len(<bytes>self.data))
            self.value, self.offset = chunk.value, chunk.used
            chunk.used += self.layout.elements
        self.tape = tape.serial
        return 0


cdef inline bint is_constant(object lazy, object owner) noexcept:
    """Return whether a lazy array of a `Constant` and the array that it is a part of are equal to it.

    The latter is real once code may have written to it.
    """
    cdef PyObject *whole = slot(lazy, detached_from_at)[0]
    return whole is <PyObject *>None or slot(<object>whole, owner_at)[0] is <PyObject *>owner


cdef uint64_t serials = 0


cpdef uint64_t next_serial() noexcept:
    """Return a number that is larger than those of all constants and tapes."""
    global serials
    serials += 1
    return serials


cdef Layout layout_of(object type_id):
    layout = layouts.get(type_id)
    if layout is None:
        layout = layouts[type_id] = Layout(*describe_type(type_id))
    return <Layout>layout


cdef object uninitialized(tuple shape, Layout layout, char **data):
    """Return an uninitialized array of a shape, with the other properties of a type, and its address."""
    cdef array sizes = array("q", shape)
    cdef void *handle = NULL
    cdef int failed
    with nogil:
        failed = mxnet.create(
            <const int64_t *>sizes.data.as_longlongs, sizes.ob_size, layout.device_type,
            layout.device, False, layout.dtype, &handle)
    check_call(failed)
    array_ = new_array(handle)
    check_call(mxnet.data(handle, <void **>data))
    return array_


cdef Chunk chunk_of(FlatTape tape, Layout layout):
    """Return the chunk of a tape that has room for an array of a type."""
    cdef int64_t room = SMALLEST_CHUNK
    cdef bint alone
    cdef char *data
    cdef Chunk chunk
    key = layout.dtype | layout.device_type << 8 | layout.device << 16
    chunk = tape.chunks.get(key)
    if chunk is not None:
        if chunk.room - chunk.used >= layout.elements:
            return chunk
        room = min(2 * chunk.room, LARGEST_CHUNK)
    room = max(room, min(4 * layout.elements, LARGEST_CHUNK))
    # Large arrays have chunks of their own; and nothing may be written to an array that
    # `debug.Watch` has seen.
    alone = 2 * layout.elements > room
    if tape.recorder is not None:
        alone = alone or (<Calls?>tape.recorder).watch is not None
    chunk = Chunk.__new__(Chunk)
    room = layout.elements if alone else room
    array_ = uninitialized((room,), layout, &data)
    chunk.data, chunk.room, chunk.constants, chunk.starts = data, room, [], array("q")
    chunk.value = external(tape, array_, -1)
    tape.holders[chunk.value] = chunk
    if not alone:
        tape.chunks[key] = chunk
    return chunk


cdef int locate(FlatTape tape, object array_, int64_t *at) except -1:
    """Find the value and the offset of an array that is not a result of this tape.

    The value is added if it is new.
    """
    owner = owner_of(array_) if is_lazy(array_) else None
    if type(owner) is Constant and is_constant(array_, owner):
        (<Constant>owner).place(tape)
        at[0] = (<Constant>owner).value
        at[1] = (<Constant>owner).offset + <object>slot(array_, offset_at)[0]
    elif type(owner) is Excerpt:
        (<Excerpt>owner).place(tape)
        at[0], at[1] = (<Excerpt>owner).value, <object>slot(array_, offset_at)[0]
    else:
        at[0], at[1] = external(tape, array_, -1), 0
    return 0


def made_array(source, context, dtype, bint numpy=False):
    """Return what ``mx.nd.array`` makes of a number, a nested list or a NumPy array, as a lazy array.

    With `numpy`, this is what ``mx.np.array`` makes, where the dtype may be that of the source.

    Returns None if MXNet has to do that: it fails, or it has other arguments, or it is empty, large
    or in memory of another device.
    """
    cdef int[4] properties  # as in `find_type`
    cdef char *text
    cdef int64_t *sizes
    cdef Py_ssize_t i
    kind = type(source)
    if isinstance(source, array_type) or kind is not numpy_array and isinstance(source, numpy_array):
        return None
    try:
        if numpy and dtype is None:
            dtype = getattr(source, "dtype", None)
        numpy_dtype, code, itemsize = <tuple>(<dict>known_dtypes)[dtype]
        if kind is numpy_array and <int64_t>source.size * <int64_t>itemsize > MOST_VALUES:
            return None
        if kind is not numpy_array or source.dtype is not numpy_dtype:
            source = np.array(source, numpy_dtype)
        if not 0 < <int64_t>source.nbytes <= MOST_VALUES:
            return None
        if context is None:
            context = current_context()
        properties[1], properties[2] = code, context.device_typeid
        properties[3] = context.device_id
        data, shape = source.tobytes(), <tuple>source.shape
    except REFUSALS:
        return None
    if type(context) is not context_type:
        return None
    properties[0] = len(shape)
    key = PyBytes_FromStringAndSize(NULL, sizeof(properties) + 8 * len(shape))
    text = key
    memcpy(text, properties, sizeof(properties))
    sizes = <int64_t *>(text + sizeof(properties))
    for i in range(len(shape)):
        sizes[i] = shape[i]
    type_id = known_types.get(key)
    if type_id is None:
        type_id = known_types[key] = type_of_parts(shape, numpy_dtype.type.__name__, context)
    if not layout_of(type_id).in_host_memory:
        return None
    return Constant(type_id, data, numpy=numpy).make()
