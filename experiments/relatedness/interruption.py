"""Ctrl-C between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any, Optional


class Interruption:
    """While it is entered, a first Ctrl-C waits for the next `check`; a second one does not.

    Python raises `KeyboardInterrupt` wherever it happens to be. If that is a function that MXNet
    called, for instance in the backward pass, the exception is lost and so is what the function had
    to do. The work between two checks is done whole or, after the second Ctrl-C, given up.
    """

    def __init__(self) -> None:
        self._pending = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
        handler = signal.getsignal(signal.SIGINT)
        # Only the main thread gets signals; and a program that was told to ignore them, does.
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if there was one."""
        if self._pending:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        self.check()
        self._pending = True
        print("\nstopping after this step; press again to stop at once", file=sys.stderr)
