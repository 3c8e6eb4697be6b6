"""A cache with a limit in bytes, which evicts the least recently used entries."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, Hashable, Optional, Tuple, TypeVar

Content = TypeVar("Content")


class SizedCache(Generic[Content]):
    """Maps fingerprints to plans, or to pieces of a tape, up to a total size in bytes.

    Fingerprints are compared by value: two recordings share a plan only if every array that
    describes them is equal, not merely its hash.
    """

    def __init__(self, capacity: int = 64 << 20):
        self._capacity = capacity
        self._entries: OrderedDict[Hashable, Tuple[Content, int]] = OrderedDict()
        self._lock = threading.Lock()
        #: Total size now.
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, fingerprint: Hashable) -> Optional[Content]:
        """Return the value of `fingerprint`, or None."""
        try:
            self._entries.move_to_end(fingerprint)
            return self._entries[fingerprint][0]
        except KeyError:  # also if another thread evicts it in between
            return None

    def keep(self, fingerprint: Hashable, value: Content, size: int) -> None:
        """Store a value, unless its size is zero or larger than the capacity."""
        if not 0 < size <= self._capacity:
            return
        with self._lock:
            # Replaces the value of another thread that was faster, or an outdated one.
            self.bytes += size - self._entries.pop(fingerprint, (None, 0))[1]
            self._entries[fingerprint] = value, size
            while self.bytes > self._capacity:
                self.bytes -= self._entries.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self.bytes = 0
