"""Grouping by agenda: again and again, launch all ready units of one signature.

The graph is consumed from its sources.  Whatever signature is chosen, all of its ready units are
launched together, for leaving some behind cannot save a launch.  As DyNet does (Neubig, Goldberg,
Dyer 2017, arXiv:1705.07860, section 3.2), the signature is chosen whose unlaunched units lie least
deep on average: others are likely to become wider yet.

    a0 -> b1 -> b2 -> c3        by depth: {a0, a4}, {b1}, {c5}, {b2}, {c3}
    a4 -> c5                    by agenda: {a0, a4}, {b1}, {b2}, {c3, c5}
"""

from __future__ import annotations

import numpy as np

from ..native import scheduling
from .dependencies import Dependencies, Ints, successors
from .depth import unit_depth


def group_by_agenda(graph: Dependencies) -> Ints:
    """Launch all ready units of the most urgent signature until none is left.

    Of equally urgent signatures, the lowest id is launched.  Returns int32, shape (units,), in the
    order of the launches.
    """
    # The array holds for each unit how many others it waits for, and after its launch the group.
    groups = np.diff(graph.offsets).astype(np.int32)
    scheduling.agenda(*successors(graph), graph.signature, unit_depth(graph), groups)
    return groups


def agenda_cost(graph: Dependencies, launches: int) -> int:
    """Estimate the visits that `group_by_agenda` is worth if it makes so many launches."""
    signatures = int(graph.signature.max(initial=-1)) + 1
    return 3 * graph.size + len(graph.preds) + launches * (10 + signatures // 10)
