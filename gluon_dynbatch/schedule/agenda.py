"""Grouping by agenda: again and again, launch all ready units of one signature.

The graph is consumed from its sources.  Whatever signature is chosen, all of its ready units are
launched together, for leaving some behind cannot save a launch.  Two ways to choose:

* by average depth, as DyNet does (Neubig, Goldberg, Dyer 2017, arXiv:1705.07860, section 3.2): the
  signature whose unlaunched units lie least deep on average, as the others are likely to become
  wider yet.
* toward the lower bound, an idea of ED-Batch (Chen et al. 2023, arXiv:2302.03851): the signature of
  which the largest share of those units is ready that start a longest path of it (`path_counts`).
  A launch of all of them makes the bound of what is left smaller by one.  Average depth decides
  ties.

    a0 -> b1 -> b2 -> c3        by depth: {a0, a4}, {b1}, {c5}, {b2}, {c3}
    a4 -> c5                    by agenda: {a0, a4}, {b1}, {b2}, {c3, c5}
"""

from __future__ import annotations

import numpy as np

from ..native import scheduling
from .dependencies import Dependencies, Ints, successors


def group_by_agenda(graph: Dependencies, depth: Ints, counts: Ints | None = None) -> Ints:
    """Launch all ready units of the most urgent signature until none is left.

    Parameters
    ----------
    graph : Dependencies
        What to group.
    depth : numpy.ndarray of int32, shape (units,)
        What `unit_depth` returns for it.
    counts : numpy.ndarray of int32, shape (units,), optional
        What `path_counts` returns for it, to go toward the lower bound.  By default the average
        depth decides alone; of equally urgent signatures, the lowest id is launched.

    Returns
    -------
    numpy.ndarray of int32, shape (units,)
        Groups in the order of the launches.
    """
    # The array holds for each unit how many others it waits for, and after its launch the group.
    groups = np.diff(graph.offsets).astype(np.int32)
    scheduling.agenda(
        *successors(graph),
        graph.signature,
        depth,
        np.zeros(0, np.int32) if counts is None else counts,
        groups,
    )
    return groups


def agenda_cost(graph: Dependencies, launches: int) -> int:
    """Estimate the visits that `group_by_agenda` is worth if it makes so many launches."""
    signatures = int(graph.signature.max(initial=-1)) + 1
    return 3 * graph.size + len(graph.preds) + launches * (10 + signatures // 10)
