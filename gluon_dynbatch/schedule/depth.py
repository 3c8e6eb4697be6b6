"""Grouping by depth: units that are equally far from the sources and look alike run together.

    recorded      a0  a1  b2  a3  b4  a5          a0 -> b2 -> a3 -> b4
    depth          0   0   1   2   3   1          a1 -> a5
    groups       {a0, a1}  {b2}  {a5}  {a3}  {b4}

The depth of a unit is the length of the longest path that leads to it, so a path always climbs:
units of equal depth never depend on each other, and groups in order of depth can be launched in
that order.  This is the batching of TensorFlow Fold (Looks et al. 2017, arXiv:1702.02181, section
2), one linear pass over the graph.

A prefix of the recording can be grouped by itself, with the other units launched one by one behind
it: no unit of the prefix depends on one of those.  With one unit more in the prefix, the units
before it keep their groups, and it joins one of them or stays alone.  So a longer prefix never
makes more launches.
"""

from __future__ import annotations

import numpy as np

from ..native import scheduling
from .dependencies import Dependencies, Ints


def unit_depth(graph: Dependencies) -> Ints:
    """Count the edges on the longest path from a source to each unit; int32, shape (units,)."""
    depth = np.zeros(graph.size, np.int32)
    scheduling.depths(graph.offsets, graph.preds, depth)
    return depth


def group_by_depth(graph: Dependencies) -> Ints:
    """Return each unit's position among the distinct pairs (depth, signature) in ascending order.

    Returns int32, shape (units,), in the order of the launches.
    """
    groups = np.empty(graph.size, np.int32)
    scheduling.group(unit_depth(graph), graph.signature, groups)
    return groups
