"""Ways of running a minibatch, and what one run took.

All contenders of a round run the same minibatch. Each has a plan cache of its own, so that none
finds a plan that another has made.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from typing import Any, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence

import mxnet as mx

import gluon_dynbatch as gdb
from gluon_dynbatch.cache import PlanCache
from gluon_dynbatch.schedule import analyze
from gluon_dynbatch.scope import RUNTIME
from workloads.base import Workload

KINDS = ("inference", "training")
GRANULARITIES = ("operator", "block", "graph")
POLICIES = ("depth", "agenda", "search")
#: What "auto" calls running without recording.
AT_ONCE = "calls at once"
PHASES = ("recording", "analysis", "dispatch", "running")


class Timing(NamedTuple):
    """What one run of one minibatch took, in milliseconds, and what it did.

    Attributes
    ----------
    total : float
        From the first call until all values are there; in training until parameters are updated.
    recording, analysis, dispatch : float
        As the report has them. Zero for the plain loop.
    running : float
        The rest of the total: waiting for the engine, and in training the backward pass and the
        optimizer.
    calls, units, launches, gathered : int
        Recorded calls, what the analyzer grouped, launches, and rows gathered by index.
    trying : bool
        Whether "auto" was still trying its candidates.
    cached : int
        Flushes whose plan came from the cache.
    setting : str
        What the last flush ran with: "granularity by policy (budget)". `AT_ONCE` if there was none,
        because "auto" ran the calls without recording them.
    """

    total: float
    recording: float = 0.0
    analysis: float = 0.0
    dispatch: float = 0.0
    running: float = 0.0
    calls: int = 0
    units: int = 0
    launches: int = 0
    gathered: int = 0
    trying: bool = False
    cached: int = 0
    setting: str = ""

    @classmethod
    def of(cls, total: float, report: Any) -> Timing:
        """Split the time of a run, in milliseconds, with the help of its report."""
        flushes = report.flushes
        known = [
            sum(getattr(flush, f"{phase}_ms") for flush in flushes)
            for phase in ("recording", "analysis", "dispatch")
        ]
        setting = AT_ONCE
        if flushes:
            last = flushes[-1]
            setting = f"{last.granularity} by {last.policy} ({last.budget})"
        return cls(
            total,
            *known,
            total - sum(known),
            report.nodes + report.at_once,
            sum(flush.units for flush in flushes),
            report.launches + report.at_once,
            sum(flush.rows_gathered for flush in flushes),
            report.trying,
            sum(flush.cached for flush in flushes),
            setting,
        )


class Contender:
    """One way of running minibatches.

    Parameters
    ----------
    label : str
        For tables.
    options : dict, optional
        Options of `gluon_dynbatch.batching`; None is the plain loop over samples, with hybridized
        cells and without a scope.
    """

    def __init__(self, label: str, options: Optional[Dict[str, Any]]) -> None:
        self.label = label
        self.options = options
        self.batch: Any = None
        self._plans = PlanCache()
        self._rate: Optional[float] = None

    def __repr__(self) -> str:
        return f"Contender({self.label!r})"

    def run(self, workload: Workload, samples: Sequence[Any], kind: str) -> Timing:
        """Run one minibatch and wait for its values."""
        run = _train if kind == "training" else _infer
        with self._own_cache():
            mx.nd.waitall()
            started = time.perf_counter()
            kept = run(workload, samples, self._scope())
            mx.nd.waitall()
            total = 1e3 * (time.perf_counter() - started)
        del kept  # what a program does with its results is not our business
        if self.options is None:
            return Timing(total, running=total)
        return Timing.of(total, self.batch.report)

    def visits(self) -> int:
        """Count the visits that the analysis of the last run was charged, by doing it again."""
        if self.batch.plan is None:
            return 0
        flush = self.batch.report.flushes[-1]
        budget = gdb.Budget(**parse_budget(flush.budget))
        if budget.is_zero:
            return 0
        return analyze(self.batch.plan.graph.dependencies, flush.policy, budget, self._rate).visits

    def forget(self) -> None:
        """Drop the plans made so far, so that the next run makes its own."""
        self._plans.clear()

    def _scope(self) -> ContextManager[Any]:
        self.batch = nullcontext() if self.options is None else gdb.batching(**self.options)
        return self.batch

    @contextmanager
    def _own_cache(self) -> Iterator[None]:
        shared = RUNTIME.plans, RUNTIME.figures.rate
        RUNTIME.plans, RUNTIME.figures.rate = self._plans, self._rate
        try:
            yield
        finally:
            self._rate = RUNTIME.figures.rate
            RUNTIME.plans, RUNTIME.figures.rate = shared


def _infer(workload: Workload, samples: Sequence[Any], scope: Any) -> List[mx.nd.NDArray]:
    with scope:
        return [workload.score(sample) for sample in samples]


def _train(workload: Workload, samples: Sequence[Any], scope: Any) -> List[mx.nd.NDArray]:
    with mx.autograd.record(), scope:
        losses = [workload.loss(sample) for sample in samples]
    mx.autograd.backward(losses)
    # Not every minibatch calls every block.
    workload.trainer.step(len(losses), ignore_stale_grad=True)
    return losses


def parse_budget(text: str) -> Dict[str, float]:
    """Read the limits of a budget as the report writes them, such as "2 ms, 100 visits"."""
    units = {"ms": "milliseconds", "visits": "visits"}
    if text in ("unlimited", "as it pays"):
        return {}
    parts = (part.split() for part in text.split(", "))
    return {units[unit]: float(limit) for limit, unit in parts}


def budget_label(budget: Any) -> str:
    """Write a budget as an option takes it in a few words."""
    if budget is None:
        return "no limit"
    if isinstance(budget, gdb.Budget):
        return str(budget)
    return budget if isinstance(budget, str) else f"{budget:g} ms"


def setting(granularity: str, policy: str, budget: Any) -> Contender:
    """Make the contender of one fixed setting."""
    options = {"granularity": granularity, "policy": policy, "analysis_budget": budget}
    return Contender(f"{granularity} by {policy} ({budget_label(budget)})", options)


def automatic() -> Contender:
    """Make the contender that leaves granularity, policy and budget to the library."""
    return Contender("auto", {"analysis_budget": "auto"})


def one_by_one() -> Contender:
    """Make the contender that records and runs call by call, without any analysis."""
    return Contender("one by one (budget 0)", {"analysis_budget": 0})


def plain_loop() -> Contender:
    """Make the contender that does not use the library: hybridized cells, sample by sample."""
    return Contender("plain hybridized loop", None)


class Settling(NamedTuple):
    """How "auto" came to its choice.

    Attributes
    ----------
    scopes : int
        How many there were before it was left alone.
    settled : bool
        Whether it timed none of the last ones any more.
    tried : int
        How many it timed.
    tried_ms : float
        What one of those took on average; 0 if there was none.
    """

    scopes: int
    settled: bool
    tried: int
    tried_ms: float


def settle(
    contender: Contender,
    workload: Workload,
    batch_size: int,
    kind: str,
    seed: int,
    limit: float = 60.0,
) -> Settling:
    """Run fresh minibatches until "auto" times none of the last ones any more.

    Minibatches of one size may count as several workloads, as their numbers of calls differ; the
    smaller they are, the longer the stretch without timing has to be.

    Parameters
    ----------
    contender : Contender
        With options that are "auto".
    limit : float
        Seconds after which this is given up.
    """
    enough = max(4, 96 // batch_size)
    started = time.perf_counter()
    trials: List[float] = []
    quiet = scopes = 0
    for samples in workload.minibatches(batch_size, seed):
        timing = contender.run(workload, samples, kind)
        scopes += 1
        quiet = 0 if timing.trying else quiet + 1
        if timing.trying:
            trials.append(timing.total)
        if quiet >= enough or time.perf_counter() - started > limit:
            break
    mean = sum(trials) / len(trials) if trials else 0.0
    return Settling(scopes, quiet >= enough, len(trials), mean)
