from libc.stdint cimport int64_t


cdef class SegmentBrief:
    cdef readonly tuple parameters, bases
    cdef readonly object context
    cdef readonly str family
