"""Grouping by agenda: repeatedly launch all ready units of one signature.

A unit is ready when all its predecessors are launched.  All ready units of the chosen signature are
launched together, because leaving some behind cannot save a launch.  As in DyNet (Neubig, Goldberg,
Dyer 2017, arXiv:1705.07860, section 3.2), the signature is chosen whose unlaunched units have the
lowest average depth: more units of the other signatures are likely to become ready later.

    a0 -> b1 -> b2 -> c3        by depth: {a0, a4}, {b1}, {c5}, {b2}, {c3}
    a4 -> c5                    by agenda: {a0, a4}, {b1}, {b2}, {c3, c5}
"""

from __future__ import annotations

import numpy as np

from ..native import scheduling
from .dependencies import Dependencies, Ints, successors
from .depth import unit_depth


def group_by_agenda(graph: Dependencies) -> Ints:
    """Group units by agenda, in the order of the launches; int32, shape (units,).

    Of signatures with equal average depth, the one with the lowest id is launched first.
    """
    # Before its launch, a unit's element counts the predecessors that are not launched yet.
    groups = np.diff(graph.offsets).astype(np.int32)
    scheduling.agenda(*successors(graph), graph.signature, unit_depth(graph), groups)
    return groups


def agenda_cost(graph: Dependencies, launches: int) -> int:
    """Estimate the cost of `group_by_agenda` in visits, if it makes so many launches."""
    signatures = int(graph.signature.max(initial=-1)) + 1
    return 3 * graph.size + len(graph.preds) + launches * (10 + signatures // 10)
