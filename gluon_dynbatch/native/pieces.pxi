# Structures of arguments as keys, and pieces of tapes; a part of `recording.pyx`.

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Realloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy


cdef extern from "Python.h":
    ctypedef struct PyDictObject:
        uint64_t ma_version_tag
    object PyObject_GenericGetDict(object value, void *context)


#: Says how the objects of a class are told apart: a tag, a number of the class, and what the tag
#: needs.  What it has said, by class.
cdef object describe
cdef dict known_kinds = {}
#: Numbers an object that is told apart by identity.
cdef object number_of
#: Attributes of blocks that say nothing of what `forward` does.
cdef frozenset ignored


def connect_structures(describe_, number_of_, frozenset ignored_ not None):
    """Take what is to be known of the Python side; once per process."""
    global describe, number_of, ignored
    describe, number_of, ignored = describe_, number_of_, ignored_


# --------------------------------------------------------------------------- structures

cdef enum:
    #: What an array is on this tape: real, recorded, or lazy once.
    REAL, RECORDED, COMPUTED
    #: Values within each other at most, as C has one stack.
    DEEPEST = 1500


@cython.final
cdef class Structure:
    """Writes values as bytes, the same for equal ones only; arrays, as their types, in `leaves`.

    If it watches, values are attributes of blocks: arrays and parameters are written by identity,
    blocks with their attributes, and `unchanged` tells whether all of it is as it was.
    """

    cdef Tape tape
    cdef readonly list leaves
    cdef bint watches, loose
    #: Dictionaries, whose versions are below, and lists with what is in them.
    cdef list watched
    cdef uint64_t *versions
    #: By id of containers and objects, their numbers; by array on the tape, its leaf and offset.
    cdef dict seen, places
    cdef uint8_t *data
    cdef Py_ssize_t size, room, depth

    def __init__(self, Tape tape, bint watches=False):
        self.tape, self.watches = tape, watches
        self.leaves, self.watched, self.seen, self.places = [], [], {}, {}

    def __dealloc__(self):
        PyMem_Free(self.data)
        PyMem_Free(self.versions)

    def write(self, uint64_t number, value):
        """Return number and value as bytes.

        Raises
        ------
        TypeError
            Something cannot be told apart: the argument of the exception.
        """
        self.tag(b"#", number)
        self.walk(value)
        return PyBytes_FromStringAndSize(<char *>self.data, self.size)

    def unchanged(self):
        """Whether nothing that was written has changed."""
        cdef Py_ssize_t i
        if self.loose:
            return False
        for i in range(len(self.watched)):
            thing = self.watched[i]
            if type(thing) is not tuple:
                if (<PyDictObject *><PyObject *>thing).ma_version_tag != self.versions[i]:
                    return False
            elif not same_items(<list>(<tuple>thing)[0], <tuple>(<tuple>thing)[1]):
                return False
        return True

    cdef int watch(self, object thing, uint64_t version) except -1:
        cdef Py_ssize_t count = len(self.watched)
        if self.watches:
            versions = PyMem_Realloc(self.versions, (count + 1) * sizeof(uint64_t))
            if versions is NULL:
                raise MemoryError
            self.versions = <uint64_t *>versions
            self.versions[count] = version
            self.watched.append(thing)
        return 0

    cdef inline int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room = 2 * (self.room + more)
        if self.size + more > self.room:
            data = PyMem_Realloc(self.data, room)
            if data is NULL:
                raise MemoryError
            self.data, self.room = <uint8_t *>data, room
        return 0

    cdef inline int tag(self, uint8_t tag, uint64_t number) except -1:
        """Write a tag and a number, the latter in as few bytes as it needs."""
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
        self.container(kind, value)
        self.depth -= 1
        return 0

    cdef int container(self, object kind, object value) except -1:
        if kind is tuple:
            return self.items(b"(", <tuple>value)
        if kind is array_type or kind is lazy_type:
            return self.attribute(value) if self.watches else self.array(value)
        if kind is list:
            if self.again(value):
                return 0
            items = tuple(<list>value)
            self.watch((value, items), 0)
            return self.items(b"[", items)
        if kind is dict:
            return 0 if self.again(value) else self.mapping(<dict>value, False)
        return self.other(kind, value)

    cdef bint again(self, object value) except -1:
        """Whether this very object was written before: then that is written."""
        identity = <size_t><PyObject *>value
        known = self.seen.get(identity)
        if known is None:
            self.seen[identity] = len(self.seen)
            return False
        self.tag(b"R", known)
        return True

    cdef int items(self, uint8_t tag, tuple values) except -1:
        self.tag(tag, len(values))
        for value in values:
            self.walk(value)
        return 0

    cdef int mapping(self, dict values, bint of_block) except -1:
        self.watch(values, (<PyDictObject *><PyObject *>values).ma_version_tag)
        self.tag(b"{", 0)
        for key, value in list(values.items()):
            if not (of_block and key in ignored):
                self.walk(key)
                self.walk(value)
        return self.tag(b"}", 0)

    cdef int attribute(self, object value) except -1:
        """Write something by identity; what reads it reads what it holds by then."""
        self.leaves.append(value)
        return self.tag(b"x", number_of(value))

    cdef int array(self, object value) except -1:
        """Write the type of an array; if an earlier one has the same values, where."""
        cdef int64_t offset = 0
        cdef int state = REAL
        kind = int
        identity = -1 - <int64_t><size_t><PyObject *>value
        if type(value) is lazy_type:
            type_id = <object>slot(value, type_at)[0]
            real = <object>slot(value, real_at)[0]
            if real is not None:
                identity, state = -1 - <int64_t><size_t><PyObject *>real, COMPUTED
            elif slot(value, tape_at)[0] is not <PyObject *>self.tape:
                raise TypeError(value)
            else:
                begin = <object>slot(value, offset_at)[0]
                identity, offset = <object>slot(value, value_at)[0], begin
                state, kind = RECORDED, type(begin)
        else:
            type_id = type_id_of(value)
        number = len(self.leaves)
        first, start = self.places.setdefault(identity, (number, offset))
        self.leaves.append(value)
        self.tag(b"A", type_id)
        self.tag(b"=", state)
        self.tag(b"=", number - first)
        if kind is not int:
            self.tag(b"k", number_of(kind))
        return 0 if first == number else self.whole(offset - start)

    cdef int other(self, object kind, object value) except -1:
        """Write a value of any other class, as `describe` has it."""
        described = known_kinds.get(kind)
        if described is None:
            if len(known_kinds) > 10000:
                known_kinds.clear()
            described = known_kinds[kind] = describe(kind)
        how, number, more = <tuple>described
        self.tag(b"c", number)
        if how == "items":
            return self.items(b"(", tuple(value))
        if how == "values":
            self.loose = True
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


