"""What the library's own way should reach, and whether it does."""

from operator import ge, le
from typing import NamedTuple, Optional

from .tables import FIXED, KINDS, Rows, Table


class Bar(NamedTuple):
    """A figure of the library's own way, and what it should be."""

    workload: str
    kind: str
    #: "speed": how many times as fast as `other`; "cells": the same without recording and analysis,
    #: which leaves the launches; "analysis": share of the time of `other`; "launches": those of
    #: "gdb" as a multiple of the fewest of any fixed setting; "memory", "first": see `memory`, the
    #: first as a multiple of that of `other`.
    what: str
    other: str
    bound: float  # the least good figure, or the greatest where less is better
    size: Optional[int] = None  # of the minibatches; None if workloads have one, or for the last

    def needs(self, part):
        """Tell whether it needs a part of `benchmark.measure`."""
        other = {"launches": "launches", "memory": "process", "first": "process"}
        own = self.workload, other.get(self.what, "speed"), self.kind
        return own == part[:3] and self.size in (None, part.size)

    def figure(self, measured):
        """Find the figure; None if it was not measured."""
        if self.what == "launches":
            counts = {row.way: row.launches for row in measured.counts if row.kind == self.kind}
            fixed = [count for way, count in counts.items() if FIXED in way]
            return counts["gdb"] / min(fixed) if fixed else None
        alone = {each["way"]: each for each in measured.alone if each["kind"] == self.kind}
        rows = Rows(row for row in measured.rows if row.kind == self.kind)
        rows = rows.by("size").get(self.size or (rows[-1].size if rows else None), Rows())
        known = alone if self.what in ("memory", "first") else rows.by("way")
        if not {"gdb", self.other} <= set(known):
            return None
        if self.what == "memory":
            own, other = (alone[way]["peak_mb"] for way in ("gdb", self.other))
            return own and own / other
        if self.what == "first":
            return alone["gdb"]["first_seconds"]
        if self.what == "speed":
            return rows.ratio("gdb", self.other)
        if self.what == "analysis":
            own = known[self.other]
            return sum(row.analysis or 0 for row in own) / sum(row.ms for row in own)
        cells = rows.median("gdb", "running") + (rows.median("gdb", "dispatch") or 0)
        return rows.median(self.other, "ms") / cells


#: How many times as fast as hybridized cells training is to be.
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
    Bar("sst", "training", "speed", "imperative", 25, 1024),
    Bar("modules", "inference", "speed", "hybridized", 3),
    Bar("modules", "inference", "cells", "hybridized", 10),
    Bar("experts1024", "inference", "cells", "hybridized", 100),
    *(Bar(name, "training", "speed", "hybridized", bound) for name, bound in TRAINING.items()),
    *(Bar(name, "training", "launches", "any setting", 1.05)
      for name in ("modules", *TRAINING)),
)  # fmt: skip


def bars(found):
    """Hold what was measured against the bars of its workloads."""
    columns = dict.fromkeys(("workload", "kind", "batch", "figure", "bar", "reached", "met?"), "s")
    columns["reached"] = ".2f"
    rows = []
    for bar in BARS:
        if bar.workload in found:
            figure = bar.figure(found[bar.workload])
            sign, holds = (">=", ge) if bar.what in ("speed", "cells") else ("<=", le)
            met = "not measured" if figure is None else "yes" if holds(figure, bar.bound) else "NO"
            what, size = f"{bar.what} / {bar.other}", str(bar.size or "last")
            bound = f"{sign} {bar.bound:g}"
            rows.append((bar.workload, bar.kind, size, what, bound, figure, met))
    return Table("Bars", columns, rows)
