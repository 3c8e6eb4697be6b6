"""Measurements, with a row for each turn, and tables of them."""

from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Dict, List, NamedTuple, Optional

import numpy as np

KINDS = ("inference", "training")
#: The loops over samples, whose time per sample does not depend on the size of a minibatch.
LOOPS = ("imperative", "hybridized")
#: Parts of names of fixed settings.
FIXED, CACHED, BY_DEPTH = "gdb:", ":cached", ":depth"
#: Ends the name of a way in which the arrays are those of `mx.np`.
NUMPY = "-np"


@dataclass
class Row:
    """One contender's turn in one round of a contest; figures it does not have are None."""

    kind: str
    size: int  # samples of the contest's minibatches
    way: str
    minibatches: int
    samples: int
    rate: float  # per second, in the workload's unit
    ms: float  # of a minibatch of the contest's size; below, its phases in the calling thread
    round: int = 0
    recording: Optional[float] = None
    analysis: Optional[float] = None
    dispatch: Optional[float] = None
    nodes: Optional[float] = None  # units of a minibatch that the analyzer grouped
    launches: Optional[float] = None  # of a minibatch
    bound: Optional[float] = None  # lower bound of launches, if each minibatch was one flush
    arena_mb: Optional[float] = None  # memory for the values of a minibatch
    cpu: Optional[float] = None  # milliseconds of the processor for a minibatch, of all threads
    cached: Optional[int] = None  # flushes whose plan came from the cache
    #: The setting of most flushes: "granularity by policy (budget)", or `contest.AT_ONCE`.
    setting: str = ""

    @property
    def running(self):
        """The remaining time: waiting for the engine, in training also backward and update."""
        return self.ms - sum(filter(None, (self.recording, self.analysis, self.dispatch)))


class Rows(List[Row]):
    """Rows of one workload."""

    def by(self, *fields):
        """Group by one field or several, in order of first appearance."""
        groups, key = {}, attrgetter(*fields)
        for row in self:
            groups.setdefault(key(row), Rows()).append(row)
        return groups

    def spread(self, way, field="rate"):
        """Return median, lower and upper quartile of a way's figure; None if it has none."""
        values = [getattr(row, field) for row in self if row.way == way]
        values = [value for value in values if value is not None]
        return np.percentile(values, (50, 25, 75)).tolist() if values else None

    def median(self, way, field="rate"):
        """Return the median of a way's figure; None if it has none."""
        spread = self.spread(way, field)
        return spread and spread[0]

    def ratio(self, way, other, field="ms"):
        """Return the median over rounds of the speed of one way relative to another."""
        theirs = {row.round: getattr(row, field) for row in self if row.way == other}
        pairs = [(theirs.get(row.round), getattr(row, field)) for row in self if row.way == way]
        ratios = [them / us for them, us in pairs if them and us]
        return float(np.median(ratios)) if ratios else None


@dataclass
class Measured:
    """All measurements of one workload."""

    title: str  # for people
    unit: str  # of rates
    source: str  # the paper, and its claim
    reading: str  # how the figures here compare with the claim
    lines: int  # of the model and its loop that exist only because of the library
    left_out: Dict[str, str]  # ways and parts that were not measured, with reasons
    versions: Dict[str, str]  # of other systems
    rows: Rows = field(default_factory=Rows)
    #: Figures of processes that ran one way and nothing else; see `benchmark.alone`.
    alone: List[dict] = field(default_factory=list)
    #: One minibatch of each kind, in several ways of this library.
    counts: Rows = field(default_factory=Rows)

    @classmethod
    def from_json(cls, content):
        """Restore from the result of `dataclasses.asdict`."""
        names = ("rows", "counts")
        rows = {name: Rows(Row(**row) for row in content[name]) for name in names}
        return cls(**{**content, **rows})


class Table(NamedTuple):
    """A table; `columns` maps each heading to the format of its cells."""

    title: str
    columns: Dict[str, str]
    rows: List[tuple]

    def markdown(self):
        """Format as Markdown, with aligned columns for reading as plain text."""
        columns = []
        for heading, spec, *values in zip(self.columns, self.columns.values(), *self.rows):
            cells = [heading, *("–" if v is None else format(v, spec) for v in values)]
            width, align = max(3, *map(len, cells)), "<" if spec == "s" else ">"
            cells.insert(1, ("" if spec == "s" else ":").rjust(width, "-"))
            columns.append([f"{cell:{align}{width}}" for cell in cells])
        lines = [f"| {' | '.join(line)} |" for line in zip(*columns)]
        return "\n".join([f"### {self.title}", "", *lines, ""])


