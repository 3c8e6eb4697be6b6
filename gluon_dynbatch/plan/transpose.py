"""The backward pass of a plan, as a plan: what is read there is written here.

A launch that takes part reads the gradients of its results and writes those of its operands.  Reads
change sides: wherever a piece of a result was read forward, its gradient is read from the gradient
of the operand.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Set, Tuple

import numpy as np

from ..modes import RECORDING
from ..native import ordering, resolving
from ..schedule.dependencies import Array
from .make import Layout, resolve
from .plan import Arena, Fill, Plan, Reads, Region, Rows, Slice, Whole

#: Who makes what is from outside and may get a gradient, and what gets none.
OUTSIDE, NOWHERE = -1, -2


class Heads(NamedTuple):
    """Results that the user still holds: arrays of one length."""

    term: Array
    #: First element within the term.
    offset: Array
    kind: Array
    #: Elements, type and device of each kind.
    kinds: Tuple[Arena, ...]
    #: Per array from outside: whether a gradient may go on to it.
    in_graph: Array

    @property
    def size(self) -> Array:
        """Elements of each."""
        sizes: Array = np.array([kind.row_size for kind in self.kinds])[self.kind]
        return sizes

    def some(self, which: Any) -> Heads:
        """Return those of some numbers."""
        return self._replace(
            term=self.term[which], offset=self.offset[which], kind=self.kind[which]
        )


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
        self._forward = plan
        self._heads = heads
        self._layout = Layout()
        launches = plan.launches
        #: Per launch, one more at the end: number of its first operand, and of its first result.
        self._operand0 = np.cumsum([0, *(len(launch.operands) for launch in launches)])
        self._result0 = np.cumsum([0, *(len(launch.outputs) for launch in launches)])
        #: What gradients are found for: results of launches, then fills.
        self._targets = [region for launch in launches for region in launch.regions]
        self._targets += [fill.region for fill in plan.fills]
        #: Per target: the launch that makes it, or `OUTSIDE`, or `NOWHERE` for fills of which no
        #: array may get a gradient; and its first element.
        fills = [
            OUTSIDE if heads.in_graph[fill.externals].any() else NOWHERE for fill in plan.fills
        ]
        made = np.repeat(np.arange(len(launches)), np.diff(self._result0))
        self._maker = np.concatenate([made, np.array(fills, dtype=np.int64)])
        self._start = _starts(self._targets, plan.arenas)

    def plan(self) -> Plan:
        """Find out what takes part, give every gradient its rows, and resolve what reads them."""
        live = self._live()
        wanted = np.isin(self._maker, [OUTSIDE, *live])
        fills, *from_heads = self._place_heads(wanted)
        outputs = self._place_operands(live)
        parts = zip(*from_heads, self._from_operands(outputs, wanted))
        reads = Reads(*map(np.concatenate, parts))
        arenas, results = self._forward.arenas, int(self._result0[-1])
        operands, pieces = resolve(
            np.array([region.rows for region in self._targets], dtype=np.int64),
            np.array([arenas[region.arena].row_size for region in self._targets], dtype=np.int64),
            reads,
        )
        launches, none = [], np.zeros(0, dtype=np.int64)
        for number in sorted(live, reverse=True):
            launch, own = self._forward.launches[number], slice(*self._result0[number : number + 2])
            regions = tuple(outputs.get((number, p)) for p in range(len(launch.operands)))
            launches.append(launch._replace(operands=tuple(operands[own]), outputs=regions))
        return Plan(
            self._forward.graph,
            tuple(launches),
            fills,
            tuple(self._layout.arenas),
            tuple(self._layout.sizes),
            pieces,
            reads,
            *(none, none, none, tuple(operands[results:])),
        )

    def _live(self) -> Dict[int, List[int]]:
        """Return the launches that take part, each with the inputs that pass a gradient on.

        They have been recorded, have something to train behind them, and a head reads them.
        """
        plan, reads = self._forward, self._forward.reads
        #: Per operand who makes what it reads.
        makers: List[Set[int]] = [set() for _ in range(self._operand0[-1])]
        pair = reads.operand * (len(plan.launches) - NOWHERE) + self._maker[reads.source] - NOWHERE
        # Few are left without those that equal the one before.
        pair = np.unique(pair[np.diff(pair, prepend=-1) != 0])
        for number, one in np.stack(np.divmod(pair, len(plan.launches) - NOWHERE), 1).tolist():
            makers[number].add(one + NOWHERE)
        flowing: Dict[int, List[int]] = {}
        for number, launch in enumerate(plan.launches):
            if not launch.segment.mode & RECORDING:
                continue
            passing = []
            trained = any(p.grad_req != "null" for p in launch.segment.parameters)
            for p, (port, operand) in enumerate(zip(launch.segment.inputs, launch.operands)):
                if not port.differentiable:
                    continue
                if type(operand) is Whole:
                    trained |= bool(self._heads.in_graph[operand.external])
                elif any(
                    maker == OUTSIDE or maker in flowing
                    for maker in makers[self._operand0[number] + p]
                ):
                    passing.append(p)
            if passing or trained:
                flowing[number] = passing
        reached = set(self._maker[plan.target_of[self._heads.term]].tolist())
        live = {}
        for number in sorted(flowing, reverse=True):
            if number in reached:
                live[number] = flowing[number]
                for p in flowing[number]:
                    reached.update(makers[self._operand0[number] + p])
        return live

    def _place_heads(self, wanted: Array) -> Tuple[Any, ...]:
        """Place the gradients of heads; return the fills, and what wanted targets read of each."""
        fills, columns = [], []
        for number in np.unique(self._heads.kind).tolist():
            kind, members = self._heads.kinds[number], np.flatnonzero(self._heads.kind == number)
            size, count = kind.row_size, len(members)
            region = self._layout.reserve(kind, count)
            fills.append(Fill(region, members, np.full(count, size)))
            term, offset = self._heads.term[members], self._heads.offset[members]
            target = self._forward.target_of[term]
            place = self._forward.element_of[term] + offset - self._start[target]
            source, like = (region.start + np.arange(count)) * size, np.ones(count, dtype=np.int64)
            reads = target, -like, place, size * like, region.arena * like, source
            columns.append(Reads(*(column[wanted[target]] for column in reads)))
        return tuple(fills), *columns

    def _place_operands(self, live: Dict[int, List[int]]) -> Dict[Tuple[int, int], Region]:
        """Give the gradient of every input of every launch its rows.

        What is read in place, side by side, gets gradients side by side, so that these are read in
        place as well.
        """
        placed = {}
        inputs = sorted((number, p) for number in live for p in live[number])
        for number, p in sorted(inputs, key=self._rank):
            launch = self._forward.launches[number]
            port, operand = launch.segment.inputs[p], launch.operands[p]
            rows, size = 1, port.row_size
            if isinstance(operand, (Slice, Rows)):
                rows, size = operand.rows, operand.row_size
            arena = size, port.dtype, launch.segment.context
            placed[number, p] = self._layout.reserve(arena, rows)
        return placed

    def _rank(self, numbered: Tuple[int, int]) -> Tuple[int, int, int]:
        number, p = numbered
        operand = self._forward.launches[number].operands[p]
        return (0, *operand[:2]) if type(operand) is Slice else (1, number, p)

    def _from_operands(self, outputs: Dict[Tuple[int, int], Region], wanted: Array) -> Reads:
        """Return what wanted targets read from gradients of operands, arena by arena."""
        reads, placed = self._forward.reads, sorted(outputs.items(), key=lambda item: item[1].arena)
        numbers = np.array([self._operand0[number] + p for (number, p), _ in placed], dtype=int)
        low, high = np.searchsorted(reads.operand, [numbers, numbers + 1])
        regions = [region for _, region in placed]
        found = np.empty((len(Reads._fields), int((high - low).sum())), dtype=np.int64)
        arenas = np.array([region.arena for region in regions], dtype=np.int64)
        starts = np.stack([arenas, _starts(regions, self._layout.arenas)])
        count = resolving.transposed(
            *(low, high, starts, *reads[:4], reads.element, wanted, self._start),
            found,
        )
        return Reads(*found[:, :count])


def _starts(regions: Sequence[Region], arenas: Sequence[Arena]) -> Array:
    """Return the first element of each region."""
    return np.array([r.start * arenas[r.arena].row_size for r in regions], dtype=np.int64)


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
    read = graph.term[np.repeat(units, np.diff(graph.term0[graph.input0]))]
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
