"""Is "auto" as good as the best fixed setting? Every case runs in heats and a final.

In the heats all fixed settings run; the final is between "auto", the best of them, the best one by
depth, and the plain loop. All run the same new minibatches, round by round in changing order. What
"auto" took while it tried its candidates is told as well.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gluon_dynbatch.record.recorder import STATE
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
#: In the labels of settings with this policy.
BY_DEPTH = " by depth"

#: Budgets of the fixed settings with policy "search", in milliseconds; None is no limit.
SEARCH_BUDGETS = (10.0, None)
#: "auto" may take so much longer than the best fixed setting, than the best one by depth, and than
#: the plain loop.
AUTO_BAR, DEPTH_BAR, PLAIN_BAR = 1.10, 1.05, 1.10
#: Where every value is read at once, nothing can be batched, and scopes are not free.
PLAIN_BARS = {"reads": 1.15}
#: So many scopes "auto" may try; so many if the best kind of setting is `CLEAR` times as fast as
#: the next one. They may take so much longer than with the best setting.
TRIED_BAR, CLEARLY_TRIED_BAR, LOST_BAR = 30, 12, 0.20
CLEAR = 1.5
#: A fixed setting this much slower than the best one after the first heat sits the others out.
HOPELESS = 2.0
#: So many fixed settings reach the final, beside the best one by depth.
FINALISTS = 2
#: Running one by one takes part up to this batch size; beyond, it would run for minutes.
SMALL = 8
#: Milliseconds after which the plain loop sits the rest of the final out, unless minibatches are
#: small.
PLAIN_MS = 4000.0
#: A round of small minibatches runs enough of them for so many samples.
SAMPLES_PER_ROUND = 8
#: Seconds after which "auto" is not waited for any longer.
PATIENCE = 30.0


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
    """How long "auto" took to make its choice; see `running.Settling`."""

    workload: str
    kind: str
    batch_size: int
    scopes: int
    settled: bool
    tried: int
    tried_ms: float


class Verdict(NamedTuple):
    """One case: "auto" against the best fixed setting, the best one by depth and the plain loop.

    Ratios are medians over the rounds of the final, each within one round.

    Attributes
    ----------
    lost : float or None
        What scopes took longer while "auto" tried, as a share of their time with the best setting,
        or as plain loop if that is faster. None if it tried nothing.
    most_tried : int
        How many scopes it may try.
    timed : int
        Rounds of the final in which it still tried.
    """

    workload: str
    kind: str
    batch_size: int
    chosen: str
    auto_ms: float
    best: str
    best_ms: float
    ratio: Spread
    depth_ratio: Spread
    plain_ms: float
    plain_ratio: Spread
    scopes: int
    settled: bool
    tried: int
    most_tried: int
    lost: Optional[float]
    timed: int

    @property
    def plain_bar(self) -> float:
        """How much longer than the plain loop this may take."""
        return PLAIN_BARS.get(self.workload, PLAIN_BAR)

    @property
    def missed(self) -> List[str]:
        """Name the bars that are not met."""
        bars = {
            "best": self.ratio.median <= AUTO_BAR,
            "depth": self.depth_ratio.median <= DEPTH_BAR,
            "plain": self.plain_ratio.median <= self.plain_bar,
            "tried": self.settled and self.tried <= self.most_tried,
            "lost": (self.lost or 0.0) <= LOST_BAR,
        }
        return [name for name, met in bars.items() if not met]


def fixed_settings(batch_size: int) -> List[Contender]:
    """Make the grid of fixed settings."""
    settings = [one_by_one()] if batch_size <= SMALL else []
    for granularity in GRANULARITIES:
        for policy in POLICIES:
            budgets = SEARCH_BUDGETS if policy == "search" else (None,)
            settings += [setting(granularity, policy, budget) for budget in budgets]
    return settings


class _Case:
    """One case, its minibatches and what was measured so far."""

    def __init__(
        self, workload: Workload, kind: str, batch_size: int, seed: int, step: Callable[[str], None]
    ) -> None:
        self.place = (workload.name, kind, batch_size)
        self.runs: List[ContestRun] = []
        self._workload, self._kind = workload, kind
        self._drawn = workload.minibatches(batch_size, seed)
        self._per_round = max(1, SAMPLES_PER_ROUND // batch_size)
        self._order = random.Random(seed)
        self._step = step

    def warm_up(self, contenders: Sequence[Contender]) -> None:
        """Run a round that does not count; what would run for long does only a few samples."""
        work = next(self._drawn)
        for contender in contenders:
            samples = work[:SMALL] if contender.options is None else work
            contender.run(self._workload, samples, self._kind)
        self._step(", ".join(map(str, self.place)))

    def run(self, contenders: Sequence[Contender], stage: str, number: int) -> None:
        """Run a round."""
        work = [next(self._drawn) for _ in range(self._per_round)]
        for contender in self._order.sample(contenders, len(contenders)):
            timings = [contender.run(self._workload, samples, self._kind) for samples in work]
            self.runs.append(_run_of((*self.place, stage, number, contender.label), timings))
        self._step(", ".join(map(str, self.place)))

    def afford_plain(self) -> bool:
        """Whether the plain loop is still to take part in the final."""
        spent = sum(run.total for run in self.runs if run.label == PLAIN)
        return self.place[2] <= SMALL or spent < PLAIN_MS


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
        Called with a word on what was done, for each round; `heats` + `rounds` + 2 of them.
    """
    STATE.sites.clear()  # a new process would know nothing of the cases before
    case = _Case(workload, kind, batch_size, seed, step)
    contenders = fixed_settings(batch_size)
    case.warm_up(contenders)
    for number in range(1, heats + 1):
        case.run(contenders, HEAT, number)
        contenders = best_of(contenders, case.runs, HOPELESS)
    auto, plain = automatic(), plain_loop()
    settling = settle(auto, workload, batch_size, kind, seed + 1, PATIENCE)
    finalists = [*finalists_of(contenders, case.runs), auto]
    case.warm_up([*finalists, plain])
    for number in range(1, rounds + 1):
        case.run([*finalists, plain] if case.afford_plain() else finalists, FINAL, number)
    return case.runs, Settled(*case.place, *settling)


