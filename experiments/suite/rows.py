"""The table of all measurements: a row for each turn, and what is asked of it."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np


class Row(NamedTuple):
    """One contender's turn in one round of a contest.

    Attributes
    ----------
    kind : str
    size : int
        Samples of the contest's minibatches.
    way : str
    minibatches, samples : int
    rate : float
        Samples per second, or what the workload counts in them.
    ms : float
        Milliseconds of a minibatch of the contest's size.
    round : int
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
        What most flushes ran with: "granularity by policy (budget)", or `contest.AT_ONCE`.
    """

    kind: str
    size: int
    way: str
    minibatches: int
    samples: int
    rate: float
    ms: float
    round: int = 0
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


class Spread(NamedTuple):
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    high: float


def spread_of(values: List[Optional[float]]) -> Optional[Spread]:
    """Summarise values, or say None if none is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, median, high = np.percentile(known, (25, 50, 75)).tolist()
    return Spread(median, low, high)


class Rows(List[Row]):
    """Rows of one workload."""

    def by(self, *fields: str) -> Dict[Any, Rows]:
        """Group by one field or several, in order of first appearance."""
        groups: Dict[Any, Rows] = {}
        for row in self:
            key = tuple(getattr(row, field) for field in fields)
            groups.setdefault(key if len(fields) > 1 else key[0], Rows()).append(row)
        return groups

    def spread(self, way: str, field: str = "rate") -> Optional[Spread]:
        """Summarise a figure of a way; None if it did not take part, or has none."""
        return spread_of([getattr(row, field) for row in self if row.way == way])

    def median(self, way: str, field: str = "rate") -> Optional[float]:
        """Give the median of a figure of a way, or None."""
        spread = self.spread(way, field)
        return spread and spread.median

    def ratio(self, way: str, other: str) -> Optional[float]:
        """Give the median speed of one way as a multiple of another's, round by round."""
        theirs = {row.round: row.ms for row in self if row.way == other}
        ours = [row for row in self if row.way == way and row.round in theirs]
        spread = spread_of([theirs[row.round] / row.ms for row in ours])
        return spread and spread.median


class Measured(NamedTuple):
    """What is known of one workload.

    Attributes
    ----------
    title, unit : str
        For people; what rates count.
    source : str
        The paper that the workload is from, and what it claims.
    reading : str
        What the figures say of that claim.
    lines : int
        Lines of the model and of its loop that exist only because of the library.
    left_out, versions : dict
        By way: why it does not take part; what another system says of itself.
    rows : Rows
    alone : list of dict
        Figures of processes that ran one way and nothing else; see `benchmark.measure_alone`.
    """

    title: str
    unit: str
    source: str
    reading: str
    lines: int
    left_out: Dict[str, str]
    versions: Dict[str, str]
    rows: Rows
    alone: List[Dict[str, Any]]

    def as_json(self) -> Dict[str, Any]:
        """Give all figures as JSON takes them."""
        return {**self._asdict(), "rows": [row._asdict() for row in self.rows]}

    @classmethod
    def from_json(cls, content: Dict[str, Any]) -> Measured:
        """Read what `as_json` gave."""
        return cls(**{**content, "rows": Rows(Row(**row) for row in content["rows"])})
