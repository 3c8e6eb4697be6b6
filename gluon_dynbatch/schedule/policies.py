"""The policies, and the entry point: a valid grouping at once, better ones while the budget lasts.

Every policy begins with "depth": the longest prefix that the budget allows is grouped by depth, the
units behind it follow one by one, and if it was the whole graph, groups are merged and dropped.
Then the other policies make attempts, and the best grouping is kept, so none makes more launches
than "depth" with the same budget.

The attempts and their order depend on the graph alone, never on the budget.  A step is taken if its
estimated cost in visits is left, and the first that is not ends the search.  More visits thus allow
the same steps and then more of them, and never give more launches.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import numpy as np

from ..errors import OptionError
from .agenda import agenda_cost, group_by_agenda
from .bound import quick_bound
from .budget import Budget
from .dependencies import Dependencies, Ints, reverse, unreverse
from .depth import group_by_depth
from .groups import count_groups
from .merge import MOST_GROUPS, drop_groups, merge_cost, merge_groups

DEFAULT_RATE = 20_000.0
"""Visits per millisecond assumed until a rate has been measured; a slow machine's figure."""

UNLIMITED = 2**62
"""What `Meter.left` is when nothing limits the visits."""


#: What a policy does next: the visits that it is worth, and what returns a valid grouping.
Step = Tuple[int, Callable[[], Ints]]


class Meter:
    """Holds the analysis of one flush, from now on, to `budget`.

    `rate` (visits per millisecond) expresses the time left in visits; `clock` returns seconds.
    """

    def __init__(self, budget: Budget, rate: float | None, clock: Callable[[], float]) -> None:
        #: Visits charged.
        self.visits = 0
        self._budget = budget
        self._rate = DEFAULT_RATE if rate is None else rate
        self._clock = clock
        self._start = clock()

    @property
    def milliseconds(self) -> float:
        """Time since the meter was made."""
        return (self._clock() - self._start) * 1e3

    @property
    def left(self) -> int:
        """Visits that both limits still allow; `UNLIMITED` if there is none."""
        left = float(UNLIMITED)
        if self._budget.visits is not None:
            left = min(left, self._budget.visits - self.visits)
        if self._budget.milliseconds is not None:
            time_left = self._budget.milliseconds - self.milliseconds
            left = min(left, time_left * self._rate if time_left > 0 else 0)
        return max(0, int(left))


class Search:
    """What is known of a graph while it is grouped; at first it is grouped by depth."""

    def __init__(self, graph: Dependencies) -> None:
        self.graph = graph
        #: What the last step returned, and the grouping with the fewest launches so far; how many
        #: launches these make.
        self.attempt = self.groups = group_by_depth(graph)
        self.launches = self.attempted = count_groups(self.groups)
        #: A number of launches that is known to be needed, at first one for each signature; who
        #: reaches it is done.
        self.bound = int(np.count_nonzero(np.bincount(graph.signature)))

    def keep(self, attempt: Ints) -> None:
        """Take note of an attempt, and of its groups if they are fewer."""
        self.attempt, self.attempted = attempt, count_groups(attempt)
        if self.attempted < self.launches:
            self.groups, self.launches = attempt, self.attempted


def merges(search: Search) -> Iterator[Step]:
    """Merge groups of the last attempt, unless they are too many, and drop some, while any are."""
    before = -1
    while search.attempted != before:
        if search.attempted <= MOST_GROUPS:
            cost = merge_cost(search.graph, search.attempted)
            yield cost, lambda: merge_groups(search.graph, search.attempt)
        before = search.attempted
        yield search.graph.size, lambda: drop_groups(search.graph, search.attempt)


def by_agenda(search: Search) -> Iterator[Step]:
    """Group by agenda."""
    search.bound = quick_bound(search.graph)
    cost = agenda_cost(search.graph, search.launches)
    yield cost, lambda: group_by_agenda(search.graph)
    yield from merges(search)


def by_search(search: Search) -> Iterator[Step]:
    """Group by depth from the sinks, and by agenda from both ends.

    From the sinks, units are put off that otherwise are launched as soon as they can be.
    """
    search.bound = quick_bound(search.graph)
    turning = 4 * search.graph.size
    yield turning, lambda: unreverse(group_by_depth(reverse(search.graph)))
    yield from merges(search)
    yield from by_agenda(search)
    cost = turning + agenda_cost(search.graph, search.launches)
    yield cost, lambda: unreverse(group_by_agenda(reverse(search.graph)))
    yield from merges(search)


POLICIES: Dict[str, Callable[[Search], Iterator[Step]]] = {
    "depth": lambda search: iter(()),
    "agenda": by_agenda,
    "search": by_search,
}
"""The steps that follow those of "depth", by the name of the policy."""


class Analysis(NamedTuple):
    """How a graph was grouped, and what that cost."""

    #: Group of each unit, int32, numbered in an order in which they can be launched.
    groups: Ints
    #: Visits charged; divided by `milliseconds`, the rate for the next analysis.
    visits: int
    #: Wall-clock time.
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
    """Group the units of `graph` into launches.

    Parameters
    ----------
    graph : Dependencies
        What to group.
    policy : str
        A key of `POLICIES`.
    budget : Budget
        How much that may cost.  With none at all, every unit is launched by itself.
    rate : float, optional
        Visits per millisecond on this machine, to judge what fits into milliseconds; a cautious
        default is assumed.
    clock : callable, optional
        Returns seconds.

    Returns
    -------
    Analysis
        The grouping, and what it cost.

    Raises
    ------
    OptionError
        If there is no such policy.
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
    rest = np.arange(search.launches, search.launches + units - prefix, dtype=np.int32)
    return Analysis(np.concatenate([search.groups, rest]), meter.visits, meter.milliseconds)
