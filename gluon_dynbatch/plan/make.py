"""Groups of units in, the forward plan out.

The members of launches are put in order, everything is given its place, and operands are resolved.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from ..native import resolving
from ..schedule.dependencies import Array
from .order import Members, order_members
from .plan import (
    Arena,
    Fill,
    Launch,
    Operand,
    Part,
    Plan,
    Reads,
    Region,
    Shared,
    Whole,
)
from .resolve import Layout, resolve

if TYPE_CHECKING:
    from ..lower.graph import Graph
    from ..lower.segment import Port
    from ..record.types import ArrayType


def make_plan(
    graph: Graph, groups: Array, external_type: Array, type_of: Callable[[int], ArrayType]
) -> Plan:
    """Turn a grouping of units into launches.

    Parameters
    ----------
    graph : Graph
        What the analyzer saw, with operands.
    groups : numpy.ndarray of int32, shape (units,)
        Launch of each unit; predecessors have smaller numbers.
    external_type : numpy.ndarray of int, shape (externals,)
        Types of the arrays from outside, by number.
    type_of : callable
        Returns the type with a number.
    """
    return _Planner(graph, groups, external_type, type_of).plan()


class _Ports(NamedTuple):
    """The inputs of all launches, numbered in their order; of each the port of the first part."""

    ports: List[Port]
    #: Per port.
    launch: Array
    rows: Array
    row_size: Array
    shared: Array
    #: Per launch, one more at the end: its first port.
    first: Array

    @classmethod
    def of(cls, members: Members) -> _Ports:
        sides = [[part.segment.inputs for part in parts] for parts in members.parts]
        ports = [port for side in sides for port in side[0]]
        counts = [len(side[0]) for side in sides]
        found = [one for own in zip(members.parts, sides) for one in _rows(*own)]
        return cls(
            ports,
            np.repeat(np.arange(len(counts)), counts),
            np.array([rows for rows, _ in found], dtype=np.int64),
            np.array([row_size for _, row_size in found], dtype=np.int64),
            np.array([port.shared for port in ports], dtype=bool),
            np.cumsum([0, *counts]),
        )


def _rows(parts: Sequence[Part], sides: Sequence[Sequence[Port]]) -> Iterator[Tuple[int, int]]:
    """Yield rows and their size for each port; rows of several sizes are seen as shorter ones."""
    counts = [part.rows for part in parts]
    for ports in zip(*sides):
        sizes = [port.row_size for port in ports]
        size = reduce(math.gcd, sizes)
        yield sum(map(mul, counts, sizes)) // size, size


class _Sizes(NamedTuple):
    """Row sizes of the ports of units, by segment."""

    segment: Array
    #: Per segment: where its ports begin.
    first: Array
    size: Array

    @classmethod
    def of(cls, graph: Graph, sides: Sequence[Sequence[Port]]) -> _Sizes:
        counts = np.cumsum([0, *map(len, sides)])[:-1]
        size = [port.row_size for side in sides for port in side]
        return cls(graph.segment, counts, np.array(size, dtype=np.int64))


class _Planner:
    def __init__(
        self,
        graph: Graph,
        groups: Array,
        external_type: Array,
        type_of: Callable[[int], ArrayType],
    ):
        self._graph = graph
        self._external_type = external_type
        self._type_of = type_of
        self._members = order_members(graph, groups)
        self._ports = _Ports.of(self._members)
        self._layout = Layout()

    def plan(self) -> Plan:
        """Place everything, then resolve operands."""
        operand, at, target, length = self._pieces()
        fills, external_arena, external_element = self._place_externals(operand, at)
        outputs, slot_arena, slot_element = self._place_slots()
        arena_of = np.concatenate([slot_arena, external_arena[::-1]])
        element_of = np.concatenate([slot_element, external_element[::-1]])
        # Externals are numbered from -1 downwards: from the end of the tables.
        term = self._graph.term[at]
        element = element_of[term] + self._graph.term_offset[at]
        reads = Reads(operand, at, target, length, arena_of[term], element)
        operands, pieces = self._operands(reads)
        return Plan(
            self._graph,
            tuple(self._launch(k, operands, regions) for k, regions in enumerate(outputs)),
            fills,
            tuple(self._layout.arenas),
            tuple(self._layout.sizes),
            pieces,
            reads,
            arena_of,
            element_of,
        )

    def _pieces(self) -> Tuple[Array, Array, Array, Array]:
        """Return per read of a term: the operand, the term, where it belongs and its length."""
        graph, members, ports = self._graph, self._members, self._ports
        found = np.empty((4, len(graph.term)), dtype=np.int64)
        count = resolving.reads(
            *(members.first, ports.first, ports.shared.view(np.uint8)),
            *_Sizes.of(graph, [segment.inputs for segment in graph.segments]),
            *(members.units, graph.dependencies.rows, graph.input0, graph.term0),
            *found,
        )
        operand, at, target, length = found[:, :count]
        for number in [n for n, port in enumerate(ports.ports) if port.concat]:
            low, high = np.searchsorted(operand, [number, number + 1])
            k = ports.launch[number]
            units = members.units[members.first[k] : members.first[k + 1]]
            length[low:high] = graph.concat_rows(units) * ports.row_size[number]
            target[low:high] = np.cumsum(length[low:high]) - length[low:high]
        return operand, at, target, length

    def _external_reads(self, operand: Array, at: Array) -> Tuple[Array, Array]:
        """Return the externals that have to stand in arenas, and the row size each is read with.

        They are in the order in which they are read first.
        """
        graph = self._graph
        outside = np.flatnonzero((graph.term[at] < 0) & ~self._ports.shared[operand])
        at, operand = at[outside], operand[outside]
        summand = at - graph.term0[np.searchsorted(graph.term0, at, side="right") - 1]
        if summand.any():
            order = np.lexsort((summand, operand))
            at, operand = at[order], operand[order]
        external = -1 - graph.term[at]
        first = np.full(len(self._external_type), len(at))
        # Of several assignments to one place the last stays.
        first[external[::-1]] = np.arange(len(at))[::-1]
        first = np.sort(first[first < len(at)])
        return external[first], self._ports.row_size[operand[first]]

    def _place_externals(self, operand: Array, at: Array) -> Tuple[Tuple[Fill, ...], Array, Array]:
        """Return the fills, and per external its arena and first element."""
        arena = np.full(len(self._external_type), -1, dtype=np.int64)
        element = np.zeros(len(self._external_type), dtype=np.int64)
        externals, row_size = self._external_reads(operand, at)
        # Few pairs of a type and a row size, of thousands of arrays.
        types = int(self._external_type.max(initial=0)) + 1
        pairs, first, pair = np.unique(
            row_size * types + self._external_type[externals],
            return_index=True,
            return_inverse=True,
        )
        elements = np.empty(len(pairs), dtype=np.int64)
        alike: Dict[Arena, List[int]] = {}
        for number in np.argsort(first).tolist():
            size, kind = divmod(int(pairs[number]), types)
            array = self._type_of(kind)
            elements[number] = array.elements
            alike.setdefault(Arena(size, array.dtype, array.context), []).append(number)
        fills = []
        for buffer, numbers in alike.items():
            places = np.flatnonzero(np.isin(pair, numbers))
            counts, own = elements[pair[places]], externals[places]
            region = self._layout.reserve(buffer, int(counts.sum()) // buffer.row_size)
            arena[own] = region.arena
            element[own] = region.start * buffer.row_size + np.cumsum(counts) - counts
            fills.append(Fill(region, tuple(own.tolist()), counts))
        return tuple(fills), arena, element

    def _place_slots(self) -> Tuple[List[Tuple[Region, ...]], Array, Array]:
        """Return the regions of every launch's results, and per slot its arena and element."""
        members, slots = self._members, len(self._graph.slot_unit)
        arena, element = np.zeros(slots, dtype=np.int64), np.zeros(slots, dtype=np.int64)
        placed, outputs = [], []
        for k, parts in enumerate(members.parts):
            regions, segment = [], parts[0].segment
            found = _rows(parts, [part.segment.outputs for part in parts])
            for out, (port, (rows, row_size)) in enumerate(zip(segment.outputs, found)):
                kind = Arena(row_size, port.dtype, segment.context)
                region = self._layout.reserve(kind, rows)
                outputs.append((k, out, region.arena, region.start * row_size))
                regions.append(region)
            placed.append(tuple(regions))
        graph = self._graph
        resolving.slots(
            *(members.first, members.units, graph.dependencies.rows),
            *_Sizes.of(graph, [segment.outputs for segment in graph.segments]),
            *(graph.slot0, np.array(outputs, dtype=np.int64).reshape((-1, 4)), arena, element),
        )
        return placed, arena, element

    def _operands(self, reads: Reads) -> Tuple[List[Operand], Array]:
        ports = self._ports
        rows = np.where(ports.shared, -1, ports.rows)
        found, pieces = resolve(rows, ports.row_size, reads)
        at = np.searchsorted(reads.operand, np.flatnonzero(ports.shared))
        for read in at.tolist():
            number, term = int(reads.operand[read]), int(self._graph.term[reads.term[read]])
            place = int(reads.arena[read]), int(reads.element[read])
            shape = ports.ports[number].shape
            found[number] = Whole(-1 - term) if term < 0 else Shared(*place, shape)
        return [operand for operand in found if operand is not None], pieces

    def _launch(self, k: int, operands: List[Operand], regions: Tuple[Region, ...]) -> Launch:
        members = self._members
        units = members.units[members.first[k] : members.first[k + 1]]
        own = operands[self._ports.first[k] : self._ports.first[k + 1]]
        return Launch(k, members.parts[k], units, tuple(own), regions)
