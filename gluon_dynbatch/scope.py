"""The batching scope."""

from __future__ import annotations

import atexit
import contextlib
import gc
import inspect
import logging
import sys
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, TypeVar

import mxnet as mx

from .auto import MOST_PLACES, Account, is_much
from .debug import Watch
from .errors import ScopeError
from .fibers import Fibers, park
from .flush import Flush, Runtime
from .native.recording import Statements, current_mode, user_place, without_collector
from .options import OPEN, Options, check_choice, check_count, check_joined, options_of_environment
from .plan.plan import Plan
from .record.intercept import HOOKS, set_mode
from .record.recorder import Recorder
from .record.state import STATE
from .record.tape import Tape, check_tape
from .record.where import user_line
from .report import Report
from .run.chain import Chain
from .run.gradient import forget
from .run.keep import Kept
from .run.pool import BACKWARD_POOL, POOL
from .samples import applier

LOGGER = logging.getLogger("gluon_dynbatch")

Result = TypeVar("Result")

#: Bytes of arenas in which values stay while a scope is open; beyond, the oldest are copied.
MOST_KEPT = 1 << 28
#: Arrays of a scope from which on it pays to look for reference cycles that hold some of them.
MANY_ARRAYS = 512
#: Why values are missing if an interrupt came as a scope began or ended.
INTERRUPTED = "the scope was interrupted"
#: Flags of code whose frames can wait while others run.
WAITS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

#: What this process has traced, compiled, planned and measured.
RUNTIME = Runtime()


@atexit.register
def _forget() -> None:
    """Let go of what was compiled while Python is whole: custom operators call it when they go."""
    try:
        mx.nd.waitall()
    finally:
        # Work that failed is no reason to keep the rest.
        forget()
        for pool in (POOL, BACKWARD_POOL):
            pool.clear()
        vars(RUNTIME).update(vars(Runtime()))
        gc.collect()


