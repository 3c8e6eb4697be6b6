"""The figures that the library is held to, side by side with those measured."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence

from timing.contest import KINDS, Outcome
from timing.results import Column, Table
from workloads.runner import PADDED

from .contenders import CACHED, PRODUCTS

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


class Run(NamedTuple):
    """What was measured with one number of threads.

    Attributes
    ----------
    environment : dict
    pairs, workloads : list of Outcome
        Contests on pairs, by batch size and kind; of other workloads, in training.
    fresh : dict
        Figures of fresh processes by kind and mode.
    recording : dict
    """

    environment: Dict[str, Any]
    pairs: List[Outcome]
    workloads: List[Outcome]
    fresh: Dict[str, Dict[str, Any]]
    recording: Dict[str, float]

    def as_json(self) -> Dict[str, Any]:
        """Give all figures as JSON takes them."""
        lists = {name: [o.as_json() for o in getattr(self, name)] for name in OUTCOMES}
        return {**self._asdict(), **lists}

    @classmethod
    def from_json(cls, content: Dict[str, Any]) -> Run:
        """Read what `as_json` gave."""
        lists = {name: list(map(Outcome.from_json, content[name])) for name in OUTCOMES}
        return cls(**{**content, **lists})

    def find(self, kind: str, size: int = SIZE) -> Optional[Outcome]:
        """Find the contest on pairs of one kind and batch size."""
        return next((o for o in self.pairs if (o.kind, o.batch_size) == (kind, size)), None)


OUTCOMES = ("pairs", "workloads")


def hold(run: Run) -> List[Bar]:
    """Compare the figures of one run of the benchmark with the bars."""
    return [bar for i, kind in enumerate(KINDS) for bar in _of_kind(run, kind, i)] + _others(run)


def _of_kind(run: Run, kind: str, i: int) -> Iterable[Bar]:
    """Give the bars that exist for both kinds, number `i` of each pair."""
    outcome = run.find(kind)
    for mode, bounds in FASTER.items():
        yield Bar(f"speed / {mode}", kind, _speed(outcome, mode), bounds[i])
    ratio = _time(outcome, PRODUCTS)
    yield Bar(f"time / {PRODUCTS}", kind, ratio, MOST_TIME[i], True)
    own, manual = (run.fresh.get(kind, {}).get(mode, {}) for mode in ("dynamic", "manual"))
    peaks = [own.get("peak_mb"), manual.get("peak_mb")]
    ratio = None if None in peaks else peaks[0] / peaks[1]
    yield Bar("peak memory of the process / manual", kind, ratio, MOST_MEMORY[i], True)
    single = _time(run.find(kind, 1), "hybridized")
    yield Bar("time / hybridized, single pairs", kind, single, MOST_AGAINST_HYBRIDIZED, True)
    sizes = sorted((o for o in run.pairs if o.kind == kind), key=lambda o: o.batch_size)
    worst = max((_time(o, "hybridized") or 0 for o in sizes), default=None)
    yield Bar("time / hybridized, at its worst size", kind, worst, MOST_AGAINST_HYBRIDIZED, True)
    rates = [o.median("dynamic") or 0 for o in sizes]
    rises = [small / large for j, small in enumerate(rates) for large in rates[j + 1 :]]
    across = f"{sizes[0].batch_size} to {sizes[-1].batch_size}" if sizes else "none"
    what = f"time per pair / of any smaller size, {across}"
    yield Bar(what, kind, max(rises, default=None), LEVEL, True)
    first = own.get("first_seconds")
    yield Bar("first minibatch of a process, s", kind, first, MOST_FIRST, True, True)


def _others(run: Run) -> List[Bar]:
    inference = run.find("inference")
    recording = run.recording.get("us_per_call")
    found = [
        Bar("analysis / time", "inference", _analysis(inference, "dynamic"), MOST_ANALYSIS, True),
        Bar("analysis / time, plan cached", "inference", _analysis(inference, CACHED), MOST_CACHED,
            True, True),
        Bar("recording, us per cell call", "both", recording, MOST_RECORDING, True),
    ]  # fmt: skip
    by_name = {outcome.workload: outcome for outcome in run.workloads}
    for (name, way), bound in RAGGED.items():
        ratio = _speed(by_name.get(name), way)
        found.append(Bar(f"{name}: speed / {way}", "training", ratio, bound))
    return found


def _speed(outcome: Optional[Outcome], mode: str) -> Optional[float]:
    """Give the speed of the dynamic mode as a multiple of another's."""
    own, other = (outcome and outcome.median(name) for name in ("dynamic", mode))
    return None if own is None or other is None else own / other


def _time(outcome: Optional[Outcome], mode: str) -> Optional[float]:
    """Give the time of the dynamic mode as a multiple of another's."""
    ratio = _speed(outcome, mode)
    return None if ratio is None else 1 / ratio


def _analysis(outcome: Optional[Outcome], label: str) -> Optional[float]:
    """Give the share of analysis in the time of a contender."""
    rows = outcome.by_label.get(label, []) if outcome else []
    return sum(row.analysis for row in rows) / sum(row.ms for row in rows) if rows else None


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
