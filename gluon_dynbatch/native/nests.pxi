# Nested arguments as arrays and a spec; a part of `recording.pyx`.
#
# A spec is a flat tuple of tokens that describes the nesting.  An array is the token `LEAF`.  A
# list, tuple, named tuple or dictionary is its class, the tokens of its items, and `END`; a
# dictionary has a tuple of its keys after the class.  Anything else is a `Static`.

cdef object LEAF = "*", END = ")"
#: Types of arguments that are part of the spec.
cdef tuple static_types = (bool, int, float, complex, str, bytes, slice, type(None), np.generic)


@cython.final
cdef class Static:
    """A number, a string or another plain value in a spec.

    It is compared by class, because ``1``, ``1.0`` and ``True`` are different arguments, and by
    ``repr``, because 0.0 and -0.0 differ and NaN has to equal itself.
    """

    cdef object text, value

    def __init__(self, value):
        self.text, self.value = repr(value), value

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        if type(other) is not Static or type(self.value) is not type((<Static>other).value):
            return False
        return self.text == (<Static>other).text


def flatten(value, type leaf_type=None):
    """Split nested arguments into their arrays, from left to right, and a spec.

    The arguments are lists, tuples and dictionaries of arrays, numbers, strings and ``None``;
    another object raises ``TypeError`` with that object.  `leaf_type` takes the place of arrays.
    """
    cdef list leaves = [], spec = []
    flatten_into(value, leaf_type or array_type, leaves, spec, None)
    return leaves, tuple(spec)


cdef int flatten_into(object value, type leaf_type, list leaves, list spec, Tape tape) except -1:
    """Append the tokens of a value to a spec, and its arrays to the leaves.

    Given a tape, write the key of a call instead: type ids take the place of `LEAF`, and the leaves
    are lazy arrays of the tape, or the values of external arrays.
    """
    class_ = type(value)
    if class_ is list or class_ is tuple or class_ is dict or (
        isinstance(value, tuple) and hasattr(class_, "_fields")
    ):
        spec.append(class_)
        if class_ is dict:
            spec.append(tuple(value))
        Py_EnterRecursiveCall(" in nested arguments")
        try:
            for item in value.values() if class_ is dict else value:
                flatten_into(item, leaf_type, leaves, spec, tape)
        finally:
            Py_LeaveRecursiveCall()
        spec.append(END)
    elif not PyObject_TypeCheck(value, <PyTypeObject *>leaf_type):
        if not isinstance(value, static_types):
            raise TypeError(value)
        spec.append(Static(value))
    elif tape is None:
        leaves.append(value)
        spec.append(LEAF)
    elif class_ is lazy_type and slot(value, owner_at)[0] is <PyObject *>tape:
        leaves.append(value)
        spec.append(<object>slot(value, type_at)[0])
    else:
        external_value = external(tape, value)
        leaves.append(external_value)
        spec.append(tape.value_type.data.as_ints[external_value])
    return 0


cpdef object unflatten(tuple spec, list leaves):
    """Nest the leaves as `spec` describes: the exact inverse of `flatten`."""
    cdef Py_ssize_t[2] used = [0, 0]
    return unflatten_next(spec, leaves, used)


cdef object unflatten_next(tuple spec, list leaves, Py_ssize_t *used):
    """Return the object at the next token; `used` counts the tokens and leaves before it."""
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
        items.append(unflatten_next(spec, leaves, used))
    used[0] += 1
    if token is dict:
        return dict(zip(keys, items))
    return items if token is list else tuple(items) if token is tuple else token._make(items)