class Batch(Statements):
    """A scope in which calls are recorded and run together.

    :func:`gluon_dynbatch.batching` creates it.  You can use it in several ``with`` statements.
    Inside another scope, it joins that scope and cannot have other options.  A scope stays open
    until all ``with`` statements that opened or joined it have ended, in any order.  Pending calls
    are computed when the oldest of these statements ends.

    Attributes
    ----------
    report : Report
        What happened since the scope was entered.
    plan : Plan or None
        The launches of the last flush.
    backward_plan : Plan or None
        The launches of its backward pass; None if no gradients are recorded.
    """

    def __init__(self, options: Options):
        self._options = options
        #: Whether it pays to compute a part of what is recorded before the end.
        self.runs_ahead = True
        #: Weak references to those whose statements are in this scope, the oldest first; it is open
        #: as long as there is one.
        self.members: List[Any] = []
        #: What the thread that opened the scope knows of it: attributes of its `STATE`.
        self._thread: Dict[str, Any] = {}
        self._begin()

    def _begin(self) -> None:
        self.report = Report()
        self.plan: Optional[Plan] = None
        self.backward_plan: Optional[Plan] = None
        #: What is asked for by the user and by blocks, and by the environment.
        self._asked = self._options
        self._environment = OPEN
        self._recorder: Optional[Recorder] = None
        #: What "auto" decides with, unless that is settled.
        self._account: Optional[Account] = None
        #: The place in the user's program that opened the scope.
        self.place: Any = None
        #: The frame that opened the scope, if it may be left.
        self._generator: Any = None
        #: Why values are missing that are not computed when the scope is closed.
        self._reason = INTERRUPTED
        #: Flushes that are not yet part of MXNet's tape.
        self._chain = Chain()
        #: Arenas in which values of earlier flushes stay.
        self._kept: List[Any] = []

    def _enter(self) -> Batch:
        """Return the scope that a statement of this object is in: this one, or one it joins."""
        scope = STATE.batch
        if scope is not None:
            scope._settle()
            scope = STATE.batch
        if self.scope is not None and self.scope is not scope:
            raise ScopeError(
                "this scope is open in another thread",
                user_line(),
                advice="make a scope for each thread with gluon_dynbatch.batching()",
            )
        if scope is None:
            self._open(sys._getframe(1))
            return self
        check_joined(self._options, scope._options, scope.place.where)
        return scope  # type: ignore[no-any-return]

    def _open(self, frame: Any) -> None:
        """Open the scope; whatever interrupts this, `_settle` undoes it."""
        if self.place is not None:  # it was open before
            self._begin()
        self._environment = options_of_environment()
        self.place = user_place()
        self._generator = frame if may_be_left(frame) else None
        self._thread = vars(STATE)
        watch = Watch() if self._options.debug else None
        self._recorder = Recorder(RUNTIME.library, self, self.report, self._options.strict, watch)
        self._account = self._account_here()
        HOOKS.acquire(self)
        if RUNTIME.observer is not None:
            RUNTIME.observer.opened(self)
        if self._account is not None and self._account.begins_at_once:
            self._thread.update(batch=self, recorder=None, at_once=True)
        else:
            self._record()

    def at_work(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, none of whose calls is recorded.

        Python's collector rests meanwhile.  Tracing and planning make thousands of objects that go
        with their last reference; it would take them for some that live long, and these have it
        look through the whole heap.
        """
        before = {name: self._thread[name] for name in ("recorder", "at_once")}
        try:
            self._thread.update(recorder=None, at_once=False)
            return without_collector(work)  # type: ignore[no-any-return]
        finally:
            if self.members:
                self._thread.update(before)

    def _account_here(self) -> Optional[Account]:
        if self._options != OPEN or self._environment != OPEN:
            return None
        # Blocks that are hybridized anew may ask for something else.
        place = self.place, current_mode(), RUNTIME.hybridized
        if place not in STATE.places and len(STATE.places) >= MOST_PLACES:
            STATE.places.clear()
        return Account(STATE.places.setdefault(place, {}))

    def _record(self) -> None:
        """Record calls from now on."""
        assert self._recorder is not None
        self._thread.update(batch=self, recorder=self._recorder, at_once=False)

    def recorder_of(self, block: Any) -> Optional[Recorder]:
        """Return what records a call of a block that comes now; None if it is to run at once."""
        if STATE.at_once:
            assert self._account is not None
            if self._account.runs_at_once(block, self.report.at_once):
                self.report.at_once += 1
            else:
                self._record()
        return STATE.recorder  # type: ignore[no-any-return]

    def count_wait(self, seconds: float) -> None:
        """Take note of time spent waiting for a value: none of it is recording."""
        self.report.count_wait(1e3 * seconds)
        recorder = self._recorder
        if recorder is not None and recorder.tape.started:
            recorder.tape.started += seconds

    def _end(self, member: Batch, kind: Any, error: Any) -> None:
        """Compute what is pending as the last statement of a member ends."""
        # GeneratorExit is how a generator ends that nobody asks for more: no failure.
        failed = kind is not None and kind is not GeneratorExit
        self._settle()
        oldest = self.members[0]() is member
        # Nobody runs the generator that opened the scope: it may never go on.
        left = self._generator is not None and self._generator.f_back is None
        if len(self.members) == 1 and not failed:
            assert self._recorder is not None
            many = len(self._recorder.tape.lazies) >= MANY_ARRAYS or self._still_kept()
            if many and gc.isenabled():
                gc.collect(1)  # functions that call themselves hold arrays, copied for nobody
            self.at_work(self._hand_out)
            if self._account is not None:
                self.report.choice = self._account.close(self.report.at_once)
        elif len(self.members) > 1 and (oldest or left and not failed):
            # Calls of other statements are pending as well: one's failure is not theirs.
            with contextlib.suppress(Exception) if failed else contextlib.nullcontext():
                self.flush()
        ending = f"with {kind.__name__}: {error}" if failed else "before it was computed"
        self._reason = f"the scope ended {ending}"

    def _settle(self) -> None:
        """Close the scope if no statement is in it; may be called again."""
        self.members[:] = [one for one in self.members if one() is not None]
        if self.members:
            return
        self._thread.update(recorder=None, at_once=False)
        HOOKS.release(self)
        if self._recorder is not None:
            self._recorder.close(self._reason)
        self._recorder = self._account = self._generator = None
        self._thread.update(batch=None)
        self._thread = {}

    def use_defaults(self, defaults: Options) -> None:
        """Take over options that a block was hybridized with; the first block to give one wins."""
        self._asked = self._asked.filled(defaults)
        self._account = None

    def map(
        self,
        fn: Callable[[Any], Result],
        samples: Iterable[Any],
        concurrency: Optional[int] = None,
        on_error: str = "raise",
    ) -> List[Result]:
        """Apply a function to every sample within this scope, each in a fiber.

        Parameters and results are those of :func:`gluon_dynbatch.map`.  Results may be pending.

        Raises
        ------
        ArgumentError, OptionError
            `fn` or an option cannot be used.
        ScopeError
            The scope is not open.
        """
        if not self.members:
            raise ScopeError(
                "map was called on a scope that is not open",
                user_line(),
                advice="call it inside `with gluon_dynbatch.batching() as batch:`",
            )
        check_choice("on_error", on_error, ("raise", "return"))
        check_count("concurrency", concurrency)
        return Fibers(self, applier(fn), samples, concurrency, on_error == "return").run()

    def await_flush(self, waiting: int = 0) -> None:
        """Compute everything recorded so far for who waits; a fiber lets others come as far."""
        if not park() and self.members:
            self.at_work(lambda: self._compute(waiting=waiting))

    def connect(self) -> None:
        """Make what has been computed a part of MXNet's tape."""
        if self._chain.open:
            self.at_work(self._chain.connect)

    def run_ahead(self) -> None:
        """Compute what is recorded so far if the engine is long enough at it."""
        assert self._recorder is not None
        if self.runs_ahead and self._account is not None and is_much(self._recorder.tape):
            self.at_work(self._compute)

    def flush(self) -> None:
        """Compute everything recorded so far.

        Returns as soon as the work is handed to MXNet's engine.  The end of the scope does this by
        itself, and so does reading a value.  Outside of an open scope it does nothing.

        Raises
        ------
        LaunchError
            A launch failed.
        MismatchError
            With ``debug=True``, a result differs from that of its call alone.
        NotMergedError
            With ``strict=True``, a call could not be merged.
        """
        if self.members:
            self.at_work(self._compute)

    def _compute(self, waiting: int = 0) -> None:
        recorder = self._recorder
        assert recorder is not None
        recorder.refuse("it computes what is pending")
        tape, mode = recorder.tape, current_mode()
        try:
            if mode:
                set_mode(0)
            recorder.tape = Tape(recorder)
            if recorder.watch is not None:
                recorder.watch.check()
                check_tape(tape)
            if self._chain.done:
                self._chain = Chain()
            done = None
            if tape.node_entry:
                asked = self._asked.filled(self._environment)
                done = Flush(RUNTIME, asked, tape, self._account, self._chain).run(waiting)
            tape.close()
            if mode:
                set_mode(mode)
        except BaseException as error:
            tape.close(f"computing it failed with {type(error).__name__}")
            set_mode(mode)
            raise
        if done is not None:
            self.plan, self.backward_plan, kept, report = done
            self._note_kept(kept)
            self.report.flushes.append(report)
            if LOGGER.isEnabledFor(logging.DEBUG):
                LOGGER.debug("%s", report.line)

    def _hand_out(self) -> None:
        """Compute what is pending, and copy all that was computed out of arenas."""
        self._compute()
        for kept in self._still_kept():
            kept.hand_out()

    def _note_kept(self, kept: Kept) -> None:
        """Take note of arenas in which values stay, and let go of the oldest if they are many."""
        alive = [*self._still_kept(), kept]
        while sum(one.bytes for one in alive) > MOST_KEPT:
            alive.pop(0).hand_out()
        self._kept = list(map(weakref.ref, alive))

    def _still_kept(self) -> List[Kept]:
        return [one for one in (reference() for reference in self._kept) if one is not None]


def may_be_left(frame: Any) -> bool:
    """Whether a frame is that of a generator or coroutine that may wait for ever once it yields.

    Not if it was begun by an ``__enter__``, as of ``contextlib.contextmanager``: then a ``with``
    statement sees to it that it comes to its end.
    """
    if not frame.f_code.co_flags & WAITS:
        return False
    while frame is not None and frame.f_code.co_flags & WAITS:
        if frame.f_code.co_name == "__aenter__":
            return False
        frame = frame.f_back
    return frame is None or frame.f_code.co_name != "__enter__"