cdef bint same_items(list values, tuple known) except -1:
    cdef Py_ssize_t i
    if len(values) != len(known):
        return False
    for i in range(len(known)):
        if values[i] is not known[i]:
            return False
    return True


# ------------------------------------------------------------------------------- pieces

@cython.final
cdef class Piece:
    """A part of a tape that can be appended to any other.

    Values are numbered from the first that its calls make; what they read beside these are inputs,
    from -1 downwards, whose offsets count from where the input begins.
    """

    #: As in `Tape`.
    cdef readonly array node_entry, node_value0, sources, offsets, value_type
    cdef readonly tuple wheres, entries
    #: Numbers of arguments, or what gives an array: a function with its arguments.
    cdef readonly tuple inputs
    #: Types of inputs; -1 for what no call reads.
    cdef readonly tuple input_types
    #: Source, offset, type and kind of offset of each result; type None means the input itself, or
    #: an earlier result.
    cdef readonly tuple results
    #: Structure of the results.
    cdef readonly object spec

    def __init__(
        self, array node_entry, array node_value0, array sources, array offsets, array value_type,
        tuple wheres, tuple entries, tuple inputs, tuple input_types, tuple results, spec,
    ):
        self.node_entry, self.node_value0, self.sources = node_entry, node_value0, sources
        self.offsets, self.value_type, self.wheres = offsets, value_type, wheres
        self.entries, self.inputs, self.input_types = entries, inputs, input_types
        self.results, self.spec = results, spec

    def append(self, Tape tape not None, list leaves not None, recorder):
        """Append to a tape, with other arguments; return what `forward` would.

        NotImplemented, before anything is appended, if an input is of another type by now.
        """
        cdef Py_ssize_t inputs = len(self.inputs), i, first
        cdef int64_t *at = <int64_t *>PyMem_Malloc((2 * inputs + 1) * sizeof(int64_t))
        cdef list found = []
        if at is NULL:
            raise MemoryError
        try:
            if not self.find_inputs(tape, leaves, recorder, found, at):
                return NotImplemented
            first = self.copy(tape, at)
            return self.hand_out(tape, found, at, first)
        finally:
            PyMem_Free(at)

    cdef bint find_inputs(
        self, Tape tape, list leaves, object recorder, list found, int64_t *at
    ) except -1:
        """Find value and offset of each input; False if one is not what it was."""
        cdef Py_ssize_t i
        for i in range(len(self.inputs)):
            given = self.inputs[i]
            if type(given) is int:
                value = leaves[given]
            else:
                value = (<tuple>given)[0](recorder, found, *(<tuple>given)[1:])
            found.append(value)
            if type(value) is lazy_type and slot(value, tape_at)[0] is <PyObject *>tape:
                at[2 * i] = <object>slot(value, value_at)[0]
                at[2 * i + 1] = <object>slot(value, offset_at)[0]
            elif value is None:
                return False
            elif self.input_types[i] >= 0:
                at[2 * i], at[2 * i + 1] = external_value(tape, value), 0
                if tape.value_type.data.as_ints[at[2 * i]] != self.input_types[i]:
                    return False
        return True

    cdef Py_ssize_t copy(self, Tape tape, int64_t *at) except -1:
        """Append calls and values; return the first value."""
        cdef Py_ssize_t i, first, count
        cdef int32_t source
        first = tape.value_type.ob_size
        for i in range(len(self.entries)):
            entry = self.entries[i]
            tape.entries[(<tuple>entry)[0]] = (<tuple>entry)[1]
        reserve(tape.node_entry, self.node_entry.ob_size)
        reserve(tape.node_value0, self.node_entry.ob_size)
        reserve(tape.sources, self.sources.ob_size)
        reserve(tape.offsets, self.sources.ob_size)
        reserve(tape.value_type, self.value_type.ob_size)
        tape.wheres.extend(self.wheres)
        copy_numbers(tape.node_entry, self.node_entry)
        copy_numbers(tape.value_type, self.value_type)
        for i in range(self.node_value0.ob_size):
            put(tape.node_value0, <int32_t>(self.node_value0.data.as_ints[i] + first))
        for i in range(self.sources.ob_size):
            source = self.sources.data.as_ints[i]
            if source >= 0:
                put(tape.sources, <int32_t>(source + first))
                put_wide(tape.offsets, self.offsets.data.as_longlongs[i])
            else:
                put(tape.sources, <int32_t>at[-2 - 2 * source])
                put_wide(tape.offsets, self.offsets.data.as_longlongs[i] + at[-1 - 2 * source])
        return first

    cdef object hand_out(self, Tape tape, list found, int64_t *at, Py_ssize_t first):
        """Make the lazy arrays that `forward` returns."""
        cdef list made = []
        cdef Py_ssize_t source
        cdef int64_t offset
        for source, begin, type_id, kind in self.results:
            offset = begin
            if type_id is None:
                made.append(found[-1 - source] if source < 0 else made[source])
                continue
            value = source + first
            if source < 0:
                value = at[-2 - 2 * source]
                offset += at[-1 - 2 * source]
            moved = offset if kind is None else kind(offset)
            made.append(make_lazy(tape, value, moved, type_id))
        return unflatten(self.spec, made)


