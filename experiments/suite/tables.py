"""All measurements, a row for each turn, and the tables: speed, parts, "auto"."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

KINDS = ("inference", "training")
#: A column for each of these, how many times as fast as it a way is.
LOOPS = ("imperative", "hybridized")
#: In names of fixed settings.
FIXED, CACHED, BY_DEPTH = "gdb:", ":cached", ":depth"


class Row(NamedTuple):
    """One contender's turn in one round of a contest.

    Attributes
    ----------
    kind : str
    size : int
        Samples of the contest's minibatches.
    way : str
    minibatches, samples : int
    rate : float
        Samples per second, or what the workload counts in them.
    ms : float
        Milliseconds of a minibatch of the contest's size.
    round : int
    recording, analysis, dispatch : float or None
        Parts of these, of the calling thread; None without the library, as all that follow.
    nodes, launches : float or None
        Of a minibatch: what the analyzer grouped, and launches.
    bound : float or None
        Fewest launches of any policy for a minibatch, if each was one flush.
    arena_mb : float or None
        Memory for the values of a minibatch.
    cached : int or None
        Flushes whose plan came from the cache.
    setting : str
        What most flushes ran with: "granularity by policy (budget)", or `contest.AT_ONCE`.
    """

    kind: str
    size: int
    way: str
    minibatches: int
    samples: int
    rate: float
    ms: float
    round: int = 0
    recording: Optional[float] = None
    analysis: Optional[float] = None
    dispatch: Optional[float] = None
    nodes: Optional[float] = None
    launches: Optional[float] = None
    bound: Optional[float] = None
    arena_mb: Optional[float] = None
    cached: Optional[int] = None
    setting: str = ""

    @property
    def running(self) -> float:
        """The rest of the time: waiting for the engine, in training also backward and update."""
        known = (self.recording, self.analysis, self.dispatch)
        return self.ms - sum(part for part in known if part is not None)


class Spread(NamedTuple):
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    high: float


def spread_of(values: List[Optional[float]]) -> Optional[Spread]:
    """Summarise values, or say None if none is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, median, high = np.percentile(known, (25, 50, 75)).tolist()
    return Spread(median, low, high)


class Rows(List[Row]):
    """Rows of one workload."""

    def by(self, *fields: str) -> Dict[Any, Rows]:
        """Group by one field or several, in order of first appearance."""
        groups: Dict[Any, Rows] = {}
        for row in self:
            key = tuple(getattr(row, field) for field in fields)
            groups.setdefault(key if len(fields) > 1 else key[0], Rows()).append(row)
        return groups

    def spread(self, way: str, field: str = "rate") -> Optional[Spread]:
        """Summarise a figure of a way; None if it did not take part, or has none."""
        return spread_of([getattr(row, field) for row in self if row.way == way])

    def median(self, way: str, field: str = "rate") -> Optional[float]:
        """Give the median of a figure of a way, or None."""
        spread = self.spread(way, field)
        return spread and spread.median

    def ratio(self, way: str, other: str) -> Optional[float]:
        """Give the median speed of one way as a multiple of another's, round by round."""
        theirs = {row.round: row.ms for row in self if row.way == other}
        ours = [row for row in self if row.way == way and row.round in theirs]
        spread = spread_of([theirs[row.round] / row.ms for row in ours])
        return spread and spread.median


#: What `Measured` has rows of.
MEASURED = ("rows", "epochs", "counts")


@dataclass
class Measured:
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
    left_out, versions : dict
        By way: why it does not take part; what another system says of itself.
    rows : Rows
    alone : list of dict
        Figures of processes that ran one way and nothing else; see `benchmark.alone`.
    epochs : Rows
        Rounds are epochs over the same samples, from the first on.
    counts : Rows
        One minibatch of each kind, in several of our own ways.
    """

    title: str
    unit: str
    source: str
    reading: str
    lines: int
    left_out: Dict[str, str]
    versions: Dict[str, str]
    rows: Rows = field(default_factory=Rows)
    alone: List[Dict[str, Any]] = field(default_factory=list)
    epochs: Rows = field(default_factory=Rows)
    counts: Rows = field(default_factory=Rows)

    def as_json(self) -> Dict[str, Any]:
        """Give all figures as JSON takes them."""
        plain = {name: [row._asdict() for row in getattr(self, name)] for name in MEASURED}
        return {**vars(self), **plain}

    @classmethod
    def from_json(cls, content: Dict[str, Any]) -> Measured:
        """Read what `as_json` gave."""
        rows = {name: Rows(Row(**row) for row in content[name]) for name in MEASURED}
        return cls(**{**content, **rows})


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
    for kind, rows in measured.epochs.by("kind").items():
        yield by_epoch(f"{measured.unit} per second by epoch, {kind}", rows).markdown()
    if measured.counts:
        yield launches(measured.counts).markdown()
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


def by_epoch(title: str, rows: Rows) -> Table:
    """Lay out rates of the first epochs over the same samples."""
    epochs = rows.by("round")
    columns = {"way": "s", **{str(number + 1): ",.0f" for number in epochs}}
    cells = [(way, *(own.median(way) for own in epochs.values())) for way in rows.by("way")]
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


def launches(rows: Rows) -> Table:
    """Lay out the launches of one minibatch by granularity and policy; "auto" is among them."""
    fixed = [row for row in rows if FIXED in row.way]
    names = dict.fromkeys(row.way.split(":")[2] for row in fixed)
    columns = {"kind": "s", "granularity": "s",
               **dict.fromkeys((*names, "lower bound", "auto"), ",.0f")}  # fmt: skip
    cells = []
    for kind, own in rows.by("kind").items():
        auto = own.median("gdb", "launches")
        for granularity in dict.fromkeys(row.way.split(":")[1] for row in fixed):
            ways = [f"{FIXED}{granularity}:{name}" for name in names]
            counts = [own.median(way, "launches") for way in ways]
            cells.append((kind, granularity, *counts, own.median(ways[0], "bound"), auto))
    return Table("Launches of one minibatch", columns, cells)


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
