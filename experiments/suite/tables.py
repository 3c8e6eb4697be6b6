"""All measurements, a row for each turn, and the tables: speed, parts, "auto"."""

from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Dict, List, NamedTuple, Optional

import numpy as np

KINDS = ("inference", "training")
#: The loops over samples, which take the same time per sample whatever the size of a minibatch.
LOOPS = ("imperative", "hybridized")
#: In names of fixed settings.
FIXED, CACHED, BY_DEPTH = "gdb:", ":cached", ":depth"


@dataclass
class Row:
    """One contender's turn in one round of a contest; what is not known of it is None."""

    kind: str
    size: int  # samples of the contest's minibatches
    way: str
    minibatches: int
    samples: int
    rate: float  # samples per second, or what the workload counts in them
    ms: float  # of a minibatch of the contest's size; then parts of it, of the calling thread
    round: int = 0
    recording: Optional[float] = None
    analysis: Optional[float] = None
    dispatch: Optional[float] = None
    nodes: Optional[float] = None  # of a minibatch, that the analyzer grouped
    launches: Optional[float] = None  # of a minibatch
    bound: Optional[float] = None  # fewest launches of any policy, if each minibatch was one flush
    arena_mb: Optional[float] = None  # memory for the values of a minibatch
    cached: Optional[int] = None  # flushes whose plan came from the cache
    #: What most flushes ran with: "granularity by policy (budget)", or `contest.AT_ONCE`.
    setting: str = ""

    @property
    def running(self):
        """The rest of the time: waiting for the engine, in training also backward and update."""
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
        """Give median and quartiles of a figure; None if a way did not take part, or has none."""
        values = [getattr(row, field) for row in self if row.way == way]
        known = [value for value in values if value is not None]
        return np.percentile(known, (50, 25, 75)).tolist() if known else None

    def median(self, way, field="rate"):
        """Give the median of a figure of a way, or None."""
        spread = self.spread(way, field)
        return spread and spread[0]

    def ratio(self, way, other):
        """Give the median speed of one way as a multiple of another's, round by round."""
        theirs = {row.round: row.ms for row in self if row.way == other}
        ours = [row for row in self if row.way == way and row.round in theirs]
        return float(np.median([theirs[row.round] / row.ms for row in ours])) if ours else None


@dataclass
class Measured:
    """What is known of one workload."""

    title: str  # for people
    unit: str  # what rates count
    source: str  # the paper that the workload is from, and what it claims
    reading: str  # what the figures say of that claim
    lines: int  # of the model and of its loop that exist only because of the library
    left_out: Dict[str, str]  # why ways do not take part, and what is not measured
    versions: Dict[str, str]  # what other systems say of themselves
    rows: Rows = field(default_factory=Rows)
    #: Figures of processes that ran one way and nothing else; see `benchmark.alone`.
    alone: List[dict] = field(default_factory=list)
    #: One minibatch of each kind, in several of our own ways.
    counts: Rows = field(default_factory=Rows)

    @classmethod
    def from_json(cls, content):
        """Read what `dataclasses.asdict` gave."""
        names = ("rows", "counts")
        rows = {name: Rows(Row(**row) for row in content[name]) for name in names}
        return cls(**{**content, **rows})


class Table(NamedTuple):
    """A table for people; `columns` says for each heading how cells below it are written."""

    title: str
    columns: Dict[str, str]
    rows: List[tuple]

    def markdown(self):
        """Write the table as Markdown, aligned so that it reads well as plain text, too."""
        columns = []
        for heading, form, *values in zip(self.columns, self.columns.values(), *self.rows):
            cells = [heading, *("–" if v is None else format(v, form) for v in values)]
            width, side = max(3, *map(len, cells)), "<" if form == "s" else ">"
            cells.insert(1, ("" if form == "s" else ":").rjust(width, "-"))
            columns.append([f"{cell:{side}{width}}" for cell in cells])
        lines = [f"| {' | '.join(line)} |" for line in zip(*columns)]
        return "\n".join([f"### {self.title}", "", *lines, ""])


def texts(measured):
    """Write tables and notes of a workload."""
    yield f"## {measured.title}\n\n{measured.source} {measured.reading}\n"
    for kind, rows in measured.rows.by("kind").items():
        yield speeds(f"{measured.unit} per second, {kind}", rows).markdown()
    ours = Rows(row for row in measured.rows if row.launches is not None)
    if ours:
        yield parts(ours).markdown()
    if measured.counts:
        yield launches(measured.counts).markdown()
    yield f"Lines that exist only because of the library: {measured.lines}."
    yield from (f"{way}: {version}" for way, version in measured.versions.items())
    yield ""


def speeds(title, rows):
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
        quartiles = spread and f"{spread[1]:,.0f}–{spread[2]:,.0f}"
        rates = [own.median(way) for own in sizes.values()]
        cells.append((way, *rates, quartiles, *(last.ratio(way, base) for base in bases)))
    return Table(title, columns, cells)


def parts(rows):
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
    ]
    return Table("Launches, and where the time of a minibatch goes", columns, cells)


def launches(rows):
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


def memory(found):
    """Lay out what fresh processes told, of all workloads; None if there were none."""
    columns = {"workload": "s", "way": "s", "kind": "s", "batch": "d", "first minibatch, s": ".2f",
               "peak memory, MB": ",.0f", "before, MB": ",.0f"}  # fmt: skip
    fields = itemgetter("way", "kind", "size", "first_seconds", "peak_mb", "start_mb")
    cells = [(name, *fields(told)) for name, each in found.items() for told in each.alone]
    return Table("Processes that run one way and nothing else", columns, cells) if cells else None


#: "auto" may take so much longer than the best fixed setting, than the best one by depth, and than
#: the plain loop.
AUTO_BARS = {"best": 1.10, "best by depth": 1.05, "hybridized": 1.10}


def settings(found):
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
