"""Samples as fibers: each runs until it asks for a value, then one flush serves all that wait.

A fiber is a greenlet.  What MXNet keeps per thread and a sample may change, such as autograd's
mode, belongs to the fiber and is switched with it.  The design is page 0013 of `docs/design`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections import deque
from typing import Any, Callable, Deque, Iterable, Iterator, List, NamedTuple, Optional

import greenlet
import mxnet as mx
from mxnet.gluon.block import _BlockScope
from mxnet.util import _NumpyArrayScope

from .errors import SampleError, Where, user_message
from .modes import RECORDING, TRAINING

#: What MXNet keeps per thread: each may have an attribute ``value``.
PER_THREAD = (
    mx.Context._default_ctx,
    mx.name.NameManager._current,
    mx.attribute.AttrScope._current,
    _BlockScope._current,
    _NumpyArrayScope._current,
)
MISSING = object()


class Surroundings(NamedTuple):
    """What MXNet keeps for the thread, to be put back when a fiber goes on."""

    mode: int
    values: List[Any]

    @classmethod
    def now(cls, mode: int) -> Surroundings:
        """Return what holds now; `mode` is autograd's."""
        return cls(mode, [getattr(held, "value", MISSING) for held in PER_THREAD])

    def restore(self, mode: int) -> None:
        """Put it back; `mode` is autograd's now."""
        for held, value in zip(PER_THREAD, self.values):
            if getattr(held, "value", MISSING) is not value:
                if value is MISSING:
                    del held.value
                else:
                    held.value = value
        if mode != self.mode:
            mx.autograd.set_recording(bool(self.mode & RECORDING))
            mx.autograd.set_training(bool(self.mode & TRAINING))


class Fiber(greenlet.greenlet):  # type: ignore[misc]
    """One sample under way; its parent is the greenlet that maps."""

    def __init__(self, crew: Fibers, number: int, sample: Any):
        super().__init__(lambda: crew.apply(sample))
        self.gr_context = contextvars.copy_context()
        self.number = number
        self._crew = crew

    def park(self) -> None:
        """Wait until what is pending has been computed; raises what that failed with."""
        self._crew.pause()


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
        self.apply = apply
        self._scope = scope
        self._most = concurrency
        self._keeps_errors = keeps_errors
        self._place = place
        self._results: List[Any] = []
        #: Samples that wait for a value, in their order.
        self._parked: Deque[Fiber] = deque()
        self._ending = False

    def run(self, samples: Iterable[Any]) -> List[Any]:
        """Return the results in the order of the samples."""
        coming = enumerate(samples)
        around = Surroundings.now(self._scope.mode)
        try:
            self._start(coming)
            while self._parked:
                error = self._compute()
                for _ in range(len(self._parked)):
                    self._go_on(self._parked.popleft(), error)
                self._start(coming)
        finally:
            self._end()
            around.restore(self._scope.mode)
            # The traceback of an exception refers to this.
            results, self._results = self._results, []
        return results

    def _start(self, coming: Iterator[Any]) -> None:
        """Begin with samples until as many are under way as may be."""
        while self._most is None or len(self._parked) < self._most:
            number, sample = next(coming, (None, None))
            if number is None:
                break
            self._results.append(None)
            self._go_on(Fiber(self, number, sample))

    def _compute(self) -> Optional[Exception]:
        """Compute what the parked samples wait for; an exception is theirs."""
        try:
            self._scope.await_flush(len(self._parked))
        except Exception as error:
            return error
        return None

    def _go_on(self, fiber: Fiber, error: Optional[Exception] = None) -> None:
        """Run a sample until it parks or ends."""
        around = Surroundings.now(self._scope.mode)
        try:
            result = fiber.switch() if error is None else fiber.throw(error)
        except Exception as raised:
            if not self._keeps_errors:
                self._name_sample(fiber, raised)
                raise
            # From the sample's own frames on: those of the caller hold what it holds.
            trace = raised.__traceback__
            result = raised.with_traceback(trace and trace.tb_next)
        finally:
            around.restore(self._scope.mode)
        if fiber.dead:
            self._results[fiber.number] = result
        else:
            self._parked.append(fiber)

    def pause(self) -> None:
        """Let the other samples come as far, from within a fiber."""
        if self._ending:
            raise greenlet.GreenletExit
        around = Surroundings.now(self._scope.mode)
        try:
            greenlet.getcurrent().parent.switch()
        finally:
            around.restore(self._scope.mode)

    def _name_sample(self, fiber: Fiber, error: Exception) -> None:
        """Say of which sample an exception is."""
        if error.__cause__ is None:
            message = f"the exception is of sample {fiber.number} of map"
            advice = 'give on_error="return" to get exceptions among the results'
            error.__cause__ = SampleError(user_message(message, self._place, None, advice))

    def _end(self) -> None:
        """End what is still under way: its ``finally`` clauses run, and get no values."""
        self._ending = True
        try:
            while self._parked:
                with contextlib.suppress(Exception):
                    self._parked.popleft().throw()
        finally:
            if self._parked:  # an interrupt came
                self._end()


def current() -> Optional[Fiber]:
    """Return the fiber that runs now, if it is one."""
    running = greenlet.getcurrent()
    return running if type(running) is Fiber else None
