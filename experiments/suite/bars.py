"""Bars: the figures that the library should reach, and whether it does."""

from operator import ge, le
from typing import NamedTuple, Optional

from .tables import FIXED, KINDS, Rows, Table


class Bar(NamedTuple):
    """A figure of the way "gdb", and its required value."""

    workload: str
    kind: str
    #: "speed": relative to `other`; "cells": the same without the time of recording and analysis;
    #: "analysis": share of the time of `other`; "launches": relative to the fixed setting with the
    #: fewest; "memory": peak of a process, relative to `other`; "first": seconds of the first
    #: minibatch of a process; "time": time of `other` relative to "gdb".
    figure: str
    other: str
    bound: float  # a minimum for "speed" and "cells", otherwise a maximum
    size: Optional[int] = None  # of the minibatches; None for the only or the last one

    def needs(self, part):
        """Return whether the bar needs a part of `benchmark.measure`."""
        measures = {"launches": "launches", "memory": "process", "first": "process"}
        needed = self.workload, measures.get(self.figure, "speed"), self.kind
        return needed == part[:3] and self.size in (None, part.size)

    def value(self, measured):
        """Compute the figure; None if it was not measured."""
        if self.figure == "launches":
            counts = {row.way: row.launches for row in measured.counts if row.kind == self.kind}
            fixed = [count for way, count in counts.items() if FIXED in way]
            return share(counts.get("gdb"), min(fixed, default=None))
        alone = {each["way"]: each for each in measured.alone if each["kind"] == self.kind}
        rows = Rows(row for row in measured.rows if row.kind == self.kind)
        rows = rows.by("size").get(self.size or (rows[-1].size if rows else None), Rows())
        by_way = alone if self.figure in ("memory", "first") else rows.by("way")
        if not {"gdb", self.other} <= set(by_way):
            return None
        if self.figure == "memory":
            return share(*(alone[way]["peak_mb"] for way in ("gdb", self.other)))
        if self.figure == "first":
            return alone["gdb"]["first_seconds"]
        if self.figure in ("speed", "time"):
            return rows.ratio("gdb", self.other)
        if self.figure == "analysis":
            turns = by_way[self.other]
            return share(sum(row.analysis or 0 for row in turns), sum(row.ms for row in turns))
        cells = rows.median("gdb", "running") + (rows.median("gdb", "dispatch") or 0)
        return share(rows.median(self.other, "ms"), cells)


def share(part, whole):
    """Divide two figures; None if there is nothing to divide, or nothing to divide by."""
    return part / whole if part and whole else None


#: Required speed of training, relative to hybridized cells.
TRAINING = {"characters": 12, "parser": 10, "treegru": 10, "treefc": 18, "mvrnn": 30,
            "lattice-lstm": 8, "lattice-gru": 8, "seq2seq": 8}  # fmt: skip
BARS = (
    *(Bar("sick", kind, "speed", "imperative", 40, 256) for kind in KINDS),
    Bar("sick", "inference", "speed", "hybridized", 18, 256),
    Bar("sick", "training", "speed", "hybridized", 30, 256),
    Bar("sick", "inference", "speed", "hand", 1.4, 256),
    Bar("sick", "training", "speed", "hand", 2.2, 256),
    *(Bar("sick", kind, "speed", "hybridized", 0.91, 1) for kind in KINDS),
    Bar("sick", "inference", "analysis", "gdb", 0.10, 256),
    *(Bar("sick", kind, "memory", "hand", 1.25) for kind in KINDS),
    *(Bar("sick", kind, "first", "gdb", 1.5) for kind in KINDS),
    Bar("tagger", "training", "speed", "imperative", 10),
    Bar("tagger", "training", "speed", "hand", 0.8),
    *(Bar(name, "training", "time", f"gdb-{dropped}", 1.15)
      for name in ("sick", "tagger") for dropped in ("words", "states")),
    Bar("sick", "training", "time", "gdb-np", 1.05, 256),
    *(Bar(name, "training", "time", "gdb-np", 1.05) for name in ("tagger", "seq2seq")),
    Bar("sst", "training", "speed", "imperative", 25, 1024),
    Bar("modules", "inference", "speed", "hybridized", 3),
    Bar("modules", "inference", "cells", "hybridized", 10),
    Bar("experts1024", "inference", "cells", "hybridized", 100),
    *(Bar(name, "training", "speed", "hybridized", bound) for name, bound in TRAINING.items()),
    *(Bar(name, "inference", "speed", "hybridized", 8) for name in ("parser", "seq2seq", "beam")),
    *(Bar(name, "training", "launches", "any setting", 1.05)
      for name in ("modules", *TRAINING)),
)  # fmt: skip


def bars(measured):
    """Compare the measurements with the bars of their workloads."""
    columns = dict.fromkeys(("workload", "kind", "batch", "figure", "bar", "reached", "met?"), "s")
    columns["reached"] = ".2f"
    rows = []
    for bar in BARS:
        if bar.workload in measured:
            value = bar.value(measured[bar.workload])
            sign, holds = (">=", ge) if bar.figure in ("speed", "cells") else ("<=", le)
            met = "not measured" if value is None else "yes" if holds(value, bar.bound) else "NO"
            figure, size = f"{bar.figure} / {bar.other}", str(bar.size or "last")
            bound = f"{sign} {bar.bound:g}"
            rows.append((bar.workload, bar.kind, size, figure, bound, value, met))
    return Table("Bars", columns, rows)
