"""Time of a minibatch against what its analysis may cost: too little is dear, and so is too much.

A curve climbs the whole ladder of the analyzer: grouping a longer and longer prefix of the nodes by
depth, then agenda, then search. The budget is counted in visits, which give the same plans on every
machine. Plans are made anew in every run, except on the line that shows what it is like without.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import gluon_dynbatch as gdb
from workloads.base import Workload

from .results import Column, Spread, Table, grouped, middle
from .running import AT_ONCE, Contender, Timing, automatic, setting, settle

#: What a line of the curve is made of: fixed budgets, plans from the cache, or "auto".
NEW, CACHED, AUTO = "new plan", "plan from the cache", "auto"


class CurveRun(NamedTuple):
    """One run of one minibatch; times in milliseconds.

    Attributes
    ----------
    role : str
        `NEW`, `CACHED` or `AUTO`.
    budget : float or None
        Visits allowed; None is no limit. What "auto" chose is what it spent.
    visits : int
        Visits spent.
    settled : bool
        Whether "auto" had made its choice.
    """

    workload: str
    kind: str
    batch_size: int
    role: str
    granularity: str
    policy: str
    budget: Optional[float]
    visits: int
    calls: int
    units: int
    launches: int
    gathered: int
    total: float
    recording: float
    analysis: float
    dispatch: float
    running: float
    settled: bool = True


class Point(NamedTuple):
    """A place on a curve: medians over its runs, and the spread of their totals."""

    granularity: str
    role: str
    policy: str
    budget: Optional[float]
    visits: float
    calls: float
    units: float
    launches: float
    gathered: float
    recording: float
    analysis: float
    dispatch: float
    running: float
    total: Spread


class _Entry(NamedTuple):
    contender: Contender
    role: str
    budget: Optional[int]


def budgets_for(smallest: int, largest: int, count: int) -> List[int]:
    """Spread budgets evenly on a logarithmic scale, in visits.

    They go from a fraction of `smallest`, the nodes of a coarse graph, to what the longest analysis
    of a fine one spends.
    """
    spread = np.geomspace(max(smallest / 8, 1), max(largest, 2), count)
    return sorted({int(round(visits)) for visits in spread})


class _Case(NamedTuple):
    """A batch size with everything that is timed at it."""

    batch_size: int
    minibatches: Iterator[List[Any]]
    entries: List[_Entry]
    settled: bool


def measure(
    workload: Workload,
    kind: str,
    batch_sizes: Sequence[int],
    granularities: Sequence[str],
    points: int,
    rounds: int,
    seed: int,
    step: Callable[[str], None],
) -> List[CurveRun]:
    """Time fresh minibatches of all sizes with every budget, round by round in changing order.

    Parameters
    ----------
    workload : Workload
    kind : {"inference", "training"}
    batch_sizes : sequence of int
    granularities : sequence of str
        One curve each.
    points : int
        Budgets between none and no limit.
    rounds : int
        Minibatches that every budget is timed on, besides a first one that is not counted.
    seed : int
        What minibatches and orders are drawn from.
    step : callable
        Called with a word on what was done, for each round of each size.
    """
    cases = []
    for size in batch_sizes:
        drawn = workload.minibatches(size, seed)
        entries = _entries(workload, kind, next(drawn), granularities, points)
        auto = automatic()
        settled = settle(auto, workload, size, kind, seed + 1).settled
        cases.append(_Case(size, drawn, [*entries, _Entry(auto, AUTO, None)], settled))
    order = random.Random(seed)
    runs: List[CurveRun] = []
    for number in range(rounds + 1):
        for case in cases:
            order.shuffle(case.entries)
            found = _run_round(workload, kind, case)
            runs += found if number else []  # the first round pays for what is compiled
            step(f"{workload.name}, {kind}, {case.batch_size}")
    return runs


def _run_round(workload: Workload, kind: str, case: _Case) -> List[CurveRun]:
    samples = next(case.minibatches)
    runs = []
    for entry in case.entries:
        entry.contender.forget()
        if entry.role == CACHED:
            entry.contender.run(workload, samples, kind)
        timing = entry.contender.run(workload, samples, kind)
        runs.append(_run_of(workload, kind, case, entry, timing))
    return runs


def _entries(
    workload: Workload, kind: str, samples: Sequence[Any], granularities: Sequence[str], points: int
) -> List[_Entry]:
    """Choose the budgets by a look at one minibatch, and make all contenders but "auto"."""
    sizes, spent = [], []
    for granularity in granularities:
        pilot = setting(granularity, "search", None)
        sizes.append(pilot.run(workload, samples, kind).units)
        spent.append(pilot.visits())
    entries = []
    for granularity in granularities:
        for budget in (0, *budgets_for(min(sizes), max(spent), points), None):
            limit = gdb.Budget(visits=budget)
            entries.append(_Entry(setting(granularity, "search", limit), NEW, budget))
        entries.append(_Entry(setting(granularity, "search", None), CACHED, None))
    return entries


def _run_of(workload: Workload, kind: str, case: _Case, entry: _Entry, timing: Timing) -> CurveRun:
    options = entry.contender.options
    assert options is not None
    granularity, policy = options.get("granularity"), options.get("policy")
    visits = entry.contender.visits()
    budget: Optional[float] = entry.budget
    if entry.role == AUTO:
        granularity, policy, budget = "none", "none", visits
        if timing.setting != AT_ONCE:
            last = entry.contender.batch.report.flushes[-1]
            granularity, policy = last.granularity, last.policy
    return CurveRun(
        workload.name, kind, case.batch_size, entry.role, str(granularity), str(policy), budget,
        visits, timing.calls, timing.units, timing.launches, timing.gathered, timing.total,
        timing.recording, timing.analysis, timing.dispatch, timing.running, case.settled,
    )  # fmt: skip


def points_of(runs: Sequence[CurveRun]) -> List[Point]:
    """Summarise the runs of one workload, kind and batch size: a point per setting, in order.

    "auto" may have chosen differently for minibatches that it takes for different workloads; all of
    its runs are one point, at its most frequent choice.
    """
    points = []
    for key, group in grouped(runs, _place).items():
        granularity, policy, budget = key[1:]
        if key[0] == AUTO:
            choices = grouped(group, lambda run: (run.granularity, run.policy))
            (granularity, policy), most = max(choices.items(), key=lambda item: len(item[1]))
            budget = middle(most, "visits")
        medians = (middle(group, field) for field in Point._fields[4:-1])
        spread = Spread.of(run.total for run in group)
        points.append(Point(granularity, key[0], policy, budget, *medians, spread))
    return sorted(points, key=lambda p: (p.granularity, p.role, p.budget is None, p.budget or 0))


def _place(run: CurveRun) -> Tuple[Any, ...]:
    if run.role == AUTO:
        return (AUTO, None, None, None)
    return (run.role, run.granularity, run.policy, run.budget)


def lines_of(points: Sequence[Point], role: str = NEW) -> Dict[str, List[Point]]:
    """Collect the points of one role by granularity."""
    return grouped((p for p in points if p.role == role), lambda p: p.granularity)


def cases_of(runs: Sequence[CurveRun]) -> Iterator[Tuple[str, int, List[Point]]]:
    """Walk through the kinds and batch sizes of one workload, with their points."""
    for (kind, size), group in grouped(runs, lambda run: (run.kind, run.batch_size)).items():
        yield kind, size, points_of(group)


def table(runs: Sequence[CurveRun], title: str) -> Table:
    """Lay the curves of one workload out for people; each case's fastest new plan is marked."""
    columns = (
        Column("kind"),
        Column("batch", "d"),
        Column("granularity"),
        Column("budget, visits"),
        Column("visits spent", ",.0f"),
        Column("launches", ",.0f"),
        Column("recording, ms", ".1f"),
        Column("analysis, ms", ".1f"),
        Column("dispatch, ms", ".1f"),
        Column("running, ms", ".1f"),
        Column("total, ms", ".1f"),
        Column("quartiles"),
        Column("note"),
    )
    rows = []
    for kind, size, points in cases_of(runs):
        best = min((p for p in points if p.role == NEW), key=lambda p: p.total.median)
        for p in points:
            note = "minimum" if p is best else ("" if p.role == NEW else p.role)
            budget = "no limit" if p.budget is None else f"{p.budget:,.0f}"
            if p.role == AUTO:
                budget, note = "auto", f"chose {p.policy}"
            rows.append(
                (kind, size, p.granularity, budget, p.visits, p.launches, p.recording, p.analysis,
                 p.dispatch, p.running, p.total.median, f"{p.total.low:.1f}–{p.total.high:.1f}",
                 note)
            )  # fmt: skip
    return Table(f"Time of a minibatch against its analysis budget: {title}", columns, rows)
