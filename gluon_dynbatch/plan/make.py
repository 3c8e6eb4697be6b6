"""Groups of units in, the forward plan out.

The members of launches are put in order, everything is given its place, and operands are resolved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, NamedTuple, Sequence, Tuple

import numpy as np

from ..native import resolving
from ..schedule.dependencies import Array
from .order import order_members
from .plan import (
    PLACES,
    Columns,
    Fill,
    Launch,
    Plan,
    Ports,
    Reads,
    arenas_of,
    places_of,
    resolve,
)

if TYPE_CHECKING:
    from mxnet import Context

    from ..lower.graph import Graph


class Outside(NamedTuple):
    """The arrays from outside, by number."""

    #: Elements of each, and the number of its kind.
    size: Array
    kind: Array
    #: Type of elements, and device.
    kinds: Sequence[Tuple[str, Context]]


def make_plan(graph: Graph, groups: Array, outside: Outside) -> Plan:
    """Turn a grouping of units into launches.

    Parameters
    ----------
    graph : Graph
        What the analyzer saw, with operands.
    groups : numpy.ndarray of int32, shape (units,)
        Launch of each unit; predecessors have smaller numbers.
    outside : Outside
        What is read but not made.
    """
    return _Planner(graph, groups, outside).plan()


class _Filled(NamedTuple):
    """What arenas are filled with."""

    #: Per fill: numbers of arrays, kind, and a table of places.
    externals: List[Array]
    kind: Array
    places: Array


class _Planner:
    def __init__(self, graph: Graph, groups: Array, outside: Outside):
        self._graph, self._groups, self._outside = graph, groups, outside
        sides = [Ports.of(tables) for tables in zip(*(s.columns for s in graph.segments))]
        self._members = order_members(graph, groups, *sides)
        self._segment = graph.segment[self._members.units[self._members.first[:-1]]]
        self._inputs, self._outputs = (side.of_launches(self._segment) for side in sides)

    def plan(self) -> Plan:
        """Place everything, then resolve operands."""
        inputs, outputs, kinds = self._inputs, self._outputs, self._outside.kinds
        operands, results = self._places(inputs, 0), self._places(outputs, 1)
        operands[inputs.shared > 0, 3] = 1
        listed = self._terms()
        filled = self._find_filled(*listed[:2])
        regions = np.concatenate([results, filled.places])
        # Fills come first.
        order = np.roll(np.arange(len(regions)), len(filled.places))
        layout = resolving.Layout()
        layout.reserve(regions, np.concatenate([outputs.kind, filled.kind]), order)
        fills, places = self._place_terms(filled, regions)
        reads = self._reads(listed, places, operands)
        pieces = resolve(operands, reads)
        launches = resolving.launches(
            *(Launch, PLACES, self._members.launches),
            *(operands, inputs.first, regions, outputs.first),
        )
        arenas, sizes = arenas_of(layout, kinds)
        columns = Columns(self._groups, self._segment, inputs, outputs, operands, regions, kinds)
        return Plan(self._graph, launches, fills, arenas, sizes, pieces, reads, columns, *places)

    def _places(self, ports: Ports, side: int) -> Array:
        """Return a table of what ports stand for, with the rows of each."""
        rows = np.repeat(self._members.rows, np.diff(ports.first))
        for number, _, parts, _ in self._members.launches:
            if len(parts) > 1:
                # Rows of several sizes are seen as shorter ones.
                own = slice(*ports.first[number : number + 2])
                sizes = Ports.of([part.segment.columns[side] for part in parts]).row_size
                sizes = sizes.reshape((len(parts), -1))
                ports.row_size[own] = np.gcd.reduce(sizes)
                rows[own] = [part.rows for part in parts] @ sizes // ports.row_size[own]
        return places_of(rows, ports.row_size)

    def _terms(self) -> Tuple[Array, Array, Array]:
        """Return the terms that are read: by which operand, which they are, where they belong."""
        graph, members, side = self._graph, self._members, self._inputs
        operand, at = np.empty((2, len(graph.term)), dtype=np.int32)
        target = np.empty(len(graph.term), dtype=np.int64)
        count = resolving.terms(
            *(members.first, side.first, side.shared, side.concat, members.units),
            *(graph.input0, graph.term0, graph.term_size, operand, at, target),
        )
        return operand[:count], at[:count], target[:count]

    def _find_filled(self, operand: Array, at: Array) -> _Filled:
        """Return what arenas are filled with, given who reads which terms."""
        outside, side = self._outside, self._inputs
        order, pair = np.empty((2, len(outside.size)), dtype=np.int64)
        count, pairs = resolving.externals(
            *(operand, at, self._graph.term, side.shared, side.row_size),
            *(outside.kind, order, pair),
        )
        order = order[:count]
        externals = [order[pair[order] == number] for number in range(len(pairs))]
        row_size, kind = np.array(pairs, dtype=np.int64).reshape((-1, 2)).T
        sizes = np.array([outside.size[own].sum() for own in externals], dtype=np.int64)
        return _Filled(externals, kind, places_of(sizes // row_size, row_size))

    def _place_terms(self, filled: _Filled, regions: Array) -> Tuple[Tuple[Fill, ...], Array]:
        """Return the fills, and per term that may be read its arena, first element and target."""
        members, graph, side, outside = self._members, self._graph, self._outputs, self._outside
        # Externals are numbered from -1 downwards: from the end of the table.
        places = np.full((3, len(graph.slot_unit) + len(outside.size)), -1, dtype=np.int64)
        resolving.slots(
            *(members.first, side.first, members.units),
            *(graph.slot0, graph.slot_size, regions, places),
        )
        results, fills = side.first[-1], []
        objects = resolving.objects(regions[results:], PLACES)
        for number, (region, own) in enumerate(zip(objects, filled.externals), results):
            fill = Fill(region, own, outside.size[own])
            first = region.start * regions[number, 4]
            places[0, -1 - own], places[1, -1 - own] = region.arena, first + fill.starts
            places[2, -1 - own] = number
            fills.append(fill)
        return tuple(fills), places

    def _reads(self, listed: Tuple[Array, ...], places: Array, operands: Array) -> Reads:
        """Return the reads, and note which operands are arrays from outside as a whole."""
        graph = self._graph
        found = np.empty((len(Reads._fields), len(listed[0])), dtype=np.int64)
        count = resolving.runs(
            *(*listed, graph.term, graph.term_offset, graph.term_size, self._inputs.shared),
            *(places, found, operands),
        )
        return Reads(*found[:, :count].copy())
