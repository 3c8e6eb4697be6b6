"""How work is handed to MXNet's engine: one push at a time, and few flushes at a time.

The engine queues an operation at each of its variables, one after another.  If another thread
pushes at the same time, the two operations may be in opposite orders at two variables that one of
them writes; then each waits for the other, forever.  Programs read and write many arrays, so this
would happen often.  MXNet's own operations would, too, so they wait here as well, for as long as
it takes: a thread in the middle of a push may have lost its processor, for any time.  But some
operators wait within MXNet, perhaps for an operator in Python, which pushes in another thread.  So
a thread that sleeps within its push lets others go on.

A training loop that reads no values only pushes work.  If that takes longer than recording, more
and more flushes wait in the engine, each with all its values in memory.  So few are unfinished.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Deque, Iterable, List, Optional, Tuple

from ..native import executing
from ..native.executing import Bases, Notice, OneAtATime
from ..record.intercept import replace_for_good

#: Functions of MXNet's C library that push operations of several arrays.
PUSHING: Tuple[str, ...] = (
    "MXImperativeInvokeEx",
    "MXInvokeCachedOpEx",
    "MXAutogradBackwardEx",
    "MXNetFuncCall",
)
for _name in PUSHING:
    replace_for_good(_name, OneAtATime)

#: Earlier flushes of a thread that may be unfinished when it starts one.  The engine needs one to
#: go on with while the next is recorded, and another one if recording takes longer at times.
MOST_EARLIER = 2
#: Returns a new `Notice`, for which an operation is pushed.
push_notice = OneAtATime(Notice)
#: Pushes an operation that comes after all uses of some arrays so far, see `executing.give_back`.
give_back = OneAtATime(executing.give_back)
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

    @property
    def is_over(self) -> bool:
        """Whether all of the last flush is done, and so all earlier ones."""
        return all([notice.given for notice in self.last])

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

    def launched(self, bases: Bases, notice: Optional[Notice], joins: bool) -> None:
        """Register a flush that has been pushed and writes some of its bases.

        If there is a notice already, it is that of the end of the flush.  `joins` says that it
        becomes part of the node of the one before.
        """
        if not (joins and self._flushes):
            self._flushes.append([])
        self._flushes[-1].append(notice or push_notice(bases.written))

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
