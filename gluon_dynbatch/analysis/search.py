"""Better groupings for as long as the budget lasts: a fixed ladder of steps, the best result kept.

The steps and their order depend on the graph alone, never on the budget.  A step is taken if its
estimated cost in visits is left, and the first that is not ends the search.  A larger budget thus
takes the same steps and then more of them, which is why it never ends with more launches.

It begins with the groups by depth, joined where possible.

1. DyNet's agenda (`agenda.AverageDepth`); the policy "agenda" ends here.
2. The lower bound, if it is cheap for this graph; whenever the best grouping reaches it, all is
done.
3. The agenda that goes after the bound (`agenda.TopFirst`).  It nearly always finds the least
   number of launches for trees and sequences.
4. The reversed graph, by depth and by both agendas: consumed from the sinks, units are put off that
   forward are launched as soon as they can be.
5. Joins of groups (`merge.py`) in the best grouping.
6. Rounds with seeded noise on the priorities, in both directions, each followed by joins.
"""

from __future__ import annotations

from functools import cached_property
from typing import Callable, Iterator, NamedTuple

import numpy as np

from gluon_dynbatch.analysis.agenda import (
    AverageDepth,
    Noisy,
    Priority,
    TopFirst,
    group_by_agenda,
)
from gluon_dynbatch.analysis.bound import bound_from_heights, quick_bound
from gluon_dynbatch.analysis.budget import Meter
from gluon_dynbatch.analysis.depth import group_by_level, unit_depth
from gluon_dynbatch.analysis.frontier import Ints, reverse, unreverse
from gluon_dynbatch.analysis.heights import heights_cost, signature_heights
from gluon_dynbatch.analysis.merge import GROUPS, merge_cost, merge_groups
from gluon_dynbatch.graph import UnitGraph

LAUNCH_VISITS = 150
"""Visits that take as long as choosing one launch of an agenda."""

EFFORT = 30
"""Visits per unit after which even an unlimited search ends."""

SMALL = 25_000
"""Visits that are granted on top, so that small graphs get some rounds."""

ROUNDS = 64
"""Noisy rounds at most."""

SEED = 1705
"""Where the noise starts; a constant, so that equal graphs get equal plans."""


class Step(NamedTuple):
    """One rung of the ladder.

    Attributes
    ----------
    cost : int
        Estimated visits.
    run : callable
        Returns a valid grouping, or ``None`` if it has found none that is better.
    """

    cost: int
    run: Callable[[], Ints | None]


class _View:
    """One direction in which the graph can be consumed; what is needed of it is computed once."""

    def __init__(self, graph: UnitGraph) -> None:
        self.graph = graph

    @cached_property
    def depth(self) -> Ints:
        """What `unit_depth` returns."""
        return unit_depth(self.graph)

    @cached_property
    def heights(self) -> Ints:
        """What `signature_heights` returns."""
        return signature_heights(self.graph, self.depth)

    def average_depth(self) -> Priority:
        """Make a priority for DyNet's agenda."""
        return AverageDepth(self.graph, self.depth)

    def top_first(self) -> Priority:
        """Make a priority for the agenda that goes after the bound."""
        scale = float(self.depth.max(initial=0)) + 1
        return TopFirst(self.graph, self.heights, self.average_depth(), scale)

    def level_groups(self) -> Ints:
        """Group by depth in this direction."""
        return group_by_level(self.depth, self.graph.signature)

    def restore(self, groups: Ints) -> Ints:
        """Turn a grouping of `graph` into one of the graph that was recorded."""
        return groups


class _BackwardView(_View):
    """The same from the sinks; the graph is turned around when it is first looked at."""

    def __init__(self, forward: UnitGraph) -> None:
        self._forward = forward

    @cached_property
    def graph(self) -> UnitGraph:  # type: ignore[override]
        """The reversed graph."""
        return reverse(self._forward)

    def restore(self, groups: Ints) -> Ints:
        """Turn a grouping of the reversed graph around."""
        return unreverse(groups)


