"""The batching scope."""

from __future__ import annotations

import atexit
import gc
import inspect
import logging
import os
import sys
from typing import Any, Dict, Optional, Tuple

import mxnet as mx
import numpy as np

from .analysis import POLICIES, parse_budget
from .auto import MOST_SITES, CallSite
from .debug import Watch
from .errors import BudgetError, OptionError, ScopeError, user_message
from .flush import Flush, Options, Runtime
from .gradient import forget
from .intercept import HOOKS, current_mode
from .plan import Plan
from .record import STATE, Recorder
from .report import Report
from .where import user_line

LOGGER = logging.getLogger("gluon_dynbatch")

GRANULARITIES = ("graph", "block", "operator")
#: Sets the analysis budget of scopes that are opened without one.
BUDGET_VARIABLE = "GLUON_DYNBATCH_ANALYSIS_BUDGET"

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


def check_options(
    analysis_budget: Any = "auto",
    granularity: str = "auto",
    policy: str = "auto",
    max_rows: Optional[int] = None,
    strict: bool = False,
    debug: bool = False,
) -> Options:
    """Check the options of a scope; see :func:`gluon_dynbatch.batching`."""
    if granularity not in ("auto", *GRANULARITIES):
        raise OptionError.unknown("granularity", granularity, ("auto", *GRANULARITIES))
    if policy not in ("auto", *POLICIES):
        raise OptionError.unknown("policy", policy, ("auto", *POLICIES))
    if max_rows is not None and (
        isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows < 1
    ):
        raise OptionError(
            f"max_rows must be a whole number of at least 1, or None, not {max_rows!r}"
        )
    for name, switch in (("strict", strict), ("debug", debug)):
        # A text such as "no" counts as true in Python.
        if not isinstance(switch, (bool, np.bool_)):
            raise OptionError(f"{name} must be True or False, not {switch!r}")
    return Options(
        parse_budget(analysis_budget), granularity, policy, max_rows, bool(strict), bool(debug)
    )


