"""The batching scope."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import sys
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, TypeVar

import mxnet as mx

from .auto import MOST_SITES, CallSite, is_much
from .debug import Watch
from .errors import OptionError, ScopeError
from .fibers import Fibers, current
from .flush import Flush, Runtime
from .hold import INTERRUPTED, Exit, Hold, is_running, may_be_left
from .native.recording import user_place
from .options import Options, budget_from_environment, check_count, check_joined
from .plan.plan import Plan
from .record.hazards import check_handles
from .record.intercept import CALLS, HOOKS, current_mode, set_mode
from .record.recorder import Recorder
from .record.state import STATE, ScopeState
from .record.tape import check_tape
from .record.where import user_line, where_of
from .report import Report
from .run.chain import Chain
from .run.gradient import forget
from .run.keep import Kept
from .samples import applier

LOGGER = logging.getLogger("gluon_dynbatch")

Result = TypeVar("Result")

#: Bytes of arenas in which values stay while a scope is open; beyond, the oldest are copied.
MOST_KEPT = 1 << 28

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
        vars(RUNTIME).update(vars(Runtime()))
        gc.collect()


class Batch:
    """A scope in which calls are recorded and run together.

    :func:`gluon_dynbatch.batching` makes it.  Use it in a ``with`` statement, as often as you like.
    Within another scope it joins that one, and cannot have other options.  A scope stays open until
    all ``with`` statements that opened or joined it are left, in any order.  Pending calls are
    computed when the oldest statement that is still open is left.

    Attributes
    ----------
    report : Report
        What happened since the scope was entered.
    plan : Plan or None
        The launches of the last flush.
    backward_plan : Plan or None
        Those of its backward pass; None if no gradient can be asked for.
    """

    def __init__(self, options: Options):
        self._options = options
        self._defaults: Dict[str, Any] = {}
        self._environment: Any = "auto"
        self._recorder: Optional[Recorder] = None
        #: Statements in this scope, the oldest first; it is open as long as there is one.
        self._holds: Dict[Hold, None] = {}
        #: What looking up ``__exit__`` made for the ``__enter__`` that follows.
        self._entering: Optional[Hold] = None
        #: What was entered through this object without a statement, as by `ExitStack`.
        self._by_hand: List[Hold] = []
        #: What the thread that opened the scope knows of it: attributes of its `STATE`.
        self._thread: Dict[str, Any] = {}
        #: The user's line that opened the scope, as code object and instruction.
        self._place: Any = None
        #: The generator that opened the scope and may never go on, if that is so.
        self._generator: Any = None
        self._site: Optional[CallSite] = None
        #: Flushes that are not yet part of MXNet's tape.
        self._chain = Chain()
        #: Arenas in which values of earlier flushes stay.
        self._kept: List[Any] = []
        self.report = Report()
        self.plan: Optional[Plan] = None
        self.backward_plan: Optional[Plan] = None

    def __enter__(self) -> Batch:
        hold, self._entering = self._entering, None
        if hold is None or hold.is_dead:
            hold = Hold()
            hold.statement = weakref.ref(self, hold.let_go)
            self._by_hand.append(hold)
        scope = STATE.batch
        if scope is not None and all(held.is_dead for held in scope._holds):
            scope._close(INTERRUPTED)
            scope = None
        try:
            if scope is None:
                scope = self._open(hold, sys._getframe(1))
            else:
                scope._admit(hold, self._options)
        except BaseException:
            hold.let_go(None)
            raise
        return scope  # type: ignore[no-any-return]

    if TYPE_CHECKING:

        def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...

    else:
        __exit__ = Exit()

    def _open(self, hold: Hold, frame: Any) -> Batch:
        """Open the scope; whatever interrupts this, `_close` undoes it."""
        if self._holds:
            raise ScopeError(
                "this scope is open in another thread",
                user_line(),
                None,
                "make a scope for each thread with gluon_dynbatch.batching()",
            )
        self.report = Report()
        self.plan = self.backward_plan = None
        self._defaults = {}
        self._kept = []
        self._chain = Chain()
        self._environment = budget_from_environment()
        self._place = user_place()
        self._generator = frame if may_be_left(frame) else None
        self._thread = vars(STATE)
        watch = Watch() if self._options.debug else None
        recorder = Recorder(RUNTIME.library, self, self.report, self._options.strict, watch)
        self._site = self._call_site(frame)
        self._recorder = recorder
        hold.scope = self
        self._holds[hold] = None
        CALLS.acquire(self)
        if RUNTIME.observer is not None:
            RUNTIME.observer.opened(self._place, self.report)
        if self._site is not None and self._site.enter():
            self._become(ScopeState.AT_ONCE)
        else:
            self._record()
        return self

    @property
    def _state(self) -> ScopeState:
        mine = self._thread.get("batch") is self
        return self._thread["state"] if mine else ScopeState.CLOSED

    def _become(self, state: ScopeState) -> None:
        """Change the state; only `at_work` does so, too."""
        self._thread.update(
            batch=None if state is ScopeState.CLOSED else self,
            state=state,
            recorder=self._recorder if state is ScopeState.RECORDING else None,
        )

    def at_work(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, none of whose calls is recorded."""
        before = {name: self._thread[name] for name in ("state", "recorder")}
        try:
            self._become(ScopeState.AT_WORK)
            return work()
        finally:
            if self._holds:
                self._thread.update(before)

    def _call_site(self, frame: Any) -> Optional[CallSite]:
        """Return what "auto" knows of the place that opens this scope; None if that is settled."""
        if not self._options_now().leaves_all_open:
            return None
        # The scope may be that of `map`, `imap` or a batcher; the place is that of who called it.
        while frame.f_globals.get("__name__", "").startswith(f"{__package__}.") and frame.f_back:
            frame = frame.f_back
        sites = STATE.sites
        key = (id(frame.f_code), frame.f_lasti, current_mode(), self._options_now())
        site = sites.get(key)
        if site is None or not site.is_current:
            if len(sites) >= MOST_SITES:
                sites.clear()
            site = sites[key] = CallSite(RUNTIME, frame.f_code)
        return site

    def _record(self) -> None:
        """Record calls from now on."""
        assert self._recorder is not None
        HOOKS.acquire(self)
        self._recorder.mode = current_mode()
        self._become(ScopeState.RECORDING)

    def recorder_of(self, block: Any) -> Optional[Recorder]:
        """Return what records a call of a block that comes now; None if it is to run at once."""
        if self._state is ScopeState.AT_ONCE:
            assert self._site is not None
            if self._site.runs_at_once(block, self.report.at_once):
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

    def _admit(self, hold: Hold, options: Options) -> None:
        """Let a statement inside this scope join it."""
        check_joined(options, self._options, where_of(self._place))
        # It may never go on, and then nobody computes what this statement leaves behind.
        hold.computes = self._generator is not None and not is_running(self._generator)
        hold.scope = self
        self._holds[hold] = None

    def _leave_by_hand(self, kind: Any, error: Any, trace: Any) -> None:
        """Leave without a ``with`` statement of one's own."""
        while self._by_hand:
            hold = self._by_hand.pop()
            if hold.scope is not None:
                hold.leave(self, kind, error, trace)
                break

    def _finish(self, failed: bool) -> None:
        """Compute what is pending at the end of the oldest statement in this scope."""
        if len(self._holds) > 1:
            # Calls of other statements are pending as well: one's failure is not theirs.
            with contextlib.suppress(Exception) if failed else contextlib.nullcontext():
                self.flush()
        elif not failed:
            self.at_work(self._hand_out)
            if self._site is not None:
                self.report.choice = self._site.leave(self.report.at_once)

    def _release(self, hold: Hold, reason: str) -> None:
        """Let a statement go, and close the scope after the last one; may be called again."""
        self._holds.pop(hold, None)
        if not self._holds:
            self._close(reason)
        # Not before the scope is closed: if this was interrupted, `Hold.let_go` does it again.
        hold.statement = None

    def _close(self, reason: str) -> None:
        """Leave nothing behind; may be called again, if it was interrupted."""
        mine = self._thread.get("batch") is self
        if mine:
            self._become(ScopeState.AT_WORK)
        HOOKS.release(self)
        CALLS.release(self)
        if self._recorder is not None:
            self._recorder.close(reason)
        self._holds.clear()
        self._recorder = self._site = self._generator = None
        if mine:
            self._become(ScopeState.CLOSED)

    def use_defaults(self, defaults: Dict[str, Any]) -> None:
        """Take over options that a block was hybridized with; the first block to give one wins."""
        for name, value in defaults.items():
            self._defaults.setdefault(name, value)

    def _options_now(self) -> Options:
        """Return the options of the next flush: own ones, else a block's, else the defaults."""
        options = self._options
        for name, value in self._defaults.items():
            if getattr(options, name) == "auto":
                options = options._replace(**{name: value})
        return options if options.budget != "auto" else options._replace(budget=self._environment)

    def map(
        self,
        fn: Callable[[Any], Result],
        samples: Iterable[Any],
        concurrency: Optional[int] = None,
        on_error: str = "raise",
    ) -> List[Result]:
        """Apply a function to every sample, each as a fiber, within this scope.

        Parameters and results are those of :func:`gluon_dynbatch.map`; results may be pending.

        Raises
        ------
        ArgumentError, OptionError
            `fn` or an option cannot be used.
        ScopeError
            The scope is not open.
        """
        if self._state is ScopeState.CLOSED:
            raise ScopeError(
                "map of a scope that is not open",
                user_line(),
                None,
                "call it within ``with gluon_dynbatch.batching() as batch:``",
            )
        if on_error not in ("raise", "return"):
            raise OptionError.unknown("on_error", on_error, ("raise", "return"))
        check_count("concurrency", concurrency)
        fibers = Fibers(self, applier(fn), concurrency, on_error == "return", user_line())
        return fibers.run(samples)

    @property
    def mode(self) -> int:
        """Autograd's mode."""
        recorder = STATE.recorder
        return current_mode() if recorder is None else recorder.mode  # type: ignore[no-any-return]

    def await_flush(self, waiting: int = 0) -> None:
        """Compute everything recorded so far for who waits; a fiber lets others come as far."""
        fiber = current()
        if fiber is not None and fiber.may_park and self._state is ScopeState.RECORDING:
            fiber.park()
        elif self._state is not ScopeState.CLOSED:
            self.at_work(lambda: self._compute(waiting=waiting))

    def connect(self) -> None:
        """Make what has been computed a part of MXNet's tape."""
        if self._chain.open:
            self.at_work(self._chain.connect)

    def run_ahead(self) -> None:
        """Compute what is recorded so far if the engine is long enough at it."""
        assert self._recorder is not None
        if self._options_now().leaves_all_open and is_much(self._recorder.tape):
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
        if self._state is not ScopeState.CLOSED:
            self.at_work(self._compute)

    def _compute(self, keep: bool = True, waiting: int = 0) -> None:
        recorder = self._recorder
        assert recorder is not None
        tape, mode = recorder.tape, current_mode()
        try:
            recorder.fresh()
            check_handles(tape)
            if recorder.watch is not None:
                recorder.watch.check()
                check_tape(tape)
            if self._chain.done:
                self._chain = Chain()
            flush = Flush(RUNTIME, self._options_now(), tape, self._site, keep, self._chain)
            flush.run()
            tape.close()
        except BaseException as error:
            tape.close(f"computing it failed with {type(error).__name__}")
            # What runs launches puts the mode back by itself, but for an interrupt just before.
            set_mode(mode)
            raise
        if flush.report is not None:
            self.plan, self.backward_plan = flush.plan, flush.backward_plan
            if flush.kept is not None:
                self._note_kept(flush.kept)
            self.report.flushes.append(flush.report._replace(waiting=waiting))
            LOGGER.debug("%s", flush.report.line)

    def _hand_out(self) -> None:
        """Compute what is pending, and copy all that was computed out of arenas."""
        self._compute(keep=False)
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
