"""Groups of units in, the forward plan out.

The members of launches are put in order, everything is given its place, and operands are resolved.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ..native import resolving
from ..schedule.dependencies import Array
from .order import Members, order_members
from .plan import Arena, Fill, Launch, Operand, Plan, Reads, Region, Rows, Slice, Whole

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


class _Side(NamedTuple):
    """The inputs, or the outputs, of all launches, numbered in their order."""

    #: That of the first part.
    ports: List[Port]
    #: Rows of several sizes are seen as shorter ones.
    rows: Array
    row_size: Array
    #: Per launch, one more at the end: its first port.
    first: Array

    @classmethod
    def of(cls, members: Members, side: str) -> _Side:
        ports: List[Port] = []
        rows, row_size, first = [], [], [0]
        for parts in members.parts:
            own = getattr(parts[0].segment, side)
            ports += own
            if len(parts) == 1:
                rows += [parts[0].rows] * len(own)
                row_size += [port.row_size for port in own]
                first.append(len(ports))
                continue
            for alike in zip(*(getattr(part.segment, side) for part in parts)):
                size = reduce(math.gcd, (port.row_size for port in alike))
                elements = sum(part.rows * port.row_size for part, port in zip(parts, alike))
                rows.append(elements // size)
                row_size.append(size)
            first.append(len(ports))
        return cls(ports, *(np.array(column, dtype=np.int64) for column in (rows, row_size, first)))

    def marks(self, name: str) -> Array:
        """Return for each port whether it has some property."""
        return np.array([getattr(port, name) for port in self.ports], dtype=np.uint8)


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
        self._inputs = _Side.of(self._members, "inputs")
        self._outputs = _Side.of(self._members, "outputs")
        self._shared = self._inputs.marks("shared")
        self._layout = Layout()

    def plan(self) -> Plan:
        """Place everything, then resolve operands."""
        operand, at, target, length = self._pieces()
        fills, externals = self._place_externals(operand, at)
        regions, slots = self._place_slots()
        # Externals are numbered from -1 downwards: from the end of the tables.
        arena_of, element_of, target_of = np.concatenate([slots, externals[:, ::-1]], axis=1)
        term = self._graph.term[at]
        element = element_of[term] + self._graph.term_offset[at]
        reads = Reads(operand, at, target, length, arena_of[term], element)
        operands, pieces = self._operands(reads)
        return Plan(
            self._graph,
            tuple(self._launch(k, operands, regions) for k in range(len(self._members.parts))),
            fills,
            tuple(self._layout.arenas),
            tuple(self._layout.sizes),
            pieces,
            reads,
            arena_of,
            element_of,
            target_of,
        )

    def _pieces(self) -> Tuple[Array, Array, Array, Array]:
        """Return per read of a term: the operand, the term, where it belongs and its length."""
        graph, members = self._graph, self._members
        found = np.empty((4, len(graph.term)), dtype=np.int64)
        count = resolving.reads(
            *(members.first, self._inputs.first, self._shared, self._inputs.marks("concat")),
            *(members.units, graph.input0, graph.term0, graph.term_size, *found),
        )
        operand, at, target, length = found[:, :count]
        return operand, at, target, length

    def _external_reads(self, operand: Array, at: Array) -> Tuple[Array, Array]:
        """Return the externals that have to stand in arenas, and the row size each is read with.

        They are in the order in which they are read first.
        """
        graph = self._graph
        outside = np.flatnonzero((graph.term[at] < 0) & (self._shared[operand] == 0))
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
        return external[first], self._inputs.row_size[operand[first]]

    def _place_externals(self, operand: Array, at: Array) -> Tuple[Tuple[Fill, ...], Array]:
        """Return the fills, and per external its arena, first element and target."""
        found = np.full((3, len(self._external_type)), -1, dtype=np.int64)
        arena, element, target = found
        externals, row_size = self._external_reads(operand, at)
        # Few pairs of a type and a row size, of thousands of arrays.
        pair = np.empty(len(externals), dtype=np.int64)
        pairs = resolving.number_pairs(row_size, self._external_type[externals], pair)
        buffers: Dict[Arena, int] = {}
        elements, buffer_of = np.empty((2, len(pairs)), dtype=np.int64)
        for number, (size, kind) in enumerate(pairs):
            array = self._type_of(kind)
            buffer = Arena(size, array.dtype, array.context)
            elements[number] = array.elements
            buffer_of[number] = buffers.setdefault(buffer, len(buffers))
        fills: List[Fill] = []
        for number, buffer in enumerate(buffers):
            places = np.flatnonzero(buffer_of[pair] == number)
            counts, own = elements[pair[places]], externals[places]
            region = self._layout.reserve(buffer, int(counts.sum()) // buffer.row_size)
            arena[own] = region.arena
            element[own] = region.start * buffer.row_size + np.cumsum(counts) - counts
            target[own] = len(self._outputs.ports) + len(fills)
            fills.append(Fill(region, own, counts))
        return tuple(fills), found

    def _place_slots(self) -> Tuple[List[Region], Array]:
        """Return the regions of all results, and per slot its arena, first element and target."""
        members, graph, side = self._members, self._graph, self._outputs
        contexts = [parts[0].segment.context for parts in members.parts]
        context = np.repeat(np.arange(len(contexts)), np.diff(side.first)).tolist()
        regions = [
            self._layout.reserve(Arena(size, port.dtype, contexts[launch]), rows)
            for port, rows, size, launch in zip(
                side.ports, side.rows.tolist(), side.row_size.tolist(), context
            )
        ]
        found = np.empty((3, len(graph.slot_unit)), dtype=np.int64)
        starts = np.array([region[:2] for region in regions], dtype=np.int64).reshape((-1, 2))
        starts[:, 1] *= side.row_size
        resolving.slots(
            *(members.first, side.first, members.units, graph.slot0, graph.slot_size),
            *(starts, *found),
        )
        return regions, found

    def _operands(self, reads: Reads) -> Tuple[List[Operand], Array]:
        shared, rows = np.flatnonzero(self._shared), np.where(self._shared, 1, self._inputs.rows)
        terms = self._graph.term[reads.term[np.searchsorted(reads.operand, shared)]]
        whole = shared[terms < 0]
        rows[whole] = -1
        found, pieces = resolve(rows, self._inputs.row_size, reads)
        for number, term in zip(whole.tolist(), terms[terms < 0].tolist()):
            found[number] = Whole(-1 - term)
        return [operand for operand in found if operand is not None], pieces

    def _launch(self, k: int, operands: List[Operand], regions: List[Region]) -> Launch:
        units, read, made = (
            slice(*table.first[k : k + 2]) for table in (self._members, self._inputs, self._outputs)
        )
        own = self._members.units[units], tuple(operands[read]), tuple(regions[made])
        parts = self._members.parts[k]
        return Launch(k, parts[0].segment, parts, *own)


class Layout:
    """Arenas being laid out."""

    def __init__(self) -> None:
        self.arenas: List[Arena] = []
        #: Rows reserved so far.
        self.sizes: List[int] = []
        self._numbers: Dict[Arena, int] = {}

    def reserve(self, arena: Arena, rows: int) -> Region:
        """Reserve the next rows of `arena`."""
        number = self._numbers.setdefault(arena, len(self.arenas))
        if number == len(self.arenas):
            self.arenas.append(arena)
            self.sizes.append(0)
        start = self.sizes[number]
        self.sizes[number] += rows
        return Region(number, start, rows)


def resolve(rows: Array, row_sizes: Array, reads: Reads) -> Tuple[List[Optional[Operand]], Array]:
    """Find out how operands are read: in place, or put together from pieces.

    Parameters
    ----------
    rows, row_sizes : numpy.ndarray of int64, shape (operands,)
        Rows of each operand, -1 if it is none of these, and elements of each row.
    reads : Reads
        What to read.  Several reads of one element are added up, in their order.

    Returns
    -------
    list of Operand
        None for operands without reads or rows.
    numpy.ndarray of int64, shape (pieces, 5)
        All pieces.
    """
    operand, _, *columns = reads
    found, pieces = resolving.resolve(Slice, Rows, rows, row_sizes, operand, *columns)
    return found, np.frombuffer(pieces, dtype=np.int64).reshape((-1, 5))
