"""Let one thread at a time push to MXNet's engine.

The engine queues an operation at each of its variables, one after another.  If another thread
pushes at the same time, the two operations may be in opposite orders at two variables that one of
them writes; then each waits for the other, forever.  Programs read and write many arrays, so this
would happen often.  MXNet's own operations would, too, so they wait here as well.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, Tuple

from ..record.intercept import replace_for_good

#: Functions of MXNet's C library that push operations of several arrays.
PUSHING: Tuple[str, ...] = (
    "MXImperativeInvokeEx",
    "MXInvokeCachedOpEx",
    "MXAutogradBackwardEx",
)
#: Seconds after which a thread pushes all the same.  A push takes microseconds; but some operators
#: wait within MXNet, perhaps for an operator in Python, which pushes in another thread.
PATIENCE = 0.02


class Pushes:
    """A lock that is held while something is pushed, for a limited time."""

    def __init__(self) -> None:
        self._renew()
        # In the child of a fork, a thread that is gone may hold the lock.
        os.register_at_fork(after_in_child=self._renew)
        for name in PUSHING:
            replace_for_good(name, self.one_at_a_time)

    def _renew(self) -> None:
        # An operator in Python may push within a push of its thread.
        self._lock = threading.RLock()

    def one_at_a_time(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls another one while no other thread pushes."""

        def push(*args: Any) -> Any:
            lock = self._lock
            held = lock.acquire(timeout=PATIENCE)
            try:
                return function(*args)
            finally:
                if held:
                    lock.release()

        return push


PUSHES = Pushes()
