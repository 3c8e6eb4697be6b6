"""How often each unit's signature still occurs on the way from it to a sink.

Units of one signature on one path can never share a launch.  The largest number of them is
therefore a lower bound on the launches of that signature (`bound.py`), and the units that start
such a path are those that a launch must not leave behind (`agenda.TopFirst`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gluon_dynbatch.native import PLANNING
from gluon_dynbatch.schedule.dependencies import Dependencies
from gluon_dynbatch.schedule.depth import group_by_level, unit_depth
from gluon_dynbatch.schedule.frontier import Array, Ints, reverse, spans

CELLS = 2**21
"""Numbers held at once; limits the memory to a few tens of megabytes."""


class _Levels(NamedTuple):
    """Units in order of depth, with their incoming edges."""

    order: Array  # (units,) units, by ascending depth
    level_ends: Array  # (levels,) position in `order` behind each level
    edge_starts: Array  # (units + 1,) position in `preds` of each unit of `order`
    preds: Array  # (edges,)


def repeated_signatures(graph: Dependencies, depth: Ints) -> Array:
    """Return the signatures whose units lie at more than one depth; others fit into one launch."""
    if not graph.size:
        return np.zeros(0, np.int64)
    groups = group_by_level(depth, graph.signature)
    signature = np.empty(int(groups.max()) + 1, np.int64)
    signature[groups] = graph.signature
    return np.flatnonzero(np.bincount(signature) > 1)


def heights_cost(graph: Dependencies, depth: Ints) -> int:
    """Estimate the visits that `signature_heights` is worth."""
    repeated = len(repeated_signatures(graph, depth))
    if not repeated:
        return graph.size
    return 2 * graph.size + (graph.size + len(graph.preds)) * repeated // 16


def signature_heights(graph: Dependencies, depth: Ints) -> Ints:
    """Count, for each unit, the most units of its own signature on a path that starts with it.

    Parameters
    ----------
    graph : Dependencies
        The dependencies.
    depth : numpy.ndarray of int32, shape (units,)
        What `unit_depth` returns.

    Returns
    -------
    numpy.ndarray of int32, shape (units,)
        One or more: the unit itself counts.
    """
    heights = np.ones(graph.size, np.int32)
    repeated = repeated_signatures(graph, depth)
    if not len(repeated):
        return heights
    levels = _levels_from_sinks(graph) if PLANNING is None else None
    column = np.empty(int(graph.signature.max()) + 1, np.int32)
    step = _chunk(graph)
    for start in range(0, len(repeated), step):
        chosen = repeated[start : start + step]
        column.fill(-1)
        column[chosen] = np.arange(len(chosen))
        own = column[graph.signature]
        if levels is None:
            table = np.zeros((graph.size, len(chosen)), np.int32)
            PLANNING.heights(graph.offsets, graph.preds, own, table, heights)
        else:
            counts = _longest(levels, own[::-1], len(chosen))[::-1]
            mine = np.flatnonzero(own >= 0)
            heights[mine] = counts[mine, own[mine]]
    return heights


def largest_heights(graph: Dependencies, heights: Ints) -> Array:
    """Find the largest height of each signature's units, shape (signatures,); 0 without units."""
    found = np.zeros(int(graph.signature.max(initial=-1)) + 1, np.int64)
    pairs = group_by_level(heights, graph.signature)
    signature, height = np.empty((2, int(pairs.max(initial=-1)) + 1), np.int64)
    signature[pairs], height[pairs] = graph.signature, heights
    # Pairs ascend by height, and assignment keeps the last value written to a place.
    found[signature] = height
    return found


def _chunk(graph: Dependencies) -> int:
    """Return how many signatures to follow at once."""
    return max(1, CELLS // max(1, graph.size + len(graph.preds)))


def _levels_from_sinks(graph: Dependencies) -> _Levels:
    """Order the units of the reversed graph by depth, so that one pass meets successors first."""
    flipped = reverse(graph)
    depth = unit_depth(flipped)
    order = np.argsort(depth, kind="stable")
    lengths = np.diff(flipped.offsets)[order]
    edge_starts = np.zeros(len(order) + 1, np.int64)
    np.cumsum(lengths, out=edge_starts[1:])
    preds = flipped.preds[spans(flipped.offsets[order], lengths)]
    return _Levels(order, np.cumsum(np.bincount(depth)), edge_starts, preds)


def _longest(levels: _Levels, own: Array, width: int) -> Ints:
    """Count units per signature on the path to each unit that has the most of them.

    Parameters
    ----------
    own : numpy.ndarray of int, shape (units,)
        Column of each unit's signature, or -1.

    Returns
    -------
    numpy.ndarray of int32, shape (units, width)
        For every signature by itself; the unit counts too.
    """
    counts = np.zeros((len(own), width), np.int32)
    mine = np.flatnonzero(own >= 0)
    counts[mine, own[mine]] = 1
    start = int(levels.level_ends[0])
    for end in levels.level_ends[1:].tolist():
        units = levels.order[start:end]
        first = levels.edge_starts[start : end + 1]
        before = counts[levels.preds[first[0] : first[-1]]]
        # Every unit above the lowest level has an edge, as `reduceat` needs.
        counts[units] += np.maximum.reduceat(before, first[:-1] - first[0], axis=0)
        start = end
    return counts
