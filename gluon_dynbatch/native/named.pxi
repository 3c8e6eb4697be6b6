# Named tuples; a part of `ordering.pyx` and of `resolving.pyx`.

from cpython.object cimport PyObject, PyTypeObject


cdef inline object named(type kind, tuple fields):
    """Make a named tuple, as its `_make` does."""
    cdef tuple arguments = (fields,)
    return (<PyTypeObject *>tuple).tp_new(kind, <PyObject *>arguments, NULL)
