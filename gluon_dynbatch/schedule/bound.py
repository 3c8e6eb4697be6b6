"""Lower bound on launches for any policy.

    a -> b -> a -> c        a: two on one path, b: one, c: one        4 launches at least
    a -> c

All units of a launch share one signature, and none depends on another.  Units of a signature that
lie on one path thus need as many launches, and no launch serves two signatures: the sum over all
signatures is a lower bound.  ED-Batch (Chen et al. 2023, arXiv:2302.03851) uses the same bound.
"""

from __future__ import annotations

import numpy as np

from ..native import scheduling
from .dependencies import Array, Dependencies, Ints
from .depth import unit_depth


def lower_bound(graph: Dependencies) -> int:
    """Sum over signatures the largest number of its units on one path."""
    return path_counts(graph, unit_depth(graph))[1]


def path_counts(graph: Dependencies, depth: Ints) -> tuple[Ints, int]:
    """Count, for each unit, the most units of its own signature on a path that starts with it.

    `depth` is what `unit_depth` returns.  Returns the counts (int32, shape (units,), 1 or more) and
    the `lower_bound`.
    """
    counts, repeated = np.ones(graph.size, np.int32), repeated_signatures(graph, depth)
    column = np.full(int(graph.signature.max(initial=-1)) + 1, -1, np.int32)
    column[repeated] = np.arange(len(repeated))
    most = scheduling.path_counts(graph.offsets, graph.preds, column[graph.signature], counts)
    return counts, signature_count(graph) - len(repeated) + int(most)


def path_counts_cost(graph: Dependencies, depth: Ints) -> int | None:
    """Estimate the visits that `path_counts` is worth; None if these are too many for the graph."""
    repeated = len(repeated_signatures(graph, depth))
    cost = 2 * graph.size + (graph.size + len(graph.preds)) * repeated // 16
    return graph.size if not repeated else cost if cost <= 50 * graph.size + 12_500 else None


def repeated_signatures(graph: Dependencies, depth: Ints) -> Array:
    """Return the signatures whose units lie at more than one depth; others fit into one launch."""
    one_depth = np.zeros(int(graph.signature.max(initial=-1)) + 1, np.int32)
    one_depth[graph.signature] = depth
    elsewhere = graph.signature[depth != one_depth[graph.signature]]
    return np.flatnonzero(np.bincount(elsewhere))


def quick_bound(graph: Dependencies, depth: Ints) -> int:
    """Return a bound that takes one pass: each unit of a longest path is launched by itself.

    So are, at least once, the signatures that no unit of the path has.
    """
    found: int = scheduling.quick_bound(graph.offsets, graph.preds, graph.signature, depth)
    return found


def signature_count(graph: Dependencies) -> int:
    """Count the signatures that occur."""
    return int(np.count_nonzero(np.bincount(graph.signature)))
