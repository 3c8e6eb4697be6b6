# Recording of calls; a part of `recording.pyx`.

cdef class Callee:
    """A block or operator: base of `trace.program.BlockCallee` and `record.operators.Operator`.

    Owned by its block, as an attribute, or by the library's table of operators.  Its entries, which
    do not refer to arrays, are dropped by the library.
    """

    #: By key: the entry of calls, or a string that says why such calls are not recorded.
    cdef readonly dict entries
    #: Entries that have not been used since the library looked last, see `trace.entry.Library`.
    cdef public dict older
    #: The id of the block.  A copied block has the callee of the original among its attributes.
    cdef public object identity
    #: The list that Gluon replaces when the block's cached graph becomes invalid.
    cdef public object version
    #: The `BlockGraph` that has run last, if there is one, else None.
    cdef public object graph

    def __cinit__(self):
        self.entries, self.older = {}, {}

    cpdef bint is_current(self, block):
        """Return whether this is the callee of `block`, whose cached graph has not changed."""
        cdef dict fields = PyObject_GenericGetDict(block, NULL)
        unchanged = self.version is fields["_cached_op_args"]
        return unchanged and <size_t>self.identity == <size_t><PyObject *>block


cdef class ClassCalls:
    """The calls, in one scope, of a class of blocks that override ``forward``.

    Base of `record.overridden.Overridden`.  Owned by the recorder, and by the report.
    """

    #: Number of calls, and that of the next call to look at; -1 if none is worth it.
    cdef public Py_ssize_t calls
    cdef public Py_ssize_t next_look


cdef class Calls:
    """The native part of a recorder: base of `record.recorder.Recorder`.

    Owned by the scope of a thread, and by its tape until `close`.
    """

    #: The tape that gets the calls, and the `OpenScope` that computes them.  After `close`, a tape that
    #: takes no calls, and a scope where nothing is pending.
    cdef public FlatTape tape
    cdef public object scope
    #: With ``debug=True``, the `debug.Watch` of the arrays that pending calls read, else None.
    cdef public object watch
    #: The library of callees, and those of operators with their attributes, by token.
    cdef public object library
    cdef public dict operators
    #: The `Trace` of the innermost ``forward`` that is being traced, or None.
    cdef public object tracing
    #: By class of blocks that override ``forward``, their calls.
    cdef readonly dict forwards
    #: The places at which the report knows that samples of a map read values.
    cdef readonly set read_places
    #: The attributes of `numpy_scopes` in the thread of the recorder.
    cdef dict numpy_settings
    #: By id of a plain array, the first of its rows, their number, and what traces them, or 0.
    cdef dict excerpts

    def __cinit__(self, *args, **kwargs):
        self.forwards, self.excerpts = {}, {}
        self.numpy_settings = numpy_scopes.__dict__
        self.read_places = set()

    def close(self, reason):
        """Drop the scope and the tape, as the three would form a reference cycle.

        Arrays that are still pending have no values: reading one raises, with `reason`.
        """
        self.refuse(reason)
        settle_excerpts(self)
        self.tape.close(reason)
        self.tape, self.scope = FlatTape(), ended_scope
        self.tape.open = False

    def refuse(self, reason, where=None):
        """End all traces: the calls of these runs cannot be pieces."""
        while self.tracing is not None:
            self.tracing.give_up(reason, where)

    cdef object call_block(self, block, tuple args):
        """Record a call of a block, or run it if it cannot be recorded.

        Every call of a block that becomes one node enters here, from `call_hook` or
        `cached_op_hook`, or below, if its `CallRoute` is known.
        """
        cdef dict fields = PyObject_GenericGetDict(block, NULL)
        if fields["_callback"] is not None:
            why = "register_op_hook shows their operators"
            return (<object>self).run_at_once(block, args, why)
        callee = current_callee(block, fields)
        if callee is None:
            callee = self.library.callee(block)
        return self.call_callee(block, <Callee>callee, args)

    cdef inline object call_callee(self, block, Callee callee, tuple args):
        """Do as `call_block`, given the callee."""
        results = call(self, callee, args)
        if type(results) is str:
            return (<object>self).run_unrecorded(block, args, results)
        return results


cdef Callee current_callee(block, dict fields):
    """Return the callee of a block, given its attributes; None if it has to be made."""
    callee = fields.get("_dynbatch_callee")
    if callee is None or not Callee.is_current(<Callee?>callee, block):
        return None
    return <Callee>callee


