# Nested arguments as arrays and a spec; a part of `recording.pyx`.
#
# A spec is a flat tuple of tokens that describes the nesting.  An array is the token `LEAF`, and one
# of `mx.np` is `NUMPY_LEAF`.  A
# list, tuple, named tuple or dictionary is its class, the tokens of its items, and `END`; a
# dictionary has a tuple of its keys after the class.  Anything else is a `Static`.

cdef object LEAF = "*", NUMPY_LEAF = "^", END = ")"
#: Types of arguments that are part of the spec.
cdef tuple exact_types = (bool, int, float, complex, str, bytes, slice, type(None))
cdef tuple static_types = (*exact_types, np.generic)


@cython.final
cdef class Static:
    """A number, a string or another plain value in a spec, or a key of a dictionary.

    Owned by the specs and keys that have it; it never changes.

    It is compared by class, because ``1``, ``1.0`` and ``True`` are different arguments, and by
    `content_of_static`, because 0.0 and -0.0 differ and NaN has to equal itself.
    """

    cdef object class_, content, value

    def __init__(self, value):
        self.class_, self.content, self.value = type(value), content_of_static(value), value

    def __hash__(self):
        return hash(self.content)

    def __eq__(self, other):
        if type(other) is not Static or self.class_ is not (<Static>other).class_:
            return False
        return self.content == (<Static>other).content


cdef object content_of_static(object value):
    """Return an object that is equal for two values of one class exactly if they are equal."""
    class_ = type(value)
    if class_ is slice:
        parts = value.start, value.stop, value.step
        if slice in map(type, parts):
            raise TypeError(value)
        return tuple([Static(checked_static(part)) for part in parts])
    if class_ is tuple:
        try:
            return flatten(value, Static)[1]
        except TypeError:
            return value
    if class_ in exact_types:
        return repr(value)
    if isinstance(value, np.generic):
        if value.dtype.hasobject:
            raise TypeError(value)
        return repr(value.dtype), value.tobytes()
    for base in exact_types:
        if isinstance(value, base):
            # Objects of a subclass may have another `__repr__`, and attributes.
            return base.__repr__(value), attributes_of(value)
    return value  # some other key


cdef object checked_static(object value):
    if not isinstance(value, static_types):
        raise TypeError(value)
    return value


cdef tuple attributes_of(object value):
    """Return names and values of the attributes of a number or a string, which have to be static."""
    if isinstance(value, enum.Enum):
        return ()  # its value and its class say which member it is
    names = {*getattr(value, "__dict__", ())}
    for class_ in type(value).__mro__:
        slots = vars(class_).get("__slots__", ())
        names.update((slots,) if isinstance(slots, str) else slots)
    return tuple([
        (name, Static(checked_static(getattr(value, name, None)))) for name in sorted(names)])


cdef enum:
    #: The deepest nesting of arguments.  They may contain themselves, and then have no end.
    DEEPEST = 100000


cdef inline int check_depth(Py_ssize_t depth) except -1:
    """Raise if values are nested too deep."""
    if depth >= DEEPEST:
        raise NestingError(
            f"arguments or results are nested more than {DEEPEST} deep, or contain themselves",
            user_place().where,
            advice="pass a list of nodes, each with the indices of its children, not the children "
            "themselves",
        )
    return 0


def flatten(value, type leaf_type=None):
    """Split nested arguments into their arrays, from left to right, and a spec.

    The arguments are lists, tuples and dictionaries of arrays, numbers, strings and ``None``;
    another object raises ``TypeError`` with that object.  `leaf_type` takes the place of arrays.
    """
    cdef list leaves = [], spec = []
    flatten_into(value, leaf_type or array_type, leaves, spec, None)
    return leaves, tuple(spec)


