"""Reports of scopes and flushes, as text, HTML and JSON."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from .advice import (
    AT_ONCE,
    EARLIER,
    FEW_CALLS,
    FUNCTIONS,
    INACTIVE,
    NOTHING,
    ORDINARY,
    TURNS,
    describe_reads,
)
from .errors import Where
from .findings import Alone, Cause, Origin, Reasons, Traced, add_calls, by_frequency
from .show.draw import page
from .show.plot import plot


class FlushReport(NamedTuple):
    """What happened in one flush.

    Attributes
    ----------
    nodes, units : int
        Number of recorded calls, and of the units that they were split into.
    widths : tuple of int
        Number of units of each launch, in the order of launches.
    launches, mean_width, largest_width : int, float, int
        Number of launches, and the mean and the maximum of their widths.
    granularity, policy, budget : str
        Settings of the analysis.
    cached : bool
        Whether the plan came from the cache.
    alone : tuple of Alone
        Calls that did not merge.
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
        two of them are unfinished, and hold memory, when this flush starts.
    waiting_ms : float
        Milliseconds spent waiting for values after this flush and before the next.
    waiting : int
        Samples of ``map`` that waited for this flush.
    split : tuple of Alone
        Calls of one block or operator that need several launches, because the sizes or the numbers
        of their arrays differ.
    """

    nodes: int
    units: int
    widths: Tuple[int, ...]
    granularity: str
    policy: str
    budget: str
    cached: bool = False
    alone: Tuple[Alone, ...] = ()
    rows_gathered: int = 0
    arena_bytes: int = 0
    recording_ms: float = 0.0
    analysis_ms: float = 0.0
    dispatch_ms: float = 0.0
    queue_ms: float = 0.0
    waiting_ms: float = 0.0
    waiting: int = 0
    split: Tuple[Alone, ...] = ()

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
        return "; ".join(f"{label} {text}" for label, text in _describe(self))


class Report:
    """What happened in a scope so far.

    Attributes
    ----------
    flushes : list of FlushReport
        One per flush.
    forced : dict of Where to int
        Lines that read a value while calls were pending, or ended a batch early for another reason,
        and how often.  If all calls ran at once, those of the last scope here that recorded calls.
    causes : dict of Where to Cause
        What these lines call, and whether samples of ``map`` wait there.
    waiting_ms : float
        Milliseconds spent waiting for values (``asnumpy``, ``wait_to_read`` and functions that call
        these) while the scope was open.
    immediate : dict of str to Alone
        Calls that cannot be recorded and always run immediately, by name of block or operator.
    traced : Traced
        Calls of blocks that are hybridized with ``trace_once=True``.
    at_once : int
        Calls that "auto" ran immediately, because recording them costs more than it saves.
    ordinary : dict of str to int
        Number of operators on ordinary arrays, which run immediately, by name.
    origins : dict of str to Origin
        The first call of each of these operators.
    earlier : Reasons or None
        If all calls ran at once, the reasons from the last scope here that recorded calls.
    choice : str
        The decision of "auto" for scopes like this one, and its estimates.
    turns : dict of (str, Where) to int
        Attributes that samples of ``map`` read only after all earlier samples had ended, which may
        change them, with the lines that read them, and how many samples waited.
    """

    def __init__(self) -> None:
        self.flushes: List[FlushReport] = []
        self.forced: Counter[Where] = Counter()
        self.causes: Dict[Where, Cause] = {}
        self.waiting_ms = 0.0
        self.immediate: Dict[str, Alone] = {}
        self.traced = Traced()
        self.at_once = 0
        self.ordinary: Counter[str] = Counter()
        self.origins: Dict[str, Origin] = {}
        self.earlier: Optional[Reasons] = None
        self.choice = ""
        self.turns: Counter[Tuple[str, Where]] = Counter()

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
            for key, calls in report.traced.refused.items():
                add_calls(total.traced.refused, key, calls)
            total.forced.update(report.forced)
            total.causes = {**report.causes, **total.causes}
            total.ordinary.update(report.ordinary)
            total.origins = {**report.origins, **total.origins}
            total.turns.update(report.turns)
            for name, calls in report.immediate.items():
                add_calls(total.immediate, name, calls)
        return total

    @property
    def reasons(self) -> Reasons:
        """Why launches were narrow."""
        return Reasons({**self.forced}, {**self.causes}, tuple(self.alone), tuple(self.split))

    def add_missing(self, earlier: Reasons) -> None:
        """Add the reasons of an earlier scope that this report does not have."""
        for where in earlier.forced.keys() - self.forced.keys():
            self.forced[where] = earlier.forced[where]
        self.causes = {**earlier.causes, **self.causes}
        if self.flushes or self.immediate:
            known = {(calls.name, calls.reason) for calls in (*self.alone, *self.split)}
            alone, split = (
                tuple(calls for calls in group if (calls.name, calls.reason) not in known)
                for group in (earlier.alone, earlier.split)
            )
            earlier = earlier._replace(alone=alone, split=split)
        self.earlier = earlier

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

    @property
    def alone(self) -> List[Alone]:
        """Calls that did not merge, with the reason, the most frequent first."""
        flushes = (flush.alone for flush in self.flushes)
        earlier = self.earlier.alone if self.earlier else ()
        return by_frequency(self.immediate.values(), *flushes, earlier)

    @property
    def split(self) -> List[Alone]:
        """Calls that need several launches, with the reason, the most frequent first."""
        earlier = self.earlier.split if self.earlier else ()
        return by_frequency(*(flush.split for flush in self.flushes), earlier)

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
        text = str(self)
        title = f"{self.nodes} calls in {self.launches} launches; flushes: {len(self.flushes)}"
        return page(title, [(line[:12], line[12:]) for line in text.splitlines()], text)

    def to_json(self) -> str:
        """Return the whole report as JSON text."""

        def as_dicts(group: Iterable[Alone]) -> List[Dict[str, Any]]:
            return [{**calls._asdict(), "where": str(calls.where)} for calls in group]

        derived = ("launches", "mean_width", "largest_width")
        content = {
            **vars(self),
            "flushes": [
                {
                    **flush._asdict(),
                    **{name: getattr(flush, name) for name in derived},
                    "alone": as_dicts(flush.alone),
                    "split": as_dicts(flush.split),
                }
                for flush in self.flushes
            ],
            "immediate": as_dicts(self.immediate.values()),
            "traced": {**vars(self.traced), "refused": as_dicts(self.traced.refused.values())},
            "forced": [{"where": str(w), "times": times} for w, times in self.forced.items()],
            "causes": [{"where": str(w), **c._asdict()} for w, c in self.causes.items()],
            "origins": {name: [str(at.where), at.inactive] for name, at in self.origins.items()},
            "earlier": self.earlier
            and {"alone": as_dicts(self.earlier.alone), "split": as_dicts(self.earlier.split)},
            "turns": [
                {"attribute": name, "where": str(w), "samples": count}
                for (name, w), count in self.turns.items()
            ],
        }
        return json.dumps(content, indent=2)

    @property
    def unrecorded(self) -> str:
        """Why most operators were not recorded, and what to do; empty if they were."""
        # Operators on arrays that a line reads have another reason, which `forced` tells.
        ordinary = {
            name: calls
            for name, calls in self.ordinary.items()
            if self.origins[name].where not in self.forced
        }
        calls = sum(ordinary.values())
        if calls <= self.nodes:
            return ""
        most = max(ordinary, key=ordinary.__getitem__)
        where, inactive = self.origins[most]
        return ORDINARY.format(calls, most, where) + (
            INACTIVE.format(inactive) if inactive else FUNCTIONS
        )

    def __str__(self) -> str:
        if not self.flushes and not self.at_once:
            return f"nothing was recorded: {self.unrecorded}" if self.unrecorded else NOTHING
        lines = [f"{label:12}{text}" for label, text in self._rows()]
        if len(self.flushes) > 8:
            total = f"{len(self.flushes)} flushes, {self.nodes} calls, {self.launches} launches"
            lines.insert(0, f"{total}; the last 8:")
        return "\n".join(lines + [self.choice] * bool(self.choice))

    def _rows(self) -> Iterator[Tuple[str, Any]]:
        """Yield the labels and texts of all lines."""
        if self.at_once:
            text = AT_ONCE.format(self.at_once)
            if self.earlier:
                text += EARLIER if any(self.earlier) else f"\n{'':12}{FEW_CALLS}"
            yield "at once", text
        for flush in self.flushes[-8:]:
            yield from _describe(flush)
        if self.unrecorded:
            yield "at once", self.unrecorded
        traced = self.traced
        if traced.known or traced.new:
            text = f"{traced.known} calls reused a recording, "
            text += f"{traced.new} ran forward in {traced.new_ms:.1f} ms"
            yield "traced once", text
        for label, group in (
            ("not kept", traced.refused.values()),
            ("ran alone", self.alone),
            ("split", self.split),
        ):
            yield from ((label, calls) for calls in group)
        yield from describe_reads(self.forced, self.causes)
        turns = sorted(self.turns.items(), key=lambda item: -item[1])
        yield from (("in turn", TURNS.format(count, *key)) for key, count in turns)


def _describe(flush: FlushReport) -> List[Tuple[str, Any]]:
    samples = "1 sample" if flush.waiting == 1 else f"{flush.waiting} samples"
    waited = f"; {samples} waited for it" if flush.waiting else ""
    waiting = f", waiting for values {flush.waiting_ms:.1f} ms" if flush.waiting_ms else ""
    queue = f", waiting for earlier flushes {flush.queue_ms:.1f} ms" if flush.queue_ms else ""
    return [
        ("calls", f"{flush.nodes} in {flush.launches} launches; {flush.mean_width:.1f} wide "
         f"on average, {flush.largest_width} at most{waited}"),
        ("setting", f"granularity {flush.granularity}, policy {flush.policy}, "
         f"budget {flush.budget}, {'cached' if flush.cached else 'new'} plan"),
        ("memory", f"{flush.arena_bytes / 1e6:.1f} MB of arenas, "
         f"{flush.rows_gathered} rows gathered"),
        ("time", f"recording {flush.recording_ms:.1f} ms, analysis {flush.analysis_ms:.1f} ms, "
         f"dispatch {flush.dispatch_ms:.1f} ms{queue}{waiting}"),
    ]  # fmt: skip
