"""What happened in flushes: the report of one, and the rows of a report that add several up."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Sequence, Tuple

from ..show.html import Bar, table
from .advice import rows_of, wrapped
from .findings import Finding

#: A row of a report: a label, and lines of text.
Row = Tuple[str, List[str]]


class FlushReport(NamedTuple):
    """What happened in one flush.

    Attributes
    ----------
    nodes, units : int
        Number of recorded calls, and of the units that they were cut into.
    widths : tuple of int
        Number of units of each launch, in the order of launches.
    launches, mean_width, largest_width : int, float, int
        Number of launches, and the mean and the maximum of their widths.
    granularity, policy, budget : str
        Settings of the analysis.
    cached : bool
        Whether the plan came from the cache.
    findings : tuple of Finding
        Calls that did not merge (``alone``), or only in several launches (``split``).
    rows_gathered : int
        Rows that were copied to make operands contiguous.
    arena_bytes : int
        Size of all arenas, in bytes.
    recording_ms : float
        Milliseconds from the first recorded call to the flush.  This includes the user's own
        Python code, but not waiting for values.
    analysis_ms, dispatch_ms : float
        Milliseconds for grouping and planning, and for handing launches to the engine.
    queue_ms : float
        Milliseconds spent waiting for earlier flushes and their backward passes, so that at most
        two of them are unfinished when this flush starts: each of them holds memory.
    waiting_ms : float
        Milliseconds spent waiting for values after this flush and before the next.
    waiting : int
        Samples of ``map`` that waited for this flush.
    """

    nodes: int
    units: int
    widths: Tuple[int, ...]
    granularity: str
    policy: str
    budget: str
    cached: bool = False
    findings: Tuple[Finding, ...] = ()
    rows_gathered: int = 0
    arena_bytes: int = 0
    recording_ms: float = 0.0
    analysis_ms: float = 0.0
    dispatch_ms: float = 0.0
    queue_ms: float = 0.0
    waiting_ms: float = 0.0
    waiting: int = 0

    @property
    def launches(self) -> int:
        """Number of launches."""
        return len(self.widths)

    @property
    def mean_width(self) -> float:
        """Mean number of units per launch."""
        return sum(self.widths) / len(self.widths)

    @property
    def largest_width(self) -> int:
        """Number of units of the widest launch."""
        return max(self.widths)

    @property
    def line(self) -> str:
        """The flush in one line, for the log."""
        return "; ".join(f"{label} {', '.join(lines)}" for label, lines in summary([self]))

    def __str__(self) -> str:
        """Write the flush as a report of it alone."""
        return "\n".join(wrapped(*row) for row in [*summary([self]), *rows_of(self.findings)])


def counted(calls: int, units: int, launches: int) -> str:
    """Return the numbers of calls, units and launches as text; the one way to count.

    >>> counted(15, 15, 5), counted(15, 40, 5)
    ('15 calls in 5 launches', '15 calls, cut into 40 units, in 5 launches')
    """
    return f"{calls} call{'s' * (calls != 1)}{_launched(calls, units, launches)}"


def _launched(calls: int, units: int, launches: int) -> str:
    cut = f", cut into {units} units," if units != calls else ""
    return f"{cut} in {launches} launch{'es' * (launches != 1)}"


def summary(flushes: Sequence[FlushReport]) -> Iterator[Row]:
    """Yield the rows about one or more flushes, which add them up."""
    calls, units = (sum(x) for x in zip(*((f.nodes, f.units) for f in flushes)))
    widths = [width for flush in flushes for width in flush.widths]
    wide = f"{sum(widths) / len(widths):.1f} {'units' if units != calls else 'calls'} a launch"
    launched = _launched(calls, units, len(widths))
    yield "calls", [f"{calls}{launched}; {wide} on average, {max(widths)} at most"]
    waiting = [flush.waiting for flush in flushes if flush.waiting]
    waited = (
        f"; {sum(waiting) / len(waiting):.1f} samples of map waited for each" if waiting else ""
    )
    if len(flushes) > 1:
        yield (
            "flushes",
            [f"{len(flushes)}{waited}", "print(batch.report.flushes[0]) shows the first"],
        )
    elif waited:
        yield "flushes", [f"1; {waiting[0]} samples of map waited for it"]
    settings = dict.fromkeys(
        f"granularity {f.granularity}, policy {f.policy}, budget {f.budget}" for f in flushes
    )
    cached = sum(flush.cached for flush in flushes)
    plans = f"{cached} of {len(flushes)} plans cached"
    if len(flushes) == 1:
        plans = "cached plan" if cached else "new plan"
    yield "setting", ["; ".join([*settings, plans])]
    sizes = [flush.arena_bytes / 1e6 for flush in flushes]
    largest = f", {max(sizes):.1f} MB in the largest flush" if len(flushes) > 1 else ""
    gathered = sum(flush.rows_gathered for flush in flushes)
    yield "memory", [f"{sum(sizes):.1f} MB of arenas{largest}, {gathered} rows gathered"]
    names = ("recording", "analysis", "dispatch")
    rows = [{name: sum(getattr(flush, f"{name}_ms") for flush in flushes) for name in names}]
    waits = {"earlier flushes": "queue_ms", "values": "waiting_ms"}
    totals = {what: sum(getattr(flush, name) for flush in flushes) for what, name in waits.items()}
    rows.append({f"waiting for {what}": spent for what, spent in totals.items() if spent})
    texts = (", ".join(f"{name} {spent:.1f} ms" for name, spent in row.items()) for row in rows)
    yield "time", [*filter(None, texts)]


def flush_table(flushes: Sequence[FlushReport]) -> str:
    """Return HTML of a table with a row per flush, and a bar for its calls."""
    most = max(flush.nodes for flush in flushes)
    rows = [
        (f"flush {number}", Bar(flush.nodes, most), next(summary([flush]))[1][0])
        for number, flush in enumerate(flushes, 1)
    ]
    return table(rows, folded=f"all {len(flushes)} flushes")
