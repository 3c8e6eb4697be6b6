"""Joining groups of a finished grouping that never had to be apart.

Depth separates units by how far they are from the sources, although nothing may depend on that:

    a -> b -> c        by depth: {a, a'} {b} {c'} {c}, and c' can wait for c
    a' -> c'

Two groups of one signature can be joined if neither reaches the other through the groups between
them. The groups then still form an acyclic graph, so some order of launches exists; after the join,
what reaches either of the two reaches whatever the two reach.
"""

from __future__ import annotations

import numpy as np

from gluon_dynbatch.native import PLANNING
from gluon_dynbatch.schedule.dependencies import Dependencies
from gluon_dynbatch.schedule.frontier import Array, Ints

GROUPS = 1024
"""Above so many groups the table of which reaches which is too dear: some 10 ms."""


def merge_cost(graph: Dependencies, launches: int) -> int:
    """Estimate the visits that `merge_groups` is worth."""
    return graph.size // 2 + 20 * launches + launches**2 // 2


def merge_groups(graph: Dependencies, groups: Ints) -> Ints:
    """Join pairs of groups of equal signature until no two can be joined.

    The signatures are taken by id, and of each the pair that is launched closest together, as that
    delays the least.

    Parameters
    ----------
    graph : Dependencies
        What is grouped.
    groups : numpy.ndarray of int32, shape (units,)
        A valid grouping.

    Returns
    -------
    numpy.ndarray of int32, shape (units,)
        A valid grouping with at most as many groups.
    """
    if PLANNING is not None:
        joined = groups.copy()
        PLANNING.join(*graph[:3], joined)
        return joined
    count = int(groups.max(initial=-1)) + 1
    reach = _reachability(graph, groups, count)
    signature = np.empty(count, np.int64)
    signature[groups] = graph.signature
    stands_for = np.arange(count)
    for chosen in np.flatnonzero(np.bincount(signature, minlength=1) > 1):
        members = np.flatnonzero(signature == chosen)
        while (pair := _free_pair(reach, members)) is not None:
            keep, drop = pair
            _join(reach, keep, drop)
            stands_for[stands_for == drop] = keep
            members = members[members != drop]
    merged: Ints = _renumber(reach, stands_for)[groups]
    return merged


def _reachability(graph: Dependencies, groups: Ints, count: int) -> Array:
    """Tabulate which group reaches which other, shape (groups, groups)."""
    reach = np.zeros((count, count), bool)
    owners = np.repeat(groups, np.diff(graph.offsets))
    reach[groups[graph.preds], owners] = True
    for group in range(count - 1, -1, -1):
        after = np.flatnonzero(reach[group])
        if len(after):
            reach[group] |= reach[after].any(axis=0)
    return reach


def _free_pair(reach: Array, members: Array) -> tuple[int, int] | None:
    """Choose the closest two of `members` of which neither reaches the other."""
    part = reach[np.ix_(members, members)]
    first, second = np.nonzero(np.triu(~(part | part.T), 1))
    if not len(first):
        return None
    place = int((second - first).argmin())
    return int(members[first[place]]), int(members[second[place]])


def _join(reach: Array, keep: int, drop: int) -> None:
    """Let group `keep` stand for both groups, neither of which reaches the other; drop `drop`."""
    after = reach[keep] | reach[drop]
    before = reach[:, keep] | reach[:, drop]
    reach[keep] = after
    sources = np.flatnonzero(before)
    reach[sources] |= after
    reach[sources, keep] = True
    reach[drop] = False
    reach[:, drop] = False


def _renumber(reach: Array, stands_for: Array) -> Ints:
    """Renumber the remaining groups so that each comes before all that it reaches."""
    remaining = np.unique(stands_for)
    # Along a path the number of groups that reach a group grows, for it includes the one before.
    order = np.argsort(reach.sum(axis=0)[remaining], kind="stable")
    number = np.empty(len(stands_for), np.int32)
    number[remaining[order]] = np.arange(len(remaining))
    result: Ints = number[stands_for]
    return result
