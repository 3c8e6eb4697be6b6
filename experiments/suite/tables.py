"""What came of a run of the benchmark, as tables: speed, parts of the time, "auto", bars."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from .outcome import Outcome
from .results import Table, grouped

#: A column for each of these, how many times as fast as it a way is.
LOOPS = ("imperative", "hybridized")
#: In names of fixed settings.
FIXED, CACHED, BY_DEPTH = "gdb:", ":cached", ":depth"
#: What one process that runs nothing else tells; see `suite.alone`.
Alone = Dict[str, Dict[str, Any]]


class Measured(NamedTuple):
    """What is known of one workload.

    Attributes
    ----------
    title, unit : str
        For people; what rates count.
    source : str
        The paper that the workload is from, and what it claims.
    reading : str
        What the figures say of that claim.
    lines : int
        Lines of the model and of its loop that exist only because of the library.
    outcomes : list of Outcome
    left_out, versions : dict
        By way: why it does not take part; what another system says of itself.
    alone : dict
        By kind and way, figures of processes that ran nothing else.
    """

    title: str
    unit: str
    source: str
    reading: str
    lines: int
    outcomes: List[Outcome]
    left_out: Dict[str, str]
    versions: Dict[str, str]
    alone: Dict[str, Alone]

    def as_json(self) -> Dict[str, Any]:
        """Give all figures as JSON takes them."""
        return {**self._asdict(), "outcomes": [each.as_json() for each in self.outcomes]}

    @classmethod
    def from_json(cls, content: Dict[str, Any]) -> Measured:
        """Read what `as_json` gave."""
        outcomes = list(map(Outcome.from_json, content["outcomes"]))
        return cls(**{**content, "outcomes": outcomes})

    def texts(self) -> Iterator[str]:
        """Write tables and notes."""
        yield f"## {self.title}\n\n{self.source} {self.reading}\n"
        for kind, own in grouped(self.outcomes, lambda outcome: outcome.kind).items():
            yield speeds(f"{self.unit} per second, {kind}", own).markdown()
        if any(row.launches is not None for each in self.outcomes for row in each.rows):
            yield parts(self.outcomes).markdown()
        if self.alone:
            yield memory(self.alone).markdown()
        yield f"Lines that exist only because of the library: {self.lines}."
        yield from (f"{way}: {version}" for way, version in self.versions.items())
        yield from (f"{way} is left out: {reason}" for way, reason in self.left_out.items())
        yield ""


def speeds(title: str, outcomes: Sequence[Outcome]) -> Table:
    """Lay out rates by batch size, with ratios and quartiles at the last of them."""
    last = outcomes[-1]
    bases = [label for label in LOOPS if label in last.by_label]
    columns = {
        "way": "s", **{str(each.batch_size): ",.0f" for each in outcomes},
        "quartiles": "s", **{f"x {label}": ",.2f" for label in bases},
    }  # fmt: skip
    rows = []
    for label in dict.fromkeys(row.label for each in outcomes for row in each.rows):
        spread = last.spread(label)
        ratios = [last.ratio(label, base) for base in bases]
        rows.append(
            (label, *(each.median(label) for each in outcomes),
             spread and spread.quartiles(",.0f"), *(ratio and ratio.median for ratio in ratios))
        )  # fmt: skip
    return Table(title, columns, rows)


def parts(outcomes: Sequence[Outcome]) -> Table:
    """Lay out launches, parts of the time and memory of all that the library ran."""
    fields = {"nodes": "nodes", "launches": "launches", "lower bound": "bound"}
    phases = {f"{name}, ms": name for name in ("recording", "analysis", "dispatch", "running")}
    phases = {**phases, "all, ms": "ms", "arena, MB": "arena_mb"}
    columns = {
        "kind": "s", "batch": "d", "way": "s", **dict.fromkeys(fields, ",.0f"),
        **dict.fromkeys(phases, ",.1f"), "ran": "s",
    }  # fmt: skip
    rows = []
    for each in outcomes:
        for label, own in each.by_label.items():
            if own[0].launches is not None:
                names = (*fields.values(), *phases.values())
                figures = [each.median(label, name) for name in names]
                rows.append((each.kind, each.batch_size, label, *figures, own[-1].setting))
    return Table("Launches, and where the time of a minibatch goes", columns, rows)


def memory(alone: Dict[str, Alone]) -> Table:
    """Lay out what fresh processes told."""
    columns = {"way": "s", "kind": "s", "batch": "d", "first minibatch, s": ".2f",
               "peak memory, MB": ",.0f", "before, MB": ",.0f"}  # fmt: skip
    rows = [
        (way, kind, *(row[name] for name in ("size", "first_seconds", "peak_mb", "start_mb")))
        for kind, ways in alone.items()
        for way, row in ways.items()
    ]
    return Table("Processes that run one way and nothing else", columns, rows)


#: "auto" may take so much longer than the best fixed setting, than the best one by depth, and than
#: the plain loop.
AUTO_BARS = {"best": 1.10, "best by depth": 1.05, "hybridized": 1.10}


def settings(found: Dict[str, Measured]) -> Optional[Table]:
    """Compare "auto" with the best fixed setting, with the best one by depth, and with the loop.

    Which is the best is told from every other round, and the ratio from those between, so that
    a setting that was lucky does not count twice. None if no run has two fixed settings.
    """
    ratios = {f"auto / {name} (bar {bar:.2f})": ".2f" for name, bar in AUTO_BARS.items()}
    columns = {"workload": "s", "kind": "s", "batch": "d", "auto chose": "s", "best setting": "s",
               **ratios}  # fmt: skip
    rows = [
        (name, outcome.kind, outcome.batch_size, *row)
        for name, measured in found.items()
        for outcome in measured.outcomes
        for row in _auto(outcome)
    ]
    return Table('"auto" against fixed settings', columns, rows) if rows else None


def _auto(outcome: Outcome) -> Iterator[Sequence[Any]]:
    fixed = [label for label in outcome.by_label if FIXED in label and CACHED not in label]
    if "gdb" not in outcome.by_label or len(fixed) < 2:
        return
    several = len({row.round for row in outcome.rows}) > 1
    choosing, judging = (
        outcome._replace(rows=[r for r in outcome.rows if not several or r.round % 2 == side])
        for side in (0, 1)
    )
    ranked = sorted(fixed, key=lambda label: choosing.median(label, "ms"))
    by_depth = next((label for label in ranked if BY_DEPTH in label), None)
    ratios = [judging.ratio(other, "gdb") for other in (ranked[0], by_depth, "hybridized")]
    chosen = outcome.by_label["gdb"][-1].setting
    yield chosen, ranked[0], *(ratio and ratio.median for ratio in ratios)


class Bar(NamedTuple):
    """A figure of the library's own way, and what it should be.

    Attributes
    ----------
    workload, kind : str
    what : str
        "speed": how many times as fast as `other`; "cells": the same without recording and
        analysis, which leaves the launches; "analysis": share of the time of `other`; "launches":
        those of "gdb" as a multiple of the fewest of any fixed setting; "memory", "first": see
        `memory`, the first as a multiple of that of `other`.
    other : str
    bound : float
        The least good figure, or the greatest where less is better.
    size : int or None
        Of the minibatches; None for the last one that was measured.
    """

    workload: str
    kind: str
    what: str
    other: str
    bound: float
    size: Optional[int] = None

    @property
    def less_is_better(self) -> bool:
        """Whether the bound is the greatest good figure."""
        return self.what not in ("speed", "cells")

    def figure(self, measured: Measured) -> Optional[float]:
        """Find the figure; None if it was not measured."""
        if self.what in ("memory", "first"):
            alone = measured.alone.get(self.kind, {})
            own, other = (alone.get(way, {}) for way in ("gdb", self.other))
            if self.what == "first":
                return own.get("first_seconds")
            peaks = (own.get("peak_mb"), other.get("peak_mb"))
            return None if None in peaks else peaks[0] / peaks[1]
        found = [o for o in measured.outcomes if o.kind == self.kind]
        found = [o for o in found if self.size in (None, o.batch_size)]
        return self._of(found[-1]) if found else None

    def _of(self, outcome: Outcome) -> Optional[float]:
        own, other = (outcome.by_label.get(label) for label in ("gdb", self.other))
        if self.what == "launches":
            counts = [
                outcome.median(name, "launches") for name in outcome.by_label if FIXED in name
            ]
            return outcome.median("gdb", "launches") / min(counts) if own and counts else None
        if not other or not own:
            return None
        if self.what == "analysis":
            return sum(row.analysis or 0 for row in other) / sum(row.ms for row in other)
        if self.what == "speed":
            return outcome.ratio("gdb", self.other).median
        cells = outcome.median("gdb", "running") + (outcome.median("gdb", "dispatch") or 0)
        return outcome.median(self.other, "ms") / cells


def _both(workload: str, other: str, *bounds: float, size: Optional[int] = None) -> List[Bar]:
    kinds = ("inference", "training")
    return [Bar(workload, k, "speed", other, b, size) for k, b in zip(kinds, bounds)]


BARS = (
    *_both("sick", "imperative", 40, 40, size=256),
    *_both("sick", "hybridized", 18, 30, size=256),
    *_both("sick", "hand", 1.4, 2.2, size=256),
    *_both("sick", "hybridized", 0.91, 0.91, size=1),
    Bar("sick", "inference", "analysis", "gdb", 0.10, 256),
    *(Bar("sick", kind, "memory", "hand", 1.25) for kind in ("inference", "training")),
    *(Bar("sick", kind, "first", "gdb", 1.5) for kind in ("inference", "training")),
    Bar("tagger", "training", "speed", "imperative", 10),
    Bar("tagger", "training", "speed", "hand", 0.8),
    Bar("sst", "training", "speed", "imperative", 25),
    Bar("characters", "training", "speed", "hybridized", 12),
    Bar("parser", "training", "speed", "hybridized", 10),
    Bar("modules", "inference", "speed", "hybridized", 3),
    Bar("modules", "inference", "cells", "hybridized", 10),
    Bar("experts1024", "inference", "cells", "hybridized", 100),
    Bar("treegru", "training", "speed", "hybridized", 10),
    Bar("treefc", "training", "speed", "hybridized", 18),
    Bar("mvrnn", "training", "speed", "hybridized", 30),
    Bar("lattice-lstm", "training", "speed", "hybridized", 8),
    Bar("lattice-gru", "training", "speed", "hybridized", 8),
    Bar("seq2seq", "training", "speed", "hybridized", 8),
    *(
        Bar(name, "training", "launches", "any setting", 1.05)
        for name in ("characters", "parser", "modules", "treegru", "treefc", "mvrnn",
                     "lattice-lstm", "seq2seq")
    ),
)  # fmt: skip


def bars(found: Dict[str, Measured]) -> Table:
    """Hold what was measured against the bars of its workloads."""
    columns = dict.fromkeys(("workload", "kind", "batch", "figure", "bar", "reached", "met?"), "s")
    columns["reached"] = ".2f"
    rows = []
    for bar in BARS:
        if bar.workload in found:
            figure = bar.figure(found[bar.workload])
            met = "–"
            if figure is not None:
                met = "yes" if (figure <= bar.bound) == bar.less_is_better else "NO"
            sign = "<=" if bar.less_is_better else ">="
            rows.append(
                (
                    bar.workload,
                    bar.kind,
                    str(bar.size or "last"),
                    f"{bar.what} / {bar.other}",
                    f"{sign} {bar.bound:g}",
                    figure,
                    met,
                )
            )
    return Table("Bars", columns, rows)
