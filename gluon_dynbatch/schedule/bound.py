"""Lower bounds on launches for any policy.

    a -> b -> a -> c        a: two on one path, b: one, c: one        4 launches at least
    a -> c

All units of a launch share one signature, and none depends on another.  Units of a signature that
lie on one path thus need as many launches, and no launch serves two signatures: the sum over all
signatures is a lower bound.  ED-Batch (Chen et al. 2023, arXiv:2302.03851) uses the same bound.
"""

from __future__ import annotations

import numpy as np

from .dependencies import Dependencies
from .depth import unit_depth


def lower_bound(graph: Dependencies) -> int:
    """Sum over signatures the largest number of its units on one path."""
    # Units at one depth are on no common path.
    levels = np.unique(np.stack([graph.signature, unit_depth(graph)]), axis=1)[0]
    signatures, depths = np.unique(levels, return_counts=True)
    repeated = signatures[depths > 1]
    counts = np.zeros((graph.size, len(repeated)), np.int32)
    for unit, preds in enumerate(np.split(graph.preds, graph.offsets[1:-1])[: graph.size]):
        counts[unit] = counts[preds].max(axis=0, initial=0) + (repeated == graph.signature[unit])
    most = counts.max(axis=0, initial=0).sum()
    return int(most) + len(signatures) - len(repeated)


def quick_bound(graph: Dependencies) -> int:
    """Return a bound that takes one pass: each unit of a longest path is launched by itself.

    So are, at least once, the signatures that no unit of the path has.
    """
    depth, signatures = unit_depth(graph), set(np.flatnonzero(np.bincount(graph.signature)))
    if not graph.size:
        return 0
    unit = depth.argmax()
    bound = int(depth[unit]) + 1
    while depth[unit]:
        signatures.discard(graph.signature[unit])
        preds = graph.preds[graph.offsets[unit] : graph.offsets[unit + 1]]
        unit = preds[depth[preds].argmax()]
    signatures.discard(graph.signature[unit])
    return bound + len(signatures)
