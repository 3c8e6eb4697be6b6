"""The figures that the library is held to, side by side with those measured."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from relatedness.benchmark import KINDS
from study.results import Column, Table

from .contenders import CACHED, PRODUCTS
from .ragged import PADDED

#: Minibatches of the bars, if not said otherwise.
SIZE = 256
#: OpenMP threads with which the bars hold; with others, figures are told without a verdict.
THREADS = "1"


class Bar(NamedTuple):
    """A figure, most often a ratio of the dynamic mode to another, and what it should be."""

    what: str
    kind: str
    figure: Optional[float]  # None if not measured
    bound: float
    is_most: bool = False  # the bound is the largest good value and not the least
    strict: bool = False  # the bound itself is not good enough

    @property
    def met(self) -> Optional[bool]:
        """Whether the figure is as good as its bound; None if it was not measured."""
        if self.figure is None:
            return None
        if self.figure == self.bound:
            return not self.strict
        return (self.figure < self.bound) == self.is_most

    @property
    def wanted(self) -> str:
        """The bound as people write it."""
        sign = ("<" if self.is_most else ">") + ("" if self.strict else "=")
        return f"{sign} {self.bound:g}"


#: Least speed of the dynamic mode, as a multiple of another's, by kind.
FASTER = {"imperative": (40, 40), "hybridized": (18, 30), "fold": (7, 7), "manual": (1.4, 2.2)}
#: Most time as a multiple of that of the bare products, and most memory as one of manual's.
MOST_TIME, MOST_MEMORY = (3, 2.5), (1.25, 1.25)
#: Most time as a multiple of that of hybridized cells.
MOST_AGAINST_HYBRIDIZED = 1.10
#: Analysis as a share of the time, and less than that if the plan is cached.
MOST_ANALYSIS, MOST_CACHED = 0.10, 0.03
#: Microseconds to record a call of a cell, and seconds of the first minibatch of a process.
MOST_RECORDING, MOST_FIRST = 2.5, 1.5
#: Most time per pair as a multiple of a smaller minibatch's: level, but for noise.
LEVEL = 1.05
#: Least speed in training of ragged workloads.
RAGGED = {("sequences", "imperative"): 10, ("sequences", PADDED): 0.8, ("sst", "imperative"): 25}


def hold(run: Dict[str, Any]) -> List[Bar]:
    """Compare the figures of one run of the benchmark with the bars."""
    by_size, fresh = run["batch_sizes"], run["fresh"]
    result = by_size.get(str(SIZE), {})
    found = []
    for mode, bounds in FASTER.items():
        for kind, bound in zip(KINDS, bounds):
            found.append(Bar(f"speed / {mode}", kind, _speed(result, kind, mode), bound))
    for kind, bound in zip(KINDS, MOST_TIME):
        ratio = _time(result, kind, PRODUCTS)
        found.append(Bar(f"time / {PRODUCTS}", kind, ratio, bound, True))
    for kind, bound in zip(KINDS, MOST_MEMORY):
        peaks = [_of(fresh, kind, mode, "peak_mb") for mode in ("dynamic", "manual")]
        ratio = None if None in peaks else peaks[0] / peaks[1]
        found.append(Bar("peak memory of the process / manual", kind, ratio, bound, True))
    share = _of(result, "analysis_share", "inference", "dynamic")
    found.append(Bar("analysis / time", "inference", share, MOST_ANALYSIS, True))
    share = _of(result, "analysis_share", "inference", CACHED)
    found.append(Bar("analysis / time, plan cached", "inference", share, MOST_CACHED, True, True))
    recording = _of(run, "recording", "us_per_call")
    found.append(Bar("recording, us per cell call", "both", recording, MOST_RECORDING, True))
    for kind in KINDS:
        ratio = _time(by_size.get("1", {}), kind, "hybridized")
        what = "time / hybridized, single pairs"
        found.append(Bar(what, kind, ratio, MOST_AGAINST_HYBRIDIZED, True))
    for kind in KINDS:
        ratios = [_time(each, kind, "hybridized") for each in by_size.values()]
        what = "time / hybridized, at its worst size"
        found.append(Bar(what, kind, max(ratios, default=None), MOST_AGAINST_HYBRIDIZED, True))
    for kind in KINDS:
        what = f"time per pair / of any smaller size, {_range(by_size)}"
        found.append(Bar(what, kind, _rise(by_size, kind), LEVEL, True))
    for kind in KINDS:
        seconds = _of(fresh, kind, "dynamic", "first_seconds")
        what = "first minibatch of a process, s"
        found.append(Bar(what, kind, seconds, MOST_FIRST, True, True))
    for (name, way), bound in RAGGED.items():
        ratio = _speed(run["workloads"].get(name, {}), "training", way)
        found.append(Bar(f"{name}: speed / {way}", "training", ratio, bound))
    return found


def _of(figures: Any, *path: str) -> Any:
    """Follow names into nested dictionaries; None where something is missing."""
    for name in path:
        figures = (figures or {}).get(name)
    return figures


def _speed(result: Dict[str, Any], kind: str, mode: str) -> Optional[float]:
    """Give the speed of the dynamic mode as a multiple of another's."""
    own, other = (_of(result, "median", kind, name) for name in ("dynamic", mode))
    return None if own is None or other is None else own / other


