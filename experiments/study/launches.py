"""The time of single launches against their rows: ``a + b * rows``, per kind of launch.

Every launch is waited for before the next one starts, which is not how a flush runs; the figures
say what a launch costs by itself. Launches of many widths come from cutting the analysis short.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from scipy.optimize import nnls

import gluon_dynbatch as gdb
from gluon_dynbatch.run.execute import Execution
from workloads.base import Workload

from .results import Column, Table, grouped, middle
from .running import setting

#: A straight line needs so many launches, of so many widths.
LAUNCHES, WIDTHS = 12, 4


class LaunchRun(NamedTuple):
    """One launch, forward. `segment` tells kinds of launches apart: name, number."""

    workload: str
    granularity: str
    segment: str
    rows: int
    milliseconds: float


class LaunchLine(NamedTuple):
    """A straight line through the launches of one kind: microseconds and microseconds per row."""

    workload: str
    granularity: str
    segment: str
    launches: int
    fixed: float
    per_row: float


@contextmanager
def timed_launches(found: List[Tuple[Any, str, int, float]]) -> Iterator[None]:
    """Wait before and after every launch; append its segment, name, rows and milliseconds."""
    launch_one = Execution._launch

    def timed(execution: Execution, number: int, launch: Any) -> None:
        mx.nd.waitall()
        started = time.perf_counter()
        launch_one(execution, number, launch)
        mx.nd.waitall()
        elapsed = 1e3 * (time.perf_counter() - started)
        name = execution.plan.graph.name(int(launch.units[0])).rpartition("_")[2]
        rows = max((region.rows for region in launch.outputs), default=0)
        found.append((launch.segment, name, rows, elapsed))

    Execution._launch = timed
    try:
        yield
    finally:
        Execution._launch = launch_one


def measure(
    workload: Workload,
    batch_sizes: Sequence[int],
    granularities: Sequence[str],
    seed: int,
    step: Callable[[str], None],
) -> List[LaunchRun]:
    """Time the launches of minibatches of several sizes, analysed in full and in part."""
    runs: List[LaunchRun] = []
    for granularity in granularities:
        numbers: Dict[int, str] = {}
        for size in batch_sizes:
            drawn = workload.minibatches(size, seed)
            full = setting(granularity, "depth", None)
            units = full.run(workload, next(drawn), "inference").units
            for share in (0.02, 0.1, 0.3, 0.6, 1.0):
                budget = gdb.Budget(visits=max(1, int(share * units)))
                contender = setting(granularity, "depth", budget if share < 1 else None)
                contender.run(workload, next(drawn), "inference")
                found: List[Tuple[Any, str, int, float]] = []
                with timed_launches(found):
                    contender.run(workload, next(drawn), "inference")
                for segment, name, rows, elapsed in found:
                    label = numbers.setdefault(id(segment), f"{name} #{len(numbers)}")
                    runs.append(LaunchRun(workload.name, granularity, label, rows, elapsed))
            step(f"{workload.name}, launches, {size}")
    return runs


def lines(runs: Sequence[LaunchRun]) -> List[LaunchLine]:
    """Fit a line per kind of launch that came in enough widths, the most frequent kinds first.

    Through the medians of each width, as single launches may be held up by anything; errors count
    relative to the time, and neither coefficient can be negative.
    """
    found = []
    for key, group in grouped(runs, lambda run: run[:3]).items():
        widths = grouped(group, lambda run: run.rows)
        if len(group) < LAUNCHES or len(widths) < WIDTHS:
            continue
        took = np.array([middle(own, "milliseconds") for own in widths.values()])
        matrix = np.array([[1.0, rows] for rows in widths]) / took[:, None]
        (fixed, per_row), _ = nnls(matrix, np.ones(len(took)))
        found.append(LaunchLine(*key, len(group), 1e3 * float(fixed), 1e3 * float(per_row)))
    return sorted(found, key=lambda line: -line.launches)


def table(found: Sequence[LaunchLine], title: str) -> Table:
    """Lay the lines out for people."""
    columns = (
        Column("granularity"),
        Column("kind of launch"),
        Column("launches timed", ",d"),
        Column("a: per launch, us", ",.1f"),
        Column("b: per row, us", ",.3f"),
    )
    rows = [line[1:] for line in found]
    return Table(f"Time of one launch, a + b * rows: {title}", columns, rows)
