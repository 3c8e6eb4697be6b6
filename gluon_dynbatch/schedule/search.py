"""Better groupings for as long as the budget lasts: a fixed ladder of steps, the best result kept.

The steps and their order depend on the graph alone, never on the budget.  A step is taken if its
estimated cost in visits is left, and the first that is not ends the search.  A larger budget thus
takes the same steps and then more of them, which is why it never ends with more launches.

It begins with what depth has found, joins included.  An attempt is a grouping made anew, and then
joins of its groups (`merge.py`) if it is not much worse than the best.  "agenda" makes one, with
DyNet's agenda (`agenda.AverageDepth`).  "search" does this:

1. The lower bound, if it is cheap for this graph, else 4 at once; whenever the best grouping
   reaches it, all is done.
2. An attempt with the agenda that goes after the bound (`agenda.TopFirst`).  It nearly always finds
   the least number of launches for trees and sequences.
3. The same on the reversed graph: consumed from the sinks, units are put off that forward are
   launched as soon as they can be.
4. The attempt of "agenda"; on the reversed graph, too, if there is no bound to go after.
"""

from __future__ import annotations

from functools import cached_property
from typing import Callable, Iterator, NamedTuple

from gluon_dynbatch.schedule.agenda import AverageDepth, TopFirst, agenda_cost, group_by_agenda
from gluon_dynbatch.schedule.bound import bound_from_heights, quick_bound
from gluon_dynbatch.schedule.budget import Meter
from gluon_dynbatch.schedule.dependencies import Dependencies
from gluon_dynbatch.schedule.depth import unit_depth
from gluon_dynbatch.schedule.frontier import Ints, reverse, unreverse
from gluon_dynbatch.schedule.heights import heights_cost, signature_heights
from gluon_dynbatch.schedule.merge import GROUPS, merge_cost, merge_groups

EFFORT = 100
"""Visits per unit after which even an unlimited search ends."""

SMALL = 25_000
"""Visits that are granted on top, so that small graphs get all steps."""

HOPE = 2
"""A grouping with fewer than this many times the launches of the best may become it by joins."""


class Step(NamedTuple):
    """One rung of the ladder.

    Attributes
    ----------
    cost : int
        Estimated visits.
    run : callable
        Returns a valid grouping, or ``None`` if it has found none that could be of use.
    """

    cost: int
    run: Callable[[], Ints | None]


class _View:
    """One direction in which the graph can be consumed; what is needed of it is computed once."""

    def __init__(self, graph: Dependencies) -> None:
        self.graph = graph

    @cached_property
    def depth(self) -> Ints:
        """What `unit_depth` returns."""
        return unit_depth(self.graph)

    @cached_property
    def heights(self) -> Ints:
        """What `signature_heights` returns."""
        return signature_heights(self.graph, self.depth)

    def by_average(self, limit: int) -> Ints | None:
        """Group by DyNet's agenda."""
        return group_by_agenda(self.graph, AverageDepth(self.graph, self.depth), limit)

    def by_top(self, limit: int) -> Ints | None:
        """Group by the agenda that goes after the bound."""
        return group_by_agenda(self.graph, TopFirst(self.graph, self.depth, self.heights), limit)

    def restore(self, groups: Ints) -> Ints:
        """Turn a grouping of `graph` into one of the graph that was recorded."""
        return groups


class _BackwardView(_View):
    """The same from the sinks; the graph is turned around when it is first looked at."""

    def __init__(self, forward: Dependencies) -> None:
        self._forward = forward

    @cached_property
    def graph(self) -> Dependencies:  # type: ignore[override]
        """The reversed graph."""
        return reverse(self._forward)

    def restore(self, groups: Ints) -> Ints:
        """Turn a grouping of the reversed graph around."""
        return unreverse(groups)


