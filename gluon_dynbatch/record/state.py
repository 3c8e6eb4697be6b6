"""The state of each thread: its batching scope."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional


class ThreadState(threading.local):
    """The scope of a thread.

    Calls in an open scope are recorded.  Or they run at once and are counted, because recording may
    not pay.  Or they are the scope's own, while it traces or flushes: these are neither recorded
    nor counted.  `Batch` writes all attributes but the two lists, in one call of C, which an
    interrupt cannot divide.
    """

    #: The open scope, or None.
    batch: Optional[Any] = None
    #: The recorder of the scope while it is recording, else None.
    recorder: Optional[Any] = None
    #: Whether calls run at once and are counted.
    at_once = False

    def __init__(self) -> None:
        #: Per place that opened scopes in this thread, the measurements of "auto" (`Account`).
        self.decisions: Dict[Any, Any] = {}
        #: Idle fibers, for the next map.
        self.idle_fibers: List[Any] = []


STATE = ThreadState()
