"""While ``mx.profiler`` runs, launches appear in its trace under the names of their blocks.

MXNet's own entries carry the names of operators only.  A launch is waited for while the profiler
runs, so that what the trace shows is the time of its work and not that of handing it out.

MXNet dies, or hangs, if its profiler starts or stops in the middle of a call of MXNet by another
thread.  The backward pass of a scope makes such calls in a thread of MXNet's, so that what starts
or stops the profiler waits for all work first.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from typing import Any, Iterator, List

import mxnet as mx
from mxnet import profiler
from mxnet.ndarray import NDArray

from ..record.intercept import replace_for_good

#: The process profiled, in MXNet's C library: this one, not that of a store.
WORKER = 0


class Profiler:
    """Knows whether ``mx.profiler`` runs, which MXNet itself does not tell."""

    def __init__(self) -> None:
        self._on = os.environ.get("MXNET_PROFILER_AUTOSTART", "0") == "1"
        self._paused = False
        self._domain: Any = None
        #: Looked at for every launch.
        self.running = self._on
        replace_for_good("MXSetProcessProfilerState", functools.partial(_follow, self._set_state))
        # It says which calls of MXNet are profiled, also while the profiler runs.
        replace_for_good("MXSetProcessProfilerConfig", functools.partial(_follow, None))
        replace_for_good("MXProcessProfilePause", functools.partial(_note, self._pause))

    def _set_state(self, state: Any, process: int, *_: Any) -> None:
        if process == WORKER:
            self._on = getattr(state, "value", state) == 1
            self.running = self._on and not self._paused

    def _pause(self, paused: int, process: int, *_: Any) -> None:
        if process == WORKER:
            self._paused = paused == 1
            self.running = self._on and not self._paused

    @contextmanager
    def shown(self, name: str, calls: int, results: List[NDArray]) -> Iterator[None]:
        """Show what runs inside as one entry, until the results are there."""
        if self._domain is None:
            self._domain = profiler.Domain("gluon_dynbatch")
        task = profiler.Task(self._domain, f"{name} x{calls}")
        task.start()
        try:
            yield
            for result in results:
                result.wait_to_read()
        finally:
            task.stop()


def _note(note: Any, original: Any) -> Any:
    """Tell `note` the arguments of calls that succeed."""

    def function(*args: Any) -> Any:
        failed = original(*args)
        if not failed:
            note(*args)
        return failed

    return function


def _follow(note: Any, original: Any) -> Any:
    """Wait for all work before each call."""
    call = original if note is None else _note(note, original)

    def function(*args: Any) -> Any:
        try:
            mx.nd.waitall()
        finally:
            # What waiting raises is the failure of some work, not of this function.
            result = call(*args)
        return result

    return function


PROFILER = Profiler()
