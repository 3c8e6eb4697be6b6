# Arguments and attributes as keys of pieces; included by `recording.pyx`.

cdef enum:
    #: States of an array: not lazy, recorded on this tape, or lazy and computed.
    REAL, RECORDED, COMPUTED
    #: Up to so many leaves are searched one by one.
    FEW_LEAVES = 8
    #: The deepest nesting, as walking a value recurses in C.
    DEEPEST = 1500
    #: The shortest encoding of a tuple that gets a number, and the bytes of encodings in a table at
    #: which the table starts again.
    LONG = 48
    MOST_BYTES = 8388608

#: The numbers that stand for encodings of deeply immutable tuples, by encoding, and their bytes.
cdef dict number_by_encoding = {}
cdef Py_ssize_t encoding_bytes = 0
#: The last number; none is used again.
cdef uint64_t last_number = 0
#: By id of such a tuple: the tuple, which keeps the id valid, and the number of its encoding.
cdef dict numbered = {}
cdef Py_ssize_t numbered_bytes = 0


cdef struct Leaf:
    #: What memory an array is in, by a value of the tape or the array's id, and where it begins.
    int64_t identity, offset


@cython.final
cdef class Structure:
    """Encodes values as bytes that are equal exactly if the values have equal structure.

    Arrays are encoded by type, and listed in `leaves`.  With `watches`, the values are attributes
    of blocks: arrays and parameters are encoded by identity, blocks by their attributes, and
    `unchanged` returns whether all of these are still the same.
    """

    cdef Tape tape
    cdef readonly list leaves
    #: Of a block: the encoding of all that pieces depend on; and the `Refused` that rules out
    #: pieces of this block, or None.
    cdef public bytes state
    cdef public object against
    #: Whether attributes are watched, and whether some of them cannot be.
    cdef bint watches, loose
    #: Dictionaries with their versions, and lists with their items.
    cdef list watched
    #: Numbers of mutable containers and objects by id, if there are any.
    cdef dict seen
    #: The first leaves; and, once there are more, the first leaf and its offset by identity.
    cdef Leaf[FEW_LEAVES] leading
    cdef dict first_of
    cdef uint8_t *data
    cdef Py_ssize_t size, room, depth
    #: Number of values so far that can change, or whose encoding depends on other values.
    cdef Py_ssize_t changeable

    def __init__(self, Tape tape, bint watches=False):
        self.tape, self.watches = tape, watches
        self.leaves = []
        if watches:
            self.watched = []

    def __dealloc__(self):
        PyMem_Free(self.data)

    def write(self, uint64_t number, value):
        """Return the encoding of a number and a value.

        Raises ``TypeError`` with an object whose changes cannot be detected.
        """
        self.tag(b"#", number)
        self.walk(value)
        return (<char *>self.data)[:self.size]

    def unchanged(self):
        """Return whether no watched container has changed."""
        cdef Py_ssize_t i
        if self.loose:
            return False
        for container, before in self.watched:
            if type(container) is not list:
                if (<PyDictObject *><PyObject *>container).ma_version_tag != <uint64_t>before:
                    return False
            else:
                if len(<list>container) != len(<tuple>before):
                    return False
                for i in range(len(<tuple>before)):
                    if (<list>container)[i] is not (<tuple>before)[i]:
                        return False
        return True

    cdef inline int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room = 2 * (self.room + more)
        if self.size + more > self.room:
            data = PyMem_Realloc(self.data, room)
            if data is NULL:
                raise MemoryError
            self.data, self.room = <uint8_t *>data, room
        return 0

    cdef inline int tag(self, uint8_t tag, uint64_t number) except -1:
        """Write a tag and a number, which takes as few bytes as possible."""
        self.reserve(11)
        self.data[self.size] = tag
        self.size += 1
        while number >= 128:
            self.data[self.size] = <uint8_t>(number | 128)
            number >>= 7
            self.size += 1
        self.data[self.size] = <uint8_t>number
        self.size += 1
        return 0

    cdef int raw(self, uint8_t tag, const void *data, Py_ssize_t size) except -1:
        self.tag(tag, size)
        return self.copy(data, size)

    cdef inline int copy(self, const void *data, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.data + self.size, data, size)
        self.size += size
        return 0

    cdef inline int whole(self, int64_t number) except -1:
        return self.tag(b"i", (<uint64_t>number << 1) ^ <uint64_t>(number >> 63))

    cdef int walk(self, object value) except -1:
        cdef int overflow = 0
        cdef int64_t number
        cdef double real
        cdef Py_ssize_t size
        cdef const char *text
        kind = type(value)
        if kind is int:
            number = PyLong_AsLongLongAndOverflow(value, &overflow)
            if not overflow:
                return self.whole(number)
            text = PyUnicode_AsUTF8AndSize(hex(value), &size)
            return self.raw(b"I", text, size)
        if kind is str:
            text = PyUnicode_AsUTF8AndSize(value, &size)
            return self.raw(b"s", text, size)
        if value is None:
            return self.tag(b"N", 0)
        if kind is bool:
            return self.tag(b"b", value is True)
        if kind is float:
            real = value
            return self.raw(b"f", &real, sizeof(double))
        if kind is bytes:
            return self.raw(b"y", <char *><bytes>value, len(<bytes>value))
        if self.depth == DEEPEST:
            raise RecursionError
        self.depth += 1
        if isinstance(value, tuple) and not self.watches:
            self.immutable(kind, value)
        else:
            self.container(kind, value)
        self.depth -= 1
        return 0

    cdef int immutable(self, object kind, object value) except -1:
        """Write a tuple; of a long one that is deeply immutable, only the number of its encoding."""
        global encoding_bytes, numbered_bytes, last_number
        cdef Py_ssize_t start = self.size, changeable = self.changeable
        identity = <size_t><PyObject *>value
        entry = numbered.get(identity)
        if entry is not None:
            return self.tag(b"T", (<tuple>entry)[1])
        self.container(kind, value)
        if self.changeable > changeable or self.size - start < LONG:
            return 0
        encoding = (<char *>self.data)[start:self.size]
        number = number_by_encoding.get(encoding)
        if number is None:
            encoding_bytes += len(encoding)
            if encoding_bytes > MOST_BYTES:
                number_by_encoding.clear()
                encoding_bytes = len(encoding)
            last_number += 1
            number = number_by_encoding[encoding] = last_number
        numbered_bytes += len(encoding)
        if numbered_bytes > MOST_BYTES:
            numbered.clear()
            numbered_bytes = len(encoding)
        numbered[identity] = value, number
        self.size = start
        return self.tag(b"T", number)

    cdef int container(self, object kind, object value) except -1:
        if kind is tuple:
            return self.items(b"(", <tuple>value)
        if kind is array_type or kind is lazy_type:
            return self.attribute(value) if self.watches else self.array(value)
        if kind is list:
            if self.again(value):
                return 0
            items = tuple(<list>value)
            if self.watches:
                self.watched.append((value, items))
            return self.items(b"[", items)
        if kind is dict:
            return 0 if self.again(value) else self.mapping(<dict>value, False)
        return self.other(kind, value)

    cdef bint again(self, object value) except -1:
        """Return whether this object was written before; if so, write a reference to it."""
        self.changeable += 1
        identity = <size_t><PyObject *>value
        if self.seen is None:
            self.seen = {}
        before = len(self.seen)
        number = self.seen.setdefault(identity, before)
        if len(self.seen) > before:
            return False
        self.tag(b"R", number)
        return True

    cdef int items(self, uint8_t tag, tuple values) except -1:
        """Write the items of a tuple or of an instance of a subclass."""
        self.tag(tag, len(values))
        for value in values:
            self.walk(value)
        return 0

    cdef int mapping(self, dict values, bint of_block) except -1:
        if self.watches:
            self.watched.append((values, (<PyDictObject *><PyObject *>values).ma_version_tag))
        self.tag(b"{", 0)
        # An OrderedDict has an order of its own.
        items = values.items() if type(values) is dict else (<object>values).items()
        for key, value in list(items):
            if not (of_block and key in ignored):
                self.walk(key)
                self.walk(value)
        return self.tag(b"}", 0)

    cdef int attribute(self, object value) except -1:
        """Write an object by identity: pieces refer to it, not to its value."""
        self.leaves.append(value)
        return self.tag(b"x", number_of(value))

    cdef int array(self, object value) except -1:
        """Write the type of an array, and which earlier leaf, if any, has the same memory."""
        cdef int64_t offset = 0, identity = -1 - <int64_t><size_t><PyObject *>value
        cdef int state = REAL
        self.changeable += 1
        if type(value) is lazy_type:
            type_id = <object>slot(value, type_at)[0]
            owner = <object>slot(value, owner_at)[0]
            if not isinstance(owner, Owner):
                identity, state = -1 - <int64_t><size_t><PyObject *>owner, COMPUTED
            elif owner is self.tape:
                identity, offset = <object>slot(value, value_at)[0], <object>slot(value, offset_at)[0]
                state = RECORDED
            elif isinstance(owner, Constant):
                self.walk((<Constant>owner).token)
            else:
                raise TypeError(value)
        else:
            type_id = type_id_of(value)
        self.tag(b"A", type_id)
        self.tag(b"=", state)
        self.distance(identity, offset)
        self.leaves.append(value)
        return 0

    cdef int distance(self, int64_t identity, int64_t offset) except -1:
        """Write how far back the first leaf in the same memory is, and the offset from there."""
        cdef Py_ssize_t number = len(self.leaves), first = 0, i
        if number < FEW_LEAVES:
            self.leading[number] = Leaf(identity, offset)
            while self.leading[first].identity != identity:
                first += 1
            start = self.leading[first].offset
        else:
            if number == FEW_LEAVES:
                self.first_of = {}
                for i in range(number):
                    self.first_of.setdefault(self.leading[i].identity, (i, self.leading[i].offset))
            first, start = <tuple>self.first_of.setdefault(identity, (number, offset))
        self.tag(b"=", number - first)
        return 0 if first == number else self.whole(offset - <int64_t>start)

    cdef int other(self, object kind, object value) except -1:
        """Write a value of any other class in the way that `describe` returns."""
        how, number, more = <tuple>describe(kind)
        self.tag(b"c", number)
        if how == "items":
            return self.items(b"(", <tuple>value)
        if how == "values":
            self.loose = True
            self.changeable += 1
            return self.walk(more(value))
        if how == "identity" or how == "attribute" and self.watches:
            return self.attribute(value) if self.watches else self.tag(b"x", number_of(value))
        if how == "mapping":
            return 0 if self.again(value) else self.mapping(<dict>value, False)
        if how == "object" or how == "block" and self.watches:
            return 0 if self.again(value) else self.attributes(value, <tuple>more, how == "block")
        raise TypeError(value)

    cdef int attributes(self, object value, tuple slots, bint of_block) except -1:
        for name in slots:
            self.loose = True
            self.walk(getattr(value, name, None))
        if of_block:
            self.attribute(value)
        if not slots or hasattr(value, "__dict__"):
            self.mapping(<dict>PyObject_GenericGetDict(value, NULL), of_block)
        return 0
