"""The policies and the entry point: find a valid grouping first, then improve it within the budget.

All policies begin as "depth" does.  The longest prefix that the budget allows is grouped by depth,
and later units are launched one by one.  If the prefix is the whole graph, groups are merged and
dropped.  Then the other policies try further groupings.  The best grouping is kept, so no policy
makes more launches than "depth" with the same budget.

The steps and their order depend on the graph alone, never on the budget.  The search ends at the
first step whose estimated cost exceeds the visits that are left.  So more visits allow the same
steps and perhaps further ones, and never give more launches.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import numpy as np

from ..errors import OptionError
from .agenda import agenda_cost, group_by_agenda
from .budget import Budget, Meter
from .dependencies import Dependencies, Ints, count_groups, reverse, unreverse
from .depth import group_and_bound, group_by_depth
from .merge import MOST_TO_MERGE, merged_groups, needed_groups

#: One step of a policy: its estimated cost in visits, and a function that returns a valid grouping.
PolicyStep = Tuple[int, Callable[[], Ints]]


class Search:
    """The state of a search for a grouping, which starts from the grouping by depth."""

    def __init__(self, graph: Dependencies) -> None:
        self.graph = graph
        #: A lower bound on launches; a policy that reaches it stops.
        self.groups, self.launches, self.bound = group_and_bound(graph)
        #: The grouping of the last step, and its number of launches; above, those of the best.
        self.attempt, self.attempted = self.groups, self.launches

    def keep(self, attempt: Ints) -> None:
        """Set the last attempt; keep it as the best grouping if it has fewer launches."""
        self.attempt, self.attempted = attempt, count_groups(attempt)
        if self.attempted < self.launches:
            self.groups, self.launches = attempt, self.attempted


def merges(search: Search) -> Iterator[PolicyStep]:
    """Merge and drop groups of the last attempt until their number stays the same.

    More than `MOST_TO_MERGE` groups are dropped, but not merged.
    """
    before = -1
    while search.attempted != before:
        groups = search.attempted
        if groups <= MOST_TO_MERGE:
            cost = search.graph.size // 2 + 20 * groups + groups**2 // 2
            yield cost, lambda: merged_groups(search.graph, search.attempt)
        before = search.attempted
        yield search.graph.size, lambda: needed_groups(search.graph, search.attempt)


def by_agenda(search: Search) -> Iterator[PolicyStep]:
    """Group by agenda."""
    cost = agenda_cost(search.graph, search.launches)
    yield cost, lambda: group_by_agenda(search.graph)
    yield from merges(search)


def by_search(search: Search) -> Iterator[PolicyStep]:
    """Group by depth from the sinks, and by agenda from both ends.

    From the sinks, each unit is launched as late as possible, not as early as possible.
    """
    reversing = 4 * search.graph.size
    yield reversing, lambda: unreverse(group_by_depth(reverse(search.graph)))
    yield from merges(search)
    yield from by_agenda(search)
    cost = reversing + agenda_cost(search.graph, search.launches)
    yield cost, lambda: unreverse(group_by_agenda(reverse(search.graph)))
    yield from merges(search)


POLICIES: Dict[str, Callable[[Search], Iterator[PolicyStep]]] = {
    "depth": lambda search: iter(()),
    "agenda": by_agenda,
    "search": by_search,
}
"""The steps of each policy after those of "depth"."""


class Analysis(NamedTuple):
    """The grouping of a graph, and the cost of finding it."""

    #: Group of each unit, int32; groups can be launched in the order of their numbers.
    groups: Ints
    #: Visits charged; divided by `milliseconds`, they give the rate for the next analysis.
    visits: int
    #: Wall-clock time of the analysis.
    milliseconds: float

    @property
    def launches(self) -> int:
        """Number of groups."""
        return count_groups(self.groups)


def analyze(
    graph: Dependencies,
    policy: str,
    budget: Budget,
    rate: Optional[float] = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Analysis:
    """Group the units of `graph` into launches by one of the `POLICIES`.

    If the budget is zero, every unit is launched by itself.  For `rate` and `clock`, see `Meter`.
    """
    if policy not in POLICIES:
        raise OptionError.unknown("policy", policy, tuple(POLICIES))
    meter, units = Meter(budget, rate, clock), graph.size
    prefix = meter.visits = min(units, meter.left)
    search = Search(graph if prefix == units else graph.first(prefix))
    steps = chain(merges(search), POLICIES[policy](search)) if prefix == units else ()
    for cost, run in steps:
        if search.launches <= search.bound or cost > meter.left:
            break
        meter.visits += cost
        search.keep(run())
    groups = search.groups
    if prefix < units:
        rest = np.arange(search.launches, search.launches + units - prefix, dtype=np.int32)
        groups = np.concatenate([groups, rest])
    return Analysis(groups, meter.visits, meter.milliseconds)
