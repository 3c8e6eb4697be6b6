"""What comes of a contest: a row for each turn."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from .results import Spread, grouped


class Row(NamedTuple):
    """One contender's turn in one round.

    Attributes
    ----------
    label : str
    round : int
    minibatches, samples : int
    rate : float
        Samples per second, or what the workload counts in them.
    ms : float
        Milliseconds of a minibatch of the contest's size.
    recording, analysis, dispatch : float or None
        Parts of these, of the calling thread; None without the library, as all that follow.
    nodes, launches : float or None
        Of a minibatch: what the analyzer grouped, and launches.
    bound : float or None
        Fewest launches of any policy for the last minibatch, if that was one flush.
    arena_mb : float or None
        Memory for the values of a minibatch.
    cached : int or None
        Flushes whose plan came from the cache.
    setting : str
        What most flushes ran with: "granularity by policy (budget)", or `AT_ONCE`.
    """

    label: str
    round: int
    minibatches: int
    samples: int
    rate: float
    ms: float
    recording: Optional[float] = None
    analysis: Optional[float] = None
    dispatch: Optional[float] = None
    nodes: Optional[float] = None
    launches: Optional[float] = None
    bound: Optional[float] = None
    arena_mb: Optional[float] = None
    cached: Optional[int] = None
    setting: str = ""

    @property
    def running(self) -> float:
        """The rest of the time: waiting for the engine, in training also backward and update."""
        known = (self.recording, self.analysis, self.dispatch)
        return self.ms - sum(part for part in known if part is not None)


class Outcome(NamedTuple):
    """What came of one contest."""

    workload: str
    kind: str
    batch_size: int
    rows: List[Row]

    @property
    def by_label(self) -> Dict[str, List[Row]]:
        """The rows of each contender."""
        return grouped(self.rows, lambda row: row.label)

    def spread(self, label: str, field: str = "rate") -> Optional[Spread]:
        """Summarise a figure of a contender; None if it did not take part, or has none."""
        values = [getattr(row, field) for row in self.rows if row.label == label]
        known = [value for value in values if value is not None]
        return Spread.of(known) if known else None

    def median(self, label: str, field: str = "rate") -> Optional[float]:
        """Give the median of a figure of a contender, or None."""
        spread = self.spread(label, field)
        return None if spread is None else spread.median

    def ratio(self, label: str, other: str) -> Optional[Spread]:
        """Summarise the speed of one contender as a multiple of another's, round by round."""
        theirs = {row.round: row.ms for row in self.rows if row.label == other}
        ours = {row.round: row.ms for row in self.rows if row.label == label}
        shared = [theirs[i] / ours[i] for i in ours if i in theirs]
        return Spread.of(shared) if shared else None

    def as_json(self) -> Dict[str, Any]:
        """Give all figures as JSON takes them."""
        rows = [row._asdict() for row in self.rows]
        return {**self._asdict(), "rows": rows}

    @classmethod
    def from_json(cls, content: Dict[str, Any]) -> Outcome:
        """Read what `as_json` gave."""
        rows = [Row(**row) for row in content["rows"]]
        return cls(**{**content, "rows": rows})
