# Pieces of tapes; included by `recording.pyx`.

@cython.final
cdef class Piece(Tape):
    """Recorded calls that can be appended to any tape, with other inputs.

    Values from 0 on are results of its own calls; values from -1 downwards are its inputs.
    """

    #: Per input its source, which is the number of an argument or a source that `give` takes, and
    #: its type.
    cdef public list inputs
    #: Per array that `forward` returns: value, offset and type; a `Constant`; the number of an
    #: earlier result; or, from -1 downwards, the number of an argument.
    cdef public tuple results
    #: The structure in which these arrays are nested.
    cdef public object spec

    def __cinit__(self):
        self.inputs = []

    def take(self, Tape tape not None, Py_ssize_t node, Py_ssize_t operand, dict numbers, find):
        """Copy the calls of a tape from a node and its first operand on.

        `numbers` maps values of the tape to those of the piece and is extended by the results.  For
        any other operand, ``find(value, offset, type, place)`` returns its value and offset.
        """
        cdef list operands
        cdef Py_ssize_t first, i
        for node in range(node, tape.node_entry.ob_size):
            entry, operands = tape.entries[tape.node_entry.data.as_ints[node]], []
            place = tape.places[node]
            for in_type in entry.in_types:
                value = tape.sources.data.as_ints[operand]
                offset = tape.offsets.data.as_longlongs[operand]
                number = numbers.get(value)
                operands.append(
                    find(value, offset, in_type, place) if number is None else (number, offset))
                operand += 1
            number, types, _ = entry.recorded
            first = append(self, entry, number, place, operands, types)
            for i in range(len(types)):
                numbers[tape.node_value0.data.as_ints[node] + i] = first + i

    @property
    def content(self):
        """Everything that must be equal when `forward` runs again."""
        numbers = self.node_entry, self.node_value0, self.sources, self.offsets, self.value_type
        return numbers, self.places, self.inputs, self.results

    @property
    def weight(self):
        """An estimate of its size in bytes."""
        calls = 16 * len(self.node_entry) + 12 * len(self.sources)
        return 1000 + calls + 4 * len(self.value_type) + 160 * len(self.inputs)

    def append(self, Tape tape not None, list leaves not None, list attributes not None, recorder):
        """Append to a tape with other arguments; return the arrays that `forward` would return.

        If the type of an input has changed, nothing is appended, and NotImplemented is returned.
        """
        cdef array locations = clone(tape.offsets, 2 * len(self.inputs), False)
        cdef int64_t *at = <int64_t *>locations.data.as_longlongs
        if not self.find_inputs(tape, leaves, attributes, recorder, at):
            return NotImplemented
        before = tape.value_type.ob_size
        self.copy(tape, at)
        return self.hand_out(tape, before, at, leaves, recorder)

    cdef bint find_inputs(
        self, Tape tape, list leaves, list attributes, object recorder, int64_t *at
    ) except -1:
        """Fill in value and offset of each input; return False if the type of one has changed."""
        cdef int32_t number, kind
        for source, type_id in self.inputs:
            argument = type(source) is int
            array_ = leaves[source] if argument else give(source, recorder, leaves, attributes)
            at[1] = 0
            if type(array_) is lazy_type and slot(array_, owner_at)[0] is <PyObject *>tape:
                at[0], at[1] = <object>slot(array_, value_at)[0], <object>slot(array_, offset_at)[0]
            elif array_ is None:
                return False
            else:
                # The types of arguments are part of the key.
                number, kind = external(tape, array_, type_id if argument else None), type_id
                if tape.value_type.data.as_ints[number] != kind:
                    return False
                at[0] = number
            at += 2
        return True

    cdef int copy(self, Tape tape, const int64_t *at) except -1:
        """Append the calls, given value and offset of each input."""
        cdef Py_ssize_t i, nodes = tape.node_entry.ob_size, operands = tape.sources.ob_size
        cdef int32_t source, before = tape.value_type.ob_size
        # Eight of its calls take as long as one that is recorded.
        tape.next_check += len(self.node_entry) - len(self.node_entry) // 8
        tape.entries.update(self.entries)
        tape.places += self.places
        extend(tape.node_entry, self.node_entry)
        extend(tape.node_value0, self.node_value0)
        extend(tape.sources, self.sources)
        extend(tape.offsets, self.offsets)
        extend(tape.value_type, self.value_type)
        for i in range(nodes, tape.node_entry.ob_size):
            tape.node_value0.data.as_ints[i] += before
        for i in range(operands, tape.sources.ob_size):
            source = tape.sources.data.as_ints[i]
            if source >= 0:
                tape.sources.data.as_ints[i] = before + source
            else:
                tape.sources.data.as_ints[i] = <int32_t>at[-2 - 2 * source]
                tape.offsets.data.as_longlongs[i] += at[-1 - 2 * source]
        return 0

    cdef list hand_out(self, Tape tape, int64_t before, const int64_t *at, list leaves, recorder):
        """Return the lazy arrays that `forward` returns."""
        cdef list arrays = []
        cdef int64_t value, offset
        for result in self.results:
            if type(result) is tuple:
                value, offset, type_id = <tuple>result
                if value < 0:
                    value, offset = at[-2 - 2 * value], offset + at[-1 - 2 * value]
                else:
                    value += before
                arrays.append(make_lazy(tape, value, offset, type_id))
            elif type(result) is not int:
                arrays.append(recorder.constant(result.token))
            else:
                arrays.append(leaves[-1 - result] if result < 0 else arrays[result])
        return arrays


cdef class Known:
    """The pieces of one block: base of `record.pieces.Pieces`."""

    #: The attributes of the block when they were last encoded.
    cdef public Structure seen
    #: A `SizedCache` of pieces, by state of the block and structure of the arguments.
    cdef public object held

    def call(self, recorder, block, args):
        """Record the calls of ``block.forward(*args)`` and return its result."""
        cdef Structure arguments = Structure(tape_of(<Calls?>recorder)), seen = self.seen
        cdef Piece piece
        if seen is None or not seen.unchanged():
            seen = self.look(recorder, block)
        if seen.against is not None:
            return self.refuse(recorder, block, args, seen.against)
        try:
            key = seen.state, arguments.write(current_mode(), args)
        except (TypeError, ValueError, RecursionError) as error:
            return self.refuse(recorder, block, args, error)
        piece = self.held.find(key)
        if piece is not None and recorder.watch is None:
            result = piece.append(recorder.tape, arguments.leaves, seen.leaves, recorder)
            if result is not NotImplemented:
                recorder.report.traced.known += 1
                return unflatten(piece.spec, result)
        return self.trace(recorder, block, args, arguments.leaves, key, piece)
