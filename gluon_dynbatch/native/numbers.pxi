# Numbers of encodings, and of deeply immutable tuples; included by `recording.pyx`.

cdef enum:
    #: The shortest encoding of a tuple that gets a number.
    LONG_TEXT = 48
    #: Bytes of encodings of tuples, and with an overhead, of all encodings with a number, at which
    #: these are forgotten; and the size of the table of tuples, which is at most half full.
    MOST_HELD = 2097152
    MOST_TEXT = 8388608
    OVERHEAD = 150
    ROOM = 32768

#: Numbers of encodings, which are of deeply immutable tuples and of attributes of blocks.  None is
#: used again, as keys of pieces may contain it.
cdef dict texts = {}
cdef Py_ssize_t text_bytes = 0
cdef size_t last_number = 0

cdef struct Numbered:
    # A plain value: a tuple, which is owned by `held_tuples`, or NULL; and its number.
    PyObject *item
    size_t number

#: Deeply immutable tuples with the numbers of their encodings, and a list that keeps them alive.  A
#: dictionary would look at an integer and a tuple for each, which are rarely in the cache.
cdef Numbered[ROOM] known_tuples
cdef list held_tuples = []
cdef Py_ssize_t held_bytes = 0


cpdef size_t number_of_text(bytes text) except 0:
    """Return the number of an encoding: equal ones have the same, until all are forgotten."""
    global text_bytes, last_number
    number = texts.get(text)
    if number is None:
        text_bytes += len(text) + OVERHEAD
        if text_bytes > MOST_TEXT:
            texts.clear()
            text_bytes = 0
        last_number += 1
        number = texts[text] = last_number
    return number


cdef Numbered *find_tuple(object item) noexcept:
    """Return the place of a tuple in `known_tuples`, or the free one where it belongs."""
    # The multiplication moves the bits in which addresses differ to the top.
    cdef size_t at = (<size_t><PyObject *>item // 16 * <size_t>0x9E3779B97F4A7C15) >> 49
    while known_tuples[at].item is not NULL and known_tuples[at].item is not <PyObject *>item:
        at = (at + 1) % ROOM
    return &known_tuples[at]


cdef int hold_tuple(object item, size_t number, Py_ssize_t size) except -1:
    """Store the number of a tuple, of which the encoding has as many bytes, and keep it alive."""
    global held_tuples, held_bytes
    # To create a list, or to free a tuple, may run Python code, which may come here, too.
    cdef list empty = [], before = held_tuples
    if held_bytes + size > MOST_HELD or 2 * len(held_tuples) >= ROOM:
        memset(known_tuples, 0, sizeof(known_tuples))
        held_tuples, held_bytes = empty, 0
    known = find_tuple(item)
    if known.item is NULL:
        held_tuples.append(item)
        held_bytes += size
        known.item, known.number = <PyObject *>item, number
    return 0
