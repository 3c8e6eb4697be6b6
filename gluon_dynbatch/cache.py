"""Plans by structural fingerprint, least recently used ones forgotten first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Hashable, Tuple


class PlanCache:
    """Remembers what was made for a fingerprint.

    Fingerprints are compared by value: two recordings share a plan only if every array that
    describes them is equal, not merely its hash.

    Parameters
    ----------
    capacity : int, optional
        Bytes of all that is kept.
    """

    def __init__(self, capacity: int = 64 << 20):
        self._capacity = capacity
        self._held: OrderedDict[Hashable, Tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        #: Bytes kept now.
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def find(self, fingerprint: Hashable) -> Any:
        """Return what belongs to `fingerprint`; None if nothing does."""
        try:
            self._held.move_to_end(fingerprint)
            return self._held[fingerprint][0]
        except KeyError:  # another thread may need its room in between
            return None

    def keep(self, fingerprint: Hashable, made: Any, size: int) -> None:
        """Keep what was made for `fingerprint`, unless it has no size, or a larger one than all."""
        if not 0 < size <= self._capacity:
            return
        with self._lock:
            # Another thread may have been faster; or what is kept is out of date.
            self.bytes += size - self._held.pop(fingerprint, (None, 0))[1]
            self._held[fingerprint] = made, size
            while self.bytes > self._capacity:
                self.bytes -= self._held.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._held.clear()
            self.bytes = 0
