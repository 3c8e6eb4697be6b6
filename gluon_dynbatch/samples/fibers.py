"""Samples as fibers: each runs until it reads a value, then one flush serves all that wait.

A fiber is a greenlet.  It has its own copy of the state that MXNet keeps per thread and a sample
may change, such as autograd's mode.  Page 0013 of `docs/design` describes the design.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Iterable, List, Optional, Set

import greenlet
import mxnet as mx
from mxnet.gluon.block import _BlockScope
from mxnet.util import _NumpyArrayScope

from ..errors import SampleError, Where, hide_frames
from ..native import recording
from ..native.recording import set_mode, thread_settings
from ..record.state import STATE, Scope
from ..record.where import user_line
from .turns import Guards, View, await_turn

#: Thread-local objects of MXNet; each may have an attribute ``value``.
PER_THREAD = (
    mx.Context._default_ctx,
    mx.name.NameManager._current,
    mx.attribute.AttrScope._current,
    _BlockScope._current,
    _NumpyArrayScope._current,
)
#: Limit on the idle fibers of a thread: to start and end one takes as long as several calls.
MOST_RESTING = 512
#: Seconds that other threads have to end their maps when Python exits, and between two requests.
PATIENCE, AGAIN = 1.0, 0.1


class Mapping:
    """The threads that are within `map`.

    Python ends daemon threads at exit wherever they are.  That crashes in the middle of a fiber.
    """

    def __init__(self) -> None:
        self._threads: Set[int] = set()
        self._exits = False

    def enter(self, thread: int) -> bool:
        """Note that a thread is within a map; return whether it was so before."""
        if self._exits and threading.current_thread() is not threading.main_thread():
            raise SystemExit
        within = thread in self._threads
        self._threads.add(thread)
        return within

    def leave(self, thread: int) -> None:
        """Note that a thread has ended its outermost map."""
        self._threads.discard(thread)

    def exit(self) -> None:
        """End the maps of all other threads by the exception that ends a thread."""
        self._exits = True
        self._threads.discard(threading.get_ident())
        end, again = time.monotonic() + PATIENCE, 0.0
        while self._threads and time.monotonic() < end:
            if time.monotonic() >= again:
                again = time.monotonic() + AGAIN
                for thread in tuple(self._threads):
                    raised = ctypes.c_ulong(thread), ctypes.py_object(SystemExit)
                    if not ctypes.pythonapi.PyThreadState_SetAsyncExc(*raised):
                        self._threads.discard(thread)  # it has ended
            time.sleep(1e-3)


MAPPING = Mapping()


def _fiber_loop() -> None:
    """Run the samples of one `Fibers` after another, as the main function of a fiber."""
    while True:
        # The fiber has no name here: its own frame would keep it alive.
        greenlet.getcurrent().mapper.work()
        greenlet.getcurrent().mapper = None
        greenlet.getcurrent().parent.switch()


class Fiber(greenlet.greenlet):
    """A greenlet that runs the samples of one `Fibers` after another.

    Its parent is the greenlet that called `Fibers.start`.
    """

    __slots__ = (
        *("mapper", "view", "awaits", "thread_settings"),
        *("ending", "calls", "request", "ahead"),
    )
    #: The `Fibers`, or None.
    mapper: Optional[Fibers]
    #: What its sample sees, or None between samples.
    view: Optional[View]
    #: None while it waits for a value; otherwise, what it waits for.
    awaits: Any
    #: The `thread_settings` in which it goes on.
    thread_settings: Optional[List[Any]]
    #: Whether it gets no more values.
    ending: bool
    #: The calls that it made when it ran last, if they are noted, as bytes of ids of entries.
    calls: bytes
    #: Of a batcher: its `Request`, and whether it has got its first value since the last flush.
    request: Any
    ahead: bool


recording.connect_fibers(Fiber)


class Fibers(recording.Switches):
    """Runs samples in one scope, each in a fiber.

    A sample that never waits costs no switch.
    """

    def __init__(self, scope: Scope, program: Any):
        self._scope, self._program = scope, program
        self._parked: Deque[Fiber] = deque()
        self.views: Deque[View] = deque()
        self._guards: Optional[Guards] = None
        #: The attributes of `PER_THREAD` in this thread.
        self._thread_state = [vars(local) for local in PER_THREAD]
        self._thread_settings = thread_settings(self._thread_state)

    def take(self) -> Any:
        """Return the next sample to start; this object if there is none now."""
        raise NotImplementedError

    def run_sample(self, sample: Any) -> None:
        """Run a sample in the current fiber."""
        raise NotImplementedError

    def flush(self) -> Optional[BaseException]:
        """Compute what parked fibers wait for; return the exception of a flush that fails."""
        waiting = self.waiting()
        try:
            if waiting:
                self._scope.await_flush(waiting)
        except Exception as error:  # raised in the fibers that wait
            return error
        return None

    def may_resume(self, fiber: Any) -> bool:
        """Return whether a fiber that waits for something else than a value has waited enough."""
        return self._has_turn(fiber)

    def _has_turn(self, fiber: Any) -> bool:
        """Return whether it is the turn of a fiber; wait for the turn of the map itself."""
        if fiber.awaits is self:
            return fiber.view is self.views[0]
        outer: Any = greenlet.getcurrent()
        if outer.mapper is not fiber.awaits or outer.view is not outer.mapper.views[0]:
            await_turn(fiber.awaits)
        return True

    def start(self, concurrency: Optional[int] = None) -> None:
        """Start fibers until so many are parked, or until no sample is left."""
        while concurrency is None or len(self._parked) < concurrency:
            idle = STATE.idle_fibers
            fiber: Fiber = idle.pop() if idle else Fiber(_fiber_loop)
            fiber.parent, fiber.mapper = greenlet.getcurrent(), self
            fiber.thread_settings = self._thread_settings
            fiber.gr_context = contextvars.copy_context()
            fiber.view = fiber.awaits = fiber.request = None
            fiber.ending = fiber.ahead = False
            fiber.calls = b""
            if not self.resume(fiber):
                break

    def work(self) -> None:
        """Run samples one after another in the current fiber, until none is left."""
        while not self.ending:
            self.fetching = True
            try:
                sample = self.take()
            finally:
                self.fetching = False
            if sample is self:
                break
            view = View()
            self.views.append(view)
            greenlet.getcurrent().view = view
            try:
                self.run_sample(sample)
            finally:
                greenlet.getcurrent().view = None
                self._end_view(view)
            # Otherwise this frame, and a traceback with it, would keep the sample alive.
            del sample

    def _end_view(self, view: View) -> None:
        """Let others see what a sample has set, once all earlier samples have ended."""
        view.ended = True
        if view is not self.views[0]:
            view.swap()
        elif not self.ending:
            self.views.popleft()
            while self.views and self.views[0].ended:
                self.views.popleft().swap()

    def guard(self) -> None:
        """Guard the attributes that samples may change, as a sample has parked."""
        self._guards = Guards(self._program)

    def rest_fiber(self, fiber: Fiber) -> None:
        """Keep a fiber that has no sample for the next ones."""
        if not fiber.dead and len(STATE.idle_fibers) < MOST_RESTING:
            fiber.gr_context = fiber.thread_settings = None
            STATE.idle_fibers.append(fiber)

    def restore(self, mode: int, *values: Any) -> None:
        """Restore autograd's mode, and the state that MXNet keeps for the thread."""
        for attributes, value in zip(self._thread_state, values):
            attributes.pop("value", None)
            if value is not recording.absent:
                attributes["value"] = value
        set_mode(mode)

    def end(self) -> None:
        """End parked samples: their ``finally`` clauses run, but cannot read pending values."""
        self.ending = True
        try:
            while self._parked:
                with contextlib.suppress(Exception):
                    self.resume(self._parked.popleft(), greenlet.GreenletExit())
        finally:
            if self._parked:  # after an interrupt
                self.end()
            else:
                self.rest()

    def rest(self) -> None:
        """Remove the guards, as no sample is running."""
        if self._guards is not None:
            self._guards.remove()
            self._guards = None


