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

By depth alone, a recursion that reads another one is spread over as many depths as the two have
together, if samples differ in the length of the first:

    a0 -> a1 -> a2 -> b3 -> b4        by depth: {a0, a5} {a1} {b6} {a2} {b7} {b3} {b4}
    a5 -> b6 -> b7                    by stage: {a0, a5} {a1} {a2} {b3, b6} {b4, b7}

So units are also grouped *by stage*: signatures that reach each other are one, and a stage waits
for all that reach it; within it, units are grouped by depth.
"""

from __future__ import annotations

import numpy as np

from ..native import scheduling
from .dependencies import Array, Dependencies, Ints

#: With more signatures, what reaches what is too expensive.
MOST_SIGNATURES = 128


def unit_depth(graph: Dependencies, stage: Ints | None = None) -> Ints:
    """Count the edges on the longest path from a source to each unit; int32, shape (units,).

    Only edges within a stage, if these are given.
    """
    depth = np.zeros(graph.size, np.int32)
    stage = np.zeros(graph.size, np.int32) if stage is None else stage
    scheduling.depths(graph.offsets, graph.preds, stage, depth)
    return depth


def group_by_depth(graph: Dependencies) -> Ints:
    """Group the units of equal depth and signature; int32, shape (units,), in order of launches."""
    return group_by_level(unit_depth(graph), graph.signature)


def group_by_stage(graph: Dependencies) -> Ints | None:
    """Group the units of equal stage, depth in it, and signature.

    None if there are very many signatures, or if no recursion waits for another one.
    """
    signatures = int(graph.signature.max(initial=-1)) + 1
    if signatures > MOST_SIGNATURES:
        return None
    reach = np.zeros((signatures, signatures), bool)
    scheduling.edges(graph.offsets, graph.preds, graph.signature, reach.view(np.uint8))
    for middle in range(signatures):
        reach |= reach[:, middle : middle + 1] & reach[middle]
    recurring = reach.diagonal().copy()
    np.fill_diagonal(reach, True)
    # More reach a signature than any that reaches it, unless the two reach each other.
    stages = reach.sum(axis=0, dtype=np.int32)
    if len(np.unique(stages[recurring])) < 2:
        return None
    stage = stages[graph.signature]
    depth = unit_depth(graph, stage)
    return group_by_level(stage * (depth.max(initial=0) + 1) + depth, graph.signature)


def group_by_level(level: Array, signature: Array) -> Ints:
    """Return each unit's position among the distinct pairs (level, signature) in ascending order.

    Parameters
    ----------
    level, signature : numpy.ndarray of int, shape (units,)
        Zero or more.
    """
    keys = level.astype(np.int64) * (int(signature.max(initial=0)) + 1) + signature
    size = int(keys.max(initial=-1)) + 1
    # A table of all possible pairs is several times quicker than sorting, as long as it is small.
    if size > 8 * len(level) + 4096:
        places: Ints = np.unique(keys, return_inverse=True)[1].astype(np.int32)
        return places
    number = np.zeros(size, np.int32)
    number[keys] = 1
    groups: Ints = (np.cumsum(number, dtype=np.int32) - 1)[keys]
    return groups
