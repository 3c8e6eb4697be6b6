"""Show launches in traces of ``mx.profiler`` under the names of their blocks.

MXNet's own entries have the names of operators only.  While the profiler runs, each launch is
waited for, so that its entry shows the time of its work and not that of pushing it.

MXNet crashes or hangs if its profiler starts or stops while another thread is within a call of
MXNet.  While it runs, MXNet may fail if two threads free memory at the same time, because they
change one counter.  The backward pass of a scope makes calls and frees memory in a thread of MXNet,
and goes on with that when its results are computed already.  So the functions that start, pause or
stop the profiler wait for all work and then for that thread.
"""

from __future__ import annotations

import functools
import os
import threading
from contextlib import contextmanager
from typing import Any, Iterator, Optional, Protocol

import mxnet as mx
from mxnet import profiler

from ..plan.launch import Launch
from ..plan.plan import Plan
from ..record.intercept import replace_for_good

#: MXNet's number for profiling this process, and not a parameter server.
WORKER = 0

#: The functions of MXNet's C library that wait for all work, and the attribute of `Profiler` that
#: each of them sets.
WAITING = {
    "MXSetProcessProfilerState": "_on",
    "MXProcessProfilePause": "_paused",
    "MXSetProcessProfilerConfig": None,
}


class ObservedPass(Protocol):
    """What the profiler needs to know of a run of a plan, an `execute.Pass`."""

    plan: Plan
    suffix: str

    def wait(self, launch: Launch) -> None:
        """Wait for the results of a launch."""


class Profiler:
    """Tracks whether ``mx.profiler`` runs, which MXNet has no function for."""

    def __init__(self) -> None:
        self._on = os.environ.get("MXNET_PROFILER_AUTOSTART", "0") == "1"
        self._paused = False
        #: Whether the profiler records; read for every launch.
        self.running = self._on
        self._domain: Any = None
        #: The backward passes of scopes that are running in Python.
        self._passes = 0
        self._changed = threading.Condition()
        for name, attribute in WAITING.items():
            replace_for_good(name, functools.partial(self._waiting, attribute))

    def _waiting(self, attribute: Optional[str], original: Any) -> Any:
        """Return a function that waits for all work, calls `original` and tracks its effect."""

        def function(*args: Any) -> Any:
            try:
                self._settle()
            finally:
                # Also if `waitall` raises: then other work has failed, not this function.
                failed = original(*args)
                if attribute is not None and not failed and args[1] == WORKER:
                    setattr(self, attribute, getattr(args[0], "value", args[0]) == 1)
                    self.running = self._on and not self._paused
            return failed

        return function

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Mark the calls of one backward pass, to the freeing of its arrays."""
        with self._changed:
            self._passes += 1
        try:
            yield
        finally:
            with self._changed:
                self._passes -= 1
                self._changed.notify_all()

    def _settle(self) -> None:
        """Wait for all work, and until no backward pass makes calls."""
        try:
            mx.nd.waitall()
        finally:
            with self._changed:
                self._changed.wait_for(lambda: not self._passes)

    @contextmanager
    def launch(self, run: ObservedPass, number: int) -> Iterator[None]:
        """Show the time until the results of a launch are computed as one entry of the trace."""
        if self._domain is None:
            self._domain = profiler.Domain("gluon_dynbatch")
        launch = run.plan.launch(number)
        name = f"{run.plan.graph.name(int(launch.units[0]))}{run.suffix}"
        task = profiler.Task(self._domain, f"{name} x{len(launch.units)}")
        task.start()
        try:
            yield
            run.wait(launch)
        finally:
            task.stop()


PROFILER = Profiler()