def _time(result: Dict[str, Any], kind: str, mode: str) -> Optional[float]:
    """Give the time of the dynamic mode as a multiple of another's."""
    ratio = _speed(result, kind, mode)
    return None if ratio is None else 1 / ratio


def _range(by_size: Dict[str, Any]) -> str:
    sizes = sorted(map(int, by_size))
    return f"{sizes[0]} to {sizes[-1]}" if sizes else "none"


def _rise(by_size: Dict[str, Any], kind: str) -> Optional[float]:
    """Give the time per pair of a size as a multiple of a smaller one's, at its largest."""
    sizes = sorted(map(int, by_size))
    rates = [by_size[str(size)]["median"][kind]["dynamic"] for size in sizes]
    pairs = [small / large for i, small in enumerate(rates) for large in rates[i + 1 :]]
    return max(pairs, default=None)


def table(held: Dict[str, Sequence[Bar]]) -> Table:
    """Lay the bars out, for each number of threads side by side; equal bars are one row."""
    words = {True: "yes", False: "NO", None: "not measured"}
    columns = [Column("dynamic against"), Column("kind"), Column("bar")]
    for threads in held:
        columns.append(Column(_reached(threads), ".2f"))
        if threads == THREADS:
            columns.append(Column("met?"))
    rows = []
    for bars in zip(*held.values()):
        row: List[Any] = [bars[0].what, bars[0].kind, bars[0].wanted]
        for threads, bar in zip(held, bars):
            row.append(bar.figure)
            if threads == THREADS:
                row.append(words[bar.met])
        rows.append(tuple(row))
    return Table(f"Bars, minibatches of {SIZE} pairs if not said otherwise", tuple(columns), rows)


def _reached(threads: str) -> str:
    return f"reached, {threads} thread{'' if threads == '1' else 's'}"


def to_json(bars: Sequence[Bar]) -> List[Dict[str, Any]]:
    """Turn bars into what JSON can hold."""
    return [{**bar._asdict(), "met": bar.met} for bar in bars]


def from_json(rows: Sequence[Dict[str, Any]]) -> List[Bar]:
    """Turn what `to_json` made back into bars."""
    return [Bar(**{name: v for name, v in row.items() if name != "met"}) for row in rows]


def missed(bars: Sequence[Bar]) -> Tuple[int, int]:
    """Count the bars that are not met, and those that were measured."""
    known = [bar.met for bar in bars if bar.met is not None]
    return known.count(False), len(known)
