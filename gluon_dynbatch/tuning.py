"""What "auto" does at one place of a program that opens scopes.

The judge is the clock, and what counts is the whole turn of the user's loop: recording, analysis,
launches, the backward pass, the optimizer.  So while the choice is open, every scope begins with a
wait for all work before it, and the time from one beginning to the next is what the first of the
two took.  One setting serves for a whole scope, so that this time is its own.

Small minibatches may be faster without any recording, and large ones in parts: MXNet runs the first
part while Python records the second.  Both have to be decided before the first call, when nothing
is known of the minibatch: it is predicted to be like the last one at this place.  If calls run at
once and more come than predicted, recording begins in mid-scope.
"""

from __future__ import annotations

import time
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from .analysis import Budget, Setting

#: Calls run at once, as outside of any scope.
AT_ONCE = Setting("none", "none", Budget(visits=0))
#: Parts to try, in calls.
PARTS = (3072, 6144, 12288)
#: Largest size (see `size_of`) of a minibatch whose calls may run at once: 255 calls of cells.
MOST_AT_ONCE = 4
#: Scopes after the last open choice in which the clock is still kept.
PATIENCE = 4
#: What "auto" lets a search cost when the user gives no budget, in visits per recorded call.  Not
#: in milliseconds, which would be too few whenever the machine is busy.
SEARCH_VISITS = 20
#: Places remembered per thread, and workloads per place.
MOST_HABITS, MOST_WORKLOADS = 256, 64


class Workload(NamedTuple):
    """What tells the minibatches of one place apart."""

    #: Code object (by id) and instruction that opened the scope, and autograd's mode there.
    place: Tuple[int, int, int]
    #: Callees, modes of the calls, options.
    what: Any
    #: See `size_of`.
    size: int


def size_of(calls: int) -> int:
    """Return the number of digits of a number of calls, written to the base 4."""
    return (calls.bit_length() + 1) // 2


class Trial(NamedTuple):
    """A scope whose time is being taken."""

    workload: Workload
    setting: Setting
    calls: int
    started: float


