"""What happened in the flushes of a scope, printable and as JSON, and to requests."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from typing import Any, Dict, Iterable, List, NamedTuple, Tuple

from .errors import Where
from .show.draw import page
from .show.plot import plot

NOTHING = (
    "nothing was recorded, or the scope is still open: a scope records calls of hybridized\n"
    "blocks, so call hybridize() on the outermost block, and call the block inside the scope"
)
ORDINARY = (
    "{} operators on ordinary arrays, most often {}: a scope records operators on the\n"
    "            results of hybridized blocks; put others into hybrid_forward of a block"
)


class Alone(NamedTuple):
    """Calls that were not merged with others, or only with some of their kind, and the reason.

    Attributes
    ----------
    name : str
        Name of the block or operator.
    reason : str
        A sentence.
    calls : int
        Number of calls.
    where : Where
        A line that made such a call.
    """

    name: str
    reason: str
    calls: int
    where: Where

    def __str__(self) -> str:
        """Write it in two lines, for print."""
        return f"{self.calls} x {self.name}: {self.reason}\n{'':12}{self.where}"


def count(found: Dict[Any, Alone], key: Any, one: Alone) -> None:
    """Add calls to those of the same key, which name the line."""
    known = found.get(key)
    found[key] = one if known is None else known._replace(calls=known.calls + one.calls)


class Traced:
    """What came of blocks that are traced once per structure."""

    def __init__(self) -> None:
        #: Calls whose piece of the tape was known, and those that ran ``forward``.
        self.known = self.new = 0
        #: Milliseconds of the latter, those within each other counted each.
        self.new_ms = 0.0
        #: Calls of which no piece was kept, by block and reason.
        self.refused: Dict[Tuple[str, str], Alone] = {}


class FlushReport(NamedTuple):
    """What happened in one flush.

    Attributes
    ----------
    nodes, units : int
        Recorded calls, and the units that they were cut into.
    widths : tuple of int
        Units of each launch, in the order of launches.
    launches, mean_width, largest_width : int, float, int
        Number, mean and maximum of these.
    granularity, policy, budget : str
        The setting of the analysis.
    cached : bool
        Whether the plan was known from an earlier flush.
    alone : tuple of Alone
        Calls that were not merged.
    rows_gathered : int
        Rows that were copied to stand side by side.
    arena_bytes : int
        Memory for values, in bytes.
    recording_ms : float
        Milliseconds from the first recorded call to the flush.  This includes the user's own
        Python code, but not waiting for values.
    analysis_ms, dispatch_ms : float
        Milliseconds for grouping and planning, and for handing launches to the engine.
    waiting_ms : float
        Milliseconds spent waiting for values after this flush and before the next.
    waiting : int
        Samples of ``map`` that waited for this flush.
    split : tuple of Alone
        Calls of one block or operator that are several launches, because the sizes or the numbers
        of their arrays differ.
    """

    nodes: int
    units: int
    widths: Tuple[int, ...]
    granularity: str
    policy: str
    budget: str
    cached: bool
    alone: Tuple[Alone, ...]
    rows_gathered: int
    arena_bytes: int
    recording_ms: float
    analysis_ms: float
    dispatch_ms: float
    waiting_ms: float = 0.0
    waiting: int = 0
    split: Tuple[Alone, ...] = ()

    @property
    def launches(self) -> int:
        """How many there were."""
        return len(self.widths)

    @property
    def mean_width(self) -> float:
        """Calls per launch."""
        return sum(self.widths) / len(self.widths)

    @property
    def largest_width(self) -> int:
        """Calls of the widest launch."""
        return max(self.widths)

    @property
    def line(self) -> str:
        """The flush in one line, as it is logged."""
        return "; ".join(f"{label} {told}" for label, told in _describe(self))


class BatcherStats(NamedTuple):
    """Counts and times of a `RequestBatcher` since it was created.

    Attributes
    ----------
    queued, running : int
        Requests that wait, and that run.
    completed, failed, cancelled : int
        Requests that ended with a result, with an exception, or before they ran.
    rejected : int
        Requests that found the queue full.
    run_s : float
        Total seconds in which minibatches ran.
    latency_s : float
        Seconds from submission to result, summed over requests.
    latencies_s : tuple of float
        Latencies of the last 1,024 requests, in seconds.
    batch_sizes : dict of int to int
        Number of minibatches by their number of requests.
    """

    queued: int
    running: int
    completed: int
    failed: int
    cancelled: int
    rejected: int
    run_s: float
    latency_s: float
    latencies_s: Tuple[float, ...]
    batch_sizes: Dict[int, int]

    def latency_percentile(self, percent: float) -> float:
        """Return a percentile of the last latencies, in seconds; NaN if there are none.

        Parameters
        ----------
        percent : float
            From 0 to 100.
        """
        ranked = sorted(self.latencies_s)
        return ranked[max(math.ceil(percent / 100 * len(ranked)), 1) - 1] if ranked else math.nan


class Report:
    """What happened in a scope so far.

    Attributes
    ----------
    flushes : list of FlushReport
        One per flush.
    forced : dict of Where to int
        Lines that read a value while work was pending, and how often.
    waiting_ms : float
        Milliseconds spent waiting for values (``asnumpy``, ``wait_to_read`` and functions that call
        these) while the scope was open.
    immediate : dict of str to Alone
        Operators that can only run at once, by name.
    traced : Traced
        Calls of blocks that are hybridized with ``trace_once=True``.
    at_once : int
        Calls that "auto" ran at once, because recording them costs more than it saves.
    ordinary : dict of str to int
        Operators on ordinary arrays, which run at once, by name.
    choice : str
        The decision of "auto" for scopes like this one, and its estimates.
    """

    def __init__(self) -> None:
        self.flushes: List[FlushReport] = []
        self.forced: Counter[Where] = Counter()
        self.waiting_ms = 0.0
        self.immediate: Dict[str, Alone] = {}
        self.traced = Traced()
        self.at_once = 0
        self.ordinary: Counter[str] = Counter()
        self.choice = ""

    @classmethod
    def together(cls, reports: Iterable[Report]) -> Report:
        """Make one report of those of several scopes."""
        total = cls()
        for report in reports:
            total.flushes += report.flushes
            total.waiting_ms += report.waiting_ms
            total.at_once += report.at_once
            total.traced.known += report.traced.known
            total.traced.refused.update(report.traced.refused)
            total.forced.update(report.forced)
            total.ordinary.update(report.ordinary)
            for name, one in report.immediate.items():
                count(total.immediate, name, one)
        return total

    def count_wait(self, milliseconds: float) -> None:
        """Add time spent waiting for a value, most likely one of the last flush."""
        self.waiting_ms += milliseconds
        if self.flushes:
            last = self.flushes[-1]
            self.flushes[-1] = last._replace(waiting_ms=last.waiting_ms + milliseconds)

    @property
    def nodes(self) -> int:
        """Recorded calls."""
        return sum(flush.nodes for flush in self.flushes)

    @property
    def launches(self) -> int:
        """Launches that ran the recorded calls."""
        return sum(flush.launches for flush in self.flushes)

    @property
    def alone(self) -> List[Alone]:
        """Calls that were not merged, with the reason, the most frequent first."""
        return _most_first(self.immediate.values(), *(flush.alone for flush in self.flushes))

    @property
    def split(self) -> List[Alone]:
        """Calls that merged with some of their kind only, and why, the most frequent first."""
        return _most_first(*(flush.split for flush in self.flushes))

    @property
    def analysis_share(self) -> float:
        """Analysis as a share of recording, analysis and dispatch."""
        total = sum(f.recording_ms + f.analysis_ms + f.dispatch_ms for f in self.flushes)
        return sum(flush.analysis_ms for flush in self.flushes) / total if total else 0.0

    def plot(self) -> Any:
        """Plot how the time was spent, and the widths of launches in the order in which they ran.

        If samples of ``map`` waited for values, the widths are shown by flush.

        Returns
        -------
        matplotlib.figure.Figure
            Notebooks display it; ``savefig("report.svg")`` writes a file.

        Raises
        ------
        MissingError
            matplotlib is not installed.
        """
        return plot(self)

    def _repr_html_(self) -> str:
        text = str(self)
        flushes = f"flushes: {len(self.flushes)}"
        title = f"{self.nodes} calls in {self.launches} launches; {flushes}"
        return page(title, [(line[:12], line[12:]) for line in text.splitlines()], text)

    def to_json(self) -> str:
        """Return the whole report as JSON text."""

        def listed(found: Iterable[Alone]) -> List[Dict[str, Any]]:
            return [{**one._asdict(), "where": str(one.where)} for one in found]

        derived = ("launches", "mean_width", "largest_width")
        flushes = [
            {
                **flush._asdict(),
                **{name: getattr(flush, name) for name in derived},
                "alone": listed(flush.alone),
                "split": listed(flush.split),
            }
            for flush in self.flushes
        ]
        content = {
            **vars(self),
            "flushes": flushes,
            "immediate": listed(self.immediate.values()),
            "traced": {**vars(self.traced), "refused": listed(self.traced.refused.values())},
            "forced": [{"where": str(w), "times": times} for w, times in self.forced.items()],
        }
        return json.dumps(content, indent=2)

    def __str__(self) -> str:
        if not self.flushes and not self.at_once:
            return NOTHING
        rows: List[Tuple[str, Any]] = []
        if self.at_once:
            rows.append(("at once", f"{self.at_once} calls, since recording them costs more"))
        for flush in self.flushes[-8:]:
            rows += _describe(flush)
        ordinary = sum(self.ordinary.values())
        if ordinary > self.nodes:
            most = max(self.ordinary, key=self.ordinary.__getitem__)
            rows.append(("at once", ORDINARY.format(ordinary, most)))
        traced = self.traced
        if traced.known or traced.new:
            told = f"{traced.known} calls known, {traced.new} run in {traced.new_ms:.1f} ms"
            rows.append(("traced once", told))
        rows += [("not kept", one) for one in traced.refused.values()]
        rows += [("ran alone", one) for one in self.alone]
        rows += [("split", one) for one in self.split]
        for where, times in sorted(self.forced.items(), key=lambda item: -item[1]):
            rows.append(("value read", f"{times} x at {where}"))
        lines = [f"{label:12}{told}" for label, told in rows]
        if len(self.flushes) > 8:
            total = f"{len(self.flushes)} flushes, {self.nodes} calls, {self.launches} launches"
            lines.insert(0, f"{total}; the last 8:")
        return "\n".join(lines + [self.choice] * bool(self.choice))


def _describe(flush: FlushReport) -> List[Tuple[str, Any]]:
    waited = f"; {flush.waiting} samples waited for it" if flush.waiting else ""
    waiting = f", waiting for values {flush.waiting_ms:.1f} ms" if flush.waiting_ms else ""
    return [
        ("calls", f"{flush.nodes} in {flush.launches} launches; {flush.mean_width:.1f} wide "
         f"on average, {flush.largest_width} at most{waited}"),
        ("setting", f"granularity {flush.granularity}, policy {flush.policy}, "
         f"budget {flush.budget}, plan {'from the cache' if flush.cached else 'made anew'}"),
        ("memory", f"{flush.arena_bytes / 1e6:.1f} MB of arenas, "
         f"{flush.rows_gathered} rows gathered"),
        ("time", f"recording {flush.recording_ms:.1f} ms, analysis {flush.analysis_ms:.1f} ms, "
         f"dispatch {flush.dispatch_ms:.1f} ms{waiting}"),
    ]  # fmt: skip


def _most_first(*several: Iterable[Alone]) -> List[Alone]:
    """Bring those of equal name and reason together, the most frequent first."""
    found: Dict[Tuple[str, str], Alone] = {}
    for one in itertools.chain(*several):
        count(found, (one.name, one.reason), one)
    return sorted(found.values(), key=lambda one: -one.calls)