class Search:
    """The ladder for one graph, and the best grouping found on it so far.

    Parameters
    ----------
    graph : UnitGraph
        What to group.
    groups : numpy.ndarray of int32, shape (units,)
        A valid grouping to begin with.
    meter : Meter
        Charged for every step.
    rate : float, optional
        Visits per millisecond.

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
        self, graph: UnitGraph, groups: Ints, meter: Meter, rate: float | None = None
    ) -> None:
        self._forward = _View(graph)
        self._backward = _BackwardView(graph)
        self._meter = meter
        self._rate = rate
        self.groups = groups
        self.launches = int(self.groups.max(initial=-1)) + 1
        self.bound = quick_bound(graph, self._forward.depth)

    def climb(self, policy: str) -> bool:
        """Take the steps of `policy` that the meter allows.

        Parameters
        ----------
        policy : str
            ``"agenda"`` or ``"search"``.

        Returns
        -------
        bool
            Whether the ladder ended, or the bound was reached, before the budget did.
        """
        if self.launches <= self.bound:
            return True
        for step in self._steps(policy):
            if self._meter.out_of_time() or step.cost > self._meter.left_visits(self._rate):
                return False
            self._meter.spend(step.cost)
            self._keep(step.run())
            if self.launches <= self.bound:
                return True
        return not self._meter.out_of_time()

    def _keep(self, groups: Ints | None) -> None:
        """Replace the best grouping if `groups` has fewer launches."""
        if groups is not None:
            launches = int(groups.max(initial=-1)) + 1
            if launches < self.launches:
                self.groups, self.launches = groups, launches

    def _steps(self, policy: str) -> Iterator[Step]:
        """Yield the steps of `policy` in order; each is made after the one before it was taken."""
        yield self._agenda(self._forward, self._forward.average_depth)
        if policy == "agenda":
            return
        left = EFFORT * self._forward.graph.size + SMALL
        for step in self._search_steps(left // 4):
            left -= step.cost
            if left < 0:
                return
            yield step

    def _search_steps(self, dear: int) -> Iterator[Step]:
        """Yield what "search" does beyond "agenda", without a bound that costs more than `dear`."""
        forward, backward = self._forward, self._backward
        size = forward.graph.size
        cost = heights_cost(forward.graph, forward.depth)
        with_heights = cost <= dear
        if with_heights:
            yield Step(cost, self._raise_bound)
            yield self._agenda(forward, forward.top_first)
        yield Step(2 * size, lambda: backward.restore(backward.level_groups()))
        yield self._agenda(backward, backward.average_depth)
        if with_heights:
            yield self._agenda(backward, backward.top_first, extra=cost)
        if self.launches <= GROUPS:
            yield Step(merge_cost(forward.graph, self.launches), self._merge_best)
        for number in range(ROUNDS):
            yield self._round(number, backward if number % 2 else forward, with_heights)

    def _raise_bound(self) -> None:
        """Compute the lower bound; it improves nothing by itself."""
        self.bound = max(self.bound, bound_from_heights(self._forward.graph, self._forward.heights))

    def _agenda(self, view: _View, priority: Callable[[], Priority], extra: int = 0) -> Step:
        """Make the step that groups by an agenda, if it needs fewer launches than the best."""

        def run() -> Ints | None:
            groups = group_by_agenda(view.graph, priority(), self.launches, self._meter.out_of_time)
            return None if groups is None else view.restore(groups)

        # The agenda gives up at the best number so far, which therefore limits its cost.
        return Step(view.graph.size + LAUNCH_VISITS * self.launches + extra, run)

    def _merge_best(self) -> Ints:
        """Join groups of the best grouping."""
        return merge_groups(self._forward.graph, self.groups, stop=self._meter.out_of_time)

    def _round(self, number: int, view: _View, with_heights: bool) -> Step:
        """Make a round: an agenda with noise, then joins if there are not too many groups."""
        # A grouping that is slightly worse may still become the best by joins.
        limit = self.launches + self.launches // 8 + 2
        joins = limit <= GROUPS
        size = view.graph.size
        cost = size + LAUNCH_VISITS * limit + (merge_cost(view.graph, limit) if joins else 0)

        def run() -> Ints | None:
            rng = np.random.default_rng((SEED, number))
            groups = self._noisy_agenda(view, with_heights, limit, rng)
            if groups is not None and joins:
                groups = merge_groups(view.graph, groups, rng, self._meter.out_of_time)
            return None if groups is None else view.restore(groups)

        return Step(cost, run)

    def _noisy_agenda(
        self, view: _View, with_heights: bool, limit: int, rng: np.random.Generator
    ) -> Ints | None:
        """Group by an agenda whose choices are disturbed by `rng`, which also draws how much."""
        size = 0.5 * rng.random()
        if with_heights:
            priority = Noisy(view.top_first(), rng, size)
        else:
            priority = Noisy(view.average_depth(), rng, size * float(view.depth.max(initial=1)))
        return group_by_agenda(view.graph, priority, limit, self._meter.out_of_time)
