"""Time of a minibatch against what its analysis may cost: too little is dear, and so is too much.

A curve climbs all steps of the analyzer: grouping a longer and longer prefix of the nodes by depth,
then agenda, then search. The budget is counted in visits, which give the same plans on every
machine. Plans are made anew in every run, except on the line that shows what it is like without.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

import gluon_dynbatch as gdb
from timing.contest import Contender, Outcome, contest
from timing.results import Column, Spread, Table
from workloads.base import Workload
from workloads.runner import Runner

from .settings import AUTO, automatic, options

CACHED, NO_LIMIT = "plan cached", "no limit"
#: Budgets go from this share of the nodes to this multiple.
LEAST, MOST = 1 / 8, 64
#: Seconds after which "auto" is not waited for any longer.
PATIENCE = 30.0


class Point(NamedTuple):
    """A place on a curve; the budget is in visits, None is no limit."""

    label: str
    budget: Optional[int]
    total: Spread


def measure(
    workload: Workload,
    kind: str,
    size: int,
    granularities: Sequence[str],
    points: int,
    rounds: int,
    seed: int,
    step: Callable[[str], None],
) -> Outcome:
    """Time fresh minibatches with every budget, with cached plans and with "auto".

    Parameters
    ----------
    workload : Workload
    kind : {"inference", "training"}
    size : int
    granularities : sequence of str
        One curve each.
    points : int
        Budgets between none and no limit.
    rounds, seed, step
        See `contest`.
    """
    fresh = workload.minibatches(size, seed)
    batch = next(fresh)
    pilots = [Contender(Runner(workload, options=options(g, "depth"))) for g in granularities]
    nodes = [pilot.time(kind, [batch], size).nodes for pilot in pilots]
    contenders = []
    for granularity in granularities:
        for budget in (0, *budgets_for(min(nodes), max(nodes), points), None):
            limit = gdb.Budget(visits=budget)
            runner = Runner(workload, options=options(granularity, "search", limit))
            text = NO_LIMIT if budget is None else str(budget)
            contenders.append(Contender(runner, f"{granularity}, {text}"))
        contenders.append(Contender(runner, f"{granularity}, {CACHED}", repeats=True))
    contenders.append(automatic(workload))
    return contest(contenders, fresh, kind, size, rounds, PATIENCE, seed=seed, step=step)


def budgets_for(fewest: float, most: float, count: int) -> List[int]:
    """Spread budgets evenly on a logarithmic scale, in visits.

    They go from a fraction of the nodes of a coarse graph to a multiple of those of a fine one.
    """
    spread = np.geomspace(max(LEAST * fewest, 1), max(MOST * most, 2), count)
    return sorted({int(round(visits)) for visits in spread})


def curves(outcome: Outcome) -> Dict[str, List[Point]]:
    """Find the points of each granularity, in order of their budgets."""
    found: Dict[str, List[Point]] = {}
    for label in outcome.by_label:
        granularity, _, text = label.partition(", ")
        if text and text != CACHED:
            budget = None if text == NO_LIMIT else int(text)
            point = Point(label, budget, outcome.spread(label, "ms"))
            found.setdefault(granularity, []).append(point)
    return found


def best(outcome: Outcome) -> Point:
    """Find the lowest point of all curves."""
    points = [point for own in curves(outcome).values() for point in own]
    return min(points, key=lambda point: point.total.median)


def table(outcomes: Sequence[Outcome], title: str) -> Table:
    """Lay the curves of one workload out for people; each case's fastest new plan is marked."""
    phases = ("recording", "analysis", "dispatch", "running")
    columns = (
        Column("kind"), Column("batch", "d"), Column("granularity, budget in visits"),
        Column("launches", ",.0f"), *(Column(f"{phase}, ms", ".1f") for phase in phases),
        Column("total, ms", ".1f"), Column("quartiles"), Column("note"),
    )  # fmt: skip
    rows = []
    for outcome in outcomes:
        lowest = best(outcome).label
        for label, own in outcome.by_label.items():
            total = outcome.spread(label, "ms")
            note = "minimum" if label == lowest else ""
            if label == AUTO:
                note = f"ran {own[-1].setting}"
            parts = [outcome.median(label, phase) for phase in phases]
            rows.append((outcome.kind, outcome.batch_size, label, outcome.median(label, "launches"),
                         *parts, total.median, total.quartiles(".1f"), note))  # fmt: skip
    return Table(f"Time of a minibatch against its analysis budget: {title}", columns, rows)
