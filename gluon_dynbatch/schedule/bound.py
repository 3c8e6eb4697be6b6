"""Fewer launches than this are impossible, whatever the policy.

    a -> b -> a -> c        a: two on one path, b: one, c: one        4 launches at least
    a -> c

All units of a launch share one signature, and none depends on another.  Units of a signature that
lie on one path thus need as many launches, and no launch serves two signatures: the sum over all
signatures is a lower bound.  ED-Batch (Chen et al. 2023, arXiv:2302.03851) uses the same bound.
"""

from __future__ import annotations

import numpy as np

from gluon_dynbatch.schedule.dependencies import Dependencies
from gluon_dynbatch.schedule.depth import unit_depth
from gluon_dynbatch.schedule.frontier import Ints
from gluon_dynbatch.schedule.heights import largest_heights, signature_heights


def lower_bound(graph: Dependencies) -> int:
    """Count the launches that any valid grouping of `graph` needs at least.

    Returns
    -------
    int
        Sum over signatures of the largest number of its units on one path.
    """
    return bound_from_heights(graph, signature_heights(graph, unit_depth(graph)))


def bound_from_heights(graph: Dependencies, heights: Ints) -> int:
    """Compute `lower_bound` from what `signature_heights` returned."""
    return int(largest_heights(graph, heights).sum())


def quick_bound(graph: Dependencies, depth: Ints) -> int:
    """Bound the launches from below by what is known once the depths are.

    The longest path has ``max(depth) + 1`` units, each in a launch of its own; and there are at
    least as many launches as signatures.
    """
    if not graph.size:
        return 0
    return max(int(depth.max()) + 1, int(np.count_nonzero(np.bincount(graph.signature))))
