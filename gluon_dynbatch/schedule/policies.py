"""The policies, and the entry point: a valid grouping at once, better ones while the budget lasts.

Every policy begins with "depth": the longest prefix that the budget allows is grouped by depth, the
units behind it follow one by one, and if it was the whole graph, groups are merged.  Then the other
policies try the steps listed in `POLICIES`, and the best grouping is kept, so none makes more
launches than "depth" with the same budget.

The steps and their order depend on the graph alone, never on the budget.  A step is taken if its
estimated cost in visits is left, and the first that is not ends the search.  More visits thus allow
the same steps and then more of them, and never give more launches.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import Callable, Dict, NamedTuple, Optional, Protocol, Sequence

import numpy as np

from ..errors import OptionError
from .agenda import agenda_cost, group_by_agenda
from .bound import path_counts, path_counts_cost, quick_bound
from .budget import Budget, Meter
from .dependencies import Dependencies, Ints, reverse, unreverse
from .depth import group_by_level, unit_depth
from .groups import count_groups
from .merge import MOST_GROUPS, merge_cost, merge_groups


class Search:
    """What is known of a graph while it is grouped; at first it is grouped by depth."""

    def __init__(self, graph: Dependencies) -> None:
        self.graph = graph
        self.depth = unit_depth(graph)
        #: The grouping with the fewest launches so far, and their number.
        self.groups = group_by_level(self.depth, graph.signature)
        self.launches = count_groups(self.groups)
        #: What the last step returned.
        self.attempt: Ints | None = self.groups
        #: A number of launches that is known to be needed.
        self.bound = quick_bound(graph, self.depth)

    @cached_property
    def path_counts(self) -> tuple[Ints, int]:
        """What `path_counts` returns."""
        return path_counts(self.graph, self.depth)

    @cached_property
    def path_counts_cost(self) -> int | None:
        """What `path_counts_cost` returns."""
        return path_counts_cost(self.graph, self.depth)

    @cached_property
    def reverse(self) -> Search:
        """The graph from its sinks."""
        return Search(reverse(self.graph))

    def keep(self, attempt: Ints | None) -> None:
        """Take note of an attempt, and of its groups if they are fewer."""
        self.attempt = attempt
        if attempt is not None and count_groups(attempt) < self.launches:
            self.groups, self.launches = attempt, count_groups(attempt)


class Step(Protocol):
    """One attempt at a better grouping."""

    def cost(self, search: Search) -> int | None:
        """Estimate the visits that `run` is worth; ``None`` leaves the step out."""

    def run(self, search: Search) -> Ints | None:
        """Return a valid grouping of ``search.graph``, or ``None`` if none was found."""


class Bound:
    """Raise the bound to `lower_bound`; who reaches it is done."""

    def cost(self, search: Search) -> int | None:
        """Charge the counting of paths."""
        return search.path_counts_cost

    def run(self, search: Search) -> None:
        """Leave the groups as they are."""
        search.bound = max(search.bound, search.path_counts[1])


class Agenda(NamedTuple):
    """Group by agenda, by average depth or toward the bound; from the sources or from the sinks.

    From the sinks, units are put off that otherwise are launched as soon as they can be.
    """

    toward_bound: bool = False
    from_sinks: bool = False

    def cost(self, search: Search) -> int | None:
        """Charge the agenda, and from the sinks the counting of paths."""
        counting = search.path_counts_cost if self.toward_bound else 0
        if counting is None:
            return None
        return agenda_cost(search.graph, search.launches) + counting * self.from_sinks

    def run(self, search: Search) -> Ints:
        """Group from either end."""
        view = search.reverse if self.from_sinks else search
        counts = view.path_counts[0] if self.toward_bound else None
        groups = group_by_agenda(view.graph, view.depth, counts)
        return unreverse(groups) if self.from_sinks else groups


class Merge:
    """Merge groups of the attempt of the step before, if they are not too many."""

    def cost(self, search: Search) -> int | None:
        """Charge what the table of groups takes."""
        launches = MOST_GROUPS + 1 if search.attempt is None else count_groups(search.attempt)
        return merge_cost(search.graph, launches) if launches <= MOST_GROUPS else None

    def run(self, search: Search) -> Ints | None:
        """Merge."""
        return None if search.attempt is None else merge_groups(search.graph, search.attempt)


POLICIES: Dict[str, Sequence[Step]] = {
    "depth": (),
    "agenda": (Agenda(), Merge()),
    # Toward the bound nearly always finds the fewest launches for trees and sequences.
    "search": (
        Bound(),
        Agenda(toward_bound=True), Merge(),
        Agenda(toward_bound=True, from_sinks=True), Merge(),
        Agenda(), Merge(),
    ),
}  # fmt: skip
"""The steps that follow those of "depth", by the name of the policy."""


class Analysis(NamedTuple):
    """How a graph was grouped, and what that cost."""

    #: Group of each unit, int32, numbered in an order in which they can be launched.
    groups: Ints
    #: Visits charged; divided by `milliseconds`, the rate for the next analysis.
    visits: int
    #: Wall-clock time.
    milliseconds: float
    #: Whether the budget was no obstacle: the policy ran to its end, or its result is known to be
    #: the best there is.
    complete: bool

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
    meter = Meter(budget, rate, clock)
    prefix = min(graph.size, meter.left)
    meter.visits += prefix
    search = Search(graph.first(prefix))
    complete = prefix == graph.size and _take([Merge(), *POLICIES[policy]], search, meter)
    rest = np.arange(search.launches, search.launches + graph.size - prefix, dtype=np.int32)
    return Analysis(
        np.concatenate([search.groups, rest]),
        meter.visits,
        meter.milliseconds,
        complete,
    )


def _take(steps: Sequence[Step], search: Search, meter: Meter) -> bool:
    """Take `steps` until none can save a launch; return whether the budget allowed it."""
    for step in steps:
        if search.launches <= search.bound:
            break
        cost = step.cost(search)
        if cost is None:
            search.keep(None)
            continue
        if cost > meter.left:
            return False
        meter.visits += cost
        search.keep(step.run(search))
    return True
