# cython: language_level=3, binding=False, auto_pickle=False
"""Values of streams, on their way to their clients."""


cdef class Letters:
    """The native part of `clients.Mailbox`.

    Owned by a request and by its stream.
    """

    #: A deque of the values that are here.
    cdef public object values
    #: With so many values, its client is told of them though it is not yet due.
    cdef public Py_ssize_t urgent
    #: With so many values, it may be full.
    cdef public Py_ssize_t full
    #: Number of values that the stream has got, also from an earlier run of its request.
    cdef public Py_ssize_t delivered
    #: Whether its client has not been told of what is here; and whether it is not to be told
    #: before the time `due`; see `clients.Outbox`.
    cdef public bint has_news, rests
    cdef public double due

    def take_all(self):
        """Remove and return all values; between the two, no other thread runs."""
        cdef list values = list(self.values)
        self.values.clear()
        return values


cdef class Post:
    """The native part of `clients.Outbox`.

    Owned by the queue of a batcher.
    """

    #: Streams whose clients are told of values next.
    cdef public list due
    #: Whether a stream has got its first value since this was set to false; and the number of values
    #: of all streams so far.
    cdef public bint has_firsts
    cdef public Py_ssize_t values

    def __cinit__(self, *args, **kwargs):
        self.due = []

    cpdef int put(self, Letters mailbox, value) except -1:
        """Put a value into a stream."""
        mailbox.values.append(value)
        if mailbox.rests:
            if len(mailbox.values) == mailbox.urgent:
                self.due.append(mailbox)
        elif not mailbox.has_news:
            self.due.append(mailbox)
        mailbox.has_news = True
        self.has_firsts = self.has_firsts or not mailbox.delivered
        mailbox.delivered += 1
        self.values += 1
        return 0

    def pour(self, Letters mailbox, values, convert):
        """Put the values of an iterator into a stream, until it may be full; return False at the end.

        Values that may hold arrays are converted.
        """
        for value in values:
            kind = type(value)
            if kind not in (str, int, float, bytes, bool) and value is not None:
                value = convert(value)
            self.put(mailbox, value)
            if len(mailbox.values) >= mailbox.full:
                return True
        return False
