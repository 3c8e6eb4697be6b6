# Calls of hybridized blocks that run at once in an open scope; a part of `recording.pyx`.
#
# Gluon looks at the arguments of a call three times, and calls three functions per parameter, which
# takes as long as MXNet takes to run the graph of a small block.  So a block whose graph is known
# passes its arrays to MXNet directly; all other calls are Gluon's.

cdef enum:
    #: The most arrays that a `BlockGraph` reads.
    MOST_INPUTS = 64

#: By version: the routes of blocks that were found last.  Targets are a `BlockGraph`, or None.
cdef CallRoute[ROUTES] graph_routes


@cython.final
cdef class BlockGraph:
    """What a call of a block runs if its arguments are arrays that are nested so; it never changes.

    Owned by the callee of the block as long as that is current, and by a thread that runs it.
    """

    #: The ``CachedOp``, and the lock to be held while it runs, or None.
    cdef object op, lock
    #: Per input its number among the arrays, or a parameter.
    cdef list sources
    #: How arguments and results are nested, see `nests.pxi`.
    cdef tuple spec, out_spec
    #: Whether arguments and results are arrays of ``mx.np``.
    cdef bint numpy
    cdef void *handle

    def __cinit__(self):
        self.sources = []


def graph_of(op, inputs, tuple spec not None, tuple out_spec not None, bint numpy):
    """Return the `BlockGraph` of a ``CachedOp``, for arguments and results with these specs.

    Each input is whether it is an argument, and its number among these, or else the parameter.  The
    result is None if only Python can find the arrays.
    """
    cdef BlockGraph graph = BlockGraph()
    graph.spec, graph.out_spec, graph.numpy = spec, out_spec, numpy
    if len(inputs) > MOST_INPUTS or len(spec) > 2 * MOST_INPUTS:
        return None
    for token in spec:
        if token not in (tuple, list, END, NUMPY_LEAF if numpy else LEAF):
            return None
    for is_argument, source in inputs:
        # From here on, a parameter has a dictionary, which is not made when it is looked for.
        if not is_argument and (type(source) not in parameter_types or not vars(source)):
            return None
        graph.sources.append(source)
    graph.op, graph.lock = op, getattr(op, "lock", None)
    graph.handle = <void *><size_t>op.handle.value
    return graph


@cython.final
cdef class AtOnce:
    """The calls of an open scope while they run at once: counts them until there are too many.

    Owned by the attributes of `state` in the thread of the scope, until the scope closes or records.
    """

    #: The `OpenScope`, and its `Report`.
    cdef object scope, report
    #: How many calls run at once; -1 before the first.
    cdef Py_ssize_t limit

    def __init__(self, scope, report):
        self.scope, self.report, self.limit = scope, report, -1

    cdef bint counts(self, block) except -1:
        """Count a call of a block, and return True if it runs at once."""
        if self.limit < 0:
            self.limit = self.scope.limit_of(block)
        calls = <Py_ssize_t?>self.report.at_once
        if calls >= self.limit:
            return False
        self.report.at_once = calls + 1
        return True

    cdef object run(self, block, tuple args):
        """Count and run a call of a block; return None if Gluon has to run it, and nothing is done."""
        cdef PyObject *inputs[MOST_INPUTS]
        cdef dict fields = PyObject_GenericGetDict(block, NULL)
        cdef CallRoute *route = route_in(graph_routes, block, fields)
        if route is NULL or route.target is <PyObject *>None:
            return None
        cdef BlockGraph graph = <BlockGraph>route.target
        if self.limit < 0:
            self.limit = self.scope.limit_of(block)
        # From here on, no Python code runs until there are references to the inputs.
        if not has_inputs(graph, args, inputs) or not self.counts(block):
            return None
        return run_block(graph, inputs)

    cdef object run_by_gluon(self, original, block, tuple args):
        """Run a call of a block that was counted, and keep its route if next time it can be `run`."""
        results = original(block, *args)
        cdef dict fields = PyObject_GenericGetDict(block, NULL)
        if route_in(graph_routes, block, fields) is not NULL or fields["_callback"] is not None:
            return results
        class_ = type(block)
        is_cell = (<tuple>classify_forward(class_))[0] and class_._call_cached_op in cached_op_methods
        if is_cell and fields["_active"] and not fields["_backend"]:
            graph = self.scope.graph_of(block, args)
            keep_route_in(graph_routes, block, fields, graph, True)
        return results


#: ``state.at_once`` of the thread that `recorder_here` has seen.
cdef PyObject *at_once_seen = NULL


cdef inline AtOnce at_once_here():
    """Return ``state.at_once``, after `recorder_here`."""
    cdef PyObject *thread = PyThreadState_GetDict()
    if (
        thread is not NULL and version_of(thread) == thread_version
        and version_of(settings_seen) == settings_version
    ):
        return <AtOnce>at_once_seen
    return state.at_once


cdef inline void *plain_handle(PyObject *array_) noexcept:
    """Return the handle of an array of a plain class; NULL if it has none."""
    owner = slot(<object>array_, handle_at)[0]
    if owner is NULL or type_pointer(<object>owner) is not <PyTypeObject *>handle_type:
        return NULL
    return content_of(owner)


