"""Samples as fibers: each runs until it asks for a value, then one flush serves all that wait.

A fiber is a greenlet.  What MXNet keeps per thread and a sample may change, such as autograd's
mode, belongs to the fiber and is switched with it.  The design is page 0013 of `docs/design`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections import deque
from typing import Any, Callable, Deque, Iterable, List, Optional

import greenlet
import mxnet as mx
from mxnet.gluon.block import _BlockScope
from mxnet.util import _NumpyArrayScope

from .errors import SampleError, Where
from .native.recording import surroundings
from .record.intercept import set_mode
from .record.state import STATE
from .record.where import user_line

#: What MXNet keeps per thread: each may have an attribute ``value``.
PER_THREAD = (
    mx.Context._default_ctx,
    mx.name.NameManager._current,
    mx.attribute.AttrScope._current,
    _BlockScope._current,
    _NumpyArrayScope._current,
)
MISSING = object()
#: Fibers of a thread that rest, at most: to begin and end one takes as long as several calls.
MOST_RESTING = 512


def _live() -> None:
    """Run samples of one map after another; what a fiber does."""
    while True:
        # No name for the fiber: its own frame would hold it.
        greenlet.getcurrent().crew.work()
        greenlet.getcurrent().crew = None
        greenlet.getcurrent().parent.switch()


class Fibers:
    """Runs a function for many samples in one scope.

    A fiber is a greenlet that runs one sample, then the next, for those that its attribute ``crew``
    says; its parent is the greenlet that maps.  A sample that never waits costs no switch.

    Parameters
    ----------
    scope : Batch
        Computes what is pending, by ``await_flush()``.
    apply : callable
        Function of one sample.
    samples : iterable
        The samples.
    concurrency : int, optional
        How many samples are under way at most.
    keeps_errors : bool
        Whether an exception of a sample is its result, instead of the end of all.
    """

    def __init__(
        self,
        scope: Any,
        apply: Callable[[Any], Any],
        samples: Iterable[Any],
        concurrency: Optional[int],
        keeps_errors: bool,
    ):
        self._scope, self._apply = scope, apply
        self._coming = iter(samples)
        self._most, self._keeps_errors = concurrency, keeps_errors
        #: The line that maps, for messages.
        self._place = user_line()
        self._results: List[Any] = []
        #: Whether the next sample is being asked for, while the others cannot come as far.
        self.drawing = False
        #: Samples that wait for a value, in their order.
        self._parked: Deque[Any] = deque()
        self.ending = False
        #: What MXNet keeps for this thread.
        self._kept = [vars(one) for one in PER_THREAD]
        #: The surroundings of the greenlet that maps, which are put back whenever a fiber stops.
        self._surroundings: List[Any] = surroundings(self._kept, MISSING)

    def run(self) -> List[Any]:
        """Return the results in the order of the samples."""
        try:
            self._begin()
            while self._parked:
                error = None
                try:
                    self._scope.await_flush(len(self._parked))
                except Exception as raised:  # an exception of those that wait
                    error = raised
                for _ in range(len(self._parked)):
                    self._go_on(self._parked.popleft(), error)
                self._begin()
            return self._results
        finally:
            self._end()
            # The traceback of an exception refers to this.
            self._results = []

    def _begin(self) -> None:
        """Begin with samples until as many are under way as may be, or none parks."""
        while self._most is None or len(self._parked) < self._most:
            fiber: Any = STATE.resting.pop() if STATE.resting else greenlet.greenlet(_live)
            fiber.parent, fiber.crew = greenlet.getcurrent(), self
            fiber.surroundings = self._surroundings
            fiber.gr_context = contextvars.copy_context()
            if not self._go_on(fiber):
                break

    def work(self) -> None:
        """Run samples, one after another."""
        while not self.ending:
            self.drawing = True
            try:
                sample = next(self._coming, self)
            finally:
                self.drawing = False
            if sample is self:
                break
            number = len(self._results)
            self._results.append(None)
            try:
                self._results[number] = self._apply(sample)
            except Exception as error:
                if not self._keeps_errors:
                    advice = 'pass on_error="return" to get exceptions as results'
                    name_sample(error, f"{number} of map", self._place, advice)
                    raise
                # From the sample's own frames on: those of the caller hold what it holds.
                trace = error.__traceback__
                self._results[number] = error.with_traceback(trace and trace.tb_next)
            # The traceback of an exception refers to this.
            del sample

    def _go_on(self, fiber: Any, error: Optional[BaseException] = None) -> bool:
        """Run samples in their own surroundings until one parks; False if none does."""
        try:
            if fiber.surroundings != self._surroundings:
                self._put(*fiber.surroundings)
            if error is None:
                fiber.switch()
            else:
                fiber.throw(error)
        finally:
            parks = not fiber.dead and fiber.crew is self
            fiber.surroundings = surroundings(self._kept, MISSING)
            if fiber.surroundings != self._surroundings:
                self._put(*self._surroundings)
        if parks:
            self._parked.append(fiber)
        elif not fiber.dead and len(STATE.resting) < MOST_RESTING:
            fiber.gr_context = fiber.surroundings = None
            STATE.resting.append(fiber)
        return parks

    def _put(self, mode: int, *values: Any) -> None:
        """Let these be autograd's mode, and what MXNet keeps for the thread."""
        for kept, value in zip(self._kept, values):
            kept.pop("value", None)
            if value is not MISSING:
                kept["value"] = value
        set_mode(mode)

    def _end(self) -> None:
        """End what is still under way: its ``finally`` clauses run, and get no values."""
        self.ending = True
        try:
            while self._parked:
                with contextlib.suppress(Exception):
                    self._go_on(self._parked.popleft(), greenlet.GreenletExit())
        finally:
            if self._parked:  # an interrupt came
                self._end()


def name_sample(error: Exception, sample: str, place: Where, advice: Optional[str] = None) -> None:
    """Name the sample that raised an exception."""
    if error.__cause__ is None:
        what = f"sample {sample} raised the exception"
        error.__cause__ = SampleError(what, place, None, advice)


def park() -> bool:
    """Have the sample that runs now wait until what is pending is computed; False if it cannot.

    Raises what computing it failed with.
    """
    fiber: Any = greenlet.getcurrent()
    crew = getattr(fiber, "crew", None)
    if crew is None or crew.drawing or STATE.recorder is None:
        return False
    if crew.ending:
        raise greenlet.GreenletExit
    fiber.parent.switch()
    return True
