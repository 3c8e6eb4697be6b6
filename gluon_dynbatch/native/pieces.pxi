# Pieces of tapes; a part of `recording.pyx`.

from libc.string cimport memcpy


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

    @property
    def content(self):
        """What is the same if `forward` runs again."""
        calls = self.node_entry, self.node_value0, self.sources, self.offsets, self.value_type
        return calls, self.wheres, self.inputs, self.input_types, self.results

    def append(self, Tape tape not None, list leaves not None, list attributes not None, recorder):
        """Append to a tape, with other arguments; return what `forward` would.

        NotImplemented, before anything is appended, if an input is of another type by now.
        """
        cdef Py_ssize_t inputs = len(self.inputs), first
        cdef int64_t *at = <int64_t *>PyMem_Malloc((2 * inputs + 1) * sizeof(int64_t))
        cdef list found = []
        if at is NULL:
            raise MemoryError
        if not tape.started:
            tape.started = time.perf_counter()
        try:
            if not self.find_inputs(tape, leaves, attributes, recorder, found, at):
                return NotImplemented
            first = self.copy(tape, at)
            return self.hand_out(tape, found, at, first)
        finally:
            PyMem_Free(at)

    cdef bint find_inputs(
        self, Tape tape, list leaves, list attributes, object recorder, list found, int64_t *at
    ) except -1:
        """Find value and offset of each input; False if one is not what it was."""
        cdef Py_ssize_t i
        for i in range(len(self.inputs)):
            given = self.inputs[i]
            if type(given) is int:
                value = leaves[given]
            else:
                value = (<tuple>given)[0](recorder, found, attributes, *(<tuple>given)[1:])
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
        cdef Py_ssize_t i, first
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
    """Return arrays of a `Piece`, of the calls from `node0` on, and the numbers of values there.

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
    return (tape.node_entry[node0:], firsts, sources, offsets, types), numbers


def alive(Tape tape not None, Py_ssize_t first, set known not None):
    """Whether there is a lazy array, of those from `first` on, whose id is not `known`."""
    cdef Py_ssize_t i
    for i in range(first, len(tape.lazies)):
        lazy = <object>PyWeakref_GetObject(tape.lazies[i])
        if lazy is not None and <size_t><PyObject *>lazy not in known:
            return True
    return False
