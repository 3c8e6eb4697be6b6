"""What the loop's graph has, call by call: plans are wider, as a launch runs as a whole."""

from __future__ import annotations

from typing import FrozenSet, Iterator, NamedTuple, Sequence, Tuple

import numpy as np

from ..modes import FLOATS, RECORDING
from ..native import ordering
from ..schedule.dependencies import Array
from .plan import Plan, Whole
from .transpose import Head


class Reach(NamedTuple):
    """What calls on the way to a head read: the loop gives all of this a gradient."""

    #: Numbers of arrays of real numbers from outside into which no gradient flows, and launches
    #: for whose parameters this is so: they get zeros.
    idle: Tuple[int, ...]
    launches: Tuple[int, ...]
    #: Numbers of heads that no other head depends on.
    last: FrozenSet[int]
    #: What gets its gradient from a fill: the fill, the first row there, and the array.
    filled: Tuple[Tuple[int, int, int], ...]


def live_units(plan: Plan, heads: Sequence[Head]) -> Array:
    """Mark the units that recorded calls lead to from some heads."""
    graph = plan.graph
    reached = np.zeros(graph.dependencies.size, dtype=bool)
    reached[graph.slot_unit[[head.term for head in heads if head.term >= 0]]] = True
    recorded = np.array([bool(s.mode & RECORDING) for s in graph.segments])[graph.segment]
    ordering.ancestors(graph.dependencies.offsets, graph.dependencies.preds, recorded, reached)
    live: Array = reached & recorded
    return live


def find_reach(plan: Plan, backward: Plan, heads: Sequence[Head]) -> Reach:
    """Find what gets a gradient when `backward`, the transposed `plan`, has run."""
    graph = plan.graph
    units = live_units(plan, heads)
    inputs = np.append(graph.input0, len(graph.term0) - 1)
    read = graph.term[np.repeat(units, np.diff(graph.term0[inputs]))]
    inner = np.zeros(len(units), dtype=bool)
    inner[graph.slot_unit[read[read >= 0]]] = True
    # Arrays from outside, as marks.
    externals = np.zeros(len(plan.arena_of) - len(graph.slot_unit), dtype=bool)
    externals[-1 - read[read < 0]] = True
    live = np.zeros(len(plan.launches), dtype=bool)
    live[plan.launch_of()[units]] = True
    live[[launch.number for launch in backward.launches]] = False
    fed = externals & _fed(plan, backward, len(externals))
    return Reach(
        tuple(np.flatnonzero(externals & ~fed & _real(plan, len(externals))).tolist()),
        tuple(np.flatnonzero(live).tolist()),
        frozenset(
            number
            for number, head in enumerate(heads)
            if head.term >= 0 and not inner[graph.slot_unit[head.term]]
        ),
        tuple(_filled(plan, backward, fed)),
    )


def _real(plan: Plan, count: int) -> Array:
    """Mark those of so many arrays from outside that can have a gradient."""
    marks = np.zeros(count, dtype=bool)
    for fill in plan.fills:
        marks[fill.externals] = plan.arenas[fill.region.arena].dtype in FLOATS
    for launch in plan.launches:
        for port, operand in zip(launch.segment.inputs, launch.operands):
            if isinstance(operand, Whole) and port.dtype in FLOATS:
                marks[operand.external] = True
    return marks


def _filled(plan: Plan, backward: Plan, fed: Array) -> Iterator[Tuple[int, int, int]]:
    for number, (fill, result) in enumerate(zip(plan.fills, backward.results)):
        if result is not None:
            own = fill.externals[fed[fill.externals]]
            size = plan.arenas[fill.region.arena].row_size
            rows = plan.element_of[-1 - own] // size - fill.region.start
            for external, row in zip(own.tolist(), rows.tolist()):
                yield number, row, external


def _fed(plan: Plan, backward: Plan, count: int) -> Array:
    """Mark those of so many arrays from outside that launches backward give a gradient."""
    marks = np.zeros(count, dtype=bool)
    term = plan.graph.term[backward.reads.term[backward.reads.term >= 0]]
    marks[-1 - term[term < 0]] = True
    for launch in backward.launches:
        operands = plan.launches[launch.number].operands
        for port, operand in zip(launch.segment.inputs, operands):
            if isinstance(operand, Whole) and port.differentiable:
                marks[operand.external] = True
    return marks