class Habit:
    """What one thread knows of one place that opens scopes.

    Parameters
    ----------
    runtime : Runtime
        Has the controller that all places share.
    code : code
        What opens the scopes; held, so that its id stays its own.
    instruction, mode : int
        Where in it, and autograd's mode there.
    """

    def __init__(self, runtime: Any, code: Any, instruction: int, mode: int):
        self._runtime = runtime
        self._hybridized = runtime.hybridized
        self._code = code
        self._place = (id(code), instruction, mode)
        #: Scopes since a choice was last open.
        self._quiet = 0
        self._trial: Optional[Trial] = None
        #: The next minibatch is expected to be like this one.
        self._predicted: Optional[Workload] = None
        #: What there is to choose from, for workloads met here.
        self._offers: Dict[Workload, Sequence[Setting]] = {}
        #: Up to which size it is settled that calls run at once, for each `Workload.what`.
        self._small: Dict[Any, int] = {}
        # Of the scope that is open now:
        self._started = 0.0
        self._timed = False
        self._workload: Optional[Workload] = None
        self._setting: Optional[Setting] = None
        self._open = False
        self._calls = 0

    @property
    def is_current(self) -> bool:
        """Whether no block was hybridized since, which may change what its calls ask for."""
        return bool(self._hybridized == self._runtime.hybridized)

    def enter(self) -> Tuple[int, int]:
        """Begin a scope.

        Returns
        -------
        at_once : int
            How many calls of cells may run at once before recording begins.
        hold : int
            How many recorded calls make a part that may run; 0 if there are no parts.
        """
        self._timed = self._quiet < PATIENCE
        if self._timed:
            mx.nd.waitall()
        self._started = time.perf_counter()
        trial, self._trial = self._trial, None
        if trial is not None:
            seconds = self._started - trial.started
            self._runtime.controller.observe(trial.workload, trial.setting, seconds, trial.calls)
        self._workload = self._setting = None
        self._open, self._calls = False, 0
        workload = self._predicted
        setting = self._preferred(workload)
        if setting is None or not _is_foresight(setting):
            return 0, 0
        self._workload, self._setting = workload, setting
        if setting is not AT_ONCE:
            return 0, setting.hold
        while self._preferred(workload._replace(size=workload.size + 1)) is AT_ONCE:
            workload = workload._replace(size=workload.size + 1)
        return int(2 * 4**workload.size), 0

    def _preferred(self, workload: Optional[Workload]) -> Optional[Setting]:
        """Return what a workload met before is to be run with."""
        if workload is None:
            return None
        if workload.size <= self._small.get(workload.what, -1):
            return AT_ONCE
        offer = self._offers.get(workload)
        if offer is None:
            return None
        setting, measured = self._runtime.controller.choose(workload, offer)
        self._open |= measured
        if setting is AT_ONCE and not measured:
            # What is too small for recording makes everything smaller too small.
            self._small[workload.what] = workload.size
        return setting  # type: ignore[no-any-return]

    def choose(self, recording: Any, options: Any, budget: Budget) -> Tuple[Setting, bool]:
        """Return the setting of this scope, and whether it is on trial.

        Parameters
        ----------
        recording : Recording
            What is to be run; the scope's first one decides.
        options : Options
            Of the scope, some of them ``"auto"``.
        budget : Budget
            No limit if the budget is ``"auto"``.
        """
        calls = _count_calls(recording)
        self._calls += calls
        if self._setting is None or self._setting is AT_ONCE:
            begun_at_once = self._setting is AT_ONCE
            called = frozenset((e.token[:2], e.mode) for e in recording.entries.values())
            workload = Workload(self._place, (called, options), size_of(calls))
            # Those of the first minibatch of the workload: what is on offer shall not change.
            candidates = self._offers.get(workload) or self._list_candidates(
                recording, workload, options, budget, calls
            )
            self._predicted = workload
            if len(self._offers) > MOST_WORKLOADS:
                self._offers.clear()
                self._small.clear()
            self._offers[workload] = candidates
            self._open = False
            setting = self._preferred(workload)
            if begun_at_once or setting is None or _is_foresight(setting):
                setting, self._open, self._timed = candidates[0], False, False
            self._workload, self._setting = workload, setting
        return self._setting, self._open

    def _list_candidates(
        self, recording: Any, workload: Workload, options: Any, budget: Budget, calls: int
    ) -> Sequence[Setting]:
        granularities, policies = [options.granularity], [options.policy]
        if options.granularity == "auto":
            granularities = ["operator", "block"]
            if self._runtime.composes(workload, recording):
                granularities.append("graph")
        if options.policy == "auto":
            policies = ["depth", "search"]
        search = budget
        if options.budget == "auto":
            search = Budget(visits=SEARCH_VISITS * 4**workload.size)
        found = [
            Setting(g, p, search if p == "search" else budget)
            for g in granularities
            for p in policies
        ]
        if options.leaves_all_open:
            found += [
                found[0]._replace(hold=n) for n in PARTS if 4 * n <= 3 * calls and calls < 6 * n
            ]
            counted = any(e.is_counted for e in recording.entries.values())
            if counted and workload.size <= MOST_AT_ONCE:
                found.append(AT_ONCE)
        return found

    def leave(self, at_once: int) -> str:
        """End a scope in which this many calls ran at once; return what is known of such scopes."""
        self._quiet = 0 if self._open else self._quiet + 1
        if self._predicted is None or self._workload is None or self._setting is None:
            return ""
        calls = self._calls + at_once
        if not calls:
            # Another model, which says nothing of its calls: next time, record and see.
            self._predicted = None
            return ""
        if _is_foresight(self._setting):
            # Whatever was predicted, this is what it was.
            self._workload = self._predicted = self._predicted._replace(size=size_of(calls))
        if self._timed and self._setting in self._offers.get(self._workload, (self._setting,)):
            self._trial = Trial(self._workload, self._setting, calls, self._started)
        if self._workload.size < self._small.get(self._workload.what, 0):
            return "auto: calls at once, as settled for larger minibatches"
        return str(self._runtime.controller.explain(self._workload))


def _is_foresight(setting: Setting) -> bool:
    """Whether a setting has to be chosen before the first call of a scope."""
    return setting is AT_ONCE or setting.hold > 0


def _count_calls(recording: Any) -> int:
    """Count the recorded calls of blocks that tell of calls at once, too; without such, all."""
    entries = np.frombuffer(recording.node_entry, dtype=np.int32)
    cells = [e.id for e in recording.entries.values() if e.is_counted]
    return int(np.isin(entries, cells).sum()) or len(entries)
