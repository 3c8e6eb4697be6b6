"""What the loop's graph has, call by call: plans are wider, as a launch runs as a whole."""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

import numpy as np

from ..modes import RECORDING
from ..native import ordering
from ..schedule.dependencies import Array
from .plan import Plan
from .transpose import Heads


class Reach(NamedTuple):
    """What calls on the way to a head read: the loop gives all of this a gradient."""

    #: What gets its gradient from a fill: the fill, the first row there, and the number of an array
    #: from outside.
    filled: Tuple[Tuple[int, int, int], ...]
    #: Numbers of other arrays from outside, and launches that have no part in the backward pass: of
    #: these and the parameters of those, what can have a gradient and gets none gets zeros.
    others: Tuple[int, ...]
    launches: Tuple[int, ...]


def live_units(plan: Plan, heads: Heads) -> Array:
    """Mark the units that recorded calls lead to from some heads."""
    graph = plan.graph
    reached = np.zeros(graph.dependencies.size, dtype=bool)
    reached[graph.slot_unit[heads.term]] = True
    recorded = np.array([bool(s.mode & RECORDING) for s in graph.segments])[graph.segment]
    ordering.ancestors(graph.dependencies.offsets, graph.dependencies.preds, recorded, reached)
    live: Array = reached & recorded
    return live


def find_reach(plan: Plan, backward: Plan, heads: Heads) -> Reach:
    """Find what gets a gradient when `backward`, the transposed `plan`, has run."""
    graph, units = plan.graph, live_units(plan, heads)
    inputs = np.append(graph.input0, len(graph.term0) - 1)
    read = graph.term[np.repeat(units, np.diff(graph.term0[inputs]))]
    externals = np.unique(-1 - read[read < 0])
    externals = externals[heads.in_graph[externals]]
    filled: List[Tuple[int, int, int]] = []
    for number, (fill, result) in enumerate(zip(plan.fills, backward.results)):
        if result is not None:
            own = fill.externals[np.isin(fill.externals, externals)]
            size = plan.arenas[fill.region.arena].row_size
            rows = plan.element_of[-1 - own] // size - fill.region.start
            filled += zip([number] * len(own), rows.tolist(), own.tolist())
    launches = set(plan.launch_of()[units].tolist())
    return Reach(
        tuple(filled),
        tuple(sorted(set(externals.tolist()).difference(own for *_, own in filled))),
        tuple(sorted(launches.difference(launch.number for launch in backward.launches))),
    )