def texts(measured):
    """Yield tables and notes of a workload."""
    yield f"## {measured.title}\n\n{measured.source} {measured.reading}\n"
    for kind, rows in measured.rows.by("kind").items():
        yield speeds(f"{measured.unit} per second, {kind}", rows).markdown()
    ours = Rows(row for row in measured.rows if row.launches is not None)
    if ours:
        yield parts(ours).markdown()
    beside = interfaces(measured.rows)
    if beside.rows:
        yield beside.markdown()
    if measured.counts:
        yield launches(measured.counts).markdown()
    yield f"Lines that exist only because of the library: {measured.lines}."
    yield from (f"{way}: {version}" for way, version in measured.versions.items())
    yield ""


def speeds(title, rows):
    """Tabulate rates by batch size, with ratios and quartiles at the last size."""
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
        quartiles = spread and f"{spread[1]:,.0f}–{spread[2]:,.0f}"
        rates = [turns.median(way) for turns in sizes.values()]
        cells.append((way, *rates, quartiles, *(last.ratio(way, base) for base in bases)))
    return Table(title, columns, cells)


def parts(rows):
    """Tabulate launches, phases and memory of all ways of this library."""
    counts = {"nodes": "nodes", "launches": "launches", "lower bound": "bound"}
    phases = {f"{name}, ms": name for name in ("recording", "analysis", "dispatch", "running")}
    phases = {**phases, "all, ms": "ms", "arena, MB": "arena_mb"}
    columns = {
        "kind": "s", "batch": "d", "way": "s", **dict.fromkeys(counts, ",.0f"),
        **dict.fromkeys(phases, ",.1f"), "ran": "s",
    }  # fmt: skip
    fields = (*counts.values(), *phases.values())
    cells = [
        (*key, *(turns.median(key[2], field) for field in fields), turns[-1].setting)
        for key, turns in rows.by("kind", "size", "way").items()
    ]
    return Table("Launches, and where the time of a minibatch goes", columns, cells)


def interfaces(rows):
    """Compare ways with arrays of `mx.np` with the same ways with those of `mx.nd`."""
    columns = {
        "kind": "s", "batch": "d", "way": "s", "time, np / nd": ".2f",
        "processor, np / nd": ".2f", "launches, nd": ",.0f", "launches, np": ",.0f",
    }  # fmt: skip
    cells = []
    for (kind, size), turns in rows.by("kind", "size").items():
        for way in turns.by("way"):
            beside = f"{way}{NUMPY}"
            times = [turns.ratio(way, beside, field) for field in ("ms", "cpu")]
            counts = [turns.median(each, "launches") for each in (way, beside)]
            if times[0]:
                cells.append((kind, size, way, *times, *counts))
    return Table("mx.np beside mx.nd", columns, cells)


def launches(rows):
    """Tabulate the launches of one minibatch by granularity and policy, and with "auto"."""
    fixed = [row for row in rows if FIXED in row.way]
    policies = dict.fromkeys(row.way.split(":")[2] for row in fixed)
    columns = {"kind": "s", "granularity": "s",
               **dict.fromkeys((*policies, "lower bound", "auto"), ",.0f")}  # fmt: skip
    cells = []
    for kind, of_kind in rows.by("kind").items():
        auto = of_kind.median("gdb", "launches")
        for granularity in dict.fromkeys(row.way.split(":")[1] for row in fixed):
            ways = [f"{FIXED}{granularity}:{policy}" for policy in policies]
            counts = [of_kind.median(way, "launches") for way in ways]
            cells.append((kind, granularity, *counts, of_kind.median(ways[0], "bound"), auto))
    return Table("Launches of one minibatch", columns, cells)


def memory(measured):
    """Tabulate the figures of processes that run one way; None if there are none."""
    columns = {"workload": "s", "way": "s", "kind": "s", "batch": "d", "first minibatch, s": ".2f",
               "peak memory, MB": ",.0f", "before, MB": ",.0f"}  # fmt: skip
    fields = itemgetter("way", "kind", "size", "first_seconds", "peak_mb", "start_mb")
    cells = [(name, *fields(alone)) for name, each in measured.items() for alone in each.alone]
    return Table("Processes that run one way and nothing else", columns, cells) if cells else None


#: Bars for the time of "auto" relative to the best fixed setting, to the best one by depth, and to
#: the hybridized loop.
AUTO_BARS = {"best": 1.10, "best by depth": 1.05, "hybridized": 1.10}


def settings(measured):
    """Compare "auto" with the best fixed setting, with the best one by depth, and with the loop.

    Every other round determines the best setting, and the remaining rounds give the ratio, so that
    a setting with a lucky round has no advantage. None if no workload has two fixed settings.
    """
    ratios = {f"auto / {name} (bar {bar:.2f})": ".2f" for name, bar in AUTO_BARS.items()}
    columns = {"workload": "s", "kind": "s", "batch": "d", "auto chose": "s", "best setting": "s",
               **ratios}  # fmt: skip
    cells = []
    for name, workload in measured.items():
        for (kind, size), rows in workload.rows.by("kind", "size").items():
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