cdef PyObject *array_of_parameter(object parameter) noexcept:
    """Return the array that ``data`` returns if there is only one; NULL if Gluon has to find it."""
    cdef PyObject *fields = dictionary_of(parameter)
    if fields is NULL:
        return NULL
    cdef PyObject *copies = PyDict_GetItem(<object>fields, "_data")
    cdef PyObject *storage = PyDict_GetItem(<object>fields, "_stype")
    if copies is NULL or storage is NULL or type(<object>copies) is not list:
        return NULL
    if len(<list>copies) != 1 or type(<object>storage) is not str or <str>storage != "default":
        return NULL
    found = PyList_GET_ITEM(<list>copies, 0)
    is_plain = type(<object>found) is array_type or type(<object>found) is numpy_type
    return found if is_plain else NULL


cdef Py_ssize_t find_leaves(
    object value, tuple spec, Py_ssize_t *at, type class_, PyObject **leaves, Py_ssize_t count
) noexcept:
    """Append the arrays of a value to so many, and return their number.

    It is -1 unless they are nested as a spec of a `BlockGraph` says from its token `at` on, and are
    of a class.  `at` becomes the token after those.
    """
    cdef Py_ssize_t i
    token = <object>PyTuple_GET_ITEM(spec, at[0])
    at[0] += 1
    if token is not tuple and token is not list:
        if type(value) is not class_ or count == MOST_INPUTS:
            return -1
        leaves[count] = <PyObject *>value
        return count + 1
    if type(value) is not token:
        return -1
    for i in range(PySequence_Fast_GET_SIZE(value)):
        if <object>PyTuple_GET_ITEM(spec, at[0]) is END:
            return -1
        item = <object>PySequence_Fast_GET_ITEM(value, i)
        count = find_leaves(item, spec, at, class_, leaves, count)
        if count < 0:
            return -1
    if <object>PyTuple_GET_ITEM(spec, at[0]) is not END:
        return -1
    at[0] += 1
    return count


cdef bint has_inputs(BlockGraph graph, tuple args, PyObject **inputs) noexcept:
    """Find the arrays that a graph reads; return False if Gluon has to do that, or will refuse it.

    All are in the memory of one device, and arguments are of the class of the results, as long as
    that is the one of the interface in use.  No Python code runs.
    """
    cdef int device = 0, number = 0, first_device = 0, first_number = 0, numpy_shape = 0
    cdef PyObject *leaves[MOST_INPUTS]
    cdef Py_ssize_t i, number_of_leaf, at = 0
    cdef void *handle
    # Without NumPy's shapes there are none of its arrays.
    mxnet.is_numpy_shape(&numpy_shape)
    if numpy_shape:
        numpy_shape = mode_in(numpy_scopes.__dict__) & numpy_array_bit
    if graph.numpy != (numpy_shape != 0):
        return False
    class_ = numpy_type if graph.numpy else array_type
    cdef Py_ssize_t count = find_leaves(args, graph.spec, &at, class_, leaves, 0)
    for i in range(len(graph.sources)):
        source = <object>PyList_GET_ITEM(graph.sources, i)
        if type(source) is int:
            number_of_leaf = source
            inputs[i] = leaves[number_of_leaf] if number_of_leaf < count else NULL
        else:
            inputs[i] = array_of_parameter(source)
        handle = NULL if inputs[i] is NULL else plain_handle(inputs[i])
        if handle is NULL:
            return False
        mxnet.context(handle, &device, &number)
        if i == 0:
            first_device, first_number = device, number
        if device != first_device or number != first_number:
            return False
    return True


cdef object run_block(BlockGraph graph, PyObject **inputs):
    """Run the graph of a block; return its results."""
    cdef void *handles[MOST_INPUTS]
    cdef Py_ssize_t i, count = len(graph.sources)
    # Another thread may give a parameter another array meanwhile.
    for i in range(count):
        handles[i] = plain_handle(inputs[i])
        Py_INCREF(<object>inputs[i])
    try:
        if graph.lock is None:
            results = invoke(graph, handles, <int>count)
        else:
            graph.lock.acquire()
            try:
                results = invoke(graph, handles, <int>count)
            finally:
                graph.lock.release()
    finally:
        for i in range(count):
            Py_DECREF(<object>inputs[i])
    return results[0] if len(graph.out_spec) == 1 else unflatten(graph.out_spec, results)


cdef list invoke(BlockGraph graph, void **inputs, int count):
    """Call MXNet; return the arrays of the results."""
    cdef void **found = NULL
    cdef void **handles = NULL
    cdef const int *kinds_found = NULL
    cdef int *kinds = NULL
    cdef int total = 0, failed, i
    failed = run_graph(graph.handle, count, inputs, &total, &found, &kinds_found)
    if failed:
        check_call(failed)
    # Python code may run when an object is made, and call MXNet, which writes to this memory again.
    handles = <void **>PyMem_Calloc(total, sizeof(void *))
    kinds = <int *>PyMem_Calloc(total, sizeof(int))
    try:
        if handles is NULL or kinds is NULL:
            raise MemoryError()
        memcpy(handles, found, total * sizeof(void *))
        memcpy(kinds, kinds_found, total * sizeof(int))
        return [
            array_of_kind(handle_type(<size_t>handles[i]), stype=kinds[i]) if kinds[i]
            else new_array(handles[i], graph.numpy)
            for i in range(total)
        ]
    finally:
        PyMem_Free(handles)
        PyMem_Free(kinds)
