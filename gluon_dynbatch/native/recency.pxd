from libc.stdint cimport int64_t

cdef class CacheEntry:
    cdef readonly object value, fingerprint
    cdef readonly int64_t bytes
    # When it was used last: the time of the cache.  No two entries have the same.
    cdef readonly int64_t used

cdef class Recency:
    cdef readonly dict entries
    # The number of look-ups so far, and of values put; and the bytes of values that were found.
    cdef int64_t time
    cdef public double found

    cdef object look_up(self, object fingerprint)
