# Nested arguments as arrays and a spec; a part of `recording.pyx`.
#
# A spec is a flat tuple that tells how arrays are nested: `LEAF` stands for an array; a list, tuple,
# named tuple or dictionary begins with its class, and a dictionary with its keys after that, and ends
# with `END`; anything else is a `Static`.

cdef extern from "Python.h":
    int Py_EnterRecursiveCall(const char *where) except -1
    void Py_LeaveRecursiveCall()

cdef object LEAF = "*", END = ")"
#: What may be among arguments beside arrays; also NumPy's scalars.
cdef tuple plain = (bool, int, float, complex, str, bytes, slice, type(None), np.generic)


@cython.final
cdef class Static:
    """A number, a string or the like.

    It is told by its class, as ``1``, ``1.0`` and ``True`` are three arguments, and its ``repr``, as
    0.0 and -0.0 differ, and NaN equals itself.
    """

    cdef object kind, token, value

    def __init__(self, value):
        self.kind, self.token, self.value = type(value), repr(value), value

    def __hash__(self):
        return hash(self.token)

    def __eq__(self, other):
        if type(other) is not Static or self.kind is not (<Static>other).kind:
            return False
        return self.token == (<Static>other).token


def flatten(value, type leaf_type=None):
    """Take a nest apart into arrays, or objects of another class, from left to right, and a spec.

    Raises
    ------
    TypeError
        Something inside is neither an array, a number, a string, ``None`` nor a list, tuple or
        dictionary of these; the argument of the exception is the offending object.
    """
    cdef list leaves = [], spec = []
    take_apart(value, leaf_type or array_type, leaves, spec, None)
    return leaves, tuple(spec)


cdef int take_apart(
    object value, type leaf_type, list leaves, list spec, Tape tape
) except -1:
    """Add a value to a spec, and its arrays to the leaves.

    For a call, given its tape, to a key: with the types of arrays in place of `LEAF`.  The leaves
    are arrays of this tape, and the values of those from outside.
    """
    kind = type(value)
    if kind is list or kind is tuple or kind is dict or (
        isinstance(value, tuple) and hasattr(kind, "_fields")
    ):
        spec.append(kind)
        if kind is dict:
            spec.append(tuple(value))
        Py_EnterRecursiveCall(" in nested arguments")
        try:
            for item in value.values() if kind is dict else value:
                take_apart(item, leaf_type, leaves, spec, tape)
        finally:
            Py_LeaveRecursiveCall()
        spec.append(END)
    elif not PyObject_TypeCheck(value, <PyTypeObject *>leaf_type):
        if not isinstance(value, plain):
            raise TypeError(value)
        spec.append(Static(value))
    elif tape is None:
        leaves.append(value)
        spec.append(LEAF)
    elif kind is lazy_type and slot(value, owner_at)[0] is <PyObject *>tape:
        leaves.append(value)
        spec.append(<object>slot(value, type_at)[0])
    else:
        number = external(tape, value)
        leaves.append(number)
        spec.append(tape.value_type.data.as_ints[number])
    return 0


def unflatten(tuple spec not None, list leaves not None):
    """Put leaves back into the places that `spec` describes: the exact inverse of `flatten`."""
    cdef Py_ssize_t[2] used = [0, 0]
    return put_together(spec, leaves, used)


cdef object put_together(tuple spec, list leaves, Py_ssize_t *used):
    """Return what begins with the next token, given how many tokens and leaves are used."""
    token, used[0] = spec[used[0]], used[0] + 1
    if token is LEAF:
        used[1] += 1
        return leaves[used[1] - 1]
    if type(token) is Static:
        return (<Static>token).value
    cdef list items = []
    if token is dict:
        keys, used[0] = spec[used[0]], used[0] + 1
    while spec[used[0]] is not END:
        items.append(put_together(spec, leaves, used))
    used[0] += 1
    if token is dict:
        return dict(zip(keys, items))
    return items if token is list else tuple(items) if token is tuple else token._make(items)
