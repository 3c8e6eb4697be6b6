"""The analyzer: a valid grouping from the first moment, a better one for every bit of budget."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

from gluon_dynbatch.analysis.budget import Budget, Meter
from gluon_dynbatch.analysis.depth import group_by_depth, unit_depth
from gluon_dynbatch.analysis.frontier import Ints
from gluon_dynbatch.analysis.groups import one_by_one
from gluon_dynbatch.analysis.search import Search
from gluon_dynbatch.errors import OptionError
from gluon_dynbatch.graph import UnitGraph

POLICIES = ("depth", "agenda", "search")
"""Each does what the one before it does, and more."""


class Analysis(NamedTuple):
    """What the analyzer decided about one graph, and what that cost.

    Attributes
    ----------
    groups : numpy.ndarray of int32, shape (units,)
        Group of each unit, numbered in an order in which they can be launched.
    launches : int
        Number of groups.
    visits : int
        Visits charged; divided by `milliseconds`, the rate for the next analysis.
    milliseconds : float
        Wall-clock time.
    policy : str
        As asked for.
    complete : bool
        Whether the budget was no obstacle: the policy ran to its end, or its result is known to be
        the best there is.
    """

    groups: Ints
    launches: int
    visits: int
    milliseconds: float
    policy: str
    complete: bool


def analyze(
    graph: UnitGraph,
    policy: str,
    budget: Budget,
    rate: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Analysis:
    """Group the units of `graph` into launches.

    The policies are one ladder, of which each climbs a part.  First the longest prefix that the
    budget allows is grouped by depth; the units behind it follow one by one.  If that was the whole
    graph, "agenda" and "search" go on as described in `search.py`.  The best grouping is kept, so
    for a given policy more visits never give more launches.

    Parameters
    ----------
    graph : UnitGraph
        What to group.
    policy : {"depth", "agenda", "search"}
        How far to climb.
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
        raise OptionError.unknown("policy", policy, POLICIES)
    meter = Meter(budget, clock)
    prefix = min(graph.size, meter.left_visits(rate))
    meter.spend(prefix)
    complete = prefix == graph.size
    if not prefix:
        groups = one_by_one(graph)
    elif policy == "depth" or not complete:
        groups = group_by_depth(graph, prefix)
    else:
        search = Search(graph, unit_depth(graph), meter, rate)
        complete = search.climb(policy)
        groups = search.groups
    launches = int(groups.max(initial=-1)) + 1
    return Analysis(groups, launches, meter.visits, meter.milliseconds, policy, complete)