cdef object run_forward(Calls recorder, original, block, tuple args):
    """Run a block whose calls are not recorded as a whole; `original` runs its hooks, too."""
    cdef ClassCalls forward = recorder.forwards.get(type(block))
    if forward is None or forward.calls + 1 == forward.next_look:
        return (<object>recorder).look_at_forward(forward, original, block, args)
    forward.calls += 1
    return block.forward(*args) if original is None else original(block, *args)


cdef object find_route(Calls recorder, original, block, dict fields, tuple args):
    """Record a call of a block that has no `CallRoute`, or run it; `original` is ``Block.__call__``."""
    if not fields.get("_active"):
        is_cell, is_stock = <tuple>classify_forward(type(block))
        callee = callee_of_stock(recorder, block, args) if is_stock else None
        if callee is not None:
            try:
                if fields["_callback"] is not None:
                    return recorder.call_block(block, args)
                return recorder.call_callee(block, <Callee?>callee, args)
            except REFUSALS:
                pass  # the original may still accept the arguments; if not, it raises
        if is_cell:
            return (<object>recorder).run_idle(original, block, args)
        return run_forward(recorder, original, block, args)
    if fields.get("_scope_defaults") is not None:
        state.scope.use_defaults(fields["_scope_defaults"])
    is_cell = (<tuple>classify_forward(type(block)))[0]
    if fields["_forward_hooks"] or fields["_forward_pre_hooks"]:
        return original(block, *args) if is_cell else run_forward(recorder, original, block, args)
    pieces = fields.get("_pieces")
    is_cell = is_cell and pieces is None
    if fields.get("_scope_defaults") is None and (not is_cell or fields["_callback"] is None):
        target = current_callee(block, fields) if is_cell else pieces
        if target is not None or not is_cell:
            keep_route_in(routes, block, fields, target, is_cell)
    if is_cell:
        return recorder.call_block(block, args)
    if pieces is None:
        return run_forward(recorder, None, block, args)
    return (<Known?>pieces).call(recorder, block, args)


@cython.binding(True)
def call_hook(original):
    """Return the replacement of ``Block.__call__``: a block is entered before its Python code runs."""

    @cython.binding(True)  # becomes a method
    def __call__(block, *args):
        cdef Calls recorder = recorder_here()
        if recorder is None:
            at_once = at_once_here()
            results = None if at_once is None else at_once.run(block, args)
            return original(block, *args) if results is None else results
        cdef dict fields = PyObject_GenericGetDict(block, NULL)
        route = route_in(routes, block, fields)
        if route is NULL:
            return find_route(recorder, original, block, fields, args)
        target = <object>route.target
        if target is None:
            return run_forward(recorder, None, block, args)
        if route.is_cell:
            return recorder.call_callee(block, <Callee>target, args)
        return (<Known>target).call(recorder, block, args)

    return __call__


@cython.binding(True)
def cached_op_hook(original):
    """Return the replacement of ``_call_cached_op``, which runs the cached graph of a block.

    Blocks enter here that `call_hook` has not recorded: ``forward`` was called by the block's own
    Python code or by the user, or the scope ran calls at once.
    """

    @cython.binding(True)  # becomes a method
    def _call_cached_op(block, *args):
        cdef Calls recorder = recorder_here()
        cdef AtOnce at_once = None if recorder is not None else at_once_here()
        if at_once is not None and not at_once.counts(block):
            recorder = at_once.scope.record()
        if recorder is not None:
            return recorder.call_block(block, args)
        return original(block, *args) if at_once is None else at_once.run_by_gluon(original, block, args)

    return _call_cached_op


def any_lazy(arrays):
    """Return whether an item is a lazy array, or a list or tuple that contains one."""
    for item in arrays:
        if is_lazy(item) or type(item) in (list, tuple) and any_lazy(item):
            return True
    return False


def arithmetic(
    original, str scalar_operator not None, str array_operator=None, bint numpy=False,
):
    """Return a method of lazy arrays such as ``__add__``; with `numpy`, of those of ``mx.np``.

    It records the operator of an array and a number, or of two arrays.  In all other cases, and
    while the operator is new, it calls `original`, MXNet's own method.
    """
    kind = "np" if numpy else "op"
    of_arrays = kind, array_operator, (), ()

    @cython.binding(True)  # becomes a method
    def apply(self, other):
        cdef Calls recorder = recorder_here()
        if recorder is not None:
            if array_operator is not None and is_operand(other, numpy):
                token, args = of_arrays, (self, other)
            elif isinstance(other, (int, float)):
                token = kind, scalar_operator, ("scalar",), (str(float(other)),)
                token, args = (<object>recorder).lift_number(token, [self])
            else:
                return original(self, other)
            callee = recorder.operators.get(token)
            results = None if callee is None else call(recorder, <Callee?>callee, args)
            if type(results) is list:
                return (<list>results)[0]
        return original(self, other)

    return apply


