"""What came of a run of the benchmark, as tables: speed, parts of the time, "auto", bars."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .contest import KINDS
from .rows import Measured, Row, Rows

#: A column for each of these, how many times as fast as it a way is.
LOOPS = ("imperative", "hybridized")
#: In names of fixed settings.
FIXED, CACHED, BY_DEPTH = "gdb:", ":cached", ":depth"


class Table(NamedTuple):
    """A table for people; `columns` says for each heading how cells below it are written."""

    title: str
    columns: Dict[str, str]
    rows: List[Tuple[Any, ...]]

    def markdown(self) -> str:
        """Write the table as Markdown, aligned so that it reads well as plain text, too."""
        forms = list(self.columns.values())
        cells = [list(self.columns)]
        for row in self.rows:
            cells.append(["–" if v is None else format(v, form) for v, form in zip(row, forms)])
        widths = [max(3, *map(len, column)) for column in zip(*cells)]
        sides = ["<" if form == "s" else ">" for form in forms]
        cells.insert(1, ["-" * (w - (s == ">")) + ":" * (s == ">") for w, s in zip(widths, sides)])
        lines = [
            " | ".join(f"{cell:{s}{w}}" for cell, s, w in zip(row, sides, widths)) for row in cells
        ]
        return "\n".join([f"### {self.title}", "", *(f"| {line} |" for line in lines), ""])


def texts(measured: Measured) -> Iterator[str]:
    """Write tables and notes of a workload."""
    yield f"## {measured.title}\n\n{measured.source} {measured.reading}\n"
    for kind, rows in measured.rows.by("kind").items():
        yield speeds(f"{measured.unit} per second, {kind}", rows).markdown()
    if any(row.launches is not None for row in measured.rows):
        yield parts(measured.rows).markdown()
    if measured.alone:
        yield memory(measured.alone).markdown()
    yield f"Lines that exist only because of the library: {measured.lines}."
    yield from (f"{way}: {version}" for way, version in measured.versions.items())
    yield from (f"{way} is left out: {reason}" for way, reason in measured.left_out.items())
    yield ""


def speeds(title: str, rows: Rows) -> Table:
    """Lay out rates by batch size, with ratios and quartiles at the last of them."""
    sizes = rows.by("size")
    last = list(sizes.values())[-1]
    bases = [way for way in LOOPS if way in last.by("way")]
    columns = {
        "way": "s", **{str(size): ",.0f" for size in sizes},
        "quartiles": "s", **{f"x {way}": ",.2f" for way in bases},
    }  # fmt: skip
    cells = []
    for way in rows.by("way"):
        spread = last.spread(way)
        quartiles = spread and f"{spread.low:,.0f}–{spread.high:,.0f}"
        rates = [own.median(way) for own in sizes.values()]
        cells.append((way, *rates, quartiles, *(last.ratio(way, base) for base in bases)))
    return Table(title, columns, cells)


def parts(rows: Rows) -> Table:
    """Lay out launches, parts of the time and memory of all that the library ran."""
    counts = {"nodes": "nodes", "launches": "launches", "lower bound": "bound"}
    phases = {f"{name}, ms": name for name in ("recording", "analysis", "dispatch", "running")}
    phases = {**phases, "all, ms": "ms", "arena, MB": "arena_mb"}
    columns = {
        "kind": "s", "batch": "d", "way": "s", **dict.fromkeys(counts, ",.0f"),
        **dict.fromkeys(phases, ",.1f"), "ran": "s",
    }  # fmt: skip
    fields = (*counts.values(), *phases.values())
    cells = [
        (*key, *(own.median(key[2], field) for field in fields), own[-1].setting)
        for key, own in rows.by("kind", "size", "way").items()
        if own[0].launches is not None
    ]
    return Table("Launches, and where the time of a minibatch goes", columns, cells)


def memory(alone: Sequence[Dict[str, Any]]) -> Table:
    """Lay out what fresh processes told."""
    columns = {"way": "s", "kind": "s", "batch": "d", "first minibatch, s": ".2f",
               "peak memory, MB": ",.0f", "before, MB": ",.0f"}  # fmt: skip
    names = ("way", "kind", "size", "first_seconds", "peak_mb", "start_mb")
    rows = [tuple(figures[name] for name in names) for figures in alone]
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
    cells = []
    for name, measured in found.items():
        for (kind, size), rows in measured.rows.by("kind", "size").items():
            ways = rows.by("way")
            fixed = [way for way in ways if FIXED in way and CACHED not in way]
            if "gdb" not in ways or len(fixed) < 2:
                continue
            halves = [Rows(row for row in rows if row.round % 2 == side) for side in (0, 1)]
            choosing, judging = halves if halves[1] else (rows, rows)
            ranked = sorted(fixed, key=lambda way: choosing.median(way, "ms"))
            by_depth = next((way for way in ranked if BY_DEPTH in way), "")
            ratios = [judging.ratio(way, "gdb") for way in (ranked[0], by_depth, "hybridized")]
            cells.append((name, kind, size, ways["gdb"][-1].setting, ranked[0], *ratios))
    return Table('"auto" against fixed settings', columns, cells) if cells else None


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

    def met(self, figure: float) -> bool:
        """Whether a figure is as good as it should be."""
        return figure >= self.bound if self.what in ("speed", "cells") else figure <= self.bound

    def figure(self, measured: Measured) -> Optional[float]:
        """Find the figure; None if it was not measured."""
        if self.what in ("memory", "first"):
            alone = {each["way"]: each for each in measured.alone if each["kind"] == self.kind}
            if not {"gdb", self.other} <= set(alone):
                return None
            if self.what == "first":
                return alone["gdb"]["first_seconds"]
            own, other = (alone[way]["peak_mb"] for way in ("gdb", self.other))
            return own and own / other
        sizes = Rows(row for row in measured.rows if row.kind == self.kind).by("size")
        rows = sizes.get(self.size or (list(sizes) or [0])[-1], Rows())
        ways = rows.by("way")
        if "gdb" not in ways:
            return None
        if self.what == "launches":
            counts = [rows.median(way, "launches") for way in ways if FIXED in way]
            return rows.median("gdb", "launches") / min(counts) if counts else None
        return getattr(self, f"_{self.what}")(rows) if self.other in ways else None

    def _speed(self, rows: Rows) -> Optional[float]:
        return rows.ratio("gdb", self.other)

    def _cells(self, rows: Rows) -> float:
        cells = rows.median("gdb", "running") + (rows.median("gdb", "dispatch") or 0)
        return rows.median(self.other, "ms") / cells

    def _analysis(self, rows: Rows) -> float:
        own: List[Row] = rows.by("way")[self.other]
        return sum(row.analysis or 0 for row in own) / sum(row.ms for row in own)


def _both(workload: str, other: str, *bounds: float, size: Optional[int] = None) -> List[Bar]:
    return [Bar(workload, kind, "speed", other, b, size) for kind, b in zip(KINDS, bounds)]


#: How many times as fast as hybridized cells training is to be.
TRAINING = {"characters": 12, "parser": 10, "treegru": 10, "treefc": 18, "mvrnn": 30,
            "lattice-lstm": 8, "lattice-gru": 8, "seq2seq": 8}  # fmt: skip
BARS = (
    *_both("sick", "imperative", 40, 40, size=256),
    *_both("sick", "hybridized", 18, 30, size=256),
    *_both("sick", "hand", 1.4, 2.2, size=256),
    *_both("sick", "hybridized", 0.91, 0.91, size=1),
    Bar("sick", "inference", "analysis", "gdb", 0.10, 256),
    *(Bar("sick", kind, "memory", "hand", 1.25) for kind in KINDS),
    *(Bar("sick", kind, "first", "gdb", 1.5) for kind in KINDS),
    Bar("tagger", "training", "speed", "imperative", 10),
    Bar("tagger", "training", "speed", "hand", 0.8),
    Bar("sst", "training", "speed", "imperative", 25),
    Bar("modules", "inference", "speed", "hybridized", 3),
    Bar("modules", "inference", "cells", "hybridized", 10),
    Bar("experts1024", "inference", "cells", "hybridized", 100),
    *(Bar(name, "training", "speed", "hybridized", bound) for name, bound in TRAINING.items()),
    *(Bar(name, "training", "launches", "any setting", 1.05)
      for name in ("modules", *TRAINING) if name != "lattice-gru"),
)  # fmt: skip


def bars(found: Dict[str, Measured]) -> Table:
    """Hold what was measured against the bars of its workloads."""
    columns = dict.fromkeys(("workload", "kind", "batch", "figure", "bar", "reached", "met?"), "s")
    columns["reached"] = ".2f"
    rows = []
    for bar in BARS:
        if bar.workload in found:
            figure = bar.figure(found[bar.workload])
            met = "–" if figure is None else "yes" if bar.met(figure) else "NO"
            bound = f"{'>=' if bar.what in ('speed', 'cells') else '<='} {bar.bound:g}"
            what, size = f"{bar.what} / {bar.other}", str(bar.size or "last")
            rows.append((bar.workload, bar.kind, size, what, bound, figure, met))
    return Table("Bars", columns, rows)
