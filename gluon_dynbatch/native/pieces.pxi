# Pieces of tapes; included by `recording.pyx`.

def take_calls(FlatTape tape not None, Py_ssize_t node, Py_ssize_t operand, dict numbers, find):
    """Return a tape with copies of the calls from a node and its first operand on.

    `numbers` maps values of the tape to those of the new one and is extended by the results.  For
    any other operand, ``find(value, offset, type, place)`` returns its value and offset.

    Returns None if the tape is closed.  It may also be closed meanwhile, by `find` or by what the
    collector runs: all that is read here is still there.
    """
    cdef list operands
    cdef Py_ssize_t first, i
    cdef array column
    if not tape.open:
        return None
    cdef FlatTape taken = FlatTape()
    for node in range(node, tape.node_entry.ob_size):
        entry, operands = tape.entries[tape.node_entry.data.as_ints[node]], []
        place = tape.place(node)
        for in_type in entry.in_types:
            value, offset = tape.sources[operand], tape.offsets[operand]
            number = numbers.get(value)
            if number is None:
                number, offset = find(value, offset, in_type, place)
            operands.append(number)
            operands.append(offset)
            operand += 1
        number, types, _, _ = entry.recorded
        column = array("q", operands)
        first = append(
            taken, entry, number, place, <int64_t *>column.data.as_longlongs, len(operands) // 2,
            types)
        for i in range(len(types)):
            numbers[tape.node_value0.data.as_ints[node] + i] = first + i
    return taken


