"""The controller behind ``"auto"``: try what is on offer, measure, then stay with the cheapest.

Which granularity and how much analysis pay off depends on the model, the minibatch and the machine,
and the only judge of that is the clock.  Per workload, every candidate is run on real flushes, in
turns so that a slow minute of the machine hurts all of them alike:

1. once, and that measurement is dropped, for it pays for building symbols and operators;
2. once more.  A candidate that has never come near the best median so far is out;
3. a few more times;
4. if several are close then, these some more times, as minibatches differ among themselves;
5. the smallest lower quartile decides, for good: other work of the machine only ever adds time.

Nothing is explored afterwards: a user who has waited for the choice shall have all of it.  Should a
caller offer measurements of other settings later, they are listed, and win if they stay better on
fresh figures for both sides; figures from before the decision do not count then, as the machine may
have changed since.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from statistics import median
from typing import Hashable, NamedTuple, Sequence

from gluon_dynbatch.analysis.budget import Budget
from gluon_dynbatch.errors import OptionError

MARGIN = 0.9
"""A later challenger must take less than this share of the winner's time."""

RECENT = 15
"""Measurements kept per candidate."""

CLOSE = 1.3
"""Candidates whose best measurement is within this factor of the best of all are close.

Not the median: what else the machine does makes single measurements longer, never shorter.
"""

EXTRA = 4
"""Close candidates are measured so many times as often as others."""


class Setting(NamedTuple):
    """What the controller chooses between.

    Attributes
    ----------
    granularity : str
        Size at which nodes are merged.
    policy : str
        How far the analysis goes.
    budget : Budget
        What the analysis may cost.
    hold : int
        Calls after which a part of the minibatch is run, while the rest is being recorded; 0 holds
        all of them back until the end.
    """

    granularity: str
    policy: str
    budget: Budget
    hold: int = 0

    def __str__(self) -> str:
        """Write the setting in a few words."""
        if self.granularity == "none":
            return "calls at once"
        parts = f", in parts of {self.hold} calls" if self.hold else ""
        return f"{self.granularity} by {self.policy} ({self.budget}){parts}"


