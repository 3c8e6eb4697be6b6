# Switching to fibers and back, and reading in them; a part of `recording.pyx`.

#: `fibers.Fiber`, and the offsets in bytes of its slots.
cdef type fiber_type
cdef Py_ssize_t mapper_at, view_at, awaits_at, settings_at, ending_at, calls_at


def connect_fibers(type class_ not None):
    """Set the class of fibers; once per process."""
    global fiber_type, mapper_at, view_at, awaits_at, settings_at, ending_at, calls_at
    fiber_type = class_
    mapper_at, view_at, awaits_at, settings_at, ending_at, calls_at = [
        slot_offset(class_, name)
        for name in ("mapper", "view", "awaits", "thread_settings", "ending", "calls")]


cdef inline object slot_of(object fiber, Py_ssize_t offset):
    """Return the value of a slot of a fiber."""
    value = slot(fiber, offset)[0]
    if value is NULL:
        raise AttributeError("a fiber that has not been started")
    return <object>value


cdef class Switches:
    """The native part of `fibers.Fibers`: it switches to fibers, and back.

    Owned by the function that maps, or by the worker of a batcher.
    """

    #: A deque of the fibers that wait, in the order of their samples.
    cdef public object _parked
    #: What the samples see that have begun, and those before them have not all ended.
    cdef public object views
    #: The `thread_settings` of the greenlet that maps, restored whenever a fiber stops; and the
    #: dictionaries that they are of.
    cdef public list _thread_settings, _thread_state
    #: Whether the next sample is being made: a read there flushes instead of parking.
    cdef public bint fetching
    #: Whether fibers get no more values.
    cdef public bint ending
    #: The calls that a fiber makes are noted if they go to this recorder; None if none are noted.
    cdef public Calls notes
    #: Guards of the attributes that samples may change, from the first read on.
    cdef public object _guards

    cdef bint has_settings(self) except -1:
        """Return whether the settings of the greenlet that maps are in place."""
        cdef list settings = self._thread_settings, state = self._thread_state
        cdef Py_ssize_t i
        cdef PyObject *value
        if mode_in(numpy_scopes.__dict__) != <int>settings[0]:
            return False
        for i in range(len(state)):
            value = PyDict_GetItem(<dict?>state[i], "value")
            value = <PyObject *>absent if value is NULL else value
            if value != <PyObject *>settings[i + 1]:
                return False
        return True

    cpdef bint resume(self, fiber, error=None) except -1:
        """Run a fiber in its own settings; return whether it parked."""
        cdef FlatTape tape = None
        cdef Py_ssize_t first = 0
        cdef bint parked = False
        try:
            settings = slot_of(fiber, settings_at)
            if settings is not self._thread_settings and settings != self._thread_settings:
                (<object>self).restore(*settings)
            view = slot_of(fiber, view_at)
            if view is not None and view.changes:
                view.swap()
                if view is self.views[0]:
                    view.changes = {}
            view = settings = None
            if self.notes is not None:
                tape = self.notes.tape
                first = tape.node_entry.ob_size
            if error is None:
                fiber.switch()
            else:
                fiber.throw(error)
        finally:
            parked = slot_of(fiber, mapper_at) is self and not fiber.dead
            if self.has_settings():
                change_slot(fiber, settings_at, self._thread_settings)
            else:
                change_slot(fiber, settings_at, thread_settings(self._thread_state))
                (<object>self).restore(*self._thread_settings)
            if parked:
                view = slot_of(fiber, view_at)
                if view is not None and view.changes:
                    view.swap()
        if not parked:
            (<object>self).rest_fiber(fiber)
            return False
        if tape is not None:
            change_slot(fiber, calls_at, PyBytes_FromStringAndSize(
                tape.node_entry.data.as_chars + 4 * first, 4 * (tape.node_entry.ob_size - first)))
        self._parked.append(fiber)
        if self._guards is None:
            (<object>self).guard()
        return True

    def resume_parked(self, error, most=None):
        """Resume parked fibers, all or the first ones, after a flush that may have failed.

        Returns how many were resumed; those that have to wait longer do not count.
        """
        cdef Py_ssize_t i, resumed = 0, count = len(self._parked)
        for i in range(count):
            if resumed == most:
                break
            fiber = self._parked.popleft()
            if slot_of(fiber, awaits_at) is None:
                self.resume(fiber, error)
            elif (<object>self).may_resume(fiber):
                self.resume(fiber)
            else:
                self._parked.append(fiber)
                continue
            resumed += 1
        return resumed

    def waiting(self):
        """Return the number of parked fibers that wait for values."""
        cdef Py_ssize_t count = 0
        for fiber in self._parked:
            count += slot_of(fiber, awaits_at) is None
        return count


cdef object parking_fiber():
    """Return the current fiber if it can park while calls are being recorded, else None."""
    fiber = getcurrent()
    if type(fiber) is not fiber_type:
        return None
    mapper = slot_of(fiber, mapper_at)
    if mapper is None or (<Switches?>mapper).fetching:
        return None
    if (<Switches>mapper).ending or slot_of(fiber, ending_at) is not False:
        raise GreenletExit
    return fiber


def park():
    """Park the current fiber until pending calls are computed; return False if it cannot park.

    Raises the exception of the flush if it fails.
    """
    fiber = None if state.recorder is None else parking_fiber()
    if fiber is None:
        return False
    fiber.parent.switch()
    return True


cdef bint park_at_known_place(FlatTape tape, Calls recorder) except -1:
    """Park the current fiber to read a value where the report knows that samples read one.

    Return False if this is no such read.  Such reads are counted when the tape is computed, all at
    once.
    """
    if recorder is None or state.recorder is not recorder or recorder.tracing is not None:
        return False  # another thread, or nothing is being recorded; or a trace has to end
    place = user_place()
    if place not in recorder.read_places:
        return False
    fiber = parking_fiber()
    if fiber is None:
        return False
    tape.awaited_places.append(place)
    fiber.parent.switch()
    return True


cdef object scalar_of(object lazy):
    """Return the only element of a lazy array as a number of NumPy, computed if it is pending.

    None if the array has not one element, or if MXNet has to read it.
    """
    owner = owner_of(lazy)  # no slot is empty
    cdef Py_ssize_t kind = <object>slot(lazy, type_at)[0]
    if element_counts.data.as_longlongs[kind] != 1:
        return None
    if isinstance(owner, FlatTape) and (<FlatTape>owner).open:
        (<FlatTape>owner).realise(lazy)
        owner = owner_of(lazy)
    if isinstance(owner, Keeper):
        elements = (<Keeper>owner).elements_of(<object>slot(lazy, value_at)[0])
        return elements[<object>slot(lazy, offset_at)[0]]
    return None


def scalar_reader(original):
    """Return the method ``asscalar`` of lazy arrays; `original` is MXNet's own.

    In native code, the frame of the user's program is the nearest one, and quickly found.
    """

    @cython.binding(True)  # becomes a method
    def asscalar(self):
        owner_of(self)  # no slot is empty
        shape = (<tuple>array_types[<Py_ssize_t><object>slot(self, type_at)[0]])[0]
        # With several axes, MXNet returns an array.
        value = scalar_of(self) if len(<tuple>shape) < 2 else None
        return original(self) if value is None else value

    return asscalar


def item_reader(original):
    """Return the method ``item`` of lazy arrays of ``mx.np``; `original` is MXNet's own."""

    @cython.binding(True)  # becomes a method
    def item(self, *args):
        value = None if args else scalar_of(self)
        return original(self, *args) if value is None else value.item()

    return item
