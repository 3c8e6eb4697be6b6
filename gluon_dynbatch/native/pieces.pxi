# Calls of one tape appended to another, and pieces; a part of `recording.pyx`.

from libc.string cimport memcpy


class Moved(Exception):
    """What is recorded goes to another tape by now: to be begun anew, there."""


cdef int stay(Tape tape, object lazy) except -1:
    """End the runs that are traced within the tape of a lazy array, if that is around this one."""
    owner = <object>slot(lazy, tape_at)[0]
    if isinstance(owner, Tape) and (<Tape>owner).open:
        (<object>tape).recorder.refuse("it reads an array of another sample", None, owner)
        if not tape.open:
            raise Moved
    return 0


def lend(list arrays not None, Tape tape not None, Tape part not None):
    """Let lazy arrays of a tape belong to another, as arrays from outside.

    Of those that are parts of one value, the first is taken to begin where that does.  Returns for
    each array from outside the value that it is, and what was taken off the offsets.
    """
    cdef list lent = []
    cdef dict known = {}
    for lazy in arrays:
        if type(lazy) is lazy_type and slot(lazy, tape_at)[0] is <PyObject *>tape:
            value = <object>slot(lazy, value_at)[0]
            if value not in known:
                begin = <object>slot(lazy, offset_at)[0]
                whole = tape.value_type.data.as_ints[value]
                part.kept.append(lazy)
                number = add_external(part, lazy, <size_t><PyObject *>lazy, whole)
                known[value] = number, begin
                lent.append((value, begin))
            number, begin = <tuple>known[value]
            belong(lazy, part, number, -begin)
    return lent


cdef int belong(object lazy, Tape tape, object value, object shift) except -1:
    change_slot(lazy, tape_at, tape)
    change_slot(lazy, value_at, value)
    if shift:
        change_slot(lazy, offset_at, <object>slot(lazy, offset_at)[0] + shift)
    return 0


cdef class Places:
    """Where the values of a tape are on another one: value, and shift of offsets."""

    cdef int64_t *at

    def __cinit__(self, Tape part not None):
        self.at = <int64_t *>PyMem_Malloc((2 * part.value_type.ob_size + 1) * sizeof(int64_t))
        if self.at is NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.at)

    def __getitem__(self, Py_ssize_t value):
        return self.at[2 * value], self.at[2 * value + 1]

    cdef inline void put(self, Py_ssize_t value, int64_t place, int64_t shift) noexcept:
        self.at[2 * value], self.at[2 * value + 1] = place, shift


cdef int copy(Tape tape, Tape part, object wheres, Places places) except -1:
    """Append the calls of a part, given where its arrays from outside are."""
    cdef Py_ssize_t i, k = 0, outside = part.external_values.ob_size
    cdef Py_ssize_t nodes = part.node_entry.ob_size, operands = part.sources.ob_size
    cdef Py_ssize_t own = part.value_type.ob_size - outside, before = tape.value_type.ob_size
    cdef int64_t *at = places.at
    reserve(tape.node_entry, nodes)
    reserve(tape.node_value0, nodes)
    reserve(tape.sources, operands)
    reserve(tape.offsets, operands)
    reserve(tape.value_type, own)
    tape.entries.update(part.entries)
    tape.wheres.extend(wheres)
    cdef int32_t *entry = room(tape.node_entry, nodes)
    cdef int32_t *value0 = room(tape.node_value0, nodes)
    cdef int32_t *source = room(tape.sources, operands)
    cdef int32_t *kind = room(tape.value_type, own)
    cdef int64_t *offset = <int64_t *>tape.offsets.data.as_longlongs + tape.offsets.ob_size
    tape.offsets.ob_size += operands
    for i in range(own + outside):
        if k < outside and part.external_values.data.as_ints[k] == i:
            k += 1
        else:
            places.put(i, before + i - k, 0)
            kind[i - k] = part.value_type.data.as_ints[i]
    for i in range(nodes):
        entry[i] = part.node_entry.data.as_ints[i]
        value0[i] = <int32_t>at[2 * part.node_value0.data.as_ints[i]]
    for i in range(operands):
        k = 2 * part.sources.data.as_ints[i]
        source[i], offset[i] = <int32_t>at[k], part.offsets.data.as_longlongs[i] + at[k + 1]
    return 0


def splice(Tape tape not None, Tape part not None, list lent not None, list arrays not None):
    """Append a part, and give back what `lend` said was `lent`; return where its values are."""
    cdef Places places = Places(part)
    cdef Py_ssize_t i
    originals = iter(part.kept)
    for i in range(len(part.externals)):
        array_ = part.externals[i]
        if type(array_) is lazy_type:
            array_ = next(originals)
        if i < len(lent):
            value, shift = <tuple>lent[i]
        else:
            value, shift = external(tape, array_), 0
        places.put(part.external_values.data.as_ints[i], value, shift)
    copy(tape, part, part.wheres, places)
    if not tape.started:
        tape.started = part.started
    for lazy in part.drop():
        tape.lazies.append(lazy)
        take_back(lazy, tape, part, places)
    for lazy in arrays:
        take_back(lazy, tape, part, places)
    return places


