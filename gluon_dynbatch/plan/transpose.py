"""The backward pass of a plan, as a plan: reads and writes are exchanged.

A launch that takes part in the backward pass reads the gradients of its results and writes those of
its operands.  Where a forward operand reads a piece of a region, the gradient of the region reads
the same piece of the gradient of the operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, NamedTuple, Tuple

import numpy as np

from ..native import lowering, planning
from ..schedule.dependencies import Array
from .launch import FIRST, ROW_SIZE, ROWS, SECOND, TYPE, empty_places
from .make import place_operands
from .plan import Plan, Reads

if TYPE_CHECKING:
    from ..lower.graph import Graph


class Heads(NamedTuple):
    """Results that the user still holds, to which gradients may arrive; arrays of one length."""

    term: Array
    #: First element within the term.
    offset: Array
    #: Number of elements; and index into `Plan.kinds`.
    size: Array
    kind: Array
    #: Per external array: whether it is in MXNet's graph, so that a gradient may flow on to it.
    in_graph: Array

    def some(self, selected: Any) -> Heads:
        """Return the heads with these numbers."""
        return self._replace(
            term=self.term[selected],
            offset=self.offset[selected],
            size=self.size[selected],
            kind=self.kind[selected],
        )


def transpose(plan: Plan, heads: Heads) -> Plan:
    """Plan the backward pass of `plan` for gradients that arrive at `heads`.

    The fills of the result are the gradients of heads, its launches those that take part, in
    reverse order, and its results the gradients of the fills of `plan`.
    """
    live, passing, maker = _find_live(plan, heads)
    filled, kind = _fills(plan, heads)
    operands = empty_places(plan.regions[:, ROWS], plan.regions[:, ROW_SIZE])
    regions = empty_places(
        np.append(plan.operands[:, ROWS], [len(numbers) for numbers, _ in filled]),
        np.append(plan.operands[:, ROW_SIZE], [sizes[0] for _, sizes in filled]),
    )
    inputs = _order_inputs(plan.operands, passing)
    # The gradients of heads come first.
    order = np.concatenate([np.arange(len(plan.operands), len(regions)), inputs])
    kind = np.concatenate([plan.inputs.kind, kind])
    columns = planning.exchange_reads(
        *(plan.reads, filled, heads.term, heads.offset, heads.size),
        *(plan.region_of, plan.element_of, len(plan.operands), inputs, live[maker]),
    )
    reads = Reads(*columns)
    arenas, sizes, pieces = place_operands(operands, regions, reads, kind, order, plan.kinds)
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


def _find_live(plan: Plan, heads: Heads) -> Tuple[Array, Array, Array]:
    """Return which makers take part, which inputs pass a gradient on, and the maker of each region.

    See `planning.spread_reach`.
    """
    trained = [1 in marks for marks in lowering.trained_in(plan.graph.briefs)]
    return planning.spread_reach(
        *(plan.inputs, plan.outputs, plan.reads, plan.operands, plan.segment),
        *(recorded_segments(plan.graph), np.array(trained, dtype=bool), heads.in_graph),
        *(plan.filled, plan.region_of[heads.term]),
    )


def _fills(plan: Plan, heads: Heads) -> Tuple[Tuple[Tuple[Array, Array], ...], Array]:
    """Return the fills with gradients of heads, one for each size and kind, and their kinds."""
    pairs = heads.size * len(plan.kinds) + heads.kind
    if len(pairs) and (pairs == pairs[0]).all():  # one loss per sample
        distinct, by_fill = pairs[:1], [np.arange(len(pairs))]
    else:
        distinct, fill = np.unique(pairs, return_inverse=True)
        by_fill = [np.flatnonzero(fill == number) for number in range(len(distinct))]
    filled = tuple((numbers, heads.size[numbers]) for numbers in by_fill)
    return filled, distinct % len(plan.kinds)


def _order_inputs(operands: Array, passing: Array) -> Array:
    """Return the inputs that pass a gradient on, in the order of their gradients' rows.

    Contiguous operands get contiguous gradients, so that these can be read in place as well.
    """
    inputs = np.flatnonzero(passing)
    places = operands[inputs]
    gathered = places[:, TYPE] != planning.SLICE
    keys = (np.where(gathered, 0, places[:, column]) for column in (SECOND, FIRST))
    order: Array = inputs[np.lexsort([*keys, gathered])]
    return order


def recorded_segments(graph: Graph) -> Array:
    """Return per segment whether its calls were recorded for a backward pass."""
    return np.frombuffer(lowering.recorded_in(graph.briefs), dtype=bool)


class Reach(NamedTuple):
    """What gets a gradient in the loop: all that calls on a path to a head read."""

    #: External arrays that get their gradient from a fill: the fill, the first row, and the array.
    filled: Tuple[Tuple[int, int, int], ...]
    #: Other external arrays, and launches that take no part in the backward pass.  Those arrays,
    #: and the parameters of those launches, get a gradient of zeros unless they get another one.
    others: Tuple[int, ...]
    launches: Tuple[int, ...]
    #: Which units lie on a path to a head, and how many do.
    live: Array
    units: int


def live_units(plan: Plan, heads: Heads) -> Tuple[Array, int]:
    """Return which units lie on a path of recorded calls to one of the heads, and how many do."""
    graph, dependencies = plan.graph, plan.graph.dependencies
    live: Array = np.zeros(dependencies.size, dtype=bool)
    live[graph.slot_unit[heads.term]] = True
    columns = dependencies.offsets, dependencies.preds, graph.segment
    return live, planning.ancestors(*columns, recorded_segments(graph), live)


def externals_of(graph: Graph, units: Array, count: int) -> Array:
    """Return per external array, of `count`, whether marked units read it."""
    read = np.zeros(count, dtype=bool)
    offsets = graph.dependencies.offsets
    planning.externals_read(units, offsets, graph.input0, graph.term0, graph.term, read)
    return read


def touched_units(plan: Plan, units: Array, externals: Array) -> Array:
    """Return which units share a part of their graph with marked units or external arrays."""
    graph, touched = plan.graph, units.copy()
    dependencies = graph.dependencies
    planning.descendants(
        *(dependencies.offsets, dependencies.preds, graph.segment, recorded_segments(graph)),
        *(graph.input0, graph.term0, graph.term, externals, touched),
    )
    return touched


def find_reach(plan: Plan, backward: Plan, heads: Heads) -> Reach:
    """Find what gets a gradient when `backward`, the transposed `plan`, has run."""
    units, count = live_units(plan, heads)
    # Per external array: whether it gets a gradient; and whether it gets one, but not from a fill.
    wanted = externals_of(plan.graph, units, len(heads.in_graph)) & heads.in_graph
    others = wanted.copy()
    filled: List[Tuple[int, int, int]] = []
    results = plan.outputs.first[-1]
    for fill, (externals, _) in enumerate(plan.filled):
        if backward.operands[results + fill, TYPE]:
            externals = externals[wanted[externals]]
            others[externals] = False
            rows = plan.element_of[-1 - externals] // plan.regions[results + fill, ROW_SIZE]
            filled += zip([fill] * len(externals), rows.tolist(), externals.tolist())
    skipped = np.zeros(len(plan.order), dtype=bool)
    skipped[plan.members.launch[units]] = True
    skipped[backward.order] = False
    return Reach(
        tuple(filled),
        tuple(np.flatnonzero(others).tolist()),
        tuple(np.flatnonzero(skipped).tolist()),
        units,
        count,
    )