cdef inline bint is_operand(object array_, bint numpy):
    """Return whether an array can be the other operand of an array of ``mx.nd`` or ``mx.np``."""
    if numpy:
        return type(array_) is lazy_numpy_type or type(array_) is numpy_type
    return type(array_) is lazy_type or type(array_) is array_type


cpdef FlatTape tape_of(Calls recorder):
    """Return the tape for the next call; this may compute the calls before it."""
    if recorder.tape.node_entry.ob_size >= recorder.tape.next_check:
        (<object>recorder).run_ahead()
    if not recorder.tape.started:
        recorder.tape.started = time.perf_counter()
    return recorder.tape


#: Why a call is not recorded: Python's collector ended the scope while the call was looked up.
ENDED = "the scope ended"


cpdef call(Calls recorder, Callee callee, args):
    """Record a call with nested arguments and return its results, or why it is not recorded."""
    cdef FlatTape tape
    cdef Arguments found
    cdef int mode
    cdef tuple recorded
    cdef array column = None
    cdef list operands
    while True:
        tape = tape_of(recorder)
        if not tape.open:
            return ENDED
        mode = mode_in(recorder.numpy_settings)
        entry, recorded, column = None, None, None
        known = known_call(callee, args, mode, tape, &found)
        if known is not NULL:
            entry, recorded = <object>known.entry, <tuple>known.recorded
        place = user_place()
        if entry is None:
            operands = []
            entry = look_up(recorder, callee, args, mode, tape, place, operands)
            if type(entry) is str:
                return entry
            recorded, column = <tuple>entry.recorded, array("q", operands)
        entry_id, types, spec, numpy = recorded
        if len(<tuple>types) == 1:
            results = new_lazy(tape, None, 0, (<tuple>types)[0], numpy)
        else:
            results = [new_lazy(tape, None, 0, type_id, numpy) for type_id in <tuple>types]
        # Everything up to here may have run Python code: that of the arguments, and, whenever an
        # object is created, that of others which the collector frees.  It may have read a value,
        # and so flushed the tape, or ended the scope.  From here to the end of `append`, none runs.
        if recorder.tape is tape and tape.open:
            break
    if column is None:
        append(tape, entry, entry_id, place, &found.operands[0], found.arrays, types, results)
    else:
        at = <int64_t *>column.data.as_longlongs
        append(tape, entry, entry_id, place, at, column.ob_size // 2, types, results)
    tape.trained = tape.trained or mode & recording_bit
    if recorder.watch is not None:
        (<object>recorder).watch_call()
    if len(<tuple>spec) == 1:
        return results
    return unflatten(spec, <list>results if type(results) is list else [results])


cdef int register(FlatTape tape, object lazy, Py_ssize_t value) except -1:
    """Make a new lazy array a value of the tape; runs no Python code."""
    change_slot(lazy, value_at, integer(value))
    tape.lazies.append(lazy)
    return 0


cdef Py_ssize_t append(
    FlatTape tape, object entry, object entry_id, Place place, const int64_t *operands,
    Py_ssize_t count, tuple types, object results=None,
) except -1:
    """Add a node to the tape and return its first value.

    The operands are so many pairs of a value and an offset; `types` are the type ids of the results;
    `results` is a new lazy array that becomes the only one, or a list of those that become all of
    them.  No Python code runs, and once the first array changes, nothing can fail.
    """
    cdef Py_ssize_t first = tape.value_type.ob_size, i
    reserve(tape.node_entry, 1)
    reserve(tape.node_value0, 1)
    reserve(tape.node_place, 1)
    reserve(tape.sources, count)
    reserve(tape.offsets, count)
    reserve(tape.value_type, len(types))
    tape.note_entry(entry_id, entry)
    put(tape.node_place, place.number)
    put(tape.node_entry, entry_id)
    put(tape.node_value0, first)
    for i in range(count):
        put(tape.sources, operands[2 * i])
        put_wide(tape.offsets, operands[2 * i + 1])
    for type_id in types:
        put(tape.value_type, type_id)
    if type(results) is list:
        for i in range(len(<list>results)):
            register(tape, (<list>results)[i], first + i)
    elif results is not None:
        register(tape, results, first)
    return first
