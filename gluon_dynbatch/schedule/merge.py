"""Fewer groups of a finished grouping: merged, or dropped.

Depth separates units by how far they are from the sources, although nothing may depend on that:

    a -> b -> c        by depth: {a, a'} {b} {c'} {c}, and c' can wait for c
    a' -> c'

Two groups of one signature can be merged if neither reaches the other through the groups between
them.  The groups then still form an acyclic graph, so some order of launches exists; after that,
what reaches either of the two reaches whatever the two reach.

Merged groups stay whole, but the units of a group can also go to several others:

    a0 -> a1              by depth     {a0} {b2} {a1 a3} {a4}
    b2 -> a3 -> a4        a0 dropped   {b2} {a0 a3} {a1 a4}

From the last group to the first, one is kept only if it has a unit that can run in none before and
that no group after it has taken; a group that is kept takes all units whose readers are in groups
after it.  So units run as late as they can, in groups that are there anyway.
"""

from __future__ import annotations

from ..native import scheduling
from .dependencies import Dependencies, Ints

MOST_GROUPS = 1024
"""Above so many groups the table of which reaches which is too expensive: some 10 ms."""


def merge_groups(graph: Dependencies, groups: Ints) -> Ints:
    """Merge pairs of groups of equal signature until no two can be merged.

    The signatures are taken by id, and of each the pair that is launched closest together, as that
    delays the least.  A valid grouping gives a valid grouping.
    """
    merged = groups.copy()
    scheduling.merge(graph.signature, graph.offsets, graph.preds, merged)
    return merged


def merge_cost(graph: Dependencies, launches: int) -> int:
    """Estimate the visits that `merge_groups` is worth."""
    return graph.size // 2 + 20 * launches + launches**2 // 2


def drop_groups(graph: Dependencies, groups: Ints) -> Ints:
    """Drop groups whose units can all run in others; a valid grouping gives a valid grouping."""
    fewer = groups.copy()
    scheduling.drop(graph.signature, graph.offsets, graph.preds, fewer)
    return fewer
