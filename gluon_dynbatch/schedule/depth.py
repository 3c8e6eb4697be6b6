"""Grouping by depth: units that are equally far from the sources and look alike run together.

    recorded      a0  a1  b2  a3  b4  a5          a0 -> b2 -> a3 -> b4
    depth          0   0   1   2   3   1          a1 -> a5
    groups       {a0, a1}  {b2}  {a5}  {a3}  {b4}

The depth of a unit is the length of the longest path that leads to it, so a path always climbs:
units of equal depth never depend on each other, and groups in order of depth can be launched in
that order.  This is the batching of TensorFlow Fold (Looks et al. 2017, arXiv:1702.02181, section
2), one linear pass over the graph.  The policy "depth" then joins what it has set apart for no
reason (`merge.py`), such as what is done with results that are ready at different depths.

Why a prefix is safe.  Recording order is topological, so no unit of the prefix of length ``p``
depends on a unit behind it.  The prefix is thus a graph of its own in which every depth is what it
is in the whole graph, and the rest, one group per unit in recording order, comes after it.

Why more prefix is never worse.  Going from ``p`` to ``p + 1`` changes no group of the first ``p``
units.  Unit ``p`` loses its group among the rest (one less) and either joins a group of the prefix
(none more) or founds one (one more): the number of groups falls by one or stays.
"""

from __future__ import annotations

import numpy as np

from gluon_dynbatch.native import PLANNING
from gluon_dynbatch.schedule.dependencies import Dependencies
from gluon_dynbatch.schedule.frontier import Array, Frontier, Ints

PATIENCE = 64
"""Levels to walk before judging whether the graph is narrow."""

NARROW_LEVEL = 16
"""Mean units per level below which a loop over units is quicker than one over levels."""


def unit_depth(graph: Dependencies) -> Ints:
    """Find the number of edges on the longest path from a source to each unit.

    Without native code, walks the graph level by level (Kahn's algorithm).  A narrow graph has
    about as many levels as units; it is then walked unit by unit in recording order.

    Returns
    -------
    numpy.ndarray of int32, shape (units,)
        Zero for units without predecessors.
    """
    depth = np.zeros(graph.size, np.int32)
    if not len(graph.preds):
        return depth
    if PLANNING is not None:
        PLANNING.depths(graph.offsets, graph.preds, depth)
        return depth
    frontier = Frontier(graph)
    level, done, units = 0, 0, frontier.sources
    while len(units):
        depth[units] = level
        done += len(units)
        level += 1
        if level >= PATIENCE and done < NARROW_LEVEL * level:
            return _depth_by_unit(graph)
        units = frontier.launch(units)
    return depth


def group_by_depth(graph: Dependencies, prefix: int | None = None) -> Ints:
    """Group the units of equal depth and signature.

    Parameters
    ----------
    graph : Dependencies
        What to group.
    prefix : int, optional
        Analyse only so many units, in recording order, and let the rest follow one by one.

    Returns
    -------
    numpy.ndarray of int32, shape (units,)
        Group of each unit; groups are numbered in an order in which they can be launched.
    """
    units = graph.size
    prefix = units if prefix is None else max(0, min(prefix, units))
    groups = np.empty(units, np.int32)
    count = 0
    if prefix:
        part = cut(graph, prefix)
        groups[:prefix] = group_by_level(unit_depth(part), part.signature)
        count = int(groups[:prefix].max()) + 1
    groups[prefix:] = np.arange(count, count + units - prefix)
    return groups


def cut(graph: Dependencies, prefix: int) -> Dependencies:
    """Return the graph of the first `prefix` units; no other unit is among their predecessors."""
    if prefix == graph.size:
        return graph
    offsets = graph.offsets[: prefix + 1]
    preds = graph.preds[: offsets[-1]]
    return Dependencies(graph.signature[:prefix], offsets, preds, graph.rows[:prefix])


def group_by_level(level: Array, signature: Array) -> Ints:
    """Enumerate the distinct pairs (level, signature) in ascending order.

    Parameters
    ----------
    level, signature : numpy.ndarray of int, shape (units,)
        Zero or more.

    Returns
    -------
    numpy.ndarray of int32, shape (units,)
        Position of each unit's pair among the distinct pairs.
    """
    if not len(level):
        return np.zeros(0, np.int32)
    width = int(signature.max()) + 1
    keys = level.astype(np.int64) * width + signature
    size = int(keys.max()) + 1
    # A table of all possible pairs is several times quicker than sorting, as long as it is small.
    if size > 8 * len(level) + 4096:
        places: Ints = np.unique(keys, return_inverse=True)[1].astype(np.int32)
        return places
    number = np.zeros(size, np.int32)
    number[keys] = 1
    np.cumsum(number, out=number)
    number -= 1
    groups: Ints = number[keys]
    return groups


def _depth_by_unit(graph: Dependencies) -> Ints:
    """Do what `unit_depth` does in recording order, without NumPy."""
    depth: list[int] = []
    offsets, preds = graph.offsets.tolist(), graph.preds.tolist()
    for start, end in zip(offsets, offsets[1:]):
        if start == end:
            depth.append(0)
        else:
            depth.append(max([depth[pred] for pred in preds[start:end]]) + 1)
    return np.array(depth, np.int32)
