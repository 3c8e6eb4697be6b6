# Arguments and attributes as keys of pieces; included by `recording.pyx`.

cdef enum:
    #: States of an array: not lazy, recorded on this tape, lazy and computed, or of a constant; or
    #: computed and still in an arena; or a part of a plain one.
    REAL, RECORDED, COMPUTED, CONSTANT, KEPT, TAKEN
    #: Up to so many levels need no other memory.
    FEW_LEVELS = 4
    #: Up to so many leaves are searched one by one.
    FEW_LEAVES = 8

cdef struct Level:
    # Owned by a `Structure`.  A container of which items are being written: these, as a tuple or list that nothing else may
    # change; how many are written; the tag that ends it, or 0; and, for a tuple, the size and the
    # changeable values before it; otherwise the size is -1.  It has a reference to the items, which
    # `end` drops, or `__dealloc__` after an exception.
    PyObject *items
    Py_ssize_t written, start, changeable
    uint8_t end


@cython.final
@cython.freelist(8)
cdef class Structure:
    """Encodes values as bytes that are equal exactly if the values have equal structure.

    Owned by one call, or, with `watches`, by the pieces of a block (`Known.seen`).

    Arrays are encoded by type, and listed in `leaves`.  With `watches`, the values are attributes
    of blocks: arrays and parameters are encoded by identity, blocks by identity and attributes, and
    `unchanged` returns whether all of these are still the same.  With `nameless`, blocks are encoded
    by their attributes alone, without names.
    """

    cdef FlatTape tape
    cdef readonly list leaves
    #: The ids of all leaves, once someone asks for them.
    cdef frozenset leaf_ids
    #: Of a block: the encoding of all that pieces depend on, and its number; and the `Refused` that
    #: rules out pieces of this block, or None.
    cdef public bytes state
    cdef public size_t number
    cdef public object against
    #: Whether attributes are watched, and whether some of them cannot be; whether blocks with equal
    #: attributes are equal.
    cdef bint watches, loose, nameless
    #: Dictionaries, with their versions; lists and their items.
    cdef list watched, watched_lists
    cdef array versions
    #: Numbers of mutable containers and objects by id, if there are any; and these, held so that no
    #: id is used again.
    cdef dict seen
    cdef list alive
    #: What tells apart the first leaves, and their offsets; and of more leaves both by identity.
    cdef int64_t[FEW_LEAVES] identities, starts
    cdef dict places
    #: The encoding so far: owned by this object, and moved when it grows.
    cdef uint8_t *data
    cdef Py_ssize_t size, room
    #: The containers of which items are being written, outermost first.  They are in memory, not on
    #: the stack, which may be small.
    cdef Level *levels
    cdef Level[FEW_LEVELS] first_levels
    cdef Py_ssize_t depth, levels_room
    #: Number of values so far that can change, or whose encoding depends on other values.
    cdef Py_ssize_t changeable

    def __cinit__(self, FlatTape tape=None, bint watches=False, bint nameless=False):
        self.tape, self.watches, self.leaves, self.nameless = tape, watches, [], nameless
        self.levels, self.levels_room = self.first_levels, FEW_LEVELS
        if watches:
            self.watched, self.watched_lists, self.versions = [], [], array("Q")

    def __dealloc__(self):
        PyMem_Free(self.data)
        while self.depth:  # after an exception
            self.depth -= 1
            Py_DECREF(<object>self.levels[self.depth].items)
        if self.levels != self.first_levels:
            PyMem_Free(self.levels)

    @property
    def ids(self):
        """The ids of all leaves, which are no longer added to."""
        if self.leaf_ids is None:
            self.leaf_ids = frozenset(map(id, self.leaves))
        return self.leaf_ids

    cpdef bytes write(self, uint64_t number, value):
        """Return the encoding of a number and a value.

        Raises ``TypeError`` with an object whose changes cannot be detected.
        """
        self.tag(b"#", number)
        self.walk(value)
        self.seen = self.alive = None
        return (<char *>self.data)[:self.size]

    cpdef bint unchanged(self):
        """Return whether no watched container has changed."""
        cdef Py_ssize_t i
        cdef PyDictObject *values
        if self.loose:
            return False
        for i in range(len(self.watched)):
            values = <PyDictObject *>PyList_GET_ITEM(self.watched, i)
            if values.ma_version_tag != self.versions.data.as_ulonglongs[i]:
                return False
        for container, before in self.watched_lists:
            if len(<list>container) != len(<tuple>before):
                return False
            for i in range(len(<tuple>before)):
                if (<list>container)[i] is not (<tuple>before)[i]:
                    return False
        return True

    cdef inline int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room = 2 * (self.room + more) + 128
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
        self.reserve(size)
        memcpy(self.data + self.size, data, size)
        self.size += size
        return 0

    cdef inline int whole(self, int64_t number) except -1:
        return self.tag(b"i", (<uint64_t>number << 1) ^ <uint64_t>(number >> 63))

    cdef int walk(self, object value) except -1:
        """Write a value and everything in it."""
        cdef Py_ssize_t outer = self.depth, depth, written, size
        self.begin(value)
        while self.depth > outer:
            depth, level = self.depth, &self.levels[self.depth - 1]
            items, written = <object>level.items, level.written
            size = PySequence_Fast_GET_SIZE(items)
            while self.depth == depth and written < size:
                self.begin(<object>PySequence_Fast_GET_ITEM(items, written))
                written += 1
            self.levels[depth - 1].written = written
            if self.depth == depth:
                self.end()
        return 0

    cdef int open(self, object items, uint8_t end=0) except -1:
        """Write the items of a tuple or of a list next, and then a tag unless it is 0."""
        cdef Py_ssize_t room = 2 * self.depth
        check_depth(self.depth)
        if self.depth == self.levels_room:
            before = NULL if self.levels == self.first_levels else self.levels
            levels = PyMem_Realloc(before, room * sizeof(Level))
            if levels is NULL:
                raise MemoryError
            if before is NULL:
                memcpy(levels, self.first_levels, sizeof(self.first_levels))
            self.levels, self.levels_room = <Level *>levels, room
        Py_INCREF(items)
        self.levels[self.depth] = Level(<PyObject *>items, 0, -1, 0, end)
        self.depth += 1
        return 0

    cdef int end(self) except -1:
        """End the innermost container."""
        self.depth -= 1
        level = &self.levels[self.depth]
        items = <object>level.items
        Py_DECREF(items)
        if level.end:
            self.tag(level.end, 0)
        if level.start >= 0 and self.changeable == level.changeable:
            if self.size - level.start >= LONG_TEXT:
                self.give_number(items, level.start)
        return 0

    cdef int begin(self, object value) except -1:
        """Write a number, a string or another small value; open a container."""
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
            digits = hex(value).encode()
            return self.raw(b"I", <char *><bytes>digits, len(<bytes>digits))
        if kind is str:
            text = utf8_of(value, &size)
            if text is not NULL:
                return self.raw(b"s", text, size)
            PyErr_Clear()
            encoded = value.encode("utf-8", "surrogatepass")
            return self.raw(b"S", <char *><bytes>encoded, len(<bytes>encoded))
        if value is None:
            return self.tag(b"N", 0)
        if kind is bool:
            return self.tag(b"b", value is True)
        if kind is float:
            real = value
            return self.raw(b"f", &real, sizeof(double))
        if kind is bytes:
            return self.raw(b"y", <char *><bytes>value, len(<bytes>value))
        if isinstance(value, tuple) and not self.watches:
            return self.cached(kind, value)
        return self.container(kind, value)

    cdef int cached(self, object kind, object value) except -1:
        """Open a tuple, or write the number of its encoding if it has one."""
        cdef Py_ssize_t start = self.size, changeable = self.changeable, depth = self.depth
        known = find_tuple(value)
        if known.item is not NULL:
            return self.tag(b"T", known.number)
        self.container(kind, value)
        if self.depth > depth:
            level = &self.levels[depth]
            level.start, level.changeable = start, changeable
        return 0

    cdef int give_number(self, object value, Py_ssize_t start) except -1:
        """Replace the encoding of a long tuple, which is deeply immutable, by its number."""
        number = number_of_text((<char *>self.data)[start:self.size])
        hold_tuple(value, number, self.size - start)
        self.size = start
        return self.tag(b"T", number)

    cdef int container(self, object kind, object value) except -1:
        if kind is tuple:
            return self.items(b"(", <tuple>value)
        if (
            kind is array_type or kind is lazy_type
            or kind is numpy_type or kind is lazy_numpy_type
        ):
            return self.attribute(value) if self.watches else self.array(value)
        if kind is list:
            if self.again(value):
                return 0
            items = tuple(<list>value)
            if self.watches:
                self.watched_lists.append((value, items))
            return self.items(b"[", items)
        if kind is dict:
            return 0 if self.again(value) else self.mapping(<dict>value, False)
        return self.other(kind, value)

    cdef bint again(self, object value) except -1:
        """Return whether this object was written before; if so, write a reference to it."""
        self.changeable += 1
        identity = <size_t><PyObject *>value
        if self.seen is None:
            self.seen, self.alive = {}, []
        number = self.seen.get(identity)
        if number is None:
            self.seen[identity] = len(self.alive)
            self.alive.append(value)
            return False
        self.tag(b"R", number)
        return True

    cdef int items(self, uint8_t tag, tuple values) except -1:
        """Write the items of a tuple or of an instance of a subclass."""
        self.tag(tag, len(values))
        return self.open(values)

    cdef int mapping(self, dict values, bint of_block) except -1:
        cdef list written = []
        if self.watches:
            self.watched.append(values)
            self.versions.append((<PyDictObject *><PyObject *>values).ma_version_tag)
        self.tag(b"{", 0)
        # An OrderedDict has an order of its own.
        items = values.items() if type(values) is dict else (<object>values).items()
        for key, value in items:
            if not (of_block and (key in ignored or self.nameless and key in names)):
                written.append(key)
                written.append(value)
        return self.open(written, b"}")

    cdef int attribute(self, object value) except -1:
        """Write an object by identity: pieces refer to it, not to its value."""
        self.leaves.append(value)
        return self.tag(b"x", number_of(value))

    cdef int array(self, object value) except -1:
        """Write the type of an array, and which earlier leaf, if any, has the same memory."""
        cdef int64_t offset = 0, identity = -1 - <int64_t><size_t><PyObject *>value
        cdef int64_t first = 0, start, i, number = len(self.leaves)
        cdef int state = REAL
        self.changeable += 1
        if is_lazy(value):
            owner = owner_of(value)
            if type(owner) is Constant and not is_constant(value, owner):
                value.real()  # as is the array that it is a part of
                owner = owner_of(value)
            type_id = <object>slot(value, type_at)[0]
            if not isinstance(owner, Owner):
                identity, state = -1 - <int64_t><size_t><PyObject *>owner, COMPUTED
            elif owner is self.tape:
                identity = <object>slot(value, value_at)[0]
                offset = <object>slot(value, offset_at)[0]
                state = RECORDED
            elif type(owner) is Constant:
                identity = -1 - <int64_t><size_t><PyObject *>owner
                offset = <object>slot(value, offset_at)[0]
                state = CONSTANT
                if (<Constant>owner).token is not None:
                    # `forward` may make the same one, so this cannot be another one.
                    self.walk((<Constant>owner).token)
                    self.whole(offset)
            elif isinstance(owner, Keeper):
                state = KEPT
            elif type(owner) is Excerpt:
                identity = -1 - <int64_t><size_t><PyObject *>owner
                offset = <object>slot(value, offset_at)[0]
                state = TAKEN
            else:
                raise TypeError(value)
        else:
            type_id = type_id_of(value)
        if number < FEW_LEAVES:
            self.identities[number], self.starts[number] = identity, offset
            while self.identities[first] != identity:
                first += 1
            start = self.starts[first]
        else:
            if number == FEW_LEAVES:  # the first of equal identities is put last
                self.places = {
                    self.identities[i]: (i, self.starts[i]) for i in range(number - 1, -1, -1)}
            first, start = <tuple>self.places.setdefault(identity, (number, offset))
        self.leaves.append(value)
        self.tag(b"n" if is_numpy(value) else b"A", type_id)
        self.tag(b"=", state)
        self.tag(b"=", number - first)
        return 0 if first == number else self.whole(offset - start)

    cdef int other(self, object kind, object value) except -1:
        """Write a value of any other class in the way that `describe` returns."""
        how, number, more = <tuple>describe(kind)
        self.tag(b"c", number)
        if how == "items":
            return self.items(b"(", <tuple>value)
        if how == "values":
            self.loose = True
            self.changeable += 1
            return self.begin(more(value))
        if how == "identity" or how == "attribute" and self.watches:
            return self.attribute(value) if self.watches else self.tag(b"x", number_of(value))
        if how == "mapping":
            return 0 if self.again(value) else self.mapping(<dict>value, False)
        if how == "object" or how == "block" and self.watches:
            return 0 if self.again(value) else self.attributes(value, <tuple>more, how == "block")
        raise TypeError(value)

    cdef int attributes(self, object value, tuple slots, bint of_block) except -1:
        if of_block and not self.nameless:
            self.attribute(value)
        if not slots or hasattr(value, "__dict__"):
            self.mapping(<dict>PyObject_GenericGetDict(value, NULL), of_block)
        if slots:  # these are written before the items of the mapping
            self.loose = True
            self.open(tuple([getattr(value, name, None) for name in slots]))
        return 0