cdef int flatten_into(
    object value, type leaf_type, list leaves, list spec, FlatTape tape
) except -1:
    """Append the tokens of a value to a spec, and its arrays to the leaves.

    Given a tape, write the key of a call instead: type ids take the place of `LEAF`, and their
    complements that of `NUMPY_LEAF`; for each array, the leaves are a value and an offset.

    It does not recurse, as the stack of a thread may be small.
    """
    cdef list outer = None
    items = flatten_one(value, leaf_type, leaves, spec, tape)
    while items is not None:
        for value in items:
            inner = flatten_one(value, leaf_type, leaves, spec, tape)
            if inner is not None:
                outer = [] if outer is None else outer
                check_depth(len(outer))
                outer.append(items)
                items = inner
                break
        else:
            spec.append(END)
            items = outer.pop() if outer else None
    return 0


def read_key(tuple key not None):
    """Return what the key of a call says, see `flatten_into`, so that a new key is no second walk.

    This is the mode, the spec of the tuple of arguments, and per array its type id and the number
    of the argument that contains it.
    """
    cdef list spec = [tuple], type_ids = [], argument_of = []
    cdef Py_ssize_t depth = 0, argument = 0
    mode, *tokens = key
    for token in tokens:
        if type(token) is int:
            type_ids.append(~token if token < 0 else token)
            argument_of.append(argument)
            token = NUMPY_LEAF if token < 0 else LEAF
        elif token is END:
            depth -= 1
        elif isinstance(token, type):
            depth += 1
        spec.append(token)
        argument += depth == 0
    spec.append(END)
    return mode, tuple(spec), tuple(type_ids), tuple(argument_of)


cdef object flatten_one(object value, type leaf_type, list leaves, list spec, FlatTape tape):
    """Append the first token of a value, and an array; return an iterator of a container, or None."""
    cdef int64_t[2] at
    class_ = type(value)
    if class_ is dict:
        spec.append(dict)
        spec.append(tuple([Static(key) for key in <dict>value]))
        return iter((<dict>value).values())
    if class_ is list or class_ is tuple or isinstance(value, tuple) and hasattr(class_, "_fields"):
        spec.append(class_)
        return iter(value)
    if PyObject_TypeCheck(value, <PyTypeObject *>leaf_type):
        if tape is None:
            leaves.append(value)
            spec.append(NUMPY_LEAF if is_numpy(value) else LEAF)
            return None
        type_id = operand_of(tape, value, at)
        leaves.append(at[0])
        leaves.append(at[1])
        if class_ is lazy_type or not is_numpy(value):
            spec.append(type_id)
        else:
            spec.append(complement(type_id))
        return None
    spec.append(Static(checked_static(value)))
    return None


#: Complements of type ids, which keys of calls have for arrays of ``mx.np``.
cdef list complements = []


cdef object complement(Py_ssize_t type_id):
    """Return ``~type_id``."""
    while type_id >= len(complements):
        complements.append(~len(complements))
    return complements[type_id]


def variables(tuple spec not None, names, make):
    """Return ``make(name, numpy)`` for each array of a spec; `numpy` says if it is of ``mx.np``."""
    leaves = [token is NUMPY_LEAF for token in spec if token is LEAF or token is NUMPY_LEAF]
    # The graph of a SymbolBlock has its own names, which may be fewer.
    return [make(name, numpy) for name, numpy in zip(names, leaves)]


cpdef object unflatten(tuple spec, list leaves):
    """Nest the leaves as `spec` describes: the exact inverse of `flatten`."""
    cdef Py_ssize_t used = 0
    cdef list nests, items
    if len(spec) == len(leaves) + 2 and (spec[0] is tuple or spec[0] is list):
        return tuple(leaves) if spec[0] is tuple else leaves[:]
    nests, items, tokens = [], [], iter(spec)
    for token in tokens:
        if token is END:
            class_, keys, outer = nests.pop()
            if class_ is dict:
                value = dict(zip(keys, items))
            else:
                value = items if class_ is list else tuple(items) if class_ is tuple else class_._make(items)
            items = outer
        elif token is LEAF or token is NUMPY_LEAF:
            value = leaves[used]
            used += 1
        elif type(token) is Static:
            value = (<Static>token).value
        else:
            keys = [(<Static>key).value for key in next(tokens)] if token is dict else None
            nests.append((token, keys, items))
            items = []
            continue
        items.append(value)
    return items[0]
