"""Grouping by depth: units of equal depth and signature run together.

    recorded      a0  a1  b2  a3  b4  a5          a0 -> b2 -> a3 -> b4
    depth          0   0   1   2   3   1          a1 -> a5
    groups       {a0, a1}  {b2}  {a5}  {a3}  {b4}

The depth of a unit is the length of the longest path that leads to it, so depth grows along every
path: units of equal depth never depend on each other, and groups can be launched in the order of
depth.  This is the batching of TensorFlow Fold (Looks et al. 2017, arXiv:1702.02181, section 2),
one linear pass over the graph.

A prefix of the recorded units can be grouped alone, and the other units launched after it, one by
one: no unit of the prefix depends on them.  If the prefix gets one more unit, this unit joins a
group or forms its own, and the others keep theirs.  So a longer prefix never makes more launches.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

from ..native import scheduling
from .dependencies import Dependencies, Ints


def unit_depth(graph: Dependencies) -> Ints:
    """Count the edges on the longest path from a source to each unit; int32, shape (units,)."""
    depth = np.zeros(graph.size, np.int32)
    scheduling.depths(graph.offsets, graph.preds, depth)
    return depth


def group_by_depth(graph: Dependencies) -> Ints:
    """Group units by depth, in the order of the launches; int32, shape (units,).

    A group is the position of its units among the sorted, distinct pairs (depth, signature).
    """
    return group_and_bound(graph)[0]


def group_and_bound(graph: Dependencies) -> Tuple[Ints, int, int]:
    """Return the groups by depth, their number, and a lower bound on launches.

    The bound counts the units of a longest path, and the signatures that are not on the path.
    """
    groups = np.empty(graph.size, np.int32)
    return (groups, *scheduling.group(graph.offsets, graph.preds, graph.signature, groups))
