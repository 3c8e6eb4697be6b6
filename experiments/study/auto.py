"""Is "auto" as good as the best fixed setting? Every case runs in heats and a final.

In the heats all fixed settings run; the final is between "auto", the best of them, the best one by
depth, and the plain loop. What "auto" took while it tried its candidates is told as well.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from timing.contest import Contender, Outcome, contest
from timing.results import Column, Table, grouped
from workloads.base import Workload

from .settings import AUTO, GRANULARITIES, PLAIN, POLICIES, automatic, fixed, one_by_one, plain_loop

#: In the labels of settings with this policy.
BY_DEPTH = " by depth"
#: Budgets of the fixed settings with policy "search", in milliseconds; None is no limit.
SEARCH_BUDGETS = (10.0, None)
#: "auto" may take so much longer than the best fixed setting, than the best one by depth, and than
#: the plain loop; where every value is read at once, nothing can be batched, and scopes cost time.
AUTO_BAR, DEPTH_BAR, PLAIN_BAR = 1.10, 1.05, 1.10
PLAIN_BARS = {"reads": 1.15}
#: So many scopes "auto" may try; so many if the best kind of setting is `CLEAR` times as fast as
#: the next one. They may take so much longer than with the best setting.
TRIED_BAR, CLEARLY_TRIED_BAR, LOST_BAR = 30, 12, 0.20
CLEAR = 1.5
#: So many fixed settings reach the final, beside the best one by depth.
FINALISTS = 2
#: A round of small minibatches runs enough of them for so many samples.
SAMPLES_PER_ROUND = 8
#: Seconds after which "auto" is not waited for any longer.
PATIENCE = 30.0


class Case(NamedTuple):
    """A workload, kind and batch size, in two contests."""

    heats: Outcome
    final: Outcome

    def as_json(self) -> List[Any]:
        """Give all figures as JSON takes them."""
        return [outcome.as_json() for outcome in self]

    @classmethod
    def from_json(cls, content: Sequence[Any]) -> Case:
        """Read what `as_json` gave."""
        return cls(*map(Outcome.from_json, content))


def fixed_settings(workload: Workload) -> List[Contender]:
    """Make the grid of fixed settings."""
    return [
        one_by_one(workload),
        *(
            fixed(workload, granularity, policy, budget)
            for granularity in GRANULARITIES
            for policy in POLICIES
            for budget in (SEARCH_BUDGETS if policy == "search" else (None,))
        ),
    ]


def measure(
    workload: Workload,
    kind: str,
    size: int,
    heats: int,
    rounds: int,
    seed: int,
    step: Callable[[str], None],
) -> Case:
    """Run one case; `heats` and `rounds` are those of the two contests. See `contest`."""
    fresh = workload.minibatches(size, seed)
    count = max(1, SAMPLES_PER_ROUND // size)
    grid = fixed_settings(workload)
    first = contest(grid, fresh, kind, size, heats, count=count, seed=seed, step=step)
    finalists = [*finalists_of(grid, first), automatic(workload), plain_loop(workload)]
    final = contest(
        finalists, fresh, kind, size, rounds, PATIENCE, count=count, seed=seed, step=step
    )
    return Case(first, final)


def ranked(outcome: Outcome) -> List[str]:
    """Sort the labels of the fixed settings, the fastest first."""
    labels = (label for label in outcome.by_label if label not in (AUTO, PLAIN))
    return sorted(labels, key=lambda label: outcome.median(label, "ms"))


def finalists_of(grid: Sequence[Contender], heats: Outcome) -> List[Contender]:
    """Choose the best fixed settings, and the best one by depth."""
    labels = ranked(heats)
    by_depth = next(label for label in labels if BY_DEPTH in label)
    chosen = dict.fromkeys([*labels[:FINALISTS], by_depth])
    return [next(one for one in grid if one.label == label) for label in chosen]


class Verdict:
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

    def __init__(self, case: Case) -> None:
        self.final = final = case.final
        labels = ranked(final)
        rows = final.by_label[AUTO]
        settings = [row.setting for row in rows]
        self.chosen = max(dict.fromkeys(settings), key=settings.count)
        self.best = labels[0]
        self.ratio = final.ratio(AUTO, self.best)
        self.depth_ratio = final.ratio(AUTO, next(name for name in labels if BY_DEPTH in name))
        self.plain_ratio = final.ratio(AUTO, PLAIN)
        self.plain_bar = PLAIN_BARS.get(final.workload, PLAIN_BAR)
        self.settling = final.settling[AUTO]
        self.most_tried = CLEARLY_TRIED_BAR if _is_clear(case) else TRIED_BAR
        fastest = min(self.best, PLAIN, key=lambda label: final.median(label, "ms"))
        times = [row.ms for row in final.by_label[fastest]]
        tried_ms = self.settling.tried_ms
        self.lost = tried_ms * len(times) / sum(times) - 1 if self.settling.tried else None
        self.timed = sum(row.trying for row in rows)

    @property
    def missed(self) -> List[str]:
        """Name the bars that are not met."""
        settled, tried = self.settling.settled, self.settling.tried
        bars = {
            "best": self.ratio.median <= AUTO_BAR,
            "depth": self.depth_ratio.median <= DEPTH_BAR,
            "plain": self.plain_ratio.median <= self.plain_bar,
            "tried": settled and tried <= self.most_tried,
            "lost": (self.lost or 0.0) <= LOST_BAR,
        }
        return [name for name, met in bars.items() if not met]


def _is_clear(case: Case) -> bool:
    """Whether the best granularity, or the plain loop, is much faster than the next one."""
    times = {label: case.heats.median(label, "ms") for label in case.heats.by_label}
    times[PLAIN] = case.final.median(PLAIN, "ms")
    by_granularity = grouped(times, lambda label: label.split(" by ")[0])
    first, second = sorted(min(map(times.get, own)) for own in by_granularity.values())[:2]
    return second >= CLEAR * first


def table(found: Sequence[Verdict], titles: Dict[str, str]) -> Table:
    """Lay the verdicts out for people."""
    columns = (
        Column("workload"), Column("kind"), Column("batch", "d"), Column("auto chose"),
        Column("auto, ms", ",.2f"), Column("best fixed setting"), Column("its ms", ",.2f"),
        Column(f"auto / best (bar {AUTO_BAR:.2f})", ".2f"), Column("quartiles"),
        Column(f"auto / depth (bar {DEPTH_BAR:.2f})", ".2f"), Column("plain loop, ms", ",.2f"),
        Column("auto / plain"), Column("scopes tried"), Column(f"lost (bar {LOST_BAR:.0%})", ".0%"),
        Column("bars"), Column("still trying", "d"),
    )  # fmt: skip
    rows = []
    for v in found:
        final, settling = v.final, v.settling
        auto, best, plain = (final.median(label, "ms") for label in (AUTO, v.best, PLAIN))
        tried = f"{settling.tried} of {settling.scopes} (bar {v.most_tried})"
        rows.append(
            (titles[final.workload], final.kind, final.batch_size, v.chosen, auto, v.best, best,
             v.ratio.median, v.ratio.quartiles(".2f"), v.depth_ratio.median, plain,
             f"{v.plain_ratio.median:.2f} (bar {v.plain_bar:.2f})",
             tried + ("" if settling.settled else ", not settled"), v.lost,
             "missed: " + ", ".join(v.missed) if v.missed else "met", v.timed)
        )  # fmt: skip
    return Table('"auto" against every fixed setting', columns, rows)
