"""What a thread knows of its batching scope."""

from __future__ import annotations

import enum
import threading
from typing import Any, Dict, Optional


class ScopeState(enum.Enum):
    """What a scope does with the calls of its thread."""

    #: Calls are none of its business.
    CLOSED = "closed"
    #: Calls run at once and are counted: recording them may not pay.
    AT_ONCE = "running calls at once"
    #: Calls are recorded.
    RECORDING = "recording"
    #: Calls run at once, because they are the scope's own: it traces, or computes what is pending.
    AT_WORK = "at work"


class ThreadState(threading.local):
    """The scope of a thread.

    `Batch._become` and `Batch.at_work` write all of it but `sites`, by one call of C, which no
    interrupt divides.
    """

    #: The open scope, or None.
    batch: Optional[Any] = None
    state = ScopeState.CLOSED
    #: The recorder of the scope while it is recording, else None.
    recorder: Optional[Any] = None

    def __init__(self) -> None:
        #: What "auto" knows of the places at which this thread opened scopes.
        self.sites: Dict[Any, Any] = {}


STATE = ThreadState()