cdef int take_back(object lazy, Tape tape, Tape part, Places places) except -1:
    if type(lazy) is lazy_type and slot(lazy, tape_at)[0] is <PyObject *>part:
        value, shift = places[<object>slot(lazy, value_at)[0]]
        belong(lazy, tape, value, shift)
    return 0


@cython.final
cdef class Piece:
    """A part that can be appended to any tape, with other arrays from outside.

    Parameters
    ----------
    part : Tape
        The calls.
    wheres : tuple
        Their lines.
    inputs : tuple
        What gives each array from outside: the number of an argument, or what `give` takes.
    results : tuple
        What `forward` returns: value, offset and type; a `Constant`; or the number of an earlier
        result, or, from -1 downwards, of an argument.
    spec : object
        Structure of the results.
    """

    cdef readonly Tape part
    cdef readonly tuple wheres, inputs, results
    cdef readonly object spec

    def __init__(self, Tape part not None, tuple wheres, tuple inputs, tuple results, spec):
        self.part, self.wheres, self.inputs = part, wheres, inputs
        self.results, self.spec = results, spec

    @property
    def content(self):
        """What is the same if `forward` runs again."""
        calls = self.part
        numbers = calls.node_entry, calls.node_value0, calls.sources, calls.offsets
        return numbers, calls.value_type, self.wheres, self.inputs, self.results

    @property
    def weight(self):
        """About how many bytes it takes in memory."""
        calls = 16 * len(self.part.node_entry) + 12 * len(self.part.sources)
        return 1000 + calls + 4 * len(self.part.value_type) + 160 * len(self.inputs)

    def append(self, Tape tape not None, list leaves not None, list attributes not None, recorder):
        """Append to a tape, with other arguments; return what `forward` would.

        NotImplemented, before anything is appended, if an input is of another type by now.
        """
        cdef Places places = Places(self.part)
        if not tape.started:
            tape.started = time.perf_counter()
        if not self.find_inputs(tape, leaves, attributes, recorder, places):
            return NotImplemented
        copy(tape, self.part, self.wheres, places)
        return self.hand_out(tape, leaves, places, recorder)

    cdef bint find_inputs(
        self, Tape tape, list leaves, list attributes, object recorder, Places places
    ) except -1:
        """Find each array from outside; False if one is not what it was."""
        cdef Py_ssize_t i
        cdef int32_t value, number, kind
        for i in range(len(self.inputs)):
            given = self.inputs[i]
            if type(given) is int:
                array_ = leaves[given]
            else:
                array_ = give(given, recorder, leaves, attributes)
            value = self.part.external_values.data.as_ints[i]
            if type(array_) is lazy_type and slot(array_, tape_at)[0] is <PyObject *>tape:
                number = <object>slot(array_, value_at)[0]
                places.put(value, number, <object>slot(array_, offset_at)[0])
            elif array_ is None:
                return False
            else:
                kind = self.part.value_type.data.as_ints[value]
                # The key says of what type an argument is.
                known = type(given) is int and type(array_) is array_type
                number = <int32_t>external(tape, array_, kind if known else None)
                if tape.value_type.data.as_ints[number] != kind:
                    return False
                places.put(value, number, 0)
        return True

    cdef object hand_out(self, Tape tape, list leaves, Places places, object recorder):
        """Make the lazy arrays that `forward` returns."""
        cdef list made = []
        cdef Py_ssize_t number
        cdef int32_t value
        cdef int64_t offset
        for result in self.results:
            if type(result) is tuple:
                value, begin, type_id = <tuple>result
                offset = <int64_t>begin + places.at[2 * value + 1]
                made.append(make_lazy(tape, places.at[2 * value], offset, type_id))
            elif type(result) is not int:
                made.append(recorder.constant(result.token))
            else:
                number = result
                made.append(leaves[-1 - number] if number < 0 else made[number])
        return unflatten(self.spec, made)


cdef class Known:
    """Calls of one block, of which pieces are kept: base of `record.pieces.Pieces`."""

    #: What was seen of the block, and as bytes, None if something stands against pieces.
    cdef public Structure seen
    cdef public bytes state
    #: A `PlanCache` of pieces by state of the block and structure of arguments.
    cdef public object held

    def call(self, recorder, block, args):
        """Return what ``block.forward(*args)`` returns, and have the same recorded."""
        cdef Tape tape = recorder.tape
        if tape.node_entry.ob_size >= tape.ask_at:
            recorder.run_ahead()
            tape = recorder.tape
        try:
            return self.call_on(tape, recorder, block, args)
        except Moved:
            return self.call_on(recorder.tape, recorder, block, args)

    cdef object call_on(self, Tape tape, object recorder, object block, object args):
        cdef Structure given = Structure(tape)
        cdef Piece piece
        if self.seen is None or not self.seen.unchanged():
            self.look(recorder, block)
        if self.state is None:
            return self.refuse(recorder, block, args, None)
        try:
            key = self.state, given.write(recorder.mode, args)
        except (TypeError, ValueError, RecursionError) as error:
            return self.refuse(recorder, block, args, error)
        piece = self.held.find(key)
        if piece is not None and recorder.watch is None:
            result = piece.append(tape, given.leaves, self.seen.leaves, recorder)
            if result is not NotImplemented:
                recorder.report.traced.known += 1
                return result
        return self.trace(recorder, block, args, given.leaves, key, piece)
