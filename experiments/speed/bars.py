"""The figures that the library is held to, side by side with those measured."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from relatedness.benchmark import KINDS
from study.results import Column, Table

from .contenders import PRODUCTS

#: Batch size of the bars.
SIZE = 256


class Bar(NamedTuple):
    """A ratio of the dynamic mode to another, and what it should be."""

    what: str
    kind: str
    figure: Optional[float]  # None if not measured
    bound: float
    is_most: bool = False  # the bound is the largest good value and not the least

    @property
    def met(self) -> Optional[bool]:
        """Whether the figure is as good as its bound; None if it was not measured."""
        if self.figure is None:
            return None
        return self.figure <= self.bound if self.is_most else self.figure >= self.bound


#: Least speed of the dynamic mode, as a multiple of another's, by kind.
FASTER = {"imperative": (40, 40), "hybridized": (18, 30), "fold": (7, 7), "manual": (1.4, 2.2)}
#: Most time as a multiple of that of the bare products, and most memory as one of manual's.
MOST_TIME, MOST_MEMORY = (3, 2.5), (1.25, 1.25)


def hold(speeds: Dict[str, Dict[str, float]], fresh: Dict[str, Dict[str, Any]]) -> List[Bar]:
    """Compare medians (by kind and label) and fresh processes (by kind and mode) with the bars."""
    found = []
    for mode, bounds in FASTER.items():
        for kind, bound in zip(KINDS, bounds):
            ratio = speeds[kind]["dynamic"] / speeds[kind][mode]
            found.append(Bar(f"speed / {mode}", kind, ratio, bound))
    for kind, bound in zip(KINDS, MOST_TIME):
        ratio = speeds[kind][PRODUCTS] / speeds[kind]["dynamic"]
        found.append(Bar(f"time / {PRODUCTS}", kind, ratio, bound, True))
    for kind, bound in zip(KINDS, MOST_MEMORY):
        peaks = [fresh.get(kind, {}).get(mode, {}).get("peak_mb") for mode in ("dynamic", "manual")]
        ratio = None if None in peaks else peaks[0] / peaks[1]
        found.append(Bar("peak memory / manual", kind, ratio, bound, True))
    return found


def table(bars: List[Bar]) -> Table:
    """Lay the bars out."""
    words = {True: "yes", False: "NO", None: "not measured"}
    columns = (
        Column("dynamic against"), Column("kind"), Column("measured", ".2f"), Column("bar"),
        Column("met"),
    )  # fmt: skip
    rows = [
        (bar.what, bar.kind, bar.figure, f"{'<=' if bar.is_most else '>='} {bar.bound:g}",
         words[bar.met])
        for bar in bars
    ]  # fmt: skip
    return Table(f"Bars, minibatches of {SIZE} pairs", columns, rows)
