"""The backward pass of a plan, as a plan: what is read there is written here.

A launch that takes part reads the gradients of its results and writes those of its operands.  All
tables change sides: wherever a piece of a region was read forward, its gradient is read from the
gradient of the operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, NamedTuple, Tuple

import numpy as np

from ..modes import RECORDING
from ..native import ordering, resolving
from ..schedule.dependencies import Array
from .make import resolve
from .plan import Plan, Reads, places_of

if TYPE_CHECKING:
    from ..lower.graph import Graph


class Heads(NamedTuple):
    """Results that the user still holds: arrays of one length."""

    term: Array
    #: First element within the term.
    offset: Array
    #: Elements; and type of elements and device, as the plan numbers them.
    size: Array
    kind: Array
    #: Per array from outside: whether a gradient may go on to it.
    in_graph: Array

    def some(self, which: Any) -> Heads:
        """Return those of some numbers."""
        term, offset, size, kind = (column[which] for column in self[:-1])
        return Heads(term, offset, size, kind, self.in_graph)


def transpose(plan: Plan, heads: Heads) -> Plan:
    """Plan the backward pass of `plan` for gradients that arrive at `heads`.

    Parameters
    ----------
    plan : Plan
        The launches forward.
    heads : Heads
        Results that the user still holds.

    Returns
    -------
    Plan
        Fills have the gradients of heads; launches are those that take part, in reverse; results
        are the gradients of the fills of `plan`.
    """
    maker = _makers(plan, heads)
    live, passing = _live(plan, heads, maker)
    filled, kind, from_heads = _fills(plan, heads)
    heads_rows = [(len(numbers), size[0]) for numbers, size in filled]
    rows = np.concatenate([plan.operands[:, 3:], np.reshape(heads_rows, (-1, 2))])
    operands, regions = places_of(*plan.regions[:, 3:].T), places_of(*rows.T)
    inputs = _in_order(plan.operands, passing)
    # The gradients of heads come first.
    order = np.concatenate([np.arange(len(plan.operands), len(regions)), inputs])
    kind = np.concatenate([plan.inputs.kind, kind])
    wanted = live[maker]
    parts = _some(from_heads, wanted[from_heads.operand]), _from_operands(plan, inputs, wanted)
    reads = Reads(*map(np.concatenate, zip(*parts)))
    arenas, sizes, pieces = resolve(operands, regions, reads, kind, order, plan.kinds)
    return plan._replace(
        order=np.flatnonzero(live[: len(plan.order)])[::-1],
        inputs=plan.outputs,
        outputs=plan.inputs,
        operands=operands,
        regions=regions,
        filled=filled,
        arenas=arenas,
        sizes=sizes,
        pieces=pieces,
        reads=reads,
    )


def _makers(plan: Plan, heads: Heads) -> Array:
    """Return the launch that makes each region.

    Two numbers more stand for what is from outside: of what may get a gradient, and of the rest.
    """
    launches = len(plan.order)
    fills = [launches + (not heads.in_graph[numbers].any()) for numbers, _ in plan.filled]
    made = np.repeat(np.arange(launches), np.diff(plan.outputs.first))
    return np.concatenate([made, np.array(fills, dtype=np.int64)])


def read_outside(plan: Plan, in_graph: Array) -> Array:
    """Tell of each operand whether it is an array from outside, as a whole, that has a gradient."""
    what, external = plan.operands[:, :2].T
    found: Array = (what == resolving.WHOLE) & (plan.inputs.differentiable > 0)
    found[found] = in_graph[external[found]]
    return found


def _live(plan: Plan, heads: Heads, maker: Array) -> Tuple[Array, Array]:
    """Return who takes part, and the inputs that pass a gradient on.

    Launches do that have been recorded, have something to train behind them, and are read by a
    head; and so does who makes what is from outside and may get a gradient.
    """
    segments, launches = plan.graph.segments, len(plan.order)
    recorded = recorded_segments(plan.graph)[plan.segment]
    trained = [any([p.grad_req != "null" for p in s.parameters]) for s in segments]
    live, reached = np.zeros((2, launches + 2), dtype=bool)
    live[:launches] = np.array(trained, dtype=bool)[plan.segment]
    outside = np.flatnonzero(read_outside(plan, heads.in_graph))
    live[np.searchsorted(plan.inputs.first, outside, "right") - 1] = True
    live[:launches] &= recorded
    live[launches] = True
    reached[maker[plan.region_of[heads.term]]] = True
    passing = np.zeros(len(plan.operands), dtype=bool)
    ordering.flow(
        *(plan.inputs.first, plan.inputs.differentiable, recorded, *plan.reads[:2], maker),
        *(passing, live, reached),
    )
    return live, passing


def _fills(plan: Plan, heads: Heads) -> Tuple[Tuple[Tuple[Array, Array], ...], Array, Reads]:
    """Return what gradients of heads fill, the kind of each fill, and what is read of it."""
    pairs = heads.size * len(plan.kinds) + heads.kind
    found, fill = np.unique(pairs, return_inverse=True)
    numbers = [np.flatnonzero(fill == n) for n in range(len(found))]
    position = np.empty(len(pairs), dtype=np.int64)
    for own in numbers:
        position[own] = np.arange(len(own))
    region = plan.region_of[heads.term]
    start = plan.regions[region, 2] * plan.regions[region, 4]
    reads = Reads(
        region,
        len(plan.operands) + fill,
        plan.element_of[heads.term] + heads.offset - start,
        heads.size,
        position * heads.size,
    )
    filled = tuple((own, heads.size[own]) for own in numbers)
    return filled, found % len(plan.kinds), _some(reads, np.argsort(fill, kind="stable"))


def _in_order(operands: Array, passing: Array) -> Array:
    """Return the inputs that pass a gradient on, in the order of rows of these gradients.

    What is read in place, side by side, gets gradients side by side, so that these are read in
    place as well.
    """
    own = np.flatnonzero(passing)
    what, first, second = operands[own, :3].T
    apart = what != resolving.SLICE
    keys = (np.where(apart, 0, place) for place in (second, first))
    order: Array = own[np.lexsort([*keys, apart])]
    return order


def _from_operands(plan: Plan, inputs: Array, wanted: Array) -> Reads:
    """Return what wanted regions get from the gradients of inputs, in the order of these."""
    rank = np.full(len(plan.operands), -1)
    rank[inputs] = np.arange(len(inputs))
    operand, region, target, length, element = plan.reads
    own = np.flatnonzero((rank[operand] >= 0) & wanted[region])
    own = own[np.argsort(rank[operand[own]], kind="stable")]
    return _some(Reads(region, operand, element, length, target), own)


def _some(reads: Reads, which: Array) -> Reads:
    return Reads(*(column[which] for column in reads))


def recorded_segments(graph: Graph) -> Array:
    """Return per segment whether it is recorded for a backward pass."""
    modes: Array = np.array([segment.mode for segment in graph.segments], dtype=np.int64)
    return modes & RECORDING > 0


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
    recorded = recorded_segments(graph)[graph.segment]
    ordering.ancestors(graph.dependencies.offsets, graph.dependencies.preds, recorded, reached)
    live: Array = reached & recorded
    return live


def find_reach(plan: Plan, backward: Plan, heads: Heads) -> Reach:
    """Find what gets a gradient when `backward`, the transposed `plan`, has run."""
    graph, units = plan.graph, live_units(plan, heads)
    read = graph.term[np.repeat(units, np.diff(graph.term0[graph.input0]))]
    # Per array from outside: whether it gets a gradient, and none from a fill.
    wanted = np.zeros(len(heads.in_graph), dtype=bool)
    wanted[-1 - read[read < 0]] = True
    wanted &= heads.in_graph
    others = wanted.copy()
    filled: List[Tuple[int, int, int]] = []
    results = plan.outputs.first[-1]
    for number, (own, _) in enumerate(plan.filled):
        if backward.operands[results + number, 0]:
            own = own[wanted[own]]
            others[own] = False
            _, _, start, _, size = plan.regions[results + number]
            rows = plan.element_of[-1 - own] // size - start
            filled += zip([number] * len(own), rows.tolist(), own.tolist())
    left = np.zeros(len(plan.order), dtype=bool)
    left[plan.members.launch[units]] = True
    left[backward.order] = False
    return Reach(
        tuple(filled),
        tuple(np.flatnonzero(others).tolist()),
        tuple(np.flatnonzero(left).tolist()),
    )
