"""What a thread knows of its batching scope."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional


class ThreadState(threading.local):
    """The scope of a thread.

    Calls in an open scope are recorded, or they run at once and are counted, as recording may not
    pay; or neither, if they are the scope's own: it traces, or computes what is pending.  `Batch`
    writes all of it but these lists, by one call of C, which no interrupt divides.
    """

    #: The open scope, or None.
    batch: Optional[Any] = None
    #: The recorder of the scope while it is recording, else None.
    recorder: Optional[Any] = None
    #: Whether calls run at once and are counted.
    at_once = False

    def __init__(self) -> None:
        #: What "auto" knows of the places at which this thread opened scopes (`Account`).
        self.places: Dict[Any, Any] = {}
        #: Fibers that have run their samples, for another map.
        self.resting: List[Any] = []


STATE = ThreadState()
