"""A lower bound on the number of launches, for any policy.

    a -> b -> a -> c        a: two on one path, b: one, c: one        4 launches at least
    a -> c

All units of a launch have one signature, and none depends on another.  So units of one signature on
one path need a launch each, and no launch serves two signatures: the sum over all signatures is a
lower bound.  ED-Batch (Chen et al. 2023, arXiv:2302.03851) uses the same bound.
"""

from __future__ import annotations

import numpy as np

from .dependencies import Dependencies
from .depth import unit_depth


def lower_bound(graph: Dependencies) -> int:
    """Return the sum, over all signatures, of the largest number of units on one path."""
    depth = unit_depth(graph)
    # No path has two units of one depth, so a signature at a single depth counts once.
    levels = np.unique(np.stack([graph.signature, depth]), axis=1)[0]
    signatures, depths = np.unique(levels, return_counts=True)
    repeated = signatures[depths > 1]
    own = graph.signature[:, None] == repeated
    counts = own.astype(np.int32)
    starts, lengths = graph.offsets[:-1], np.diff(graph.offsets)
    # Level by level, so that the counts of all that a unit depends on are complete; all units but
    # those of depth 0 depend on others.
    by_depth = np.argsort(depth, kind="stable")
    ends = np.searchsorted(depth[by_depth], np.arange(depth.max(initial=-1) + 2))
    for first, last in zip(ends[1:-1], ends[2:]):
        units = by_depth[first:last]
        sizes = lengths[units]
        begins = np.cumsum(sizes) - sizes
        places = np.repeat(starts[units] - begins, sizes) + np.arange(sizes.sum())
        counts[units] += np.maximum.reduceat(counts[graph.preds[places]], begins)
    launches = counts.max(axis=0, initial=0).sum()
    return int(launches) + len(signatures) - len(repeated)
