cdef class SegmentBrief:
    cdef readonly tuple parameters, bases
    cdef readonly object context
    cdef readonly str family
    cdef readonly bytes dense
    cdef bint unbatched, shares, plain, recorded
    cdef public object kernels
