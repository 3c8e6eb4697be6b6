"""What launches, searches and scopes have cost: the accounts by which "auto" decides."""

from __future__ import annotations

from typing import Dict, Optional

from .report import FlushReport
from .schedule import Analysis

#: Recording one call takes so many seconds more than making it at once.
RECORDING_SECONDS = 4e-6
#: Up to so many calls per launch, recording cannot pay.
NARROW = 1.25
#: Searches after which it is asked whether they earn what they cost.
SEARCHES = 3


class Figures:
    """Running figures of the process: what a launch costs, and what the analyzer gets done."""

    def __init__(self) -> None:
        #: Visits per millisecond of the last analysis.
        self.rate: Optional[float] = None
        #: Seconds to hand out a launch, by whether it is recorded for a backward pass.
        self._launch: Dict[bool, float] = {}

    def note(self, recorded: bool, seconds: float, launches: int) -> None:
        """Take note of what handing out so many launches took, when nothing had to be built."""
        each = seconds / launches
        self._launch[recorded] = 0.8 * self._launch.get(recorded, each) + 0.2 * each

    def launch_seconds(self, recorded: bool) -> Optional[float]:
        """Seconds that one launch costs, its backward pass, of twice the work, included."""
        each = self._launch.get(recorded)
        return None if each is None else each * (3 if recorded else 1)

    def visits_per_launch(self, recorded: bool) -> Optional[float]:
        """Visits of the analyzer that take as long as one launch; None before it is known."""
        seconds = self.launch_seconds(recorded)
        return None if seconds is None or self.rate is None else seconds * 1e3 * self.rate


class Searches:
    """What searching has cost at one workload and granularity, and what it has saved."""

    def __init__(self) -> None:
        self._number = 0
        self._spent = self._saved = 0.0

    @property
    def pay(self) -> bool:
        """Whether it has earned what it cost, or has hardly been tried."""
        return self._number < SEARCHES or self._saved >= self._spent

    def note(self, analysis: Analysis, launch_seconds: float) -> None:
        """Take note of an analysis, if it searched."""
        self._number += analysis.search_milliseconds > 0
        self._spent += 1e-3 * analysis.search_milliseconds
        self._saved += launch_seconds * analysis.saved


class Account:
    """What one scope did, flush by flush."""

    def __init__(self) -> None:
        self.calls = self.units = self.launches = self.flushes = 0
        self.analysis = self.dispatch = 0.0

    def note(self, calls: int, flush: FlushReport) -> None:
        """Add a flush with so many calls of blocks."""
        self.flushes += 1
        self.calls += calls
        self.units += flush.units
        self.launches += flush.launches
        self.analysis += 1e-3 * flush.analysis_ms
        self.dispatch += 1e-3 * flush.dispatch_ms

    @property
    def narrow(self) -> bool:
        """Whether launches are hardly wider than calls."""
        return self.units <= NARROW * self.launches

    @property
    def ratio(self) -> float:
        """What recording takes, as a multiple of what calls at once take; the engine left out."""
        if not self.calls or not self.dispatch:
            return 0.0
        recorded = RECORDING_SECONDS * self.calls + self.analysis + self.dispatch
        return recorded / (self.calls * self.dispatch / self.launches)
