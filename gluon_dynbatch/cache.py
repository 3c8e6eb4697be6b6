"""A cache with a limit in bytes, which evicts the least recently used entries.

A program that repeats its work in turns, such as an epoch of the same minibatches, finds nothing in
a cache that is smaller than one turn.  So the cache notes what it evicts.  If it is often asked for
that again, its limit becomes the smallest one that would have kept it: the stack distance of
Mattson et al., Evaluation techniques for storage hierarchies (IBM Systems Journal 9, 1970).  A
program that finds nearly all that it asks for needs no more memory, and neither does one that
hardly ever asks for the same again.  A service may ask for ever the same again after any time: the
more memory, the more it finds, but each time less.  So a limit has to serve the more of what is
asked for again, the higher it is.  Where hardly anything is asked for again, a full cache takes
only what is: what is dropped at once leaves its memory to the next one while the processor's cache
has it.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from typing import Dict, Generic, Hashable, List, Tuple, TypeVar

from .native.recency import CacheEntry, Recency

Content = TypeVar("Content")

#: It is often if this share of what was asked for again had been evicted, in bytes, as larger
#: entries take longer to make; among the last look-ups, of as many times the bytes of the limit.
OFTEN, LAST = 1 / 8, 4
#: And if it is this share of all that was asked for: where nearly all is new, no limit helps.
NOT_NEW = 1 / 32
#: The highest limit has to serve this share of what was asked for again, and lower ones less, in
#: proportion.
WORTH = 1 / 2
#: Limits that would have kept evicted entries are told apart in so many steps for each doubling.
STEPS = 4
#: So much is asked for, in bytes of the limit, before what is new is no longer kept.
SURE = 2


class SizedCache(Recency, Generic[Content]):
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
        #: Entries when they were last sorted, the least recently used last, and when each had been
        #: used.  All are still in the cache; those that were used since are not the oldest.
        self._by_age: List[Tuple[int, CacheEntry]] = []
        #: By hash of an evicted fingerprint, the bytes that had been evicted before it, and its
        #: own, or 0 if it was asked for again; and those that have been evicted in all.
        self._evicted: OrderedDict[int, Tuple[int, int]] = OrderedDict()
        self._evicted_bytes = 0
        #: Bytes that the last look-ups asked for, besides those found: those made, and those of
        #: the latter that had been evicted, by the step of the limit that would have kept them.
        self._made = 0.0
        self._missed: Dict[int, float] = {}
        self._lock = threading.Lock()
        #: Total size now.
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.entries)

    def keep(self, fingerprint: Hashable, value: Content, size: int) -> None:
        """Store a value, unless its size is zero or beyond the limit."""
        if not 0 < size <= self._most:
            return
        with self._lock:
            self._made += size
            _, not_asked_for = self._evicted.pop(hash(fingerprint), (0, 1))
            new = not_asked_for and self._all_is_new()
            if size > self.limit or new and self.bytes + size > self.limit:
                self._note(fingerprint, size)
                return
            replaced = self.put(fingerprint, value, size)
            self.bytes += size
            if replaced is not None:  # of another thread that was faster, or an outdated one
                self.bytes -= replaced.bytes
                self._by_age.clear()
            while self.bytes > self.limit:
                oldest = self._pop_oldest()
                self.bytes -= oldest.bytes
                self._note(oldest.fingerprint, oldest.bytes)

    def _all_is_new(self) -> bool:
        """Return whether hardly anything was asked for that had been asked for before."""
        again, asked = self.found + sum(self._missed.values()), self.found + self._made
        return asked > SURE * self.limit and again < NOT_NEW * asked

    def _pop_oldest(self) -> CacheEntry:
        """Remove the least recently used entry, and return it."""
        while True:
            if not self._by_age:
                self._by_age = [(entry.used, entry) for entry in self.entries.values()]
                self._by_age.sort(reverse=True)
            used, oldest = self._by_age.pop()
            if used == oldest.used:
                return self.entries.pop(oldest.fingerprint)

    def _note(self, fingerprint: Hashable, size: int) -> None:
        """Note that an entry is evicted, and forget those that not even the highest limit keeps."""
        number = hash(fingerprint)
        self._evicted.pop(number, None)
        self._evicted[number] = self._evicted_bytes, size
        self._evicted_bytes += size
        earliest = self._evicted_bytes - (self._most - self.bytes)
        while self._evicted and next(iter(self._evicted.values()))[0] < earliest:
            self._evicted.popitem(last=False)

    def missed(self, fingerprint: Hashable) -> None:
        """Raise the limit to what would have kept an entry, if that would have kept many."""
        if not self._evicted:
            return
        with self._lock:
            number = hash(fingerprint)
            before, size = self._evicted.get(number, (0, 0))
            if size:
                self._evicted[number] = before, 0
                self._consider(min(self.bytes + self._evicted_bytes - before, self._most), size)
            asked = self.found + self._made
            if asked > LAST * self.limit:
                share = LAST * self.limit / asked
                self.found, self._made = share * self.found, share * self._made
                self._missed = {step: share * each for step, each in self._missed.items()}

    def _consider(self, needed: int, size: int) -> None:
        """Note that a limit would have kept an entry, and raise the limit if this pays."""
        step = int(STEPS * math.log2(needed))
        self._missed[step] = self._missed.get(step, 0) + size
        served = sum([each for other, each in self._missed.items() if other <= step])
        again = self.found + sum(self._missed.values())
        share = max(OFTEN, WORTH * needed / self._most)
        if served >= max(share * again, NOT_NEW * (self.found + self._made + size)):
            self.limit = max(self.limit, needed)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self.entries.clear()
            self._by_age.clear()
            self._evicted.clear()
            self.bytes = 0