class Search:
    """The ladder for one graph, and the best grouping found on it so far.

    Parameters
    ----------
    graph : Dependencies
        What to group.
    groups : numpy.ndarray of int32, shape (units,)
        A valid grouping to begin with.
    meter : Meter
        Charged for every step.
    rate : float, optional
        Visits per millisecond.
    worth : float, optional
        Visits that a launch less is worth.  A step is only taken if the visits since the last news
        (a better grouping, a higher bound), its own included, are at most the worth of the
        launches above the bound: what is left to be gained is never outspent in vain.

    Attributes
    ----------
    groups : numpy.ndarray of int32, shape (units,)
        The best grouping so far.
    launches : int
        Number of its groups.
    bound : int
        A number of launches that is known to be needed.
    """

    def __init__(
        self,
        graph: Dependencies,
        groups: Ints,
        meter: Meter,
        rate: float | None = None,
        worth: float | None = None,
    ) -> None:
        self._forward = _View(graph)
        self._backward = _BackwardView(graph)
        self._meter = meter
        self._rate = rate
        self._worth = worth
        self._in_vain = 0
        self._attempt: Ints | None = None
        self.groups = groups
        self.launches = _count(groups)
        self.bound = quick_bound(graph, self._forward.depth)

    def climb(self, policy: str) -> bool:
        """Take the steps of `policy` that the meter allows and that may pay.

        Parameters
        ----------
        policy : str
            ``"agenda"`` or ``"search"``.

        Returns
        -------
        bool
            Whether the ladder ended, the bound was reached, or no step could pay, before the
            budget was used up.
        """
        if self.launches <= self.bound:
            return True
        effort = EFFORT * self._forward.graph.size + SMALL
        for step in self._steps(policy, effort // 2):
            effort -= step.cost
            if effort < 0 or not self._may_pay(step):
                break
            if self._meter.out_of_time() or step.cost > self._meter.left_visits(self._rate):
                return False
            self._meter.spend(step.cost)
            known = self.launches, self.bound
            groups = step.run()
            self._keep(groups)
            news = (self.launches, self.bound) != known
            self._in_vain = 0 if news else self._in_vain + step.cost
            if self.launches <= self.bound:
                return True
        return not self._meter.out_of_time()

    def _may_pay(self, step: Step) -> bool:
        """Whether `step` costs no more than what is left to be gained."""
        if self._worth is None:
            return True
        return self._in_vain + step.cost <= self._worth * (self.launches - self.bound)

    def _keep(self, groups: Ints | None) -> None:
        """Replace the best grouping if `groups` has fewer launches."""
        if groups is not None and _count(groups) < self.launches:
            self.groups, self.launches = groups, _count(groups)

    def _steps(self, policy: str, dear: int) -> Iterator[Step]:
        """Yield the steps of `policy` in order; each is made after the one before it was taken.

        The bound is left out if it costs more than `dear`.
        """
        forward, backward = self._forward, self._backward
        if policy == "agenda":
            yield from self._try(forward, forward.by_average)
            return
        cost = heights_cost(forward.graph, forward.depth)
        if cost <= dear:
            yield Step(cost, self._raise_bound)
            yield from self._try(forward, forward.by_top)
            yield from self._try(backward, backward.by_top, cost)
        yield from self._try(forward, forward.by_average)
        if cost > dear:
            yield from self._try(backward, backward.by_average)

    def _raise_bound(self) -> None:
        """Compute the lower bound; it improves nothing by itself."""
        self.bound = max(self.bound, bound_from_heights(self._forward.graph, self._forward.heights))

    def _try(
        self, view: _View, group: Callable[[int], Ints | None], extra: int = 0
    ) -> Iterator[Step]:
        """Make an attempt: a grouping, and then its joins."""
        graph = self._forward.graph
        # An agenda gives up at the limit, which therefore limits its cost.
        limit = min(HOPE * self.launches, max(GROUPS + 1, self.launches))

        def run() -> Ints | None:
            groups = group(limit)
            self._attempt = None if groups is None else view.restore(groups)
            return self._attempt

        yield Step(agenda_cost(graph, limit) + extra, run)
        attempt = self._attempt
        if attempt is not None and _count(attempt) <= GROUPS:
            cost = merge_cost(graph, _count(attempt))
            yield Step(cost, lambda: merge_groups(graph, attempt))


def _count(groups: Ints) -> int:
    return int(groups.max(initial=-1)) + 1