class MapFibers(Fibers):
    """Runs a function for many samples in one scope, at most `concurrency` at a time.

    With `keeps_errors`, an exception becomes the result of its sample, instead of ending the map.
    """

    def __init__(
        self,
        scope: Scope,
        program: Any,
        apply: Callable[[Any], Any],
        samples: Iterable[Any],
        concurrency: Optional[int],
        keeps_errors: bool,
    ):
        super().__init__(scope, program)
        self._apply, self._samples = apply, iter(samples)
        self._concurrency, self._keeps_errors = concurrency, keeps_errors
        #: The line that maps, for messages.
        self._place = user_line()
        self._results: List[Any] = []

    def run(self) -> List[Any]:
        """Return the results in the order of the samples."""
        thread = threading.get_ident()
        is_within = MAPPING.enter(thread)
        try:
            self.start(self._concurrency)
            while self._parked:
                self.resume_parked(self.flush())
                self.start(self._concurrency)
            return self._results
        except Exception as error:
            hide_frames(error)
            raise
        finally:
            self.end()
            # The traceback of an exception may hold this object.
            self._results = []
            if not is_within:
                MAPPING.leave(thread)

    def take(self) -> Any:
        """Return the next sample of the iterable."""
        return next(self._samples, self)

    def run_sample(self, sample: Any) -> None:
        """Put the result of a sample, or its exception, in its place."""
        number = len(self._results)
        self._results.append(None)
        try:
            self._results[number] = self._apply(sample)
        except Exception as error:
            if not self._keeps_errors:
                advice = 'pass on_error="return" to get exceptions as results'
                name_sample(error, f"{number} of map", self._place, advice)
                raise
            # Without the frames here, which would hold the sample and all results.
            trace = error.__traceback__
            self._results[number] = error.with_traceback(trace and trace.tb_next)


def name_sample(error: Exception, sample: str, place: Where, advice: Optional[str] = None) -> None:
    """Give an exception a cause that names its sample, unless it has a cause."""
    if error.__cause__ is None:
        message = f"sample {sample} raised the exception"
        error.__cause__ = SampleError(message, place, None, advice)
