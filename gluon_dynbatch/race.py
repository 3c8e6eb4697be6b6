"""Find the fastest of a few settings by running real scopes with each, no more than needed.

Which granularity pays off depends on model, minibatch and machine, and no account of launches and
rows was found that tells it to a tenth; the clock does.  Per workload, entrants take turns, so that
a slow minute of the machine hurts all of them alike:

1. the first run of each is not counted, for it pays for building symbols and operators;
2. after each later run, who is clearly slower than the leader is out: the more runs, the smaller
   the difference that counts as clear;
3. if trying has cost more than its share of the time, the slowest is out;
4. after `RUNS` runs each, or `MOST_SCOPES` in all, the smallest lower quartile wins: other work of
   the machine only ever adds time.

Nothing is tried afterwards.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from .schedule import Budget

#: An entrant is out if its best run takes this many times the leader's lower quartile, by the
#: number of runs that count of both; then the last figure.
CLEAR = (math.inf, 3.0, 1.5, 1.3, 1.15)
#: What trying may cost, as a share of the time of the runs that count; then the slowest is out.
SHARE = 0.2
#: Planning may take so many times another's best turn in the first scope of a setting.
FIRST_PLANNING = 4
#: So many runs of an entrant count; so many scopes are timed at most.
RUNS, MOST_SCOPES = 6, 30


class Setting(NamedTuple):
    """How a scope is run.

    Attributes
    ----------
    granularity : str
        Size at which nodes are merged.
    policy : str
        How groups are found; ``"auto"`` searches as long as it pays.
    budget : Budget
        What the analysis may cost.
    hold : int
        Calls after which a part of the minibatch is run, while the rest is being recorded; 0 holds
        all of them back until the end.
    """

    granularity: str
    policy: str
    budget: Budget
    hold: int = 0

    def __str__(self) -> str:
        """Write the setting in a few words."""
        if self == AT_ONCE:
            return "calls at once"
        policy = "" if self.policy == "auto" else f" by {self.policy} ({self.budget})"
        parts = f", in parts of {self.hold} calls" if self.hold else ""
        return f"{self.granularity}{policy}{parts}"


#: Calls run as outside of any scope.
AT_ONCE = Setting("none", "none", Budget(visits=0))


class _Entrant:
    """The runs of one setting, in seconds per call."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.runs = 0
        self.best = math.inf
        self.counted: List[float] = []
        #: Why it is out; empty while it is not.
        self.out = ""

    @property
    def low(self) -> float:
        """The lower quartile of the runs that count; infinite without any."""
        return sorted(self.counted)[len(self.counted) // 4] if self.counted else math.inf

    def __str__(self) -> str:
        if not self.counted:
            known = "not timed"
        else:
            known = f"{self.low * 1e6:.3g} us per call, lower quartile of {len(self.counted)}"
        return f"{self.setting}: {known}" + (f", {self.out}" if self.out else "")


class Race:
    """Chooses the setting of one scope after the other, and stays with the fastest.

    Its choices follow from the times alone.

    Parameters
    ----------
    settings : sequence of Setting
        Who takes part, in order of preference, which decides between equals.
    """

    def __init__(self, settings: Sequence[Setting]) -> None:
        self._entrants: Dict[Setting, _Entrant] = {}
        self._winner: Optional[Setting] = None
        self._why = ""
        self._scopes = 0
        self.enter(*settings)

    @property
    def open(self) -> bool:
        """Whether there is still something to try."""
        return self._winner is None

    @property
    def settings(self) -> List[Setting]:
        """Who takes or took part."""
        return list(self._entrants)

    def enter(self, *settings: Setting) -> None:
        """Let more settings take part; a race that was over is open again."""
        for setting in settings:
            self._entrants.setdefault(setting, _Entrant(setting))
        self._winner = None
        self._judge()

    def next(self) -> Setting:
        """Return what the next scope is to be run with."""
        if self._winner is not None:
            return self._winner
        return min(self._waiting(), key=lambda entrant: entrant.runs).setting

    def best(self, allowed: Callable[[Setting], bool]) -> Setting:
        """Return the fastest setting so far of those that `allowed` says yes to."""
        some = [entrant for entrant in self._entrants.values() if allowed(entrant.setting)]
        return min(some, key=lambda entrant: entrant.low).setting

    def note_planning(self, setting: Setting, seconds: float, calls: int) -> None:
        """Give a setting up if planning a scope of so many calls takes longer than all of another.

        The first time, when programs are put together, it may take a few times as long.
        """
        entrant = self._entrants[setting]
        others = [e.best for e in self._entrants.values() if e is not entrant]
        limit = calls * min(others, default=math.inf) * (1 if entrant.runs else FIRST_PLANNING)
        if self.open and seconds > limit and len(self._alive()) > 1 and not entrant.out:
            entrant.out = f"planning alone took {1e3 * seconds:.0f} ms"
            self._judge()

    def skip(self) -> None:
        """Take note of a scope that could not be timed; the patience ends with these, too."""
        self._scopes += 1
        self._judge()

    def observe(self, setting: Setting, seconds: float, calls: int) -> None:
        """Take note that a scope with so many calls took so long, with whatever came after it."""
        entrant = self._entrants.get(setting)
        if entrant is None or not self.open or not calls or not seconds > 0:
            return
        self._scopes += 1
        entrant.runs += 1
        # The run that does not count speaks for an entrant only, lest one hiccup rules it out.
        entrant.best = min(entrant.best, seconds / calls)
        if entrant.runs > 1 and not entrant.out:
            entrant.counted.append(seconds / calls)
            self._drop_slow()
        self._judge()

    def settle(self, setting: Setting, why: str) -> None:
        """End the race in favour of `setting`, for a reason that needs no more runs."""
        self._entrants.setdefault(setting, _Entrant(setting))
        self._winner, self._why = setting, why

    def explain(self) -> str:
        """Write what follows from the times, and these, by which all are ranked."""
        if self._winner is None:
            head = f"auto: trying, {self._scopes} scopes so far"
        else:
            head = f"auto: settled on {self._winner}" + (f": {self._why}" if self._why else "")
        timed = [entrant for entrant in self._entrants.values() if entrant.counted or entrant.out]
        ranked = sorted(timed, key=lambda entrant: entrant.low)
        return "\n".join([head] + [f"  {entrant}" for entrant in ranked])

    def _alive(self) -> List[_Entrant]:
        return [entrant for entrant in self._entrants.values() if not entrant.out]

    def _waiting(self) -> List[_Entrant]:
        return [entrant for entrant in self._alive() if len(entrant.counted) < RUNS]

    def _drop_slow(self) -> None:
        leader = min(self._alive(), key=lambda entrant: entrant.low)
        for entrant in self._alive():
            counted = min(len(entrant.counted), len(leader.counted))
            limit = CLEAR[min(counted, len(CLEAR) - 1)]
            if entrant is not leader and entrant.best > limit * leader.low:
                entrant.out = "clearly slower"
        # By lower quartiles: that other programs ran is not the fault of trying.
        timed = [(len(e.counted), e.low) for e in self._entrants.values() if e.counted]
        share = 1 - sum(n for n, _ in timed) * leader.low / sum(n * low for n, low in timed)
        slowest = max((e for e in self._alive() if e.counted), key=lambda entrant: entrant.low)
        if share > SHARE and len(slowest.counted) > 1 and slowest is not leader:
            slowest.out = f"slower, and trying had cost {share:.0%} of the time"

    def _judge(self) -> None:
        """End the race if there is nothing left to try."""
        alive = self._alive()
        if len(alive) > 1 and self._waiting() and self._scopes < MOST_SCOPES:
            return
        self._winner = min(alive, key=lambda entrant: entrant.low).setting
        if len(alive) > 1 and self._waiting():
            self._why = f"{MOST_SCOPES} scopes are enough"
