"""A cache with a limit in bytes, which evicts the least recently used entries.

A program that repeats its work in turns, such as an epoch of the same minibatches, finds nothing in
a cache that is smaller than one turn.  So the cache notes what it evicts.  If it is often asked for
that again, its limit becomes the smallest one that would have kept it: the stack distance of
Mattson et al., Evaluation techniques for storage hierarchies (IBM Systems Journal 9, 1970).  A
program that finds nearly all that it asks for, such as a service, needs no more memory, and neither
does one that hardly ever asks for the same again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, Hashable, Optional, Tuple, TypeVar

Content = TypeVar("Content")

#: It is often if this share of what was asked for again had been evicted, in bytes, as larger
#: entries take longer to make; among the last look-ups, of as many times the bytes of the limit.
OFTEN, LAST = 1 / 8, 4
#: And if it is this share of all that was asked for: where nearly all is new, no limit helps.
NOT_NEW = 1 / 32


class SizedCache(Generic[Content]):
    """Maps fingerprints to plans, or to pieces of a tape, up to a total size in bytes.

    Fingerprints are compared by value: two recordings share a plan only if every array that
    describes them is equal, not merely its hash.

    Parameters
    ----------
    limit : int
        The first limit, in bytes.
    most : int, optional
        The highest limit, in bytes; by default, the first one stays.
    """

    def __init__(self, limit: int, most: int = 0):
        #: The limit now.
        self.limit = limit
        self._most = max(limit, most)
        #: By fingerprint, the value, its bytes, and the fingerprint itself.
        self._entries: OrderedDict[Hashable, Tuple[Content, int, Hashable]] = OrderedDict()
        #: By hash of an evicted fingerprint, the bytes that had been evicted before it, and its
        #: own; and those that have been evicted in all.
        self._evicted: OrderedDict[int, Tuple[int, int]] = OrderedDict()
        self._evicted_bytes = 0
        #: Bytes that the last look-ups asked for: those found, those made, and those of the latter
        #: that had been evicted.
        self._found = self._made = self._missed = 0.0
        self._lock = threading.Lock()
        #: Total size now.
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, fingerprint: Hashable) -> Optional[Content]:
        """Return the value of `fingerprint`, or None."""
        try:
            content, size, same = self._entries[fingerprint]
            self._entries.move_to_end(same)  # an equal one would be compared again
            self._found += size
            return content
        except KeyError:  # also if another thread evicts it in between
            if self._evicted:
                self._missed_one(hash(fingerprint))
            return None

    def keep(self, fingerprint: Hashable, value: Content, size: int) -> None:
        """Store a value, unless its size is zero or beyond the limit."""
        if not 0 < size <= self._most:
            return
        with self._lock:
            self._made += size
            if size > self.limit:
                self._note(fingerprint, size)
                return
            # Replaces the value of another thread that was faster, or an outdated one.
            self.bytes += size - self._entries.pop(fingerprint, (None, 0, None))[1]
            self._entries[fingerprint] = value, size, fingerprint
            while self.bytes > self.limit:
                oldest, (_, bytes_of_oldest, _) = self._entries.popitem(last=False)
                self.bytes -= bytes_of_oldest
                self._note(oldest, bytes_of_oldest)

    def _note(self, fingerprint: Hashable, size: int) -> None:
        """Note that an entry is evicted, and forget those that not even the highest limit keeps."""
        number = hash(fingerprint)
        self._evicted.pop(number, None)
        self._evicted[number] = self._evicted_bytes, size
        self._evicted_bytes += size
        earliest = self._evicted_bytes - (self._most - self.bytes)
        while self._evicted and next(iter(self._evicted.values()))[0] < earliest:
            self._evicted.popitem(last=False)

    def _missed_one(self, number: int) -> None:
        """Raise the limit to what would have kept an entry, if it was evicted, as many were."""
        with self._lock:
            before, size = self._evicted.pop(number, (0, 0))
            self._missed += size
            again, asked = self._found + self._missed, self._found + self._made + size
            if size and self._missed >= max(OFTEN * again, NOT_NEW * asked):
                needed = self.bytes + self._evicted_bytes - before
                self.limit = max(self.limit, min(needed, self._most))
            if asked > LAST * self.limit:
                share = LAST * self.limit / asked
                self._found, self._missed = share * self._found, share * self._missed
                self._made *= share

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self._evicted.clear()
            self.bytes = 0
