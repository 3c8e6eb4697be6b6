"""The decisions of "auto": whether to record calls at all, and whether to run them ahead.

Both are made from counts of calls and launches: no setting is tried, and no time is measured.
Recorded calls run at granularity "operator", grouped by depth.  This makes the widest launches, and
launches of native steps are so cheap that finding other groups costs more than it saves.

If every value is read before the next call, or a scope has only a few calls, a flush costs more
than it saves.  Then the calls of later scopes at the same place run at once.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from .native import lowering
from .plan.plan import Plan
from .record.identity import number_of
from .record.tape import Tape
from .report.findings import Finding
from .report.report import Report
from .trace.symbols import count_operators

# Microseconds without and with a backward pass, in Python and in the engine, on one machine; on
# others, the ratios are similar.
#: A call that runs at once, and each operator in it.
CALL, OPERATOR = (40, 120), (14, 21)
#: A flush, a new plan, a recorded call, and a launch of native steps.
FLUSH, PLAN, RECORDED, LAUNCH = (100, 700), (600, 900), (8, 16), (20, 40)
#: Operations in products of a forward pass that take several times as long as what a flush costs,
#: even if half of the rows are equal to others.
WORK_AHEAD = (900_000_000, 4_500_000_000)
#: Python's part of a call that is still to be recorded and planned, while the engine could work.
TO_RECORD = 3
#: How many times what a flush costs it has to hide: its launches are narrower, its gradients are
#: separate sums, and rows that are equal to rows of other parts are computed again.
WORTH_AHEAD = 4
#: Estimates are this far apart if it is plain which way takes less time.
PLAIN = 1.5
#: Places remembered per thread.
MOST_PLACES = 256


def is_recorded(tape: Tape) -> bool:
    """Return whether a backward pass may follow."""
    return lowering.any_recorded(tape)


def _first_block(tape: Tape) -> Optional[int]:
    blocks = (entry.block_number for entry in tape.entries.values())
    return next((block for block in blocks if block is not None), None)


class Costs(NamedTuple):
    """Estimated costs of a flush, and of its calls if they ran at once, in microseconds."""

    #: Number of the first block that is called.
    first_block: Optional[int]
    #: Number of all calls, and of those of blocks.
    nodes: int
    calls: int
    at_once: int
    recorded: int
    #: The additional cost of a new plan.
    plan: int


def costs_of(tape: Tape, plan: Plan) -> Costs:
    """Estimate the costs of computing a tape."""
    calls, operators = lowering.totals(tape)
    backward = is_recorded(tape)
    call, operator = CALL[backward], OPERATOR[backward]
    launches = LAUNCH[backward] * len(plan.segment)
    otherwise = lowering.run_otherwise(plan.graph.briefs, plan.kernels)
    by_mxnet = [number for number in otherwise if isinstance(plan.kernels[number], str)]
    if by_mxnet:
        counts = np.bincount(plan.segment, minlength=len(plan.kernels)).tolist()
        for number in by_mxnet:
            own = count_operators(plan.graph.segments[number].ops)
            launches += counts[number] * (call + operator * own - LAUNCH[backward])
    return Costs(
        first_block=_first_block(tape),
        nodes=len(tape.node_entry),
        calls=calls,
        at_once=call * len(tape.node_entry) + operator * operators,
        recorded=FLUSH[backward] + RECORDED[backward] * len(tape.node_entry) + launches,
        plan=PLAN[backward],
    )


class Decision(NamedTuple):
    """What was decided for the scopes of one place that begin with a call of one block."""

    #: How many calls run at once.
    limit: int = 0
    #: The decision, for the report.
    text: str = ""
    #: Why launches were narrow in the scope that led to it; if calls run at once, no other says so.
    findings: Optional[Tuple[Finding, ...]] = None
    #: How many calls the scope recorded that led to it.
    nodes: int = 0


#: In place of a decision that was not made.
UNDECIDED = Decision()


class Account:
    """The costs of a scope so far, recorded and if its calls had run at once; microseconds."""

    def __init__(self, decisions: Dict[Optional[int], Decision]):
        #: What was decided for scopes that one thread opened at one place in one mode, by their
        #: first block.
        self._decisions = decisions
        #: Whether the first calls may run at once.
        self.begins_at_once = any(decision.limit for decision in decisions.values())
        self._first_block: Optional[int] = None
        self.nodes = self.calls = self.recorded = self.at_once = 0

    def limit_of(self, block: Any) -> int:
        """Return how many calls run at once, given the block that is called first."""
        self._first_block = number_of(block)
        return self._decisions.get(self._first_block, UNDECIDED).limit

    def pays_ahead(self, tape: Tape) -> bool:
        """Return whether computing pending calls now pays, while the engine has nothing to do.

        The engine then works while Python records and plans the rest of the scope.
        """
        work = lowering.work_of(tape)
        if work < min(WORK_AHEAD):
            return False
        backward = is_recorded(tape)
        cost = FLUSH[backward] + PLAN[backward]
        return work >= WORK_AHEAD[backward] and TO_RECORD * self._left(tape) >= WORTH_AHEAD * cost

    def _left(self, tape: Tape) -> int:
        """Estimate how many calls the scope will record after those of a tape."""
        first_block = self._first_block if self._first_block is not None else _first_block(tape)
        known = self._decisions.get(first_block, UNDECIDED).nodes
        pending = len(tape.node_entry)
        recorded = self.nodes + pending
        # If nothing is known, or this scope is of another kind: as many as are pending.
        return known - recorded if 2 * known >= recorded else pending

    def note(self, costs: Costs, cached: bool) -> None:
        """Add the costs of a flush."""
        if self._first_block is None:
            self._first_block = costs.first_block
        self.nodes += costs.nodes
        self.calls += costs.calls
        self.at_once += costs.at_once
        # The plan of a first scope may be used again.  If a later scope needs a new plan, so will
        # the next one.
        is_charged = not cached and self._first_block in self._decisions
        self.recorded += costs.recorded + costs.plan * is_charged

    def _told(self, at_once: bool) -> str:
        """Return a decision in words, without the estimates: these are good for no more."""
        chosen = "run their calls at once" if at_once else "record their calls"
        low, high = sorted((self.recorded, self.at_once))
        why = "which takes less time" if high > PLAIN * low else "but both ways take about as long"
        return f"later scopes here {chosen}, {why}"

    def close(self, report: Report) -> None:
        """Decide about later scopes after one with this report, and add what the report lacks."""
        if self._first_block is None:
            return
        if self.recorded:
            # If most calls ran at once, the recorded ones tell too little.
            loses = self.recorded > self.at_once and self.calls > report.at_once
            self._decisions[self._first_block] = Decision(
                # Sizes vary: only a scope more than twice as large is recorded again.
                2 * (self.calls + report.at_once) if loses else 0,
                self._told(loses),
                tuple(report.causes) if loses else None,
                self.nodes,
            )
        decision = self._decisions.get(self._first_block, UNDECIDED)
        report.choice = decision.text
        if not report.flushes and decision.findings is not None:
            report.add_earlier(decision.findings)
