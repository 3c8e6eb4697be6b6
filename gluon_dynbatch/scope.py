"""A batching scope while it is open."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Protocol, Tuple, TypeVar, Union

import mxnet as mx
from mxnet.gluon import HybridBlock

from .auto import MOST_PLACES, Account
from .debug import Watch
from .flush import Runtime, flush
from .hybridizing import helps
from .native.executing import Notice
from .native.recording import (
    AtOnce,
    BlockGraph,
    current_mode,
    free_spares,
    park,
    set_mode,
    user_place,
    without_collector,
)
from .options import DEFAULTS, Options
from .plan.plan import NoPlan, Plan
from .record.graphs import graph_of_gluon
from .record.idle import IdleCell
from .record.intercept import HOOKS
from .record.recorder import Recorder
from .record.state import STATE
from .record.tape import Tape, check_tape
from .record.where import may_be_abandoned
from .report.report import Report
from .run.chain import Chain
from .run.direct import free_ones
from .run.engine import FLIGHT
from .run.gradient import forget
from .run.keep import Kept
from .run.pool import BACKWARD_POOL, POOL
from .samples.fibers import MAPPING
from .trace.entry import Library

LOGGER = logging.getLogger("gluon_dynbatch")

Result = TypeVar("Result")

#: Limit on the bytes of arenas that hold values of an open scope; the oldest are evicted first.
MOST_KEPT = 1 << 28
#: Limit on the bytes of arenas of earlier scopes from which nothing is copied yet, as this takes as
#: long as a quarter of a small scope; and what each counts at least.
MOST_WAITING, LEAST_WAITING = 1 << 20, 1 << 14
#: Flushes whose arenas are noted before those are left out that hold no values any more.
LEAST_NOTED = 16
#: Referenced lazy arrays from which on collecting reference cycles before the last flush pays: that
#: takes a tenth of a millisecond, and each array as a result of the flush a third of a microsecond.
MANY_ARRAYS = 384

#: Traced calls, kernels, plans and measurements of this process.
RUNTIME = Runtime()


@atexit.register
def _release_all() -> None:
    """Release compiled code and buffers at exit, while MXNet can still call back into Python."""
    MAPPING.exit()
    try:
        mx.nd.waitall()
    finally:
        # Even if pending work failed.
        forget()
        for pool in (POOL, BACKWARD_POOL):
            pool.clear()
        free_spares()
        free_ones()
        vars(RUNTIME).update(vars(Runtime()))
        gc.collect()


def _alive(references: Iterable[Any]) -> List[Kept]:
    """Return the arenas that still hold values."""
    found = (reference() for reference in references)
    return [kept for kept in found if kept is not None]


class Handle(Protocol):
    """What an open scope knows of the `Batch` that has opened it."""

    options: Options
    #: Whether "auto" may decide to run calls at once.
    decides: bool
    report: Report
    plan: Union[Plan, NoPlan]
    backward_plan: Optional[Plan]


class OpenScope:
    """A scope while it is open: made when a `Batch` opens it, and dropped when it closes.

    It owns what its calls need until they are part of MXNet's arrays and tape: the recorder, the
    flushes that are not yet in MXNet's tape, and the arenas that hold values.  `Statements` opens
    it, adds and removes its members, and closes it.  What it did is in the report and the plans of
    the `Batch`.
    """

    def __init__(self, batch: Handle, frame: Any):
        self.batch, self.options, self.report = batch, batch.options, batch.report
        #: The place in the user's program that opens the scope.
        self.report.place = self.place = user_place()
        #: Weak references to the objects whose statements are in this scope, oldest first; the
        #: scope is open while there is one.
        self.members: List[Any] = []
        #: Why values are missing that were not computed before the scope closed.
        self.reason = "the scope was interrupted"
        #: The user's options, completed by defaults of blocks; and those of the environment.
        self._completed_options = self.options
        self._environment_options = Options.of_environment()
        #: The frame that opens the scope, if it may never resume.
        self._suspendable_frame = frame if may_be_abandoned(frame) else None
        #: Attributes of `STATE` in the thread that opens the scope.
        self._thread_state: Dict[str, Any] = vars(STATE)
        #: The account by which "auto" decides; None if all calls are recorded.
        self._account = self._open_account()
        #: See `recorder`.
        self._recorder: Optional[Recorder] = None
        #: Weak references to the arenas of earlier flushes, oldest first; bytes of these; and how
        #: many there may be before those without values are left out.
        self._kept: List[Any] = []
        self._kept_bytes, self._most_noted = 0, LEAST_NOTED

    #: Flushes that are not yet part of MXNet's tape; made with the recorder.
    _chain: Chain
    #: Notices of the thread's last flush before the recorder, and of its backward passes.
    _earlier: List[Notice]

    @property
    def recorder(self) -> Recorder:
        """The recorder, made for the first call that is recorded: that takes as long as a call."""
        if self._recorder is None:
            watch = Watch() if self.options.debug else None
            strict = self.options.strict
            self._chain, self._earlier = Chain(), FLIGHT.last
            self._recorder = Recorder(RUNTIME.library, self, self.report, strict, watch)
        return self._recorder

    @staticmethod
    def hybridizing_helps(library: Library, cell: IdleCell) -> bool:
        """Return whether it would help to hybridize an idle cell; it does not need this scope."""
        return helps(library, cell)

    def _open_account(self) -> Optional[Account]:
        """Return an account for the place of this scope; None if all calls are recorded."""
        given = self.options != DEFAULTS or self._environment_options != DEFAULTS
        if given or not self.batch.decides:
            return None
        # Hybridizing a block again may change the options that it asks for.
        key = self.place, current_mode(), RUNTIME.hybridized
        if key not in STATE.decisions and len(STATE.decisions) >= MOST_PLACES:
            STATE.decisions.clear()
        return Account(STATE.decisions.setdefault(key, {}))

    def open(self) -> None:
        """Begin to record, or to run calls at once; if this is interrupted, `settle` undoes it."""
        if RUNTIME.observer is not None:
            RUNTIME.observer.opened(self)
        self.report.is_open = True
        at_once = self._account is not None and self._account.begins_at_once
        if not at_once:
            self.record()
            return
        if RUNTIME.observer is not None:
            RUNTIME.observer.time_makers()
        self._thread_state.update(scope=self, recorder=None, at_once=AtOnce(self, self.report))

    def record(self) -> Recorder:
        """Record the calls from here on, and return the recorder.

        As long as calls run at once, the replacements would only call the originals; and to install
        them makes Python forget what it knows of the classes of arrays.
        """
        recorder, observer = self.recorder, RUNTIME.observer
        if observer is not None:
            observer.close()  # what it wraps are no originals
        HOOKS.acquire(self)
        if observer is not None:
            observer.time_makers()
        self._thread_state.update(scope=self, recorder=recorder, at_once=None)
        return recorder

    def end(self, member: Any, error_type: Any, error: Any) -> None:
        """Compute pending calls, if the end of a member's last statement requires it."""
        # GeneratorExit ends a generator that is closed early: this is no failure.
        failed = error_type is not None and error_type is not GeneratorExit
        self.settle()
        if not self.members:
            return  # closed with another statement, when the collector ended several at once
        oldest = self.members[0]() is member
        # The generator that opened the scope may never resume.
        suspended = self._suspendable_frame is not None and self._suspendable_frame.f_back is None
        if len(self.members) == 1 and not failed:
            records = self._recorder is not None
            if records and gc.isenabled() and (self._holds_many() or self._still_kept()):
                # Arrays in cycles, as of recursive closures, need no copies.  Few that are still in
                # cycles are in an older generation, which takes ten times as long.
                gc.collect(0)
            # The collector may run code before the scope is closed: its calls run at once.
            if records or self._thread_state["waiting"]:
                self.unrecorded(self._hand_out, ends=True)
            if self._account is not None:
                self._account.close(self.report)
        elif len(self.members) > 1 and (oldest or suspended and not failed):
            # Calls of other members may be pending as well: this failure is not theirs.
            with contextlib.suppress(Exception) if failed else contextlib.nullcontext():
                self.flush()
        ending = f"with {error_type.__name__}: {error}" if failed else "before it was computed"
        self.reason = f"the scope ended {ending}"

    def settle(self) -> None:
        """Close the scope if it has no members left; may be called again."""
        self.members[:] = [reference for reference in self.members if reference() is not None]
        if self.members:
            return
        if self._is_in_place():
            self._thread_state.update(recorder=None, at_once=None)
        if self._recorder is not None:
            HOOKS.release(self)
            self._recorder.close(self.reason)
        self.report.is_open = False
        if self._recorder is not None:
            # What was computed before an exception has its values and gradients.
            self._chain.close()
        waiting = self._thread_state["waiting"]
        waiting[:] = [kept for kept in (*waiting, *self._kept) if kept() is not None]
        self._kept = []
        if self._is_in_place():
            self._thread_state.update(scope=None)

    def _is_in_place(self) -> bool:
        """Return whether this is the scope of its thread, which may be in the next one by now."""
        return self._thread_state.get("scope") is self

    def unrecorded(self, work: Callable[[], Result], ends: bool = False) -> Result:
        """Run `work` without recording its calls, and return its result; record none if it `ends`.

        Python's cyclic collector is off meanwhile.  Tracing and planning create thousands of
        objects that reference counting frees.  The collector would treat them as long-lived, and
        scan the whole heap because of them.
        """
        state = self._thread_state
        if not self.members:  # the collector has just ended the scope
            return without_collector(work)
        recorder, at_once = state["recorder"], state["at_once"]
        try:
            state["recorder"] = state["at_once"] = None
            return without_collector(work)
        finally:
            if self.members and not ends:
                state["recorder"], state["at_once"] = recorder, at_once

    def limit_of(self, block: Any) -> int:
        """Return how many calls run at once in a scope whose first call is one of a block."""
        assert self._account is not None
        return self._account.limit_of(block)

    @staticmethod
    def graph_of(block: HybridBlock, args: Tuple[Any, ...]) -> Optional[BlockGraph]:
        """Return the graph that a block has run last, with these, if native code can run it."""
        callee = RUNTIME.library.callee(block)
        if callee.graph is None:
            callee.graph = graph_of_gluon(block, args)
        return callee.graph

    def use_defaults(self, defaults: Options) -> None:
        """Complete the options with those of a hybridized block; the first block wins."""
        self._completed_options = self._completed_options.with_defaults(defaults)
        self._account = None

    def count_wait(self, seconds: float) -> None:
        """Add time spent waiting for a value to the report, and take it off recording time."""
        self.report.count_wait(1e3 * seconds)
        tape = self.recorder.tape
        if tape.started:
            tape.started += seconds

    def connect(self) -> None:
        """Add the computed flushes to MXNet's tape."""
        if self._recorder is not None and self._chain.open:
            self.unrecorded(self._chain.connect)

    def run_ahead(self) -> None:
        """Flush pending calls if the engine should run them while recording continues.

        While it still runs earlier scopes, running ahead gains nothing.
        """
        account = self._account
        if account is None or not all(notice.given for notice in self._earlier):
            return
        if account.pays_ahead(self.recorder.tape):
            self.unrecorded(self._compute)

    def flush(self) -> None:
        """Compute everything recorded so far, see `Batch.flush`."""
        if self.members:
            self.unrecorded(self._compute)

    def await_flush(self, waiting: int = 0) -> bool:
        """Compute everything recorded so far, for `waiting` samples; fibers park until it is.

        Return whether a fiber parked.
        """
        parked = park()
        if not parked and self.members:
            self.unrecorded(lambda: self._compute(waiting, awaited=True))
        return parked

    def _compute(self, waiting: int = 0, awaited: bool = False) -> None:
        """Run one flush outside of autograd; later calls are recorded on a new tape.

        The thread may wait for the values (`awaited`), and with it samples that are `waiting`.
        """
        recorder = self._recorder
        if recorder is None:
            return
        recorder.refuse("it flushes the scope")
        tape, mode = recorder.tape, current_mode()
        try:
            if mode:
                set_mode(0)
            recorder.tape = Tape(recorder)
            if recorder.watch is not None:
                recorder.watch.check()
                check_tape(tape)
            result = None
            if tape.node_entry:
                options = self._completed_options.with_defaults(self._environment_options)
                result = flush(
                    *(RUNTIME, options, tape, self._account, self._chain, waiting, awaited)
                )
            if tape.awaited_places:
                recorder.count_reads(tape.awaited_places)
            tape.close()
            if mode:
                set_mode(mode)
        except BaseException as error:
            tape.close(f"computing it failed with {type(error).__name__}")
            set_mode(mode)
            raise
        if result is not None:
            self.batch.plan, self.batch.backward_plan, kept, report = result
            self._register_kept(kept)
            self.report.flushes.append(report)
            if LOGGER.isEnabledFor(logging.DEBUG):
                LOGGER.debug("%s", report.line)

    def _hand_out(self) -> None:
        """Compute pending calls, and copy values of the thread's scopes before out of their arenas.

        By then, most have been dropped; of others, only the values were read, or a backward pass
        started from them.  These never become arrays of MXNet.  A few small arenas may wait longer:
        a result is often held until the next scope has the one that takes its place.
        """
        kept = _alive(STATE.waiting)
        small = [each for each in kept if not each.recorded]
        while sum([max(each.bytes, LEAST_WAITING) for each in small]) > MOST_WAITING:
            small.pop(0)
        for each in kept:
            if each not in small:
                each.hand_out()
        STATE.waiting[:] = map(weakref.ref, small)
        self._compute()

    def _holds_many(self) -> bool:
        """Return whether many pending arrays are referenced, perhaps by cycles alone."""
        tape = self.recorder.tape
        return len(tape.lazies) >= MANY_ARRAYS and len(tape.held()) >= MANY_ARRAYS

    def _register_kept(self, kept: Kept) -> None:
        """Register arenas that still hold values; evict the oldest beyond MOST_KEPT bytes."""
        self._kept.append(weakref.ref(kept))
        self._kept_bytes += kept.bytes
        if self._kept_bytes <= MOST_KEPT and len(self._kept) <= self._most_noted:
            return
        held = self._still_kept()
        sizes = [each.bytes for each in held]
        while sum(sizes) > MOST_KEPT:
            del sizes[0]
            held.pop(0).hand_out()
        self._kept, self._kept_bytes = list(map(weakref.ref, held)), sum(sizes)
        self._most_noted = max(2 * len(held), LEAST_NOTED)

    def _still_kept(self) -> List[Kept]:
        return _alive(self._kept)
