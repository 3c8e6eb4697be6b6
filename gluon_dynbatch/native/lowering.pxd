cdef class SegmentBrief:
    cdef readonly tuple parameters, bases
    cdef readonly object context
    cdef readonly str family
    cdef bint unbatched, shares
    cdef public object kernels
