# Keys of calls as numbers, to find the entries of calls that came before; a part of `recording.pyx`.
#
# The key of a call is a tuple, see `nests.pxi`.  To make, to hash and to compare one takes longer than
# everything else, so the keys that were found last are kept as numbers, too, if they have few tokens:
# those of arrays in lists and tuples, and of plain numbers.

cdef enum:
    #: Numbers of a key, and keys.
    MOST_TOKENS = 24
    KEPT_KEYS = 512
    #: The deepest nesting of such keys.
    DEEPEST_KEY = 4
    #: Tokens; those of arrays are `type_id << 3 | ARRAY`, or `NUMPY`, those of an integer and of a
    #: float have the value after them.
    ARRAY, NUMPY, LIST, TUPLE, ENDS, INTEGER, FLOAT
    NONE = 7
    FALSE = 15
    TRUE = 23

cdef struct Arguments:
    # A plain value, on C's stack: the key of a call, which begins with the mode, and the value and
    # the offset of each array.
    int64_t[MOST_TOKENS] tokens
    int64_t[2 * MOST_TOKENS] operands
    Py_ssize_t count, arrays

cdef struct KnownCall:
    # A plain value: a key, the version of the entries of its callee, the entry among these, and what
    # is `recorded` of it, which never changes.
    uint64_t version
    PyObject *entry
    PyObject *recorded
    Py_ssize_t count
    int64_t[MOST_TOKENS] tokens

cdef KnownCall[KEPT_KEYS] known_calls


cdef inline KnownCall *place_of_key(
    uint64_t version, const int64_t *tokens, Py_ssize_t count
) noexcept:
    """Return where a key is kept, if it is."""
    cdef uint64_t mixed = version
    cdef Py_ssize_t i
    for i in range(count):
        mixed = (mixed ^ <uint64_t>tokens[i]) * <uint64_t>0x9E3779B97F4A7C15
        mixed ^= mixed >> 32
    return &known_calls[mixed % KEPT_KEYS]


cdef KnownCall *known_call(
    Callee callee, object args, int mode, FlatTape tape, Arguments *found
) except? NULL:
    """Find out the key and the operands of a call, and return what is kept of it, or NULL."""
    cdef uint64_t version = version_of(<PyObject *>callee.entries)
    found.tokens[0], found.count, found.arrays = mode, 1, 0
    for arg in args:
        if not add_tokens(found, arg, tape, 0):
            return NULL
    known = place_of_key(version, found.tokens, found.count)
    if known.version != version or known.count != found.count:
        return NULL
    if memcmp(known.tokens, found.tokens, found.count * sizeof(int64_t)):
        return NULL
    return known


cdef bint add_tokens(Arguments *found, object value, FlatTape tape, int depth) except -1:
    """Add the tokens and the operands of an argument; return False if it has others, or too many."""
    cdef int64_t number
    cdef Py_ssize_t i = 0
    kind = type(value)
    if found.count > MOST_TOKENS - 2:
        return False
    if kind is lazy_type or kind is array_type or kind is lazy_numpy_type or kind is numpy_type:
        number = operand_of(tape, value, &found.operands[2 * found.arrays])
        found.arrays += 1
        return add_token(found, number << 3 | (NUMPY if is_numpy(value) else ARRAY))
    if kind is list or kind is tuple:
        if depth == DEEPEST_KEY:
            return False
        add_token(found, LIST if kind is list else TUPLE)
        while i < PySequence_Fast_GET_SIZE(value):
            if not add_tokens(found, <object>PySequence_Fast_GET_ITEM(value, i), tape, depth + 1):
                return False
            i += 1
        return found.count < MOST_TOKENS and add_token(found, ENDS)
    if value is None or kind is bool:
        return add_token(found, NONE if value is None else TRUE if value is True else FALSE)
    return add_number(found, kind, value)


cdef inline bint add_token(Arguments *found, int64_t token) noexcept:
    found.tokens[found.count] = token
    found.count += 1
    return True


cdef bint add_number(Arguments *found, object kind, object value) except -1:
    """Add the tokens of a number, for which there is room; return False for anything else."""
    cdef int overflow = 0
    cdef double real
    if kind is int:
        add_token(found, INTEGER)
        add_token(found, PyLong_AsLongLongAndOverflow(value, &overflow))
        return not overflow
    if kind is not float:
        return False
    add_token(found, FLOAT)
    real = value
    memcpy(&found.tokens[found.count], &real, sizeof(double))
    found.count += 1
    return True


cdef int64_t operand_of(FlatTape tape, object array_, int64_t *at) except -1:
    """Find the value and the offset of an array, which is added if it is new; return its type id."""
    cdef int64_t type_id
    if not is_lazy(array_):
        at[0], at[1] = external(tape, array_), 0
        return tape.value_type.data.as_ints[at[0]]
    if owner_of(array_) is tape:
        at[0] = <object>slot(array_, value_at)[0]
        at[1] = <object>slot(array_, offset_at)[0]
        return <object>slot(array_, type_at)[0]
    type_id = <object>slot(array_, type_at)[0]
    locate(tape, array_, at)
    return type_id


cdef object look_up(
    Calls recorder, Callee callee, object args, int mode, FlatTape tape, Place place, list operands
):
    """Return the entry of a call, or why it is not recorded; append value and offset of each array."""
    cdef list parts = [mode]
    cdef uint64_t version
    try:
        for arg in args:
            flatten_into(arg, array_type, operands, parts, tape)
    except TypeError as error:
        if type(error) is not TypeError:
            raise
        return (<object>recorder).refuse_argument(error.args[0], callee)
    key = tuple(parts)
    version = version_of(<PyObject *>callee.entries)
    entry = callee.entries.get(key)
    if entry is None:
        return (<object>recorder).new_entry(key, callee, place)
    if type(entry) is not str:
        keep_key(callee, key, entry, version)
    return entry


cdef int keep_key(Callee callee, tuple key, object entry, uint64_t version) except -1:
    """Keep a key of an entry that a callee has had in this version of its entries."""
    cdef Arguments found
    cdef KnownCall *known
    found.count = 0
    recorded = entry.recorded
    add_token(&found, key[0])
    for token in key[1:]:
        if found.count > MOST_TOKENS - 2:
            return 0
        if type(token) is int:
            add_token(&found, ~<int64_t>token << 3 | NUMPY if token < 0 else token << 3 | ARRAY)
        elif token is list or token is tuple:
            add_token(&found, LIST if token is list else TUPLE)
        elif token is END:
            add_token(&found, ENDS)
        elif type(token) is not Static or not add_tokens(&found, (<Static>token).value, None, 0):
            return 0
    if version != version_of(<PyObject *>callee.entries):
        return 0
    known = place_of_key(version, found.tokens, found.count)
    known.version, known.count = version, found.count
    known.entry, known.recorded = <PyObject *>entry, <PyObject *>recorded
    memcpy(known.tokens, found.tokens, found.count * sizeof(int64_t))
    return 0
