"""What "auto" does: an account of what it costs to record calls, and what to make them at once.

Nothing is tried and no clock is looked at: all that counts is known once a plan is made.  Recorded
calls run at granularity "operator", grouped by depth.  It makes the widest launches, and those of
native steps are so cheap that no other way to group them saves what it takes to find them.

So the only question is whether to record at all.  Where every value is read before the next call,
or a scope has a few calls only, a flush costs more than it saves.  Then calls of later scopes at
this place run at once.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from .lower.segment import Segment
from .modes import RECORDING
from .plan.plan import Plan
from .record.tape import Tape
from .trace.symbols import count_operators

#: Microseconds without and with a backward pass, in Python and in the engine, on one machine; on
#: others, their ratios are much the same.  What a call at once takes, and each operator of it;
CALL, OPERATOR = (40, 120), (14, 21)
#: a flush, a plan that is not known, a recorded call, and a launch of native steps.
FLUSH, PLAN, RECORDED, LAUNCH = (100, 700), (1300, 2600), (8, 16), (20, 40)
#: Operations of products that take several times as long as the flush that runs them ahead, also if
#: half of the rows are equal to others.
AHEAD = 900_000_000
#: Places remembered per thread.
MOST_PLACES = 256


def is_recorded(tape: Tape) -> bool:
    """Whether a backward pass may follow."""
    return any(entry.mode & RECORDING for entry in tape.entries.values())


def is_much(tape: Tape) -> bool:
    """Whether it pays to run what is pending while more is recorded.

    A backward pass would have as many parts, and runs while the next minibatch is recorded anyway.
    """
    counts = np.bincount(tape.node_entry).tolist()
    work = sum(counts[number] * entry.work for number, entry in tape.entries.items())
    return work >= AHEAD and not is_recorded(tape)


class Costs(NamedTuple):
    """What a flush costs, and what its calls would at once, in microseconds."""

    #: Identity of the block that is called first.
    first: Optional[int]
    #: Calls of blocks.
    calls: int
    at_once: int
    recorded: int
    #: If the plan is not known, this is to be added.
    plan: int


def costs_of(tape: Tape, plan: Plan, natives: Mapping[Segment, Any]) -> Costs:
    """Return what it costs to compute a tape, given the kernels of segments that have any."""
    blocks = (entry.block_id for entry in tape.entries.values())
    counts = np.bincount(tape.node_entry).tolist()
    calls = [(entry, counts[number]) for number, entry in tape.entries.items()]
    backward = is_recorded(tape)
    call, operator, flush, new_plan, recorded, launch = (
        costs[backward] for costs in (CALL, OPERATOR, FLUSH, PLAN, RECORDED, LAUNCH)
    )
    segments = [plan.graph.segments[number] for number in plan.segment.tolist()]
    launches = sum(
        call + operator * count_operators(segment.ops) if natives[segment] is None else launch
        for segment in segments
    )
    return Costs(
        next((block for block in blocks if block is not None), None),
        sum(count for entry, count in calls if entry.block_id is not None),
        sum(n * (call + operator * entry.program.operators) for entry, n in calls),
        flush + recorded * len(tape.node_entry) + launches,
        new_plan,
    )


class Account:
    """What a scope has cost so far, and what its calls would have cost at once; microseconds.

    Parameters
    ----------
    place : dict
        What one thread knows of scopes opened at one place, in one mode, by the block that they
        call first: most calls to run at once, and why.
    """

    def __init__(self, place: Dict[int, Tuple[int, str]]):
        self._place = place
        #: Whether first calls may have to run at once.
        self.begins_at_once = any(most for most, _ in place.values())
        self._first: Optional[int] = None
        self.calls = self.recorded = self.at_once = 0

    def runs_at_once(self, block: Any, calls: int) -> bool:
        """Whether a call of a block, after so many that ran at once, does so, too."""
        if self._first is None:
            self._first = id(block)
        return calls < self._place.get(self._first, (0, ""))[0]

    def note(self, costs: Costs, cached: bool) -> None:
        """Add a flush."""
        if self._first is None:
            self._first = costs.first
        self.calls += costs.calls
        self.at_once += costs.at_once
        # A plan of a first scope may come again; if that of a later one is new, the next one will.
        is_new = not cached and self._first in self._place
        self.recorded += costs.recorded + costs.plan * is_new

    def close(self, at_once: int) -> str:
        """End a scope in which this many calls ran at once; return what is known of such scopes."""
        if self._first is None:
            return ""
        if self.recorded:
            # Unless the larger part was recorded, it is too early to say.
            loses = self.recorded > self.at_once and self.calls > at_once
            self._place[self._first] = (
                # As sizes vary, only a scope twice as large is recorded again.
                2 * (self.calls + at_once) if loses else 0,
                f"auto: {'run calls at once' if loses else 'record calls'}; estimated for "
                f"{self.calls} calls: {1e-3 * self.recorded:.1f} ms recorded, "
                f"{1e-3 * self.at_once:.1f} ms at once",
            )
        return self._place.get(self._first, (0, ""))[1]
