# cython: language_level=3, binding=False, auto_pickle=False
"""What a cache does at each look-up."""

cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class CacheEntry:
    """A value of a cache.

    Owned by the cache; it never changes, but for the time.
    """

    def __init__(self, fingerprint, value, int64_t bytes, int64_t used):
        self.fingerprint, self.value, self.bytes, self.used = fingerprint, value, bytes, used


cdef class Recency:
    """Values by fingerprint, and when each was used last: base of `cache.SizedCache`.

    Owned by whoever keeps values; in any thread.
    """

    def __cinit__(self):
        self.entries = {}

    def find(self, fingerprint):
        """Return the value of `fingerprint`, or None."""
        return self.look_up(fingerprint)

    cdef object look_up(self, object fingerprint):
        """Do as `find`."""
        cdef CacheEntry entry = <CacheEntry>self.entries.get(fingerprint)
        if entry is None:
            self.missed(fingerprint)
            return None
        self.time += 1
        entry.used = self.time
        self.found += entry.bytes
        return entry.value

    def put(self, fingerprint, value, int64_t size):
        """Put a value; return the `CacheEntry` that it replaces, or None."""
        before = self.entries.get(fingerprint)
        self.time += 1
        self.entries[fingerprint] = CacheEntry(fingerprint, value, size, self.time)
        return before

    def missed(self, fingerprint):
        """Note that there is no value of `fingerprint`."""
        raise NotImplementedError
