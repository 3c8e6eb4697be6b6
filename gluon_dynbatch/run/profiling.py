"""While ``mx.profiler`` runs, launches appear in its trace under the names of their blocks.

MXNet's own entries carry the names of operators only.  A launch is waited for while the profiler
runs, so that what the trace shows is the time of its work and not that of handing it out.

MXNet dies, or hangs, if its profiler starts or stops in the middle of a call of MXNet by another
thread.  The backward pass of a scope makes such calls in a thread of MXNet's, so that what starts,
pauses or stops the profiler waits for all work first.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional

import mxnet as mx
from mxnet import profiler
from mxnet.ndarray import NDArray

from ..record.intercept import replace_for_good

#: The process profiled, in MXNet's C library: this one, not that of a store.
WORKER = 0


#: Functions of MXNet's C library that wait, with what they set: which calls are profiled can change
#: while the profiler runs.
FOLLOWED = {
    "MXSetProcessProfilerState": "_on",
    "MXProcessProfilePause": "_paused",
    "MXSetProcessProfilerConfig": None,
}


class Profiler:
    """Knows whether ``mx.profiler`` runs, which MXNet itself does not tell."""

    def __init__(self) -> None:
        self._on = os.environ.get("MXNET_PROFILER_AUTOSTART", "0") == "1"
        self._paused = False
        self._domain: Any = None
        for name, attribute in FOLLOWED.items():
            replace_for_good(name, functools.partial(self._follow, attribute))

    def _follow(self, attribute: Optional[str], original: Any) -> Any:
        """Wait for all work before each call, and take note of what it sets."""

        def function(*args: Any) -> Any:
            try:
                mx.nd.waitall()
            finally:
                # What waiting raises is the failure of some work, not of this function.
                failed = original(*args)
                if attribute is not None and not failed and args[1] == WORKER:
                    setattr(self, attribute, getattr(args[0], "value", args[0]) == 1)
            return failed

        return function

    @property
    def running(self) -> bool:
        """Looked at for every launch."""
        return self._on and not self._paused

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
