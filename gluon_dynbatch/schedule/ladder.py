"""The analyzer: a valid grouping from the first moment, a better one for every bit of budget."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

import numpy as np

from gluon_dynbatch.errors import OptionError
from gluon_dynbatch.schedule.budget import Budget, Meter
from gluon_dynbatch.schedule.dependencies import Dependencies
from gluon_dynbatch.schedule.depth import group_by_depth
from gluon_dynbatch.schedule.frontier import Ints
from gluon_dynbatch.schedule.groups import one_by_one
from gluon_dynbatch.schedule.merge import GROUPS, merge_cost, merge_groups
from gluon_dynbatch.schedule.search import Search

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
        Whether the budget was no obstacle: the policy ran to its end, its result is known to be the
        best there is, or going on could not have paid.
    saved : int
        How many launches "agenda" or "search" have saved, against "depth".
    search_milliseconds : float
        How much of the time they took; 0 if there was no step to take.
    """

    groups: Ints
    launches: int
    visits: int
    milliseconds: float
    policy: str
    complete: bool
    saved: int
    search_milliseconds: float


def analyze(
    graph: Dependencies,
    policy: str,
    budget: Budget,
    rate: float | None = None,
    worth: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Analysis:
    """Group the units of `graph` into launches.

    The policies are one ladder, of which each climbs a part.  First the longest prefix that the
    budget allows is grouped by depth; the units behind it follow one by one.  If that was the whole
    graph, groups that depth has set apart for no reason are joined (`merge.py`), with which "depth"
    ends; "agenda" and "search" go on as described in `search.py`.  The best grouping is kept, so
    for a given policy more visits never give more launches, and with the same budget no policy
    gives more than "depth".

    Parameters
    ----------
    graph : Dependencies
        What to group.
    policy : {"depth", "agenda", "search"}
        How far to climb.
    budget : Budget
        How much that may cost.  With none at all, every unit is launched by itself.
    rate : float, optional
        Visits per millisecond on this machine, to judge what fits into milliseconds; a cautious
        default is assumed.
    worth : float, optional
        Visits that a launch less is worth: seconds per launch by seconds per visit.  "agenda" and
        "search" then stop where going on cannot pay: after depth's part of the ladder, visits
        without news (a better grouping, a higher bound) never exceed `worth` times the launches
        above the bound, which is all that could still be saved.  0 leaves it at depth's result.  By
        default nothing stops them but the budget and their end.
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
    groups = group_by_depth(graph, prefix) if prefix else one_by_one(graph)
    if complete and prefix:
        groups, complete = _join(graph, groups, meter, rate)
    by_depth, visits, before = _count(groups), meter.visits, meter.milliseconds
    if complete and prefix and policy != "depth":
        search = Search(graph, groups, meter, rate, worth)
        complete = search.climb(policy)
        groups = search.groups
    after = meter.milliseconds
    return Analysis(
        groups,
        _count(groups),
        meter.visits,
        after,
        policy,
        complete,
        by_depth - _count(groups),
        after - before if meter.visits > visits else 0.0,
    )


def _count(groups: Ints) -> int:
    return int(groups.max(initial=-1)) + 1


def _join(graph: Dependencies, groups: Ints, meter: Meter, rate: float | None) -> tuple[Ints, bool]:
    """Join groups as far as sensible; return whether the budget allowed it, too."""
    launches = _count(groups)
    if launches > GROUPS or launches == np.count_nonzero(np.bincount(graph.signature)):
        return groups, True
    cost = merge_cost(graph, launches)
    if meter.out_of_time() or cost > meter.left_visits(rate):
        return groups, False
    meter.spend(cost)
    return merge_groups(graph, groups), True
