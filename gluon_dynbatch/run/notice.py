"""Learn that MXNet has let go of something, without any Python in a thread of MXNet's.

MXNet calls a function when it drops the last reference to a node of its tape.  That may be in a
thread of its own, at any time: after a ``waitall``, while ``os.fork`` or the end of the process
waits for that very thread and does not give up Python's global lock, when ``mx.profiler`` changes
its state (which no call of MXNet in another thread survives), or when there is no Python any more.
So the function must neither need Python nor call MXNet.  The one that opens a lock of CPython's is
such a function: it takes an address, and threads without the global lock may call it.
"""

from __future__ import annotations

import ctypes

_ALLOCATE = ctypes.pythonapi.PyThread_allocate_lock
_ALLOCATE.restype = ctypes.c_void_p
_ALLOCATE.argtypes = ()
_ACQUIRE = ctypes.pythonapi.PyThread_acquire_lock
_ACQUIRE.restype = ctypes.c_int
_ACQUIRE.argtypes = (ctypes.c_void_p, ctypes.c_int)
_FREE = ctypes.pythonapi.PyThread_free_lock
_FREE.restype = None
_FREE.argtypes = (ctypes.c_void_p,)

#: What is to be called, with the address of a notice, as ``int (*)(void *)``.
GIVE = ctypes.cast(ctypes.pythonapi.PyThread_release_lock, ctypes.c_void_p)


class Notice:
    """Something that can be given once, by calling ``GIVE`` with its address."""

    __slots__ = ("address",)

    def __init__(self) -> None:
        self.address = _ALLOCATE()
        if not self.address:
            raise MemoryError("no memory for a lock")
        _ACQUIRE(self.address, 1)

    def take(self) -> bool:
        """Whether the notice has been given; if so, it exists no more and is not asked again."""
        if not _ACQUIRE(self.address, 0):
            return False
        _FREE(self.address)
        return True
