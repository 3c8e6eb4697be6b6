"""What happened in the flushes of a scope, printable and as JSON, and to requests."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterable, List, NamedTuple, Tuple

from .errors import Where
from .show.html import report_html
from .show.plot import plot


class Alone(NamedTuple):
    """Calls that were not merged with any other, and why."""

    name: str
    reason: str
    calls: int
    #: A line that recorded such a call.
    where: Where


class Traced:
    """What came of blocks that are traced once per structure."""

    def __init__(self) -> None:
        #: Calls whose piece of the tape was known, and those that ran ``forward``.
        self.known = self.new = 0
        #: Milliseconds of the latter, those within each other counted each.
        self.new_ms = 0.0
        #: Calls of which no piece was kept, by block and reason.
        self.refused: Dict[Tuple[str, str], Alone] = {}

    def note_traced(self, milliseconds: float) -> None:
        """Count a call that ran."""
        self.new += 1
        self.new_ms += milliseconds

    def refuse(self, name: str, reason: str, where: Where) -> None:
        """Count a call of which no piece is kept."""
        known = self.refused.get((name, reason), Alone(name, reason, 0, where))
        self.refused[name, reason] = known._replace(calls=known.calls + 1)

    def as_json(self) -> Dict[str, Any]:
        """Return all of it for JSON."""
        refused = [{**one._asdict(), "where": str(one.where)} for one in self.refused.values()]
        return {**vars(self), "refused": refused}

    @property
    def lines(self) -> List[str]:
        """What to print."""
        lines = []
        if self.known or self.new:
            lines.append(
                f"traced once {self.known} calls known, {self.new} run in {self.new_ms:.1f} ms"
            )
        for one in self.refused.values():
            lines.append(f"not kept    {one.calls} x {one.name}: {one.reason}")
            lines.append(f"            {one.where}")
        return lines


class FlushReport(NamedTuple):
    """What happened in one flush.  Times are in milliseconds."""

    nodes: int
    units: int
    #: Calls of each launch, in their order.
    widths: Tuple[int, ...]
    granularity: str
    policy: str
    budget: str
    #: Whether the plan was known from an earlier flush.
    cached: bool
    #: Whether "auto" timed this scope, which then waited for all work before it.
    measured: bool
    alone: Tuple[Alone, ...]
    rows_gathered: int
    arena_bytes: int
    #: From the first recorded call to the flush, without waiting but with the user's own Python.
    recording_ms: float
    analysis_ms: float
    dispatch_ms: float
    #: Waiting for values in the scope, after this flush and before the next.
    waiting_ms: float = 0.0
    #: Samples of ``map`` that waited for it.
    waiting: int = 0

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
        """The flush in one line, as it is logged before anybody waits for its values."""
        return (
            f"{self.nodes} calls -> {self.launches} launches "
            f"({self.granularity} by {self.policy}, plan {'cached' if self.cached else 'made'}), "
            f"recording {self.recording_ms:.1f} ms, analysis {self.analysis_ms:.1f} ms, "
            f"dispatch {self.dispatch_ms:.1f} ms"
        )


class BatcherStats(NamedTuple):
    """What a `RequestBatcher` has before it and has done so far.  Times are in seconds."""

    #: Requests that wait, and that run.
    queued: int
    running: int
    #: Requests that have ended: with a result, with an exception, before they were run.
    completed: int
    failed: int
    cancelled: int
    #: Requests that found the queue full.
    rejected: int
    #: Running minibatches took so long, and requests, from submission to result; both summed up.
    run_s: float
    latency_s: float
    #: Latencies of the last 1,024 requests.
    latencies_s: Tuple[float, ...]
    #: How many minibatches had so many requests, by that number.
    batch_sizes: Dict[int, int]

    def latency_percentile(self, percent: float) -> float:
        """Return the latency that so many per cent of the last requests do not exceed, or NaN."""
        ranked = sorted(self.latencies_s)
        return ranked[max(math.ceil(percent / 100 * len(ranked)), 1) - 1] if ranked else math.nan


class Report:
    """What happened in a scope so far.

    Attributes
    ----------
    flushes : list of FlushReport
        One per flush.
    forced : dict of Where to int
        User lines that asked for a value while work was pending, and how often.
    waiting_ms : float
        Milliseconds spent waiting for values of arrays (``asnumpy``, ``wait_to_read`` and what
        calls these) while the scope was open. What it took to compute them is part of that, as far
        as it was not done by then.
    """

    def __init__(self) -> None:
        self.flushes: List[FlushReport] = []
        self.forced: Dict[Where, int] = {}
        self.waiting_ms = 0.0
        #: Calls of operators that can only run at once, by name.
        self.immediate: Dict[str, Alone] = {}
        #: Calls of blocks that are hybridized with ``trace_once=True``.
        self.traced = Traced()
        #: Calls of blocks that were not recorded but run at once, as "auto" had found that better.
        self.at_once = 0
        #: What "auto" knows of minibatches like this one.
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
            for where, times in report.forced.items():
                total.forced[where] = total.forced.get(where, 0) + times
            for name, one in report.immediate.items():
                known = total.immediate.get(name, one._replace(calls=0))
                total.immediate[name] = known._replace(calls=known.calls + one.calls)
        return total

    @property
    def trying(self) -> bool:
        """Whether "auto" still times its candidates, for which scopes wait."""
        return self.choice.startswith("auto: trying")

    def count_wait(self, milliseconds: float) -> None:
        """Add time spent waiting for a value, most likely one of the last flush."""
        self.waiting_ms += milliseconds
        if self.flushes:
            last = self.flushes[-1]
            self.flushes[-1] = last._replace(waiting_ms=last.waiting_ms + milliseconds)

    def _total(self, field: str) -> Any:
        return sum(getattr(flush, field) for flush in self.flushes)

    @property
    def nodes(self) -> int:
        """Recorded calls."""
        return int(self._total("nodes"))

    @property
    def launches(self) -> int:
        """Launches that ran them."""
        return int(self._total("launches"))

    @property
    def alone(self) -> List[Alone]:
        """Calls that were not merged, with the reason, the most frequent first."""
        found: Dict[Tuple[str, str], Alone] = {}
        for flush in self.flushes:
            for one in flush.alone:
                known = found.get((one.name, one.reason))
                found[one.name, one.reason] = (
                    one if known is None else known._replace(calls=known.calls + one.calls)
                )
        return sorted([*found.values(), *self.immediate.values()], key=lambda one: -one.calls)

    @property
    def analysis_share(self) -> float:
        """Analysis as a share of recording, analysis and dispatch."""
        total = sum(f.recording_ms + f.analysis_ms + f.dispatch_ms for f in self.flushes)
        return float(self._total("analysis_ms") / total) if total else 0.0

    def plot(self) -> Any:
        """Plot where the time went, and the width of launches in the order in which they ran.

        If samples of ``map`` waited for values, the latter is by flush.

        Returns
        -------
        matplotlib.figure.Figure
            Notebooks show it; ``savefig("report.svg")`` writes a file.

        Raises
        ------
        MissingError
            matplotlib is not installed.
        """
        return plot(self)

    def _repr_html_(self) -> str:
        return report_html(self)

    def to_json(self) -> str:
        """Return the whole report as JSON text."""
        flushes = []
        for flush in self.flushes:
            fields = flush._asdict()
            for name in ("launches", "mean_width", "largest_width"):
                fields[name] = getattr(flush, name)
            fields["alone"] = [{**one._asdict(), "where": str(one.where)} for one in flush.alone]
            flushes.append(fields)
        forced = [{"where": str(where), "times": times} for where, times in self.forced.items()]
        immediate = [{**one._asdict(), "where": str(one.where)} for one in self.immediate.values()]
        content = {
            "flushes": flushes,
            "immediate": immediate,
            "traced": self.traced.as_json(),
            "forced": forced,
            "waiting_ms": self.waiting_ms,
            "at_once": self.at_once,
            "choice": self.choice,
        }
        return json.dumps(content, indent=2)

    def __str__(self) -> str:
        if not self.flushes and not self.at_once:
            return "nothing was recorded"
        lines = []
        if self.at_once:
            lines.append(f"at once     {self.at_once} calls: recording them would not pay")
        for flush in self.flushes[-8:]:
            lines += _describe(flush)
        if len(self.flushes) > 8:
            lines.insert(
                0,
                f"{len(self.flushes)} flushes, {self.nodes} calls, {self.launches} launches; "
                "the last 8:",
            )
        lines += self.traced.lines
        for one in self.alone:
            lines.append(
                f"ran alone   {one.calls} x {one.name}: {one.reason}\n            {one.where}"
            )
        for where, times in sorted(self.forced.items(), key=lambda item: -item[1]):
            lines.append(f"value read  {times} x at {where}")
        if self.choice:
            lines.append(self.choice)
        return "\n".join(lines)


def _describe(flush: FlushReport) -> List[str]:
    return [
        f"calls       {flush.nodes} in {flush.launches} launches; "
        f"{flush.mean_width:.1f} wide on average, {flush.largest_width} at most"
        + (f"; {flush.waiting} samples waited for it" if flush.waiting else ""),
        f"setting     granularity {flush.granularity}, policy {flush.policy}, "
        f"budget {flush.budget}, plan {'from the cache' if flush.cached else 'made anew'}"
        + (", timed for auto" if flush.measured else ""),
        f"memory      {flush.arena_bytes / 1e6:.1f} MB of arenas, "
        f"{flush.rows_gathered} rows gathered",
        f"time        recording {flush.recording_ms:.1f} ms, analysis {flush.analysis_ms:.1f} ms, "
        f"dispatch {flush.dispatch_ms:.1f} ms"
        + (f", waiting for values {flush.waiting_ms:.1f} ms" if flush.waiting_ms else ""),
    ]
