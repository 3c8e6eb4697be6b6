"""The backward pass of a plan, as a plan: what is read there is written here.

A launch that takes part reads the gradients of its results and writes those of its operands.  Reads
change sides: wherever a piece of a result was read forward, its gradient is read from the gradient
of the operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, NamedTuple, Tuple

import numpy as np

from ..modes import RECORDING
from ..native import ordering, resolving
from ..schedule.dependencies import Array
from .plan import PLACES, Fill, Launch, Plan, Reads, arenas_of, places_of, resolve

if TYPE_CHECKING:
    from ..lower.graph import Graph


class Heads(NamedTuple):
    """Results that the user still holds: arrays of one length."""

    term: Array
    #: First element within the term.
    offset: Array
    #: Elements; and type of elements and device, as `Columns` numbers them.
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
    return _Transposition(plan, heads).plan()


class _Transposition:
    def __init__(self, plan: Plan, heads: Heads):
        self._forward, self._columns, self._heads = plan, plan.columns, heads
        self._layout = resolving.Layout()
        launches = len(plan.launches)
        #: Who makes what is from outside and may get a gradient, and what gets none.
        self._outside, nowhere = launches, launches + 1
        fills = [
            self._outside if heads.in_graph[fill.externals].any() else nowhere
            for fill in plan.fills
        ]
        made = np.repeat(np.arange(launches), np.diff(self._columns.outputs.first))
        #: What gradients are found for are results of launches, then fills.  Per target: the launch
        #: that makes it, or one of the above; and its first element.
        self._maker = np.concatenate([made, np.array(fills, dtype=np.int64)])
        self._start = self._columns.regions[:, 2] * self._columns.regions[:, 4]

    def plan(self) -> Plan:
        """Find out what takes part, give every gradient its rows, and resolve what reads them."""
        forward, columns = self._forward, self._columns
        live, passing = self._live()
        wanted = live[self._maker]
        fills, *from_heads = self._place_heads(wanted)
        order, gradients = self._place_operands(passing)
        parts = zip(*from_heads, self._from_operands(order, gradients, wanted))
        reads = Reads(*map(np.concatenate, parts))
        targets = places_of(*columns.regions[:, 3:].T)
        pieces = resolve(targets, reads)
        launches = resolving.launches(
            *(Launch, PLACES),
            [forward.launches[n] for n in np.flatnonzero(live[: self._outside])[::-1].tolist()],
            *(targets, columns.outputs.first, gradients, columns.inputs.first),
        )
        arenas, sizes = arenas_of(self._layout, columns.kinds)
        return forward._replace(
            launches=launches,
            fills=fills,
            arenas=arenas,
            sizes=sizes,
            pieces=pieces,
            reads=reads,
            results=resolving.objects(targets[columns.outputs.first[-1] :], PLACES),
        )

    def _live(self) -> Tuple[Array, Array]:
        """Return who takes part, and the inputs that pass a gradient on.

        Launches do that have been recorded, have something to train behind them, and are read by a
        head; and so does who makes what is from outside and may get a gradient.
        """
        plan, columns, heads = self._forward, self._columns, self._heads
        inputs, operands = columns.inputs, columns.operands
        recorded = recorded_segments(plan.graph)[columns.segment]
        trained = np.array(
            [any([p.grad_req != "null" for p in s.parameters]) for s in plan.graph.segments],
            dtype=bool,
        )[columns.segment]
        trained &= recorded
        live, reached = np.zeros((2, self._outside + 2), dtype=bool)
        live[: self._outside], live[self._outside] = trained, True
        own = np.flatnonzero((operands[:, 0] == resolving.WHOLE) & (inputs.differentiable > 0))
        own = own[heads.in_graph[operands[own, 1]]]
        readers = np.searchsorted(inputs.first, own, "right") - 1
        live[readers] |= recorded[readers]
        reached[self._maker[plan.target_of[heads.term]]] = True
        passing = np.zeros(len(operands), dtype=bool)
        ordering.flow(
            *(inputs.first, inputs.differentiable, recorded, *plan.reads[:2], self._maker),
            *(passing, live, reached),
        )
        return live, passing

    def _place_heads(self, wanted: Array) -> Tuple[Any, ...]:
        """Place the gradients of heads; return the fills, and what wanted targets read of each."""
        heads, forward = self._heads, self._forward
        fills, columns = [], []
        pairs = heads.size * len(self._columns.kinds) + heads.kind
        for pair in np.unique(pairs).tolist():
            size, kind = divmod(pair, len(self._columns.kinds))
            members = np.flatnonzero(pairs == pair)
            places = places_of(len(members), [size])
            self._layout.reserve(places, np.array([kind]), np.array([0]))
            (region,) = resolving.objects(places, PLACES)
            own = heads.some(members)
            fills.append(Fill(region, members, own.size))
            target = forward.target_of[own.term]
            place = forward.element_of[own.term] + own.offset - self._start[target]
            source = region.start * size + fills[-1].starts
            like = np.ones(len(members), dtype=np.int64)
            reads = target, -like, place, own.size, region.arena * like, source
            columns.append(Reads(*(column[wanted[target]] for column in reads)))
        return tuple(fills), *columns

    def _place_operands(self, passing: Array) -> Tuple[Array, Array]:
        """Give the gradients of inputs rows: return the inputs in this order, and their places.

        What is read in place, side by side, gets gradients side by side, so that these are read in
        place as well.
        """
        columns = self._columns
        own = np.flatnonzero(passing)
        what, first, second, rows, row_size = columns.operands.T
        apart = what[own] != resolving.SLICE
        order = own[
            np.lexsort([*(np.where(apart, 0, place[own]) for place in (second, first)), apart])
        ]
        gradients = places_of(rows, row_size)
        self._layout.reserve(gradients, columns.inputs.kind, order)
        return order, gradients

    def _from_operands(self, order: Array, gradients: Array, wanted: Array) -> Reads:
        """Return what wanted targets read from gradients of operands, arena by arena."""
        reads = self._forward.reads
        order = order[np.argsort(gradients[order, 1], kind="stable")]
        low, high = np.searchsorted(reads.operand, [order, order + 1])
        found = np.empty((len(Reads._fields), int((high - low).sum())), dtype=np.int64)
        count = resolving.transposed(
            *(order, low, high, gradients, *reads[:4], reads.element, wanted, self._start),
            found,
        )
        return Reads(*found[:, :count])


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
    for number, (fill, result) in enumerate(zip(plan.fills, backward.results)):
        if result is not None:
            own = fill.externals[wanted[fill.externals]]
            others[own] = False
            size = plan.arenas[fill.region.arena].row_size
            rows = plan.element_of[-1 - own] // size - fill.region.start
            filled += zip([number] * len(own), rows.tolist(), own.tolist())
    left = np.zeros(len(plan.launches), dtype=bool)
    left[plan.columns.launch[units]] = True
    left[[launch.number for launch in backward.launches]] = False
    return Reach(
        tuple(filled),
        tuple(np.flatnonzero(others).tolist()),
        tuple(np.flatnonzero(left).tolist()),
    )
