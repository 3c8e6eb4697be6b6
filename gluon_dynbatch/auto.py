"""What "auto" does: an account of what it costs to record calls, and what to make them at once.

Nothing is tried and no clock is looked at: all that counts is known once a plan is made.  Recorded
calls run at granularity "operator", grouped by depth.  It makes the widest launches, and those of
native steps are so cheap that no other way to group them saves what it takes to find them.

So the only question is whether to record at all.  Where every value is read before the next call,
or a scope has a few calls only, a flush costs more than it saves.  Then calls of later scopes at
this place run at once.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Set

import numpy as np

from .lower.segment import Segment
from .modes import RECORDING
from .plan.plan import Plan
from .record.tape import Tape
from .schedule import Budget
from .trace.symbols import count_operators

#: Microseconds that a call at once takes, and each operator of it, in Python and in the engine.
#: Like all that follow, on one machine; on others, their ratios are much the same.
CALL, OPERATOR = 40, 14
#: What a flush takes, a plan that is not known, a recorded call, and a launch of native steps.
FLUSH, PLAN, RECORDED, LAUNCH = 450, 1300, 8, 20
#: With a backward pass, calls at once and flushes take so many times as long.
BACKWARD_AT_ONCE, BACKWARD = 3, 2
#: Operations of products that take several times as long as the flush that runs them ahead.
AHEAD = 800_000_000
#: Places remembered per thread.
MOST_SITES = 256


class Choice(NamedTuple):
    """What a flush is run with."""

    granularity: str
    policy: str
    budget: Budget


def choose(options: Any) -> Choice:
    """Return what a flush is run with, given the `Options` of its scope."""
    granularity, policy, budget = options.granularity, options.policy, options.budget
    if policy == "auto":
        policy = "depth" if budget == "auto" else "search"
    if granularity == "auto":
        granularity = "operator"
    if budget == "auto":
        budget = Budget()
    if budget.is_zero:
        granularity, policy = "block", "depth"
    return Choice(granularity, policy, budget)


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


class Account:
    """What a scope has cost so far, and what its calls would have cost at once; microseconds."""

    def __init__(self) -> None:
        self.calls = self.recorded = self.at_once = 0

    def note(self, tape: Tape, plan: Plan, is_new: bool) -> None:
        """Add a flush, whose plan may have been made for it."""
        counts = np.bincount(tape.node_entry).tolist()
        calls = [(entry, counts[number]) for number, entry in tape.entries.items()]
        at_once = sum(count * (CALL + OPERATOR * entry.operators) for entry, count in calls)
        launches = sum(_launch(launch.segment) for launch in plan.launches)
        recorded = FLUSH + PLAN * is_new + RECORDED * len(tape.node_entry) + launches
        backward = is_recorded(tape)
        self.calls += sum(count for entry, count in calls if entry.block_id is not None)
        self.at_once += at_once * (BACKWARD_AT_ONCE if backward else 1)
        self.recorded += recorded * (BACKWARD if backward else 1)

    @property
    def pays(self) -> bool:
        """Whether recording was cheaper."""
        return self.recorded <= self.at_once

    def __str__(self) -> str:
        return (
            f"{1e-3 * self.recorded:.1f} ms recorded and "
            f"{1e-3 * self.at_once:.1f} ms at once by the account of {self.calls} calls"
        )


def _launch(segment: Segment) -> int:
    """Return what a launch takes: in native steps, or else operator by operator."""
    if type(segment.kernels) is not str:
        return LAUNCH
    return CALL + OPERATOR * count_operators(segment.ops)


class CallSite:
    """What one thread knows of one place that opens scopes, in one mode, with one set of options.

    Scopes are told apart by the block that they call first.

    Parameters
    ----------
    runtime : Runtime
        Counts calls of ``hybridize``.
    code : code
        What opens the scopes; held, so that its id stays its own.
    """

    def __init__(self, runtime: Any, code: Any):
        self._runtime = runtime
        self._hybridized = runtime.hybridized
        self._code = code
        #: Most calls of scopes that run at once, by their first block.
        self._at_once: Dict[int, int] = {}
        #: First blocks of scopes that were recorded: their plans, if new, will be new again.
        self._known: Set[int] = set()
        self._why: Dict[int, str] = {}
        self.enter()

    def enter(self) -> bool:
        """Begin a scope; return whether its calls may have to run at once."""
        self._first: Optional[int] = None
        self._account = Account()
        self._open = True
        return bool(self._at_once)

    @property
    def is_current(self) -> bool:
        """Whether no block was hybridized since, which may change what its calls ask for."""
        return bool(self._hybridized == self._runtime.hybridized)

    def runs_at_once(self, block: Any, calls: int) -> bool:
        """Whether a call of a block, after so many that ran at once, does so, too."""
        if self._first is None:
            self._first = id(block)
        return calls < self._at_once.get(self._first, 0)

    def note(self, tape: Tape, plan: Plan, cached: bool, leaves_all_open: bool) -> None:
        """Take note of a flush; calls run at once only if nothing else is asked for."""
        self._open = self._open and leaves_all_open
        if not self._open:
            return
        if self._first is None:
            blocks = (entry.block_id for entry in tape.entries.values())
            self._first = next((block for block in blocks if block is not None), None)
        self._account.note(tape, plan, not cached and self._first in self._known)

    def leave(self, at_once: int) -> str:
        """End a scope in which this many calls ran at once; return what is known of such scopes."""
        first, account = self._first, self._account
        if first is None or not self._open:
            return ""
        if account.recorded:
            # Unless the larger part was recorded, it is too early to say.
            if account.pays or account.calls <= at_once:
                self._at_once.pop(first, None)
            else:
                # As sizes vary, only a scope twice as large is recorded again.
                self._at_once[first] = 2 * (account.calls + at_once)
            self._known.add(first)
            ends = "calls at once" if first in self._at_once else "record calls"
            self._why[first] = f"auto: {ends}, {account}"
        return self._why.get(first, "")
