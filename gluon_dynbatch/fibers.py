"""Samples as fibers: each runs until it asks for a value, then one flush serves all that wait.

A fiber is a greenlet.  What MXNet keeps per thread and a sample may change, such as autograd's
mode, belongs to the fiber and is switched with it.  The design is page 0013 of `docs/design`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections import deque
from typing import Any, Callable, Deque, Iterable, Iterator, List, Optional

import greenlet
import mxnet as mx
from mxnet.gluon.block import _BlockScope
from mxnet.util import _NumpyArrayScope

from .errors import SampleError, Where
from .record.intercept import set_mode

#: What MXNet keeps per thread: each may have an attribute ``value``.
PER_THREAD = (
    mx.Context._default_ctx,
    mx.name.NameManager._current,
    mx.attribute.AttrScope._current,
    _BlockScope._current,
    _NumpyArrayScope._current,
)
MISSING = object()


@contextlib.contextmanager
def surroundings(scope: Any) -> Iterator[None]:
    """Put back, afterwards, what MXNet keeps for the thread."""
    mode, values = scope.mode, [getattr(held, "value", MISSING) for held in PER_THREAD]
    try:
        yield
    finally:
        for held, value in zip(PER_THREAD, values):
            if getattr(held, "value", MISSING) is not value:
                if value is MISSING:
                    del held.value
                else:
                    held.value = value
        if scope.mode != mode:
            set_mode(mode)


class Fiber(greenlet.greenlet):  # type: ignore[misc]
    """One sample under way, then the next; its parent is the greenlet that maps.

    A sample that never waits costs no switch: the fiber that ran it goes on with another.
    """

    def __init__(self, crew: Fibers):
        super().__init__(crew.work)
        self.gr_context = contextvars.copy_context()
        self._crew = crew

    @property
    def may_park(self) -> bool:
        """Whether the others can come as far; not while a sample is being asked for."""
        return not self._crew.drawing

    def park(self) -> None:
        """Wait until what is pending has been computed; raises what that failed with."""
        if self._crew.ending:
            raise greenlet.GreenletExit
        with surroundings(self._crew.scope):
            self.parent.switch()


class Fibers:
    """Runs a function for many samples in one scope.

    Parameters
    ----------
    scope : Batch
        Computes what is pending, by ``await_flush()``.
    apply : callable
        Function of one sample.
    concurrency : int, optional
        How many samples are under way at most.
    keeps_errors : bool
        Whether an exception of a sample is its result, instead of the end of all.
    place : Where
        The line that maps, for messages.
    """

    def __init__(
        self,
        scope: Any,
        apply: Callable[[Any], Any],
        concurrency: Optional[int],
        keeps_errors: bool,
        place: Where,
    ):
        self._apply = apply
        self.scope = scope
        self._most = concurrency
        self._keeps_errors = keeps_errors
        self._place = place
        self._results: List[Any] = []
        self._coming: Iterator[Any] = iter(())
        #: Whether the next sample is being asked for.
        self.drawing = False
        #: Samples that wait for a value, in their order.
        self._parked: Deque[Fiber] = deque()
        self.ending = False

    def run(self, samples: Iterable[Any]) -> List[Any]:
        """Return the results in the order of the samples."""
        self._coming = iter(samples)
        try:
            self._start()
            while self._parked:
                error = self._compute()
                for _ in range(len(self._parked)):
                    self._go_on(self._parked.popleft(), error)
                self._start()
            return self._results
        finally:
            self._end()
            # The traceback of an exception refers to this.
            self._results = []

    def _start(self) -> None:
        """Begin with samples until as many are under way as may be."""
        while self._most is None or len(self._parked) < self._most:
            if not self._go_on(Fiber(self)):
                break

    def work(self) -> None:
        """Run samples, one after another; what a fiber does."""
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
            self._results[number] = self._outcome(number, sample)
            # The traceback of an exception refers to this.
            del sample

    def _outcome(self, number: int, sample: Any) -> Any:
        try:
            return self._apply(sample)
        except Exception as error:
            if not self._keeps_errors:
                advice = 'give on_error="return" to get exceptions among the results'
                name_sample(error, f"{number} of map", self._place, advice)
                raise
            # From the sample's own frames on: those of the caller hold what it holds.
            trace = error.__traceback__
            return error.with_traceback(trace and trace.tb_next)

    def _compute(self) -> Optional[Exception]:
        """Compute what the parked samples wait for; an exception is theirs."""
        try:
            self.scope.await_flush(len(self._parked))
        except Exception as error:
            return error
        return None

    def _go_on(self, fiber: Fiber, error: Optional[BaseException] = None) -> bool:
        """Run samples until one parks; False if none does."""
        with surroundings(self.scope):
            if error is None:
                fiber.switch()
            else:
                fiber.throw(error)
        if not fiber.dead:
            self._parked.append(fiber)
        return not fiber.dead

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
    """Say of which sample an exception is."""
    if error.__cause__ is None:
        what = f"the exception is of sample {sample}"
        error.__cause__ = SampleError(what, place, None, advice)


def current() -> Optional[Fiber]:
    """Return the fiber that runs now, if it is one."""
    running = greenlet.getcurrent()
    return running if type(running) is Fiber else None
