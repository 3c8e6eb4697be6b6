"""Is "auto" as good as the best fixed setting? Every case runs in heats and a final.

In the heats all fixed settings run; the final is between "auto" and the best of them, and the plain
loop at small batch sizes. All run the same fresh minibatches, round by round in changing order.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from workloads.base import Workload

from .results import Column, Spread, Table, grouped, middle
from .running import (
    GRANULARITIES,
    POLICIES,
    Contender,
    Timing,
    automatic,
    one_by_one,
    plain_loop,
    setting,
    settle,
)

HEAT, FINAL = "heat", "final"
AUTO, PLAIN = automatic().label, plain_loop().label

#: Budgets of the fixed settings with policy "search", in milliseconds; None is no limit.
SEARCH_BUDGETS = (1.0, 10.0, None)
#: "auto" may take so much longer than the best fixed setting, and at batch size 1 than the loop.
AUTO_BAR, PLAIN_BAR = 1.10, 1.15
#: A fixed setting this much slower than the best one after the first heat sits the others out.
HOPELESS = 2.0
#: So many fixed settings reach the final.
FINALISTS = 3
#: The plain loop takes part up to this batch size; beyond, it would run for minutes.
PLAIN_SIZES = 8
#: A round of small minibatches runs enough of them for so many samples.
SAMPLES_PER_ROUND = 16


class ContestRun(NamedTuple):
    """One contender in one round: milliseconds per minibatch.

    `settled` says whether none of its flushes was timed by "auto".
    """

    workload: str
    kind: str
    batch_size: int
    stage: str
    round: int
    label: str
    total: float
    recording: float
    analysis: float
    dispatch: float
    running: float
    launches: float
    setting: str
    settled: bool


class Settled(NamedTuple):
    """How long "auto" took to make its choice."""

    workload: str
    kind: str
    batch_size: int
    flushes: int
    seconds: float
    settled: bool


class Verdict(NamedTuple):
    """One case: "auto" against the best fixed setting, and against the plain loop.

    Ratios are medians over the rounds of the final, each within one round.
    """

    workload: str
    kind: str
    batch_size: int
    chosen: str
    auto_ms: float
    best: str
    best_ms: float
    ratio: Spread
    plain_ms: Optional[float]
    plain_ratio: Optional[Spread]
    timed: int

    @property
    def met(self) -> bool:
        """Whether both bars are met."""
        plain = self.plain_ratio.median if self.plain_ratio and self.batch_size == 1 else 0.0
        return self.ratio.median <= AUTO_BAR and plain <= PLAIN_BAR


def fixed_settings() -> List[Contender]:
    """Make the grid of fixed settings."""
    settings = [one_by_one()]
    for granularity in GRANULARITIES:
        for policy in POLICIES:
            budgets = SEARCH_BUDGETS if policy == "search" else (None,)
            settings += [setting(granularity, policy, budget) for budget in budgets]
    return settings


def measure(
    workload: Workload,
    kind: str,
    batch_size: int,
    heats: int,
    rounds: int,
    seed: int,
    step: Callable[[str], None],
) -> Tuple[List[ContestRun], Settled]:
    """Run one case.

    Parameters
    ----------
    workload : Workload
    kind : {"inference", "training"}
    batch_size : int
    heats, rounds : int
        Rounds of all fixed settings, after one that is not counted, and rounds of the final.
    seed : int
        What minibatches and orders are drawn from.
    step : callable
        Called with a word on what was done, for each round.
    """
    case = f"{workload.name}, {kind}, {batch_size}"
    per_round = max(1, SAMPLES_PER_ROUND // batch_size)
    drawn = workload.minibatches(batch_size, seed)
    order = random.Random(seed)

    def run_round(contenders: List[Contender], stage: str, number: int) -> List[ContestRun]:
        work = [next(drawn) for _ in range(per_round)]
        order.shuffle(contenders)
        runs = []
        for contender in contenders:
            timings = [contender.run(workload, samples, kind) for samples in work]
            place = (workload.name, kind, batch_size, stage, number, contender.label)
            runs.append(_run_of(place, timings))
        step(case)
        return runs

    contenders = fixed_settings()
    run_round(contenders, HEAT, 0)
    runs: List[ContestRun] = []
    for number in range(1, heats + 1):
        runs += run_round(contenders, HEAT, number)
        contenders = best_of(contenders, runs, HOPELESS)
    auto = automatic()
    settling = settle(auto, workload, batch_size, kind, seed + 1)
    finalists = best_of(contenders, runs)[:FINALISTS] + [auto]
    if batch_size <= PLAIN_SIZES:
        finalists.append(plain_loop())
    run_round(finalists, FINAL, 0)
    for number in range(1, rounds + 1):
        runs += run_round(finalists, FINAL, number)
    return runs, Settled(workload.name, kind, batch_size, *settling)


def _run_of(place: Tuple[Any, ...], timings: Sequence[Timing]) -> ContestRun:
    fields = ("total", "recording", "analysis", "dispatch", "running", "launches")
    means = (sum(getattr(t, field) for t in timings) / len(timings) for field in fields)
    settings = [t.setting for t in timings]
    usual = max(dict.fromkeys(settings), key=settings.count)
    return ContestRun(*place, *means, usual, not any(t.measured for t in timings))


def best_of(
    contenders: Sequence[Contender], runs: Sequence[ContestRun], factor: float = float("inf")
) -> List[Contender]:
    """Sort contenders by the median of their runs; drop those `factor` times slower than the best.

    All that are left have run equally often.
    """
    totals = {label: middle(group, "total")
              for label, group in grouped(runs, lambda run: run.label).items()}  # fmt: skip
    ranked = sorted(contenders, key=lambda c: totals[c.label])
    return [c for c in ranked if totals[c.label] <= factor * totals[ranked[0].label]]


def verdict(runs: Sequence[ContestRun]) -> Verdict:
    """Judge one case by its final."""
    final = grouped((run for run in runs if run.stage == FINAL), lambda run: run.label)
    totals = {label: middle(group, "total") for label, group in final.items()}
    best = min((label for label in final if label not in (AUTO, PLAIN)), key=totals.__getitem__)
    settings = [run.setting for run in final[AUTO]]
    chosen = max(dict.fromkeys(settings), key=settings.count)
    plain = PLAIN in final
    return Verdict(
        *runs[0][:3],
        chosen,
        totals[AUTO],
        best,
        totals[best],
        _ratio(final[AUTO], final[best]),
        totals[PLAIN] if plain else None,
        _ratio(final[AUTO], final[PLAIN]) if plain else None,
        sum(not run.settled for run in final[AUTO]),
    )


def _ratio(ours: Sequence[ContestRun], theirs: Sequence[ContestRun]) -> Spread:
    by_round = {run.round: run.total for run in theirs}
    return Spread.of(run.total / by_round[run.round] for run in ours)


def verdicts(runs: Sequence[ContestRun]) -> List[Verdict]:
    """Judge all cases."""
    return [verdict(group) for group in grouped(runs, lambda run: run[:3]).values()]


def table(found: Sequence[Verdict], settled: Sequence[Settled], titles: Dict[str, str]) -> Table:
    """Lay the verdicts out for people."""
    columns = (
        Column("workload"),
        Column("kind"),
        Column("batch", "d"),
        Column("auto chose"),
        Column("auto, ms", ",.2f"),
        Column("best fixed setting"),
        Column("its ms", ",.2f"),
        Column(f"auto / best (bar {AUTO_BAR:.2f})", ".2f"),
        Column("quartiles"),
        Column("plain loop, ms", ",.2f"),
        Column(f"auto / plain (bar {PLAIN_BAR:.2f} at 1)", ".2f"),
        Column("bars"),
        Column("flushes to settle"),
        Column("still timed", "d"),
    )
    how = {row[:3]: row for row in settled}
    rows = []
    for v in found:
        trial = how[v[:3]]
        rows.append(
            (titles[v.workload], v.kind, v.batch_size, v.chosen, v.auto_ms, v.best, v.best_ms,
             v.ratio.median, f"{v.ratio.low:.2f}–{v.ratio.high:.2f}", v.plain_ms,
             None if v.plain_ratio is None else v.plain_ratio.median,
             "met" if v.met else "missed",
             f"{trial.flushes}" if trial.settled else f"not after {trial.flushes}", v.timed)
        )  # fmt: skip
    return Table('"auto" against every fixed setting', columns, rows)


def heat_table(runs: Sequence[ContestRun], titles: Dict[str, str]) -> Table:
    """Lay out how all fixed settings did in the heats, the fastest first."""
    columns = (Column("workload"), Column("kind"), Column("batch", "d"), Column("setting"),
               Column("ms", ",.2f"), Column("launches", ",.0f"), Column("heats", "d"))  # fmt: skip
    rows = []
    heats = (run for run in runs if run.stage == HEAT)
    for case, group in grouped(heats, lambda run: run[:3]).items():
        labels = grouped(group, lambda run: run.label)
        for label, own in sorted(labels.items(), key=lambda item: middle(item[1], "total")):
            rows.append((titles[case[0]], *case[1:], label, middle(own, "total"),
                         middle(own, "launches"), len(own)))  # fmt: skip
    return Table("Heats: every fixed setting", columns, rows)
