"""Bound the flushes that MXNet's engine has not finished, and their backward passes.

A training loop that reads no values only pushes work.  If that takes longer than recording, more
and more flushes wait in the engine, each with all its values in memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Deque, Iterable, List

from ..native.executing import Bases, Notice
from .pushes import PUSHES

#: Earlier flushes of a thread that may be unfinished when it starts one.  The engine needs one to
#: go on with while the next is recorded, and another one if recording takes longer at times.
MOST_EARLIER = 2
#: Returns a new `Notice`, for which an operation is pushed.
push_notice = PUSHES.one_at_a_time(Notice)
#: Graphs whose backward pass is watched: the last ones.
MOST_GRAPHS = 16


class Flight(threading.local):
    """The unfinished flushes of a thread."""

    def __init__(self) -> None:
        #: Per flush, oldest first, notices of its end and of backward passes after it; those that
        #: become one node of MXNet's tape count as one, as they keep their memory until it has run.
        self._flushes: Deque[List[Notice]] = deque()
        #: Numbers of the graphs that the next backward pass of the thread may run.
        self.graphs: Deque[int] = deque(maxlen=MOST_GRAPHS)

    @property
    def last(self) -> List[Notice]:
        """The notices of the last flush, to which those of its backward passes are added."""
        return self._flushes[-1] if self._flushes else []

    def make_room(self) -> float:
        """Wait until a flush may start; return the seconds that this took."""
        seconds = 0.0
        while len(self._flushes) > MOST_EARLIER:
            for notice in self._flushes[0]:
                if not notice.given:
                    started = time.perf_counter()
                    notice.wait()
                    seconds += time.perf_counter() - started
            self._flushes.popleft()
        return seconds

    def launched(self, bases: Bases, joins: bool) -> None:
        """Register a flush that has been pushed and writes some of its bases.

        `joins` says that it becomes part of the node of the one before.
        """
        if not (joins and self._flushes):
            self._flushes.append([])
        self._flushes[-1].append(push_notice(bases.written))

    def went_backward(self, results: Iterable[int]) -> None:
        """Register a backward pass that has been pushed, by the handles of some of its results."""
        handles = list(results)
        if self._flushes and handles:
            # There may be any number of passes before the next flush, also of other graphs.
            unfinished = [notice for notice in self._flushes[-1] if not notice.given]
            self._flushes[-1][:] = [*unfinished, push_notice(handles)]

    def forget(self) -> None:
        """Forget all flushes, as in a new process, in which no work is pending."""
        self._flushes.clear()


FLIGHT = Flight()
os.register_at_fork(after_in_child=FLIGHT.forget)