class _Record:
    """The measurements of one candidate, in seconds per unit of work."""

    def __init__(self) -> None:
        self.seen = 0
        self.best = math.inf
        self.kept: deque[float] = deque(maxlen=RECENT)
        self.fresh: deque[float] = deque(maxlen=RECENT)
        self.hopeless = False

    @property
    def median(self) -> float:
        """The median of what is kept; infinite without any."""
        return median(self.kept) if self.kept else math.inf

    @property
    def low(self) -> float:
        """The lower quartile of what is kept, on which other work of the machine tells least."""
        return sorted(self.kept)[len(self.kept) // 4] if self.kept else math.inf


class _Workload:
    """All candidates of one key."""

    def __init__(self) -> None:
        self.records: dict[Setting, _Record] = {}
        self.winner: Setting | None = None

    def give_up(self, factor: float) -> None:
        """Mark the candidates that have never come within `factor` of the best median."""
        limit = factor * min(record.median for record in self.records.values())
        for record in self.records.values():
            # The dropped measurement counts in favour of a candidate, lest one hiccup rules it out.
            record.hopeless = bool(record.kept) and record.best > limit


class Controller:
    """Learns, per workload, which setting takes the least time per flush.

    Its choices follow from the measurements alone.  All methods may be called from any thread.

    Parameters
    ----------
    trials : int, optional
        Measurements per candidate that count, after the one that is dropped.
    hopeless : float, optional
        A candidate is given up once it has been measured and all of its measurements are more than
        this many times the best median.
    capacity : int, optional
        Workloads remembered; the one not used for longest is forgotten first.
    """

    def __init__(self, trials: int = 3, hopeless: float = 3.0, capacity: int = 64) -> None:
        if trials < 1 or capacity < 1 or not hopeless >= 1:
            raise OptionError("trials, capacity and hopeless must be at least 1")
        self._trials = trials
        self._hopeless = hopeless
        self._capacity = capacity
        self._workloads: OrderedDict[Hashable, _Workload] = OrderedDict()
        self._lock = threading.Lock()

    def choose(self, key: Hashable, candidates: Sequence[Setting]) -> tuple[Setting, bool]:
        """Say which of `candidates` to use for the next flush of a workload.

        Parameters
        ----------
        key : hashable
            What tells workloads apart, such as the blocks called and the size of the minibatch.
        candidates : sequence of Setting
            In order of preference, which decides between equals.

        Returns
        -------
        setting : Setting
            One of `candidates`.
        measuring : bool
            Whether the choice is still open, so that the caller should time this flush.

        Raises
        ------
        OptionError
            If there are no candidates.
        """
        if not candidates:
            raise OptionError("no candidates to choose from")
        with self._lock:
            workload = self._workload(key)
            if len(candidates) == 1:
                return candidates[0], False
            records = [workload.records.setdefault(s, _Record()) for s in candidates]
            open_ones = self._open(records, workload.winner in candidates)
            if open_ones:
                workload.winner = None
                return candidates[min(open_ones)[1]], True
            if workload.winner not in candidates:
                place = min(range(len(records)), key=lambda place: records[place].low)
                self._settle(workload, candidates[place])
            assert workload.winner is not None
            return workload.winner, False

    def _open(self, records: Sequence[_Record], settled: bool) -> list[tuple[int, int]]:
        """Return the candidates still to be measured, each as (times seen, place)."""
        alive = [(r.seen, place) for place, r in enumerate(records) if not r.hopeless]
        missing = [(seen, place) for seen, place in alive if seen <= self._trials]
        if missing or settled:
            return missing
        limit = CLOSE * min(record.best for record in records)
        close = [(seen, place) for seen, place in alive if records[place].best <= limit]
        if len(close) < 2:
            return []
        return [(seen, place) for seen, place in close if seen <= EXTRA * self._trials]

    def observe(self, key: Hashable, setting: Setting, seconds: float, units: float) -> None:
        """Take note of how long a flush took.

        Parameters
        ----------
        key : hashable
            As given to `choose`.
        setting : Setting
            What the flush was run with.
        seconds : float
            What it took, all in all.
        units : float
            Amount of work in it, counted alike for all settings (such as recorded calls), so that
            minibatches of slightly different sizes compare.  A flush without work is ignored, and
            so is a measurement that is not a positive, finite number.
        """
        if not (units > 0 and seconds > 0 and math.isfinite(seconds) and math.isfinite(units)):
            return
        figure = seconds / units
        with self._lock:
            workload = self._workload(key)
            record = workload.records.setdefault(setting, _Record())
            record.seen += 1
            record.best = min(record.best, figure)
            if record.seen == 1:
                return
            record.kept.append(figure)
            workload.give_up(self._hopeless)
            if workload.winner is not None:
                record.fresh.append(figure)
                self._challenge(workload, setting)

    def explain(self, key: Hashable) -> str:
        """Write, for the report, what was measured for a workload and what follows from it.

        Returns
        -------
        str
            A line about the state, then one line per candidate, the fastest first.
        """
        with self._lock:
            workload = self._workloads.get(key)
            if workload is None or not workload.records:
                return "auto: nothing measured yet"
            winner = workload.winner
            head = "auto: still measuring" if winner is None else f"auto: settled on {winner}"
            ranked = sorted(workload.records.items(), key=lambda item: item[1].low)
            return "\n".join([head] + [_line(setting, record) for setting, record in ranked])

    def _workload(self, key: Hashable) -> _Workload:
        """Return the workload of `key` as the one used last; forget the oldest if need be."""
        workload = self._workloads.setdefault(key, _Workload())
        self._workloads.move_to_end(key)
        while len(self._workloads) > self._capacity:
            self._workloads.popitem(last=False)
        return workload

    def _settle(self, workload: _Workload, winner: Setting) -> None:
        """Decide for `winner`; what is measured from now on is fresh."""
        workload.winner = winner
        for record in workload.records.values():
            record.fresh.clear()

    def _challenge(self, workload: _Workload, setting: Setting) -> None:
        """Let `setting` replace the winner if fresh figures of both are clearly in its favour."""
        assert workload.winner is not None
        if setting == workload.winner:
            return
        mine, other = workload.records[setting].fresh, workload.records[workload.winner].fresh
        if min(len(mine), len(other)) >= self._trials and median(mine) < MARGIN * median(other):
            self._settle(workload, setting)


def _line(setting: Setting, record: _Record) -> str:
    """Write what is known about one candidate."""
    if not record.kept:
        return f"  {setting}: not measured yet"
    note = ", given up" if record.hopeless else ""
    return f"  {setting}: {record.median * 1e6:.3g} us per unit, {len(record.kept)} timed{note}"