cdef void copy_numbers(array numbers, array more) noexcept:
    memcpy(
        numbers.data.as_ints + numbers.ob_size, more.data.as_ints, more.ob_size * sizeof(int32_t)
    )
    numbers.ob_size += more.ob_size


def cut_out(Tape tape not None, Py_ssize_t node0, Py_ssize_t operand0, Py_ssize_t value0, find):
    """Return what a `Piece` has of the calls from `node0` on, and the numbers of values there.

    The numbers are those of the values from `value0` on, -1 for what no call made.  Of other
    operands, `find(value, node)` tells the number of the input and where that begins.
    """
    cdef Py_ssize_t nodes = tape.node_entry.ob_size, i, k, count = 0, operand = operand0
    cdef array firsts = array("i"), sources = array("i"), offsets = array("q"), types = array("i")
    cdef array numbers = array("i", [-1]) * (tape.value_type.ob_size - value0)
    cdef int32_t value
    cdef dict inputs = {}
    reserve(types, tape.value_type.ob_size - value0)
    reserve(firsts, nodes - node0)
    reserve(sources, tape.sources.ob_size - operand0)
    reserve(offsets, tape.sources.ob_size - operand0)
    for i in range(node0, nodes):
        entry = tape.entries[tape.node_entry.data.as_ints[i]]
        for k in range(len(entry.in_types)):
            value = tape.sources.data.as_ints[operand]
            if value >= value0 and numbers.data.as_ints[value - value0] >= 0:
                put(sources, numbers.data.as_ints[value - value0])
                put_wide(offsets, tape.offsets.data.as_longlongs[operand])
            else:
                known = inputs.get(value)
                if known is None:
                    known = inputs[value] = find(value, i)
                put(sources, (<tuple>known)[0])
                begin = tape.offsets.data.as_longlongs[operand] - <int64_t>(<tuple>known)[1]
                put_wide(offsets, begin)
            operand += 1
        put(firsts, <int32_t>count)
        for k in range(len(entry.out_types)):
            value = tape.node_value0.data.as_ints[i] + <int32_t>k
            numbers.data.as_ints[value - value0] = <int32_t>count
            put(types, tape.value_type.data.as_ints[value])
            count += 1
    return firsts, sources, offsets, types, numbers


def alive(Tape tape not None, Py_ssize_t first, set known not None):
    """Whether there is a lazy array, of those from `first` on, whose id is not `known`."""
    cdef Py_ssize_t i
    for i in range(first, len(tape.lazies)):
        lazy = <object>PyWeakref_GetObject(tape.lazies[i])
        if lazy is not None and <size_t><PyObject *>lazy not in known:
            return True
    return False