@cython.final
cdef class Piece:
    """Recorded calls that can be appended to any tape, with other inputs.

    Values from 0 on are results of its own calls; values from -1 downwards are its inputs.

    Owned by the cache of its block, and by each call that appends it, in any thread: it never
    changes.  It holds entries and constants, but no array and no tape.
    """

    #: Columns of a tape side by side, as most of the time to append them is waiting for memory:
    #: `offsets`, and then, of 32 bits, `node_entry`, `node_value0`, `node_place`, `sources` and
    #: `value_type`; and the numbers of the entries.
    cdef bytes numbers
    cdef Py_ssize_t nodes, operands, values
    #: The entries that its calls have, by id; and whether one records gradients.
    cdef dict entries
    cdef bint trained
    #: Whether it has views of inputs that must not get a gradient: see `leaves_graph`.
    cdef readonly bint bare
    #: Per input: its source, which is the number of an argument or a source that `give` takes, and
    #: its type.
    cdef tuple inputs
    #: Per array that `forward` returns: value, offset, type, and whether it is one of ``mx.np``;
    #: without a type, a `Constant`, the number of an earlier result, or, from -1 downwards, the
    #: number of an argument.
    cdef tuple results
    #: The structure in which these arrays are nested.
    cdef readonly tuple spec

    def __init__(
        self, FlatTape calls not None, tuple inputs, tuple results, tuple spec, bint bare=False
    ):
        self.inputs, self.results, self.spec = inputs, results, spec
        # A result that is an input may be in a graph, too.
        self.trained = any([type(value) is int and value < 0 for value in results[::4]])
        for entry in calls.entries.values():
            self.trained = self.trained or entry.mode & recording_bit
        self.bare = bare and self.trained  # else nothing gets a gradient
        self.entries = calls.entries
        self.nodes, self.operands = len(calls.node_entry), len(calls.sources)
        self.values = len(calls.value_type)
        self.numbers = b"".join(map(bytes, (
            calls.offsets, calls.node_entry, calls.node_value0, calls.node_place, calls.sources,
            calls.value_type, array("i", calls.entries))))

    @property
    def places(self):
        """Per node: the `Place` of the user's call."""
        cdef const int64_t *offsets = <const int64_t *><const char *>self.numbers
        cdef const int32_t *places = <const int32_t *>(offsets + self.operands) + 2 * self.nodes
        cdef Py_ssize_t i
        return [known_places[places[i]] for i in range(self.nodes)]

    @property
    def content(self):
        """Everything that must be equal when `forward` runs again."""
        return self.numbers, self.operands, self.values, self.inputs, self.results

    @property
    def weight(self):
        """An estimate of its size in bytes."""
        objects = len(self.entries) + 10 * len(self.inputs) + len(self.results)
        constants = sum([
            (<Constant>source[1]).nbytes + 250 for source in self.inputs[::2]
            if type(source) is tuple and type(source[1]) is Constant])
        return 700 + len(self.numbers) + 8 * objects + constants

    cdef object append(self, FlatTape tape, list leaves, list attributes, recorder):
        """Append to a tape with other arguments; return what `forward` would return.

        If the type of an input has changed, or it may get a gradient that it must not get, or calls
        go to another tape now, nothing is appended, and NotImplemented is returned.
        """
        cdef array locations = clone(tape.offsets, len(self.inputs), False)
        cdef int64_t *at = <int64_t *>locations.data.as_longlongs
        cdef list lazies = []
        if not self.find_inputs(tape, leaves, attributes, recorder, at):
            return NotImplemented
        arrays = self.hand_out(tape, at, leaves, recorder, lazies)
        # As in `call`: Python code may have run before, but none does until the calls are appended.
        if recorder.tape is not tape or not tape.open:
            return NotImplemented
        self.copy(tape, at, lazies)
        return unflatten(self.spec, arrays)

    cdef bint find_inputs(
        self, FlatTape tape, list leaves, list attributes, object recorder, int64_t *at
    ) except -1:
        """Fill in value and offset of each input; return False if one does not fit any more."""
        cdef Py_ssize_t i
        cdef int32_t kind
        for i in range(0, len(self.inputs), 2):
            source, kind = self.inputs[i], self.inputs[i + 1]
            argument = type(source) is int
            array_ = leaves[source] if argument else give(source, recorder, leaves, attributes)
            if type(array_) is Constant:  # which `forward` made
                (<Constant>array_).place(tape)
                at[0], at[1] = (<Constant>array_).value, (<Constant>array_).offset
            elif type(array_) is Excerpt:
                (<Excerpt>array_).place(tape)
                at[0], at[1] = (<Excerpt>array_).value, 0
                if recorder.tape is not tape or tape.value_type.data.as_ints[at[0]] != kind:
                    return False
            elif is_lazy(array_) and isinstance(owner_of(array_), Owner):
                if owner_of(array_) is tape:
                    at[0] = <object>slot(array_, value_at)[0]
                    at[1] = <object>slot(array_, offset_at)[0]
                elif argument or <object>slot(array_, type_at)[0] == kind:
                    locate(tape, array_, at)
                else:
                    return False
            elif array_ is None:
                return False
            else:
                # The types of arguments are part of the key.
                at[0], at[1] = external(tape, array_, kind if argument else -1), 0
                if tape.value_type.data.as_ints[at[0]] != kind:
                    return False
            if self.bare and is_trained(tape, at[0]):
                return False
            at += 2
        return True

    cdef int copy(self, FlatTape tape, const int64_t *at, list lazies) except -1:
        """Append the calls, given value and offset of each input; register the lazy arrays.

        As in `append`, no Python code runs, and once the first array changes, nothing can fail.
        """
        cdef Py_ssize_t i
        cdef int32_t source, before = tape.value_type.ob_size
        cdef const int64_t *offsets = <const int64_t *><const char *>self.numbers
        cdef const int32_t *node_entry = <const int32_t *>(offsets + self.operands)
        cdef const int32_t *node_value0 = node_entry + self.nodes
        cdef const int32_t *node_place = node_value0 + self.nodes
        cdef const int32_t *sources = node_place + self.nodes
        cdef const int32_t *value_type = sources + self.operands
        cdef const int32_t *entries = value_type + self.values
        # One more, so that no array is empty: it would have no address.
        reserve(tape.node_entry, self.nodes + 1)
        reserve(tape.node_value0, self.nodes)
        reserve(tape.node_place, self.nodes + 1)
        reserve(tape.sources, self.operands)
        reserve(tape.offsets, self.operands)
        reserve(tape.value_type, self.values + 1)
        for i in range(len(self.entries)):
            if not tape.has_noted(entries[i]):
                tape.note_entry(entries[i], self.entries[entries[i]])
        tape.trained = tape.trained or self.trained
        # Eight of its calls take as long as one that is recorded.
        tape.next_check += self.nodes - self.nodes // 8
        memcpy(take_room(tape.node_entry, self.nodes), node_entry, 4 * self.nodes)
        memcpy(take_room(tape.node_place, self.nodes), node_place, 4 * self.nodes)
        memcpy(take_room(tape.value_type, self.values), value_type, 4 * self.values)
        first = <int32_t *>take_room(tape.node_value0, self.nodes)
        for i in range(self.nodes):
            first[i] = before + node_value0[i]
        value = <int32_t *>take_room(tape.sources, self.operands)
        offset = <int64_t *>take_room(tape.offsets, self.operands)
        for i in range(self.operands):
            source = sources[i]
            value[i] = before + source if source >= 0 else <int32_t>at[-2 - 2 * source]
            offset[i] = offsets[i] + (0 if source >= 0 else at[-1 - 2 * source])
        for i in range(0, len(lazies), 2):
            source = lazies[i + 1]
            register(tape, lazies[i], before + source if source >= 0 else at[-2 - 2 * source])
        return 0

    cdef list hand_out(
        self, FlatTape tape, const int64_t *at, list leaves, recorder, list lazies
    ):
        """Return the arrays that `forward` returns.

        New ones are appended to `lazies`, each with its value in the piece, to be registered.
        """
        cdef list arrays = []
        cdef int64_t value, offset
        cdef Py_ssize_t i
        for i in range(0, len(self.results), 4):
            result, type_id = self.results[i], self.results[i + 2]
            if type_id is not None:
                value, offset = result, self.results[i + 1]
                if value < 0:
                    offset += at[-1 - 2 * value]
                lazy = new_lazy(tape, None, offset, type_id, self.results[i + 3])
                lazies.append(lazy)
                lazies.append(result)
                arrays.append(lazy)
            elif type(result) is int:
                arrays.append(leaves[-1 - result] if result < 0 else arrays[result])
            else:
                arrays.append((<Constant?>recorder.the_only(result)).make())
        return arrays


