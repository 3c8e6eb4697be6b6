"""Reduce the number of groups of a grouping: merge groups, or drop them.

Grouping by depth can separate units without need:

    a -> b -> c        by depth: {a, a'} {b} {c'} {c}, and c' can wait for c
    a' -> c'

Two groups of one signature can be merged if neither reaches the other.  The graph of groups then
stays acyclic, so an order of launches exists.  After the merge, all groups that reached one of the
two reach the successors of both.

Merging keeps groups whole, but a group can also be dropped, and its units join several others:

    a0 -> a1              by depth     {a0} {b2} {a1 a3} {a4}
    b2 -> a3 -> a4        a0 dropped   {b2} {a0 a3} {a1 a4}

Groups are visited from the last to the first.  A group is kept only if one of its units cannot run
in an earlier group of its signature and was not taken by a later one.  A group that is kept takes
all units of its signature whose readers are in later groups.  So units run as late as possible, in
groups that are needed anyway.
"""

from __future__ import annotations

from ..native import scheduling
from .dependencies import Dependencies, Ints

MOST_TO_MERGE = 1024
"""More groups are not merged: the table of which group reaches which would take some 10 ms."""


def merged_groups(graph: Dependencies, groups: Ints) -> Ints:
    """Merge pairs of groups of equal signature until no two can be merged.

    Signatures are visited in the order of their ids, and the pair that is launched closest together
    is merged first, which delays units the least.  If `groups` is valid, so is the result.
    """
    merged = groups.copy()
    scheduling.merge_groups(graph.signature, graph.offsets, graph.preds, merged)
    return merged


def needed_groups(graph: Dependencies, groups: Ints) -> Ints:
    """Drop groups whose units can all run in others; if `groups` is valid, so is the result."""
    remaining = groups.copy()
    scheduling.drop_groups(graph.signature, graph.offsets, graph.preds, remaining)
    return remaining
