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
    # No path has two units of one depth, so a signature at a single depth counts once.
    levels = np.unique(np.stack([graph.signature, unit_depth(graph)]), axis=1)[0]
    signatures, depths = np.unique(levels, return_counts=True)
    repeated = signatures[depths > 1]
    counts = np.zeros((graph.size, len(repeated)), np.int32)
    for unit, preds in enumerate(np.split(graph.preds, graph.offsets[1:-1])[: graph.size]):
        counts[unit] = counts[preds].max(axis=0, initial=0) + (repeated == graph.signature[unit])
    launches = counts.max(axis=0, initial=0).sum()
    return int(launches) + len(signatures) - len(repeated)
