# Which recorder a thread has, and where calls of a block go; a part of `recording.pyx`.
#
# Each dictionary has a version, a number that no other one has and that changes with it.  So as long
# as a version is the same, the objects that were found in the dictionary are still in it, and alive.

cdef inline uint64_t version_of(PyObject *dictionary) noexcept:
    return (<PyDictObject *>dictionary).ma_version_tag


#: The versions of the dictionary of a thread and of its attributes of `state`, which were seen last;
#: these attributes, which the former keeps alive; and the recorder among them.
cdef uint64_t thread_version = 0, settings_version = 0
cdef PyObject *settings_seen = NULL
cdef PyObject *recorder_seen = NULL


cdef inline Calls recorder_here():
    """Return ``state.recorder``, which is None in a thread that does not record."""
    cdef PyObject *thread = PyThreadState_GetDict()
    if (
        thread is not NULL and version_of(thread) == thread_version
        and version_of(settings_seen) == settings_version
    ):
        return <Calls>recorder_seen
    return find_recorder()


cdef Calls find_recorder():
    """Do as `recorder_here`, when something has changed."""
    global thread_version, settings_version, settings_seen, recorder_seen, at_once_seen
    cdef Calls recorder = state.recorder
    cdef dict settings = state.__dict__
    cdef PyObject *found = PyDict_GetItem(settings, "recorder")
    cdef PyObject *at_once = PyDict_GetItem(settings, "at_once")
    cdef PyObject *thread = PyThreadState_GetDict()
    # In a thread that never had a scope, the class has the attribute, which is None.
    if thread is NULL or (found is not <PyObject *>recorder and recorder is not None):
        return recorder
    settings_seen, recorder_seen = <PyObject *>settings, <PyObject *>recorder
    at_once_seen = <PyObject *>None if at_once is NULL else at_once
    thread_version, settings_version = version_of(thread), version_of(settings_seen)
    return recorder


cdef enum:
    ROUTES = 512

cdef struct CallRoute:
    # A plain value: the version of the attributes of a block; the block and its class; what its
    # calls need, a `Callee` or a `Known` among the attributes, or None if they run ``forward``.
    uint64_t version
    PyObject *block
    PyTypeObject *class_
    PyObject *target
    bint is_cell
    #: Its hooks, dictionaries among the attributes.
    PyObject *hooks
    PyObject *earlier_hooks

#: By version: the routes of active blocks without hooks that were found last.
cdef CallRoute[ROUTES] routes


cdef inline CallRoute *route_in(CallRoute *table, object block, dict fields) noexcept:
    """Return the route of a block with these attributes; NULL if it has to be found out."""
    cdef uint64_t version = version_of(<PyObject *>fields)
    cdef CallRoute *route = &table[version % ROUTES]
    if route.version != version or route.block is not <PyObject *>block:
        return NULL
    if route.class_ is not type_pointer(block):
        return NULL
    hooks, earlier_hooks = <PyDictObject *>route.hooks, <PyDictObject *>route.earlier_hooks
    return NULL if hooks.ma_used or earlier_hooks.ma_used else route


cdef int keep_route_in(
    CallRoute *table, object block, dict fields, object target, bint is_cell
) except -1:
    """Keep the route of an active block, whose attributes have the target unless it is None."""
    cdef uint64_t version = version_of(<PyObject *>fields)
    cdef CallRoute *route = &table[version % ROUTES]
    hooks, earlier_hooks = fields["_forward_hooks"], fields["_forward_pre_hooks"]
    if isinstance(hooks, dict) and isinstance(earlier_hooks, dict):
        route.version, route.block, route.class_ = version, <PyObject *>block, type_pointer(block)
        route.target, route.is_cell = <PyObject *>target, is_cell
        route.hooks, route.earlier_hooks = <PyObject *>hooks, <PyObject *>earlier_hooks
    return 0
