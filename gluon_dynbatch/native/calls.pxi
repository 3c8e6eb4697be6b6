# Calls that are recorded; a part of `recording.pyx`.

cdef class Callee:
    """What can be called: base of `trace.program.BlockCallee` and `record.operators.Operator`."""

    #: By key, the entries of calls that were recorded, or why such calls are not.
    cdef readonly dict entries
    #: Of a block its id, as one that was copied as it is brings along the attribute in which this is
    #: kept; and the list that Gluon replaces whenever the block's cached graph becomes invalid.
    cdef public object identity, version

    def __cinit__(self):
        self.entries = {}

    cpdef bint is_current(self, block):
        """Whether this still stands for what `block` would compute."""
        cdef dict fields = PyObject_GenericGetDict(block, NULL)
        return (
            self.version is fields["_cached_op_args"]
            and <size_t>self.identity == <size_t><PyObject *>block
        )


cdef class Calls:
    """What calls come to: base of `record.recorder.Recorder`."""

    #: Where calls go, and the `Batch` that computes them; None when it is closed.
    cdef public Tape tape
    cdef public object scope
    #: With ``debug=True``, sees to it that nobody changes what recorded calls read.
    cdef public object watch
    #: The run of a block's ``forward`` that is being traced, or None.
    cdef public object tracing

    def close(self, reason):
        """Let go of scope and tape, so that none of the three waits for the collector.

        What is still pending says `reason`, for want of a value, when it is used.
        """
        self.refuse(reason)
        tape, self.scope = self.tape, None
        if tape is not None:
            tape.close(reason)
        self.tape = None

    def refuse(self, reason, where=None):
        """End the runs that are traced, as their pieces would not stand for other calls."""
        while self.tracing is not None:
            self.tracing.give_up(reason, where)

    cpdef call_block(self, block, tuple args):
        """Record a call of a block."""
        cdef dict fields = PyObject_GenericGetDict(block, NULL)
        if fields["_callback"] is not None:
            why = "register_op_hook shows their operators"
            return (<object>self).run_at_once(block, args, why)
        callee = fields.get("_dynbatch_callee")
        if callee is None or not (<Callee?>callee).is_current(block):
            callee = (<object>self).library.callee(block)
        results = call(self, callee, args)
        return (<object>self).enter(block, args, results) if type(results) is str else results


@cython.binding(True)
def call_hook(original):
    """Return what stands for ``Block.__call__``."""

    @cython.binding(True)  # becomes a method
    def __call__(block, *args):
        recorder = state.recorder
        if recorder is None:
            return original(block, *args)
        cdef dict fields = PyObject_GenericGetDict(block, NULL)
        passes, stock = <tuple>class_of(type(block))
        if not fields.get("_active"):
            return call_stock(original, recorder, block, args) if stock else original(block, *args)
        if fields.get("_scope_defaults") is not None:
            state.batch.use_defaults(fields["_scope_defaults"])
        if fields["_forward_hooks"] or fields["_forward_pre_hooks"]:
            return original(block, *args)
        pieces = fields.get("_pieces")
        if pieces is not None:
            return (<Known?>pieces).call(recorder, block, args)
        return (<Calls?>recorder).call_block(block, args) if passes else block.forward(*args)

    return __call__


def any_lazy(arrays):
    """Whether there is a lazy array among some, or in lists and tuples of them."""
    for one in arrays:
        if type(one) is lazy_type or type(one) in (list, tuple) and any_lazy(one):
            return True
    return False


def arithmetic(original, str of_number not None, str of_arrays=None):
    """Return a method of lazy arrays, as ``__add__``, given MXNet's and its operators.

    Those of arrays are left to MXNet's if the array comes second, as in ``__rsub__``.
    """
    @cython.binding(True)  # becomes a method
    def apply(self, other):
        recorder = state.recorder
        if recorder is not None:
            if isinstance(other, (int, float)):
                token = "op", of_number, ("scalar",), (str(float(other)),)
                token, args = recorder.with_number(token, [self])
            elif of_arrays is not None and type(other) in (lazy_type, array_type):
                token, args = ("op", of_arrays, (), ()), (self, other)
            else:
                return original(self, other)
            callee = recorder.operators.get(token)
            results = None if callee is None else call(recorder, callee, args)
            if type(results) is list:
                return (<list>results)[0]
        return original(self, other)

    return apply


cdef Tape tape_of(Calls recorder):
    """Return where the next call goes, once it is asked whether those before it are to run."""
    if recorder.tape.node_entry.ob_size >= recorder.tape.ask_at:
        (<object>recorder).run_ahead()
    if not recorder.tape.started:
        recorder.tape.started = time.perf_counter()
    return recorder.tape


def call(Calls recorder not None, Callee callee not None, args):
    """Record a call of a callee with any structure of arguments, and return its results.

    Of a call that is not recorded as one, returns why.
    """
    cdef Tape tape = tape_of(recorder)
    cdef list made, operands = [], key = [current_mode()]
    cdef Py_ssize_t first
    try:
        for arg in args:
            take_apart(arg, array_type, operands, key, tape)
    except TypeError as error:
        if type(error) is not TypeError:
            raise
        return (<object>recorder).refuse_argument(error.args[0], callee)
    known = tuple(key)
    entry = callee.entries.get(known)
    place = user_place()
    if entry is None:
        entry = (<object>recorder).new_entry(known, callee, args, place)
        if recorder.tape is not tape:
            # Tracing has read a value, which computed everything so far.
            return call(recorder, callee, args)
    if type(entry) is str:
        return entry
    entry_id, types, spec = <tuple>entry.recorded
    first = append(tape, entry, entry_id, place, operands, types)
    if recorder.watch is not None:
        (<object>recorder).watch_call()
    if len(<tuple>spec) == 1:
        return make_lazy(tape, first, 0, (<tuple>types)[0])
    made = []
    for type_id in <tuple>types:
        made.append(make_lazy(tape, first + len(made), 0, type_id))
    return unflatten(spec, made)


cdef Py_ssize_t append(
    Tape tape, object entry, object number, Place place, list operands, tuple types
) except -1:
    """Add a node to the tape, after all that can fail or run Python; return its first value."""
    cdef Py_ssize_t count = len(operands), first = tape.value_type.ob_size
    reserve(tape.node_entry, 1)
    reserve(tape.node_value0, 1)
    reserve(tape.sources, count)
    reserve(tape.offsets, count)
    reserve(tape.value_type, len(types))
    tape.wheres.append(place)
    tape.entries[number] = entry
    put(tape.node_entry, number)
    put(tape.node_value0, first)
    for operand in operands:
        if type(operand) is lazy_type:
            put(tape.sources, <object>slot(operand, value_at)[0])
            put_wide(tape.offsets, <object>slot(operand, offset_at)[0])
        elif type(operand) is tuple:
            put(tape.sources, (<tuple>operand)[0])
            put_wide(tape.offsets, (<tuple>operand)[1])
        else:
            put(tape.sources, operand)
            put_wide(tape.offsets, 0)
    for type_id in types:
        put(tape.value_type, type_id)
    return first
