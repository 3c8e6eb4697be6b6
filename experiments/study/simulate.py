"""How many launches are left of all nodes, by granularity, policy and batch size.

The simulation of Zha et al. 2019 (arXiv:1904.07421, section 4.1), on real recordings.
"""

from __future__ import annotations

import statistics
from typing import Callable, List, NamedTuple, Sequence

from gluon_dynbatch.schedule import lower_bound
from timing.contest import Contender
from timing.results import Column, Table
from workloads.base import Workload
from workloads.runner import Runner

from .settings import GRANULARITIES, POLICIES, options


class Simulated(NamedTuple):
    """Medians over several fresh minibatches.

    Attributes
    ----------
    nodes : float
        What the analyzer sees: whole samples, calls, or pieces of calls.
    launches : float
    lower_bound : float
        Lower bound on launches for any policy.
    analysis_ms : float
        All between recording and the first launch: finding the nodes, grouping them, placing
        their values in memory.
    """

    workload: str
    batch_size: int
    granularity: str
    policy: str
    nodes: float
    launches: float
    lower_bound: float
    analysis_ms: float


def simulate(
    workload: Workload,
    batch_sizes: Sequence[int],
    minibatches: int,
    seed: int,
    step: Callable[[str], None],
) -> List[Simulated]:
    """Record minibatches and group them in every way; `step` is called for each row.

    Each minibatch first runs once per granularity without being counted: that pays for tracing and
    compiling, in whatever order the policies come.
    """
    rows = []
    for size in batch_sizes:
        source = workload.minibatches(size, seed)
        drawn = [next(source) for _ in range(minibatches)]
        for granularity in GRANULARITIES:
            for policy in ("", *POLICIES):
                runner = Runner(workload, options=options(granularity, policy or "depth"))
                figures = [_run(Contender(runner), batch) for batch in drawn]
                if policy:
                    medians = map(statistics.median, zip(*figures))
                    rows.append(Simulated(workload.name, size, granularity, policy, *medians))
                    step(f"{workload.name}, {size}, {granularity} by {policy}")
    return rows


def _run(contender: Contender, batch: Sequence[object]) -> Sequence[float]:
    row = contender.time("inference", [list(batch)], len(batch))
    bound = lower_bound(contender.runner.plan.graph.dependencies)
    return row.nodes, row.launches, bound, row.analysis


def table(rows: Sequence[Simulated], title: str) -> Table:
    """Lay the rows of one workload out for people."""
    columns = (
        Column("batch", "d"), Column("granularity"), Column("policy"),
        Column("nodes before", ",.0f"), Column("launches after", ",.0f"), Column("ratio", ",.1f"),
        Column("lower bound", ",.0f"), Column("whole analysis, ms", ".1f"),
    )  # fmt: skip
    body = [
        (row.batch_size, row.granularity, row.policy, row.nodes, row.launches,
         row.nodes / row.launches, row.lower_bound, row.analysis_ms)
        for row in rows
    ]  # fmt: skip
    return Table(f"Nodes before, launches after: {title}", columns, body)
