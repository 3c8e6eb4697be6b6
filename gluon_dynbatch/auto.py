"""What "auto" does at one place of a program that opens scopes.

Accounts decide what they can tell for certain; the clock decides the rest (`race.py`).

*Accounts.*  Each flush says what recording, analysis and handing out took, and how many launches
came of how many calls.  If launches are hardly wider than calls, as where every value is read
before the next call, recording cannot pay and calls run at once from then on; if the account is
open, running at once enters the race; if recording clearly pays, it does not.  Likewise a search
goes on while the launches that it may still save are worth its time, and is given up where the
last ones did not earn what they cost.

*The clock.*  What counts is the whole turn of the user's loop: recording, analysis, launches, the
backward pass, the optimizer.  So while a race is open, every scope begins with a wait for all work
before it, and the time from one beginning to the next is that of the setting that the first of
the two ran with.  One setting serves for a whole scope, so that this time is its own.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import mxnet as mx
import numpy as np

from .accounts import Account, Searches
from .lower.fuse_samples import repeats
from .modes import RECORDING
from .race import AT_ONCE, Race, Setting
from .report import FlushReport
from .schedule import Analysis, Budget

#: If recording takes less than this share of what calls at once take, nobody need time those.
CERTAIN = 1 / 3
#: A workload's minibatches have up to so many times the calls of its first one, or a part thereof;
#: calls at once, which gain less the more there are, up to `GROWTH` times.
BAND, GROWTH = 4, 2
#: Scopes for which places keep waiting after they met a workload whose race is open.
PATIENCE = 4
#: A minibatch of so many calls may run in two parts: Python records one while MXNet runs the other.
MOST_WHOLE = 4096
#: What the analysis may cost if that is left open.
AS_IT_PAYS = "as it pays"
#: Places remembered per thread, and workloads per place.
MOST_SITES, MOST_WORKLOADS = 256, 16


class Choice(NamedTuple):
    """What one flush is run with."""

    setting: Setting
    #: Whether the scope is being timed.
    timed: bool = False
    #: Of which policy the analysis is; that of the setting, unless that is "auto".
    policy: str = ""
    #: What the analysis may cost, in words.
    budget: str = ""
    #: What one launch less is worth, in visits; None for no limit.
    worth: Optional[float] = None


class Workload:
    """Minibatches of one place that call some of the same blocks and are of similar size.

    Parameters
    ----------
    called : set of int
        Blocks called so far, by id.
    first : int
        Calls up to its first flush; 0 if that is not known yet.
    settings : list of Setting
        Who takes part in the race from the beginning.
    all_open : bool
        Whether nothing is asked for that calls at once could not give.
    """

    def __init__(self, called: Set[int], first: int, settings: List[Setting], all_open: bool):
        self.called = called
        self.first = first
        self.race = Race(settings)
        self._settings = settings
        self._all_open = all_open
        #: Calls in its largest scope that ran at once, or else in its first one.
        self.size = 0
        #: Number of its last scope.
        self.met = 0
        #: What came after it, the last time.
        self.follower: Workload = self
        #: Scopes that were recorded from the beginning.
        self.recorded = 0
        #: Whether samples of the first scope repeat, so that whole samples might merge.
        self.repeats = False
        self._searches: Dict[str, Searches] = {}

    @property
    def at_once(self) -> bool:
        """Whether it is settled that calls run at once."""
        return not self.race.open and self.race.next() == AT_ONCE

    def fits(self, called: Set[int], calls: int) -> bool:
        """Whether it has minibatches like this; below those that run at once, all are."""
        low, high = (0, GROWTH) if self.at_once else (1 / BAND, BAND)
        similar = not self.first or low * self.first <= calls <= high * self.first
        return similar and not self.called.isdisjoint(called)

    def grown(self) -> Workload:
        """Return a workload of the same blocks for larger minibatches; nothing is known of it."""
        return Workload(set(self.called), 0, self._settings, self._all_open)

    def searches(self, setting: Setting) -> Searches:
        """Return the account of searches at a granularity."""
        return self._searches.setdefault(setting.granularity, Searches())

    def judge(self, account: Account) -> None:
        """Let the account of a recorded scope say who else takes part."""
        self.recorded += 1
        if self.recorded == 1 and self.repeats and account.flushes == 1:
            self.race.enter(self.race.settings[0]._replace(granularity="graph"))
        if not (self._all_open and account.calls) or AT_ONCE in self.race.settings:
            return
        if account.narrow:
            self.race.settle(AT_ONCE, "launches are hardly wider than calls")
        elif self.recorded == len(self.race.settings) + 1 and account.ratio > CERTAIN:
            # Whatever was to be compiled for what took this scope's time has been by now.
            self.race.enter(AT_ONCE)

    def offer_parts(self, calls: int) -> None:
        """Let a run in two parts take part against the winner, if the minibatch is large."""
        settings = self.race.settings
        if (
            self._all_open
            and calls >= MOST_WHOLE
            and not self.race.open
            and not any(map(needs_foresight, settings))
        ):
            self.race.enter(self.race.next()._replace(hold=calls // 2))


class _Trial(NamedTuple):
    """A scope whose time is being taken."""

    workload: Workload
    setting: Setting
    calls: int
    started: float


class CallSite:
    """What one thread knows of one place that opens scopes, in one mode, with one set of options.

    Parameters
    ----------
    runtime : Runtime
        Has the figures of the process.
    code : code
        What opens the scopes; held, so that its id stays its own.
    """

    def __init__(self, runtime: Any, code: Any):
        self._runtime = runtime
        self._hybridized = runtime.hybridized
        self._code = code
        self._workloads: List[Workload] = []
        self._last: Optional[Workload] = None
        self._scopes = 0
        self._trial: Optional[_Trial] = None
        self._begin()

    def _begin(self) -> None:
        """Forget the scope before."""
        self._started = 0.0
        self._timed = False
        self._workload: Optional[Workload] = None
        self._setting: Optional[Setting] = None
        self._account = Account()

    @property
    def is_current(self) -> bool:
        """Whether no block was hybridized since, which may change what its calls ask for."""
        return bool(self._hybridized == self._runtime.hybridized)

    def enter(self) -> Tuple[int, int]:
        """Begin a scope.

        Returns
        -------
        at_once : int
            How many calls of blocks may run at once before recording begins.
        hold : int
            How many recorded calls make a part that may run; 0 if there are no parts.
        """
        self._begin()
        self._scopes += 1
        self.end_turn()
        self._timed = any(w.race.open and self._scopes - w.met <= PATIENCE for w in self._workloads)
        if self._timed:
            mx.nd.waitall()
        self._started = time.perf_counter()
        if self._last is None:
            return 0, 0
        # The minibatch is expected to be like the one that came after such a one before.
        self._workload = expected = self._last.follower
        self._setting = expected.race.next()
        return (GROWTH * expected.size if self._setting == AT_ONCE else 0), self._setting.hold

    def end_turn(self) -> None:
        """Take the time of the scope before, now and not where the next one begins."""
        trial, self._trial = self._trial, None
        if trial is not None:
            mx.nd.waitall()
            seconds = time.perf_counter() - trial.started
            trial.workload.race.observe(trial.setting, seconds, trial.calls)
            trial.workload.offer_parts(trial.calls)

    def expects(self, block: Any) -> bool:
        """Whether the minibatch that is expected calls this block."""
        return self._workload is not None and id(block) in self._workload.called

    def choose(self, recording: Any, options: Any, budget: Budget, at_once: int) -> Choice:
        """Return what a flush is run with; the setting is that of the scope's first one.

        Parameters
        ----------
        recording : Tape
            What is to be run.
        options : Options
            Of the scope, some of them ``"auto"``.
        budget : Budget
            No limit if the budget is ``"auto"``.
        at_once : int
            Calls of this scope that ran at once.
        """
        if not self._account.flushes:
            self._recognise(recording, options, budget, at_once)
        assert self._workload is not None and self._setting is not None
        workload, setting = self._workload, self._setting
        timed = self._timed and workload.race.open
        if setting.policy != "auto":
            return Choice(setting, timed, setting.policy, str(setting.budget))
        if options.budget != "auto":
            return Choice(setting, timed, "search", str(setting.budget))
        worth = self._runtime.figures.visits_per_launch(is_recorded(recording))
        if worth is None or not workload.searches(setting).pay:
            return Choice(setting, timed, "depth", AS_IT_PAYS)
        return Choice(setting, timed, "search", AS_IT_PAYS, worth)

    def _recognise(self, recording: Any, options: Any, budget: Budget, at_once: int) -> None:
        """Find the workload to which a scope belongs, by its first flush, or make it."""
        called = {e.block_id for e in recording.entries.values() if e.block_id is not None}
        called = called or {0}  # operators only
        calls, expected = _count_calls(recording) + at_once, self._workload
        if expected is not None and at_once and not expected.called.isdisjoint(called):
            found = expected  # with more calls than expected; `leave` sees what follows
        else:
            known = [w for w in (expected, *reversed(self._workloads)) if w is not None]
            some = (w for w in known if w.fits(called, calls))
            found = next(some, None) or self._new_workload(called, calls, options, budget)
        found.called |= called
        found.first = found.first or calls
        if not found.recorded and options.granularity == "auto":
            found.repeats = repeats(recording)
        self._workload = found
        if self._setting is None or found is not expected or self._setting == AT_ONCE:
            self._setting = found.race.next()
            if needs_foresight(self._setting):
                self._setting = found.race.best(lambda setting: not needs_foresight(setting))
                self._timed = False

    def _new_workload(self, called: Set[int], calls: int, options: Any, budget: Budget) -> Workload:
        open_ = options.granularity == "auto"
        settings = [
            Setting(granularity, options.policy, budget)
            for granularity in (("operator", "block") if open_ else (options.granularity,))
        ]
        made = Workload(called, calls, settings, options.leaves_all_open)
        return self._keep(made)

    def _keep(self, workload: Workload) -> Workload:
        if len(self._workloads) >= MOST_WORKLOADS:
            del self._workloads[0]
        self._workloads.append(workload)
        return workload

    def note(self, recording: Any, flush: FlushReport, analysis: Optional[Analysis]) -> None:
        """Take note of a flush of this scope, and of its analysis if the plan was made for it."""
        workload, setting = self._workload, self._setting
        if workload is None or setting is None:
            return
        calls = _count_calls(recording)
        self._account.note(calls, flush)
        if analysis is None:
            return
        seconds = self._runtime.figures.launch_seconds(is_recorded(recording))
        if seconds is not None:
            workload.searches(setting).note(analysis, seconds)
        if self._account.flushes == 1:
            workload.race.note_planning(setting, 1e-3 * flush.analysis_ms, calls)

    def leave(self, at_once: int) -> str:
        """End a scope in which this many calls ran at once; return what is known of such scopes."""
        workload, setting = self._workload, self._setting
        calls = self._account.calls + at_once
        if workload is None or setting is None or not (calls or self._account.flushes):
            # Another model, which says nothing of its calls: next time, record and see.
            self._last = None
            return ""
        recorded = self._account.flushes > 0
        if self._timed and workload.race.open:
            self._trial = _Trial(workload, setting, calls, self._started)
        elif workload.race.open:
            workload.race.skip()
        if recorded and not at_once:
            workload.judge(self._account)
        elif recorded and not (self._account.narrow and self._account.calls > at_once):
            # It has outgrown those that run at once, unless the larger part of it is as narrow.
            workload = self._keep(workload.grown())
        workload.size = max(workload.size, calls) if at_once else workload.size or calls
        workload.met = self._scopes
        if self._last is not None:
            self._last.follower = workload
        self._last = workload
        return workload.race.explain()


def needs_foresight(setting: Setting) -> bool:
    """Whether a setting has to be chosen before the first call of a scope."""
    return setting == AT_ONCE or setting.hold > 0


def is_recorded(recording: Any) -> bool:
    """Whether a backward pass may follow."""
    return any(entry.mode & RECORDING for entry in recording.entries.values())


def _count_calls(recording: Any) -> int:
    """Count the recorded calls of blocks, which calls at once tell of too."""
    entries = np.frombuffer(recording.node_entry, dtype=np.int32)
    blocks = [e.id for e in recording.entries.values() if e.block_id is not None]
    return int(np.isin(entries, blocks).sum())