class Batch:
    """A scope in which hybridized calls are recorded and run together.

    Made by :func:`gluon_dynbatch.batching`; usable in a ``with`` statement, again and again but not
    inside itself with other options.

    Attributes
    ----------
    report : Report
        What happened since the scope was entered.
    plan : Plan or None
        The launches of the last flush.
    """

    def __init__(self, options: Options):
        self._options = options
        self._defaults: Dict[str, Any] = {}
        self._environment: Any = "auto"
        self._recorder: Optional[Recorder] = None
        self._frame: Any = None
        self._outer: Optional[Batch] = None
        self._site: Optional[CallSite] = None
        #: Calls that may still run at once before recording begins.
        self._at_once = 0
        self.report = Report()
        self.plan: Optional[Plan] = None

    def __enter__(self) -> Batch:
        outer = STATE.batch
        if outer is not None:
            return self._join(outer)
        self.report = Report()
        self.plan = None
        self._defaults = {}
        self._environment = _budget_from_environment()
        self._frame = sys._getframe(1)
        self._recorder = Recorder(RUNTIME.library, self.flush)
        self._recorder.forced = self.report.forced
        self._recorder.immediate = self.report.immediate
        self._recorder.strict = self._options.strict
        self._recorder.watch = Watch() if self._options.debug else None
        self._site = self._call_site(self._frame)
        if self._site is not None:
            self._at_once, self._recorder.hold = self._site.enter()
        STATE.batch = self
        HOOKS.acquire()
        if not self._at_once:
            self._record()
        return self

    def _call_site(self, frame: Any) -> Optional[CallSite]:
        """Return what "auto" knows of the place that opens this scope; None without "auto"."""
        if "auto" not in (self._options.granularity, self._options.policy):
            return None
        if frame.f_globals.get("__name__") == f"{__package__}.block" and frame.f_back:
            frame = frame.f_back  # the scope is that of `map`; the place is its caller's
        sites = STATE.sites
        key = (id(frame.f_code), frame.f_lasti, current_mode(), self._options_now())
        found = sites.get(key)
        if found is None or not found.is_current:
            if len(sites) >= MOST_SITES:
                sites.clear()
            found = sites[key] = CallSite(RUNTIME, frame.f_code)
        return found

    def _record(self) -> None:
        """Record calls from now on."""
        assert self._recorder is not None
        self._at_once = 0
        self._recorder.mode = current_mode()
        STATE.recorder = self._recorder

    def recorder_of(self, block: Any) -> Optional[Recorder]:
        """Return what records a call of a block that comes now; None if it is to run at once."""
        if self._at_once:
            assert self._site is not None
            calls = self.report.at_once
            if calls < self._at_once and (calls or self._site.expects(block)):
                self.report.at_once += 1
            else:
                self._record()
        return STATE.recorder  # type: ignore[no-any-return]

    def _join(self, outer: Batch) -> Batch:
        outer.check_still_running()
        default = check_options()
        for name, own, theirs, plain in zip(
            Options._fields, self._options, outer._options, default
        ):
            if own != plain and own != theirs:
                raise ScopeError(
                    user_message(
                        f"a batching scope inside another asks for {name}={own!r}, "
                        f"the outer one has {theirs!r}",
                        user_line(),
                        None,
                        "give the option to the outer scope, or leave it out here",
                    )
                )
        self._outer = outer
        return outer

    def check_still_running(self) -> None:
        """Raise if this scope was left open by a generator that is not running."""
        frame = self._frame
        if frame is None or not frame.f_code.co_flags & (
            inspect.CO_GENERATOR | inspect.CO_COROUTINE
        ):
            return
        running = sys._getframe(1)
        while running is not None:
            if running is frame:
                return
            running = running.f_back
        raise ScopeError(
            user_message(
                f"the batching scope opened in {frame.f_code.co_name} "
                f"({frame.f_code.co_filename}:{frame.f_code.co_firstlineno}) "
                "is still open in a suspended generator",
                user_line(),
                None,
                "close the generator, or do not yield inside the scope",
            )
        )

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._outer is not None:
            self._outer = None
            return
        recorder = self._recorder
        if recorder is None:
            return
        try:
            # GeneratorExit is how a generator ends that nobody asks for more: no failure.
            failed = kind is not None and kind is not GeneratorExit
            if not failed:
                self.flush()
                if self._site is not None:
                    self.report.choice = self._site.leave(self.report.at_once)
        finally:
            if failed:
                recorder.recording.drop(f"the scope ended with {kind.__name__}: {error}")
            recorder.close()
            self._recorder = None
            self._frame = None
            self._site = None
            self._at_once = 0
            if STATE.batch is self:
                STATE.batch = None
                STATE.recorder = None
            HOOKS.release()

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

    def flush(self) -> None:
        """Compute everything recorded so far.

        Returns as soon as the work is handed to MXNet's engine.  Happens by itself at the end of
        the scope, and whenever a value is asked for.
        """
        recorder = self._recorder
        if recorder is None:
            return
        ended = recorder.fresh()
        STATE.recorder = None
        try:
            ended.check_handles()
            if recorder.watch is not None:
                recorder.watch.check()
            flush = Flush(
                RUNTIME, self._options_now(), ended, self._site, self.report.at_once
            )
            flush.run()
            ended.close()
        except BaseException as error:
            ended.drop(f"computing it failed with {type(error).__name__}")
            raise
        finally:
            if STATE.batch is self and not self._at_once:
                STATE.recorder = recorder
        if flush.report is not None:
            self.plan = flush.plan
            self.report.flushes.append(flush.report)
            LOGGER.debug("%s", flush.report.line)


def _budget_from_environment() -> Any:
    text = os.environ.get(BUDGET_VARIABLE, "auto")
    try:
        return parse_budget(text)
    except BudgetError as error:
        raise BudgetError(f"environment variable {BUDGET_VARIABLE}: {error}") from None


def scope_defaults(options: Dict[str, Any]) -> Dict[str, Any]:
    """Check options given to ``hybridize`` and return them under the names of :class:`Options`."""
    checked = check_options(**options)
    names: Tuple[Tuple[str, str], ...] = (
        ("analysis_budget", "budget"),
        ("granularity",) * 2,
        ("policy",) * 2,
    )
    return {field: getattr(checked, field) for given, field in names if given in options}
