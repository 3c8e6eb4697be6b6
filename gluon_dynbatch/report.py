"""Reports of scopes, as text, HTML and JSON."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from .advice import (
    AT_ONCE,
    EARLIER,
    FEW_CALLS,
    HYBRIDIZE,
    IN_IDLE_CELL,
    KINDS,
    NOTHING,
    OPEN,
    address,
    rows_of,
    wrapped,
)
from .errors import Where
from .findings import READS, Finding, Findings, Traced
from .show.html import Bar, PageLink, html_page, table
from .show.plot import plot
from .summary import FlushReport, Row, counted, flush_table, summary

#: By label of a row that a finding makes, the section of the documentation about it.
SECTIONS = {kind.label: kind.section for kind in KINDS.values()}


def _not_known() -> None:
    """Return nothing."""


def _linked(label: str) -> PageLink:
    """Return the label of a row, with a link to what it means if there is a site."""
    return PageLink(label, address(SECTIONS.get(label, "guides/reports#the-report")))


class Report:
    """What happened in a scope so far.

    Attributes
    ----------
    flushes : list of FlushReport
        One per flush.
    waiting_ms : float
        Milliseconds spent waiting for values (``asnumpy``, ``wait_to_read`` and functions that call
        these) while the scope was open.
    traced : Traced
        Calls of blocks that are hybridized with ``trace_once=True``.
    at_once : int
        Calls that "auto" ran immediately, because recording them costs more than it saves.
    is_from_earlier : bool
        Whether findings are from the last scope here that recorded calls, as all calls of this one
        ran at once.
    choice : str
        The decision of "auto" for scopes like this one.
    """

    def __init__(self) -> None:
        self.flushes: List[FlushReport] = []
        self.waiting_ms = 0.0
        self.at_once = 0
        self.is_from_earlier = False
        self.choice = ""
        #: Whether the scope is open: calls may be pending.
        self.is_open = False
        #: What is found while calls are recorded; a flush has findings of its own.
        self.found = Findings()
        self.traced = Traced(self.found)
        self._earlier: Tuple[Finding, ...] = ()
        #: Returns how many launches the flush of this scope needs at least; None if nobody knows.
        self.fewest_launches: Callable[[], Optional[int]] = _not_known

    @classmethod
    def together(cls, reports: Iterable[Report]) -> Report:
        """Combine the reports of several scopes into one."""
        total = cls()
        for report in reports:
            total.flushes += report.flushes
            total.waiting_ms += report.waiting_ms
            total.at_once += report.at_once
            total.traced.known += report.traced.known
            total.traced.new += report.traced.new
            total.traced.new_ms += report.traced.new_ms
            total.found.add(report.found)
        return total

    def add_earlier(self, earlier: Iterable[Finding]) -> None:
        """Add the findings of an earlier scope that this report does not have."""
        known = self._all()
        self._earlier = tuple(finding for finding in earlier if finding not in known)
        self.is_from_earlier = True

    def count_wait(self, milliseconds: float) -> None:
        """Add time spent waiting for a value, and attribute it to the last flush."""
        self.waiting_ms += milliseconds
        if self.flushes:
            last = self.flushes[-1]
            self.flushes[-1] = last._replace(waiting_ms=last.waiting_ms + milliseconds)

    @property
    def nodes(self) -> int:
        """Number of recorded calls."""
        return sum(flush.nodes for flush in self.flushes)

    @property
    def launches(self) -> int:
        """Number of launches that ran the recorded calls."""
        return sum(flush.launches for flush in self.flushes)

    def _all(self) -> Findings:
        total = Findings().add(self.found).add(self._earlier)
        for flush in self.flushes:
            total.add(flush.findings)
        return total

    @property
    def findings(self) -> List[Finding]:
        """What may cost time, and why; the most frequent first, and one for each cause."""
        unrecorded = self.unrecorded
        others = (
            finding
            for finding in self._all()
            if finding.kind != "ordinary" and not self.found.is_explained(finding)
        )
        return [*others] if unrecorded is None else [unrecorded, *others]

    def found_of(self, *kinds: str) -> List[Finding]:
        """Return the findings of some kinds, the most frequent first."""
        return [finding for finding in self._all() if finding.kind in kinds]

    @property
    def line(self) -> str:
        """The numbers of calls and launches as text."""
        units = sum(flush.units for flush in self.flushes)
        return counted(self.nodes, units, self.launches)

    @property
    def alone(self) -> List[Finding]:
        """Calls that did not merge, with the reason, the most frequent first."""
        return self.found_of("alone")

    @property
    def split(self) -> List[Finding]:
        """Calls that need several launches, with the reason, the most frequent first."""
        return self.found_of("split")

    @property
    def forced(self) -> Dict[Where, int]:
        """Lines that ended a batch early, and how often."""
        return {finding.where: finding.calls for finding in self.found_of(*READS)}

    @property
    def ordinary(self) -> Dict[str, int]:
        """Numbers of operators on ordinary arrays, which run immediately, by name."""
        total: Counter[str] = Counter()
        for finding in self.found_of("ordinary"):
            total[finding.name] += finding.calls
        return dict(total)

    @property
    def analysis_share(self) -> float:
        """Time of analysis as a share of recording, analysis and dispatch."""
        times = self.stage_times
        total = times["recording"] + times["analysis"] + times["dispatch"]
        return times["analysis"] / total if total else 0.0

    @property
    def stage_times(self) -> Dict[str, float]:
        """Milliseconds spent in each stage."""
        queue = sum(flush.queue_ms for flush in self.flushes)
        return {
            "recording": sum(flush.recording_ms for flush in self.flushes),
            "analysis": sum(flush.analysis_ms for flush in self.flushes),
            "dispatch": sum(flush.dispatch_ms for flush in self.flushes),
            "waiting": self.waiting_ms + queue,
        }

    def plot(self) -> Any:
        """Plot where the time went, and the widths of launches in the order in which they ran.

        If samples of ``map`` waited for values, the figure shows widths per flush instead.

        Returns
        -------
        matplotlib.figure.Figure
            Notebooks display it; ``savefig("report.svg")`` writes a file.

        Raises
        ------
        MissingError
            matplotlib is not installed.
        """
        flushes = self.flushes
        return plot(self.stage_times, [f.widths for f in flushes], [f.waiting for f in flushes])

    def _repr_html_(self) -> str:
        rows = [*self._rows()]
        if not self.flushes:
            linked = table((_linked(label), "\n".join(text)) for label, text in rows)
            return html_page("Report", [linked], str(self))
        times = self.stage_times
        longest, told = max(times.values()), ("calls", "time")  # in the title, and as bars
        tables = [
            table((_linked(label), "\n".join(lines)) for label, lines in rows if label not in told),
            table((name, Bar(ms, longest), f"{ms:.1f} ms") for name, ms in times.items()),
        ]
        if len(self.flushes) > 1:
            tables.append(flush_table(self.flushes))
        return html_page(self.line, tables, str(self))

    def to_json(self) -> str:
        """Return the whole report as JSON text."""

        def as_dicts(findings: Iterable[Finding]) -> List[Dict[str, Any]]:
            return [{**finding._asdict(), "where": str(finding.where)} for finding in findings]

        derived = ("launches", "mean_width", "largest_width")
        traced = self.traced
        content = dict(
            waiting_ms=self.waiting_ms,
            at_once=self.at_once,
            is_from_earlier=self.is_from_earlier,
            choice=self.choice,
            flushes=[
                {
                    **flush._asdict(),
                    **{name: getattr(flush, name) for name in derived},
                    "findings": as_dicts(flush.findings),
                }
                for flush in self.flushes
            ],
            traced={"known": traced.known, "new": traced.new, "new_ms": traced.new_ms},
            findings=as_dicts(self.findings),
            ordinary=self.ordinary,
        )
        return json.dumps(content, indent=2)

    @property
    def unrecorded(self) -> Optional[Finding]:
        """Why most operators were not recorded, and what to do; None if they were."""
        # Those on arrays that a line reads, and those within cells that should be hybridized, have
        # other reasons, which these findings tell.
        forced = self.forced
        ordinary = [x for x in self.found_of("ordinary") if x.where not in forced]
        if self.found_of("idle"):
            ordinary = [x for x in ordinary if x.reason != IN_IDLE_CELL]
        calls = sum(finding.calls for finding in ordinary)
        if calls <= self.nodes:
            return None
        most = ordinary[0]
        others = f", most often {most.name}," if len(ordinary) > 1 else ""
        reason = f"operators on ordinary arrays{others} ran at once"
        return most._replace(calls=calls, reason=reason)

    def __str__(self) -> str:
        return "\n".join(wrapped(*row) for row in self._rows())

    def _rows(self) -> Iterator[Row]:
        """Yield all rows: first the summary, then what was found."""
        if not self.flushes and not self.at_once:
            nothing = [NOTHING] + [f"-> {HYBRIDIZE}"] * (not self.findings)
            yield "calls", [OPEN] if self.is_open else nothing
        if self.at_once:
            lines = [AT_ONCE.format(self.at_once)]
            if self.is_from_earlier:
                lines += [EARLIER] if self._earlier else [f"-> {FEW_CALLS}"]
            yield "at once", lines
        if self.flushes:
            yield from summary(self.flushes, self.fewest_launches())
            if self.launches == self.nodes > 1 and not self.findings:
                yield "one by one", ["no call shared a launch with another one", f"-> {FEW_CALLS}"]
        traced = self.traced
        if traced.known or traced.new:
            text = f"{traced.known} calls reused a recording, "
            yield "traced once", [text + f"{traced.new} ran forward in {traced.new_ms:.1f} ms"]
        yield from rows_of(self.findings)
        if self.choice:
            yield "auto", [self.choice]
