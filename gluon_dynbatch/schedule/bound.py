"""A lower bound on the number of launches, for any policy.

    a -> b -> a -> c        a: two on one path, b: one, c: one        4 launches at least
    a -> c

All units of a launch have one signature, and none depends on another.  So units of one signature on
one path need a launch each, and no launch serves two signatures: the sum over all signatures is a
lower bound.  ED-Batch (Chen et al. 2023, arXiv:2302.03851) uses the same bound.
"""

from __future__ import annotations

import numpy as np

from .dependencies import Array, Dependencies, Ints, rank_rows
from .depth import unit_depth


def lower_bound(graph: Dependencies) -> int:
    """Return the sum, over all signatures, of the largest number of units on one path."""
    depth = unit_depth(graph)
    # No path has two units of one depth, so a signature at a single depth counts once.
    pairs = np.stack([graph.signature, depth], axis=1)
    levels = pairs[np.unique(rank_rows(pairs), return_index=True)[1], 0]
    signatures, depths = np.unique(levels, return_counts=True)
    repeated = signatures[depths > 1]
    launches = most_on_a_path(graph, depth, graph.signature == repeated[:, None]).sum()
    return int(launches) + len(signatures) - len(repeated)


def most_on_a_path(graph: Dependencies, depth: Ints, own: Array) -> Array:
    """Return the largest number of units of some sets on one path, for each set.

    `own` has a row for each set, and says whether each unit belongs to it.
    """
    # In the order of depth, so that the counts of all that a unit depends on are complete.
    order = np.argsort(depth, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    sizes = np.diff(graph.offsets)[order]
    begins = np.cumsum(sizes) - sizes
    places = np.repeat(graph.offsets[order] - begins, sizes) + np.arange(sizes.sum())
    preds = number[graph.preds[places]]
    counts = own[:, order].astype(np.int32)
    # All units but those of depth 0 depend on others.
    ends = np.searchsorted(depth[order], np.arange(1, depth.max(initial=-1) + 2)).tolist()
    for first, last in zip(ends, ends[1:]):
        start, end = begins[first], begins[last] if last < len(begins) else len(preds)
        before = counts[:, preds[start:end]]
        counts[:, first:last] += np.maximum.reduceat(before, begins[first:last] - start, axis=1)
    largest: Array = counts.max(axis=1, initial=0)
    return largest
