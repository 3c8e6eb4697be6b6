from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

cdef struct ParameterPlace:
    # A plain value: where the array of a parameter is, valid as long as the attributes of the
    # parameter have this version, which keeps the array alive: these attributes, the array and
    # MXNet's handle of it, its memory, and what counts the references to that; 0 if unknown.
    uint64_t version
    PyObject *attributes
    PyObject *array
    void *handle
    void *memory
    void *counts

cdef class SegmentBrief:
    cdef readonly tuple parameters
    # By parameter, owned by this object.
    cdef ParameterPlace *places
    cdef readonly object context
    cdef readonly str family
    cdef readonly bytes dense
    cdef bint unbatched, shares, plain, recorded
    cdef public object kernels
