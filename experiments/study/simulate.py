"""How many launches are left of all nodes, by granularity, policy and batch size.

The simulation of Zha et al. 2019 (arXiv:1904.07421, section 4.1), on real recordings.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Sequence, Set

import gluon_dynbatch as gdb
from gluon_dynbatch.schedule import analyze, lower_bound
from workloads.base import Workload

from .results import Column, Table, middle
from .running import Contender, setting


class Simulated(NamedTuple):
    """Medians over several fresh minibatches.

    Attributes
    ----------
    calls : float
        Recorded calls of blocks and operators.
    nodes : float
        What the analyzer sees: whole samples, calls, or pieces of calls.
    launches, ratio : float
        Launches, and nodes per launch.
    lower_bound : float
        Launches that no grouping of these nodes can do without.
    grouping_ms : float
        Finding the groups.
    analysis_ms : float
        All between recording and the first launch: finding the nodes, grouping them, placing
        their values in memory. Programs of whole samples (granularity "graph") have been composed
        before; a sample of a new shape costs that as well.
    """

    workload: str
    batch_size: int
    granularity: str
    policy: str
    calls: float
    nodes: float
    launches: float
    ratio: float
    lower_bound: float
    grouping_ms: float
    analysis_ms: float
    minibatches: int


class _Once(NamedTuple):
    """One minibatch under one setting."""

    calls: int
    nodes: int
    launches: int
    ratio: float
    lower_bound: int
    grouping_ms: float
    analysis_ms: float


def simulate(
    workload: Workload,
    batch_sizes: Sequence[int],
    settings: Sequence[Any],
    minibatches: int,
    seed: int,
    step: Callable[[str], None],
) -> List[Simulated]:
    """Record minibatches and group them in every way.

    Parameters
    ----------
    workload : Workload
    batch_sizes : sequence of int
    settings : sequence of (str, str)
        Granularities and policies.
    minibatches : int
        Per batch size.  Each first runs once per granularity without being counted: that pays for
        tracing and compiling, in whatever order the policies come.
    seed : int
        What minibatches are drawn from.
    step : callable
        Called with a word on what was done, for each row.
    """
    rows = []
    for size in batch_sizes:
        prepared: Set[str] = set()
        source = workload.minibatches(size, seed)
        drawn = [next(source) for _ in range(minibatches)]
        for granularity, policy in settings:
            if granularity not in prepared:
                prepared.add(granularity)
                for samples in drawn:
                    setting(granularity, "depth", None).run(workload, samples, "inference")
            contender = setting(granularity, policy, None)
            once = [_simulate(contender, workload, samples) for samples in drawn]
            medians = [middle(once, field) for field in _Once._fields]
            rows.append(Simulated(workload.name, size, granularity, policy, *medians, minibatches))
            step(f"{workload.name}, {size}, {granularity} by {policy}")
    return rows


def _simulate(contender: Contender, workload: Workload, samples: Sequence[Any]) -> _Once:
    timing = contender.run(workload, samples, "inference")
    graph = contender.batch.plan.graph.dependencies
    analysis = analyze(graph, contender.options["policy"], gdb.Budget())
    return _Once(
        timing.calls,
        timing.units,
        timing.launches,
        timing.units / timing.launches,
        lower_bound(graph),
        analysis.milliseconds,
        timing.analysis,
    )


def table(rows: Sequence[Simulated], title: str) -> Table:
    """Lay the rows of one workload out for people."""
    columns = (
        Column("batch", "d"),
        Column("granularity"),
        Column("policy"),
        Column("nodes before", ",.0f"),
        Column("launches after", ",.0f"),
        Column("ratio", ",.1f"),
        Column("lower bound", ",.0f"),
        Column("grouping, ms", ".2f"),
        Column("whole analysis, ms", ".1f"),
    )
    body = [
        (row.batch_size, row.granularity, row.policy, row.nodes, row.launches, row.ratio,
         row.lower_bound, row.grouping_ms, row.analysis_ms)
        for row in rows
    ]  # fmt: skip
    return Table(f"Nodes before, launches after: {title}", columns, body)
