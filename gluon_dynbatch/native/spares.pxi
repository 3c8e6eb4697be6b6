# Arenas that are used again; a part of `recording.pyx`.

cdef enum:
    #: Limits on what is kept: the bytes of one flush, and of all; and the sets of one plan.
    MOST_SET_BYTES = 1 << 20
    MOST_SPARE_BYTES = 1 << 23
    MOST_SETS = 2

#: Those that have sets, the one that got one last is the last; and the bytes of all sets.
cdef dict shelves = {}
cdef Py_ssize_t spare_bytes = 0


cdef inline bint is_alone(void *handle) noexcept:
    """Return whether no other array of MXNet shares the memory of one.

    An array begins with a ``std::shared_ptr``, whose second word points to a control block; its
    count follows the first word there.
    """
    return (<int *>((<char **>handle)[1] + sizeof(void *)))[0] == 1


@cython.final
cdef class Shelf:
    """Small arenas of earlier flushes with one plan, of which nothing is used any more.

    MXNet's engine frees an array, and what it queues for it, in another thread, which has to wake
    up.  To allocate and to free the arenas of a flush so takes longer than to run a small plan.
    The engine may still work on what was in an arena: it is the same variable for the engine, so
    later work waits for that.  Owned by the plan's entry in the cache, and by the flushes.
    """

    #: Lists of arrays, one per arena; the bytes of one list; and how many programs had failed when
    #: they were allocated: the engine keeps an error with what it wrote.
    cdef list sets
    cdef Py_ssize_t bytes
    cdef object failures

    def __init__(self, Py_ssize_t bytes):
        self.sets, self.bytes, self.failures = [], bytes, None

    def take(self, failures):
        """Return arenas whose memory nothing else uses, or None; given the failures so far."""
        global spare_bytes
        if self.failures != failures:
            self.clear()
            self.failures = failures
        if not self.sets:
            return None
        spare_bytes -= self.bytes
        return self.sets.pop()

    cdef int give(self, list arenas) except -1:
        """Keep arenas for the next flush if nothing else uses them; runs no Python code."""
        global spare_bytes
        if self.bytes > MOST_SET_BYTES or len(self.sets) >= MOST_SETS:
            return 0
        for arena in arenas:
            # References: the list, and the one here.
            if Py_REFCNT(<PyObject *>arena) > 2 or not is_alone(handle_of(arena)):
                return 0
        self.sets.append(arenas)
        spare_bytes += self.bytes
        shelves.pop(self, None)
        shelves[self] = None
        while spare_bytes > MOST_SPARE_BYTES:
            (<Shelf>next(iter(shelves))).clear()
        return 0

    cdef int clear(self) except -1:
        """Free all sets."""
        global spare_bytes
        cdef list sets = self.sets
        shelves.pop(self, None)
        self.sets = []
        spare_bytes -= self.bytes * len(sets)
        return 0


def spare_arena_bytes():
    """Return the bytes of all arenas that are kept to be used again; for tests."""
    return spare_bytes


def free_spares():
    """Free all arenas and lazy arrays that are kept to be used again."""
    spares.clear()
    numpy_spares.clear()
    for shelf in list(shelves):
        (<Shelf>shelf).clear()