cdef class Known:
    """The pieces of one block: base of `record.pieces.Pieces`.

    Owned by the block, as an attribute.
    """

    #: The attributes of the block when they were last encoded.
    cdef public Structure seen
    #: A `SizedCache` of pieces, by structure of the arguments, with the number of the state of the
    #: block.
    cdef public Recency held
    #: How many calls found a piece since the last trace; and how many run ``forward`` without looking
    #: for one.
    cdef public Py_ssize_t found, resting

    cdef object call(self, Calls recorder, block, tuple args):
        """Record the calls of ``block.forward(*args)`` and return its result."""
        cdef Structure arguments, seen
        cdef Piece piece
        cdef FlatTape tape = None
        if self.resting and recorder.watch is None:
            self.resting -= 1
            recorder.report.traced.left += 1
            return block.forward(*args)
        while tape is not recorder.tape:  # again if calls go to another tape now
            tape, seen = tape_of(recorder), self.seen
            if not tape.open:
                return block.forward(*args)
            arguments = Structure.__new__(Structure, tape)
            if seen is None or not seen.unchanged():
                seen = self.look(recorder, block)
            if seen.against is not None:
                return self.refuse(recorder, block, args, seen.against)
            try:
                key = arguments.write(seen.number << mode_bits | mode_in(recorder.numpy_settings), args)
            except (TypeError, ValueError, RecursionError) as error:
                return self.refuse(recorder, block, args, error)
            piece = self.held.look_up(key)
            if piece is not None and recorder.watch is None:
                result = piece.append(tape, arguments.leaves, seen.leaves, recorder)
                if result is not NotImplemented:
                    recorder.report.traced.known += 1
                    self.found += 1
                    if piece.bare and recorder.tracing is not None:
                        recorder.tracing.see_bare_view(-1)
                    return result
        return self.trace(recorder, block, args, arguments.leaves, (seen, key), piece)
