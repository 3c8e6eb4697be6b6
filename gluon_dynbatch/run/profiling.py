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


class Profiler:
    """Knows whether ``mx.profiler`` runs, which MXNet itself does not tell."""

    def __init__(self) -> None:
        self._on = os.environ.get("MXNET_PROFILER_AUTOSTART", "0") == "1"
        self._paused = False
        self._domain: Any = None
        #: Looked at for every launch.
        self.running = self._on
        self._follow("set_state", self._set_state, waits=True)
        # These say which calls of MXNet are profiled, also while the profiler runs.
        self._follow("set_config", None, waits=True)
        self._follow("profiler_set_config", None, waits=True)
        self._follow("pause", lambda profile_process="worker": self._pause(True))
        self._follow("resume", lambda profile_process="worker": self._pause(False))

    def _follow(self, name: str, note: Any, waits: bool = False) -> None:
        original = getattr(profiler, name)

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            try:
                if waits:
                    mx.nd.waitall()
            finally:
                # What waiting raises is the failure of some work, not of this function.
                result = original(*args, **kwargs)
                if note is not None:
                    note(*args, **kwargs)
            return result

        setattr(profiler, name, function)

    def _set_state(self, state: str = "stop", profile_process: str = "worker") -> None:
        if profile_process == "worker":
            self._on = state == "run"
            self.running = self._on and not self._paused

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        self.running = self._on and not paused

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


PROFILER = Profiler()