def finalists_of(contenders: Sequence[Contender], runs: Sequence[ContestRun]) -> List[Contender]:
    """Choose the best fixed settings, and the best one by depth (even if it was dropped)."""
    best = best_of(contenders, runs)[:FINALISTS]
    by_depth = [c for c in fixed_settings(runs[0].batch_size) if BY_DEPTH in c.label]
    first = best_of(by_depth, runs)[0]
    return best if first.label in [c.label for c in best] else [*best, first]


def _run_of(place: Tuple[Any, ...], timings: Sequence[Timing]) -> ContestRun:
    fields = ("total", "recording", "analysis", "dispatch", "running", "launches")
    means = (sum(getattr(t, field) for t in timings) / len(timings) for field in fields)
    settings = [t.setting for t in timings]
    usual = max(dict.fromkeys(settings), key=settings.count)
    return ContestRun(*place, *means, usual, not any(t.trying for t in timings))


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


def verdict(runs: Sequence[ContestRun], settled: Settled) -> Verdict:
    """Judge one case by its final."""
    final = grouped((run for run in runs if run.stage == FINAL), lambda run: run.label)
    totals = {label: middle(group, "total") for label, group in final.items()}
    fixed = sorted((label for label in final if label not in (AUTO, PLAIN)), key=totals.__getitem__)
    best = fixed[0]
    by_depth = next(label for label in fixed if BY_DEPTH in label)
    settings = [run.setting for run in final[AUTO]]
    fastest = final[best if totals[best] <= totals[PLAIN] else PLAIN]
    mean = sum(run.total for run in fastest) / len(fastest)
    return Verdict(
        *runs[0][:3],
        max(dict.fromkeys(settings), key=settings.count),
        totals[AUTO],
        best,
        totals[best],
        _ratio(final[AUTO], final[best]),
        _ratio(final[AUTO], final[by_depth]),
        totals[PLAIN],
        _ratio(final[AUTO], final[PLAIN]),
        settled.scopes,
        settled.settled,
        settled.tried,
        CLEARLY_TRIED_BAR if _is_clear(runs) else TRIED_BAR,
        settled.tried_ms / mean - 1 if settled.tried else None,
        sum(not run.settled for run in final[AUTO]),
    )


def _is_clear(runs: Sequence[ContestRun]) -> bool:
    """Whether the best granularity, or the plain loop, is much faster than the next one."""
    by_kind: Dict[str, float] = {}
    rivals = (run for run in runs if run.stage == HEAT or run.label == PLAIN)
    for label, group in grouped(rivals, lambda run: run.label).items():
        kind = label.split(" by ")[0]
        by_kind[kind] = min(by_kind.get(kind, float("inf")), middle(group, "total"))
    first, second = sorted(by_kind.values())[:2]
    return second >= CLEAR * first


def _ratio(ours: Sequence[ContestRun], theirs: Sequence[ContestRun]) -> Spread:
    by_round = {run.round: run.total for run in theirs}
    return Spread.of(run.total / by_round[run.round] for run in ours if run.round in by_round)


def verdicts(runs: Sequence[ContestRun], settled: Sequence[Settled]) -> List[Verdict]:
    """Judge all cases."""
    how = {row[:3]: row for row in settled}
    cases = grouped(runs, lambda run: run[:3])
    return [verdict(group, how[case]) for case, group in cases.items()]


def table(found: Sequence[Verdict], titles: Dict[str, str]) -> Table:
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
        Column(f"auto / depth (bar {DEPTH_BAR:.2f})", ".2f"),
        Column("plain loop, ms", ",.2f"),
        Column("auto / plain"),
        Column("scopes tried"),
        Column(f"lost (bar {LOST_BAR:.0%})", ".0%"),
        Column("bars"),
        Column("still trying", "d"),
    )
    rows = [
        (titles[v.workload], v.kind, v.batch_size, v.chosen, v.auto_ms, v.best, v.best_ms,
         v.ratio.median, f"{v.ratio.low:.2f}–{v.ratio.high:.2f}", v.depth_ratio.median, v.plain_ms,
         f"{v.plain_ratio.median:.2f} (bar {v.plain_bar:.2f})",
         f"{v.tried} of {v.scopes} (bar {v.most_tried})" + ("" if v.settled else ", not settled"),
         v.lost, "missed: " + ", ".join(v.missed) if v.missed else "met", v.timed)
        for v in found
    ]  # fmt: skip
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
