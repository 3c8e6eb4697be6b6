"""Reports of scopes, as text, HTML and JSON."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from ..errors import Where
from ..native.recording import Place
from ..show.html import Bar, PageLink, html_page, table
from ..show.plot import plot
from .advice import (
    AT_BEST,
    AT_ONCE,
    EARLIER,
    FEW_CALLS,
    IN_IDLE_CELL,
    LARGER_BUDGET,
    NOTHING,
    SEARCH,
    SECTIONS,
    STILL_PENDING,
    address,
    rows_of,
    wrapped,
)
from .findings import NO_LINE, READS, Finding, Findings, Traced
from .summary import FlushReport, Row, counted, flush_table, summary


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
        Calls that "auto" ran at once, because recording them costs more than it saves.
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
        #: The place that opens the scope; None if there was none yet.
        self.place: Optional[Place] = None
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
            total.place = total.place or report.place
            total.flushes += report.flushes
            total.waiting_ms += report.waiting_ms
            total.at_once += report.at_once
            total.traced.known += report.traced.known
            total.traced.new += report.traced.new
            total.traced.left += report.traced.left
            total.traced.new_ms += report.traced.new_ms
            total.found.add(report.found)
        return total

    def add_earlier(self, earlier: Iterable[Finding]) -> None:
        """Add the findings of an earlier scope, of which those count that this report lacks."""
        self._earlier = tuple(earlier)
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
        total = Findings().add(self.found)
        for flush in self.flushes:
            total.add(flush.findings)
        return total.add([finding for finding in self._earlier if finding not in total])

    @property
    def findings(self) -> List[Finding]:
        """What may cost time, and why: first of all calls, then the most frequent first."""
        causes = self.causes
        return [*self.of_all_calls(causes), *causes]

    @property
    def causes(self) -> List[Finding]:
        """The findings that are about some calls, and say why they cost time, one per cause."""
        unrecorded = self.unrecorded
        others = (
            finding
            for finding in self._all()
            if finding.kind != "ordinary" and not self.found.is_explained(finding)
        )
        return [*others] if unrecorded is None else [unrecorded, *others]

    def of_all_calls(self, causes: List[Finding]) -> Iterator[Finding]:
        """Yield the findings that are about all calls, given those about some."""
        where = NO_LINE if self.place is None else self.place.where
        if self.at_once:
            is_told = any(finding not in self.found for finding in self._earlier)
            advice = FEW_CALLS if self.is_from_earlier and not causes else ""
            reason = AT_ONCE + EARLIER * (is_told and not self.flushes)
            yield Finding("at once", "", reason, self.at_once, where, advice)
        elif not (self.flushes or self.is_open or causes):
            yield Finding("none", "", "", 0, where)
        fewest = self.fewest_launches()
        if fewest is not None and self.launches > fewest:
            advice = ""
            if any(flush.budget != "unlimited" for flush in self.flushes):
                advice = LARGER_BUDGET
            elif any(flush.policy != "search" for flush in self.flushes):
                advice = SEARCH
            reason = AT_BEST.format(self.launches, fewest)
            yield Finding("at best", "", reason, self.nodes, where, advice)
        elif self.launches == self.nodes > 1 and not causes:
            yield Finding("one by one", "", "", self.nodes, where)

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
        """Lines that forced a flush, and how often."""
        return {finding.where: finding.calls for finding in self.found_of(*READS)}

    @property
    def ordinary(self) -> Dict[str, int]:
        """Numbers of operators on ordinary arrays, which run at once, by name."""
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
        traced = {name: getattr(self.traced, name) for name in ("known", "new", "new_ms", "left")}
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
            traced=traced,
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
        if self.flushes:
            yield from summary(self.flushes)
        elif self.is_open and not self.at_once:
            yield "calls", [STILL_PENDING]
        elif self.causes and not self.at_once:
            yield "calls", [NOTHING]
        traced = self.traced
        if traced.known or traced.new or traced.left:
            text = f"{traced.known} calls reused a recording, "
            text += f"{traced.new} ran forward in {traced.new_ms:.1f} ms"
            left = f"{traced.left} not recorded: hardly any structure comes again, or blocks change"
            yield "traced once", [text, left][: 1 + (traced.left > 0)]
        yield from rows_of(self.findings)
        if self.choice:
            yield "auto", [self.choice]
