"""Plans by structural fingerprint, least recently used ones forgotten first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Callable, Hashable, Tuple


class PlanCache:
    """Remembers what was made for a fingerprint.

    Fingerprints are compared by value: two recordings share a plan only if every array that
    describes them is equal, not merely its hash.

    Parameters
    ----------
    capacity : int, optional
        Number of plans kept.
    """

    def __init__(self, capacity: int = 64):
        self._capacity = capacity
        self._held: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, fingerprint: Hashable, make: Callable[[], Any], worth: Callable[[Any], bool]
    ) -> Tuple[Any, bool]:
        """Return what belongs to `fingerprint` and whether it was there already.

        Parameters
        ----------
        fingerprint : hashable
            What the thing is made from.
        make : callable
            Makes it.
        worth : callable
            Whether to keep what was made.
        """
        with self._lock:
            if fingerprint in self._held:
                self._held.move_to_end(fingerprint)
                return self._held[fingerprint], True
        made = make()
        if not worth(made):
            return made, False
        with self._lock:
            self._held[fingerprint] = made
            while len(self._held) > self._capacity:
                self._held.popitem(last=False)
        return made, False

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._held.clear()
