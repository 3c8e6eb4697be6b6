"""Groups of units in, the forward plan out.

The members of launches are put in order, everything is given its place, and operands are resolved.
"""

from __future__ import annotations

from itertools import accumulate
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from ..native import resolving
from ..schedule.dependencies import Array
from .order import Members, order_members
from .plan import Arena, Fill, Launch, Operand, Plan, Reads, Region, Rows, Slice, Whole

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


class _Side(NamedTuple):
    """The inputs, or the outputs, of all launches, numbered in their order."""

    #: Rows of several sizes are seen as shorter ones.
    rows: Array
    row_size: Array
    shared: Array
    joins: Array
    #: Per launch, one more at the end: its first port.
    first: List[int]

    @classmethod
    def of(cls, members: Members, side: int) -> _Side:
        tables = [parts[0].segment.columns[side] for parts in members.parts]
        counts = [table.shape[1] for table in tables]
        row_size, shared, joins = np.concatenate([np.zeros((3, 0), np.int64), *tables], axis=1)
        rows = np.repeat([parts[0].rows for parts in members.parts], counts)
        first = [0, *accumulate(counts)]
        for launch, parts in enumerate(members.parts):
            if len(parts) > 1:
                own = slice(*first[launch : launch + 2])
                sizes = np.array([part.segment.columns[side][0] for part in parts])
                row_size[own] = np.gcd.reduce(sizes)
                rows[own] = [part.rows for part in parts] @ sizes // row_size[own]
        return cls(rows, row_size, shared.astype(np.uint8), joins.astype(np.uint8), first)


class _Planner:
    def __init__(self, graph: Graph, groups: Array, outside: Outside):
        self._graph, self._outside = graph, outside
        self._members = order_members(graph, groups)
        self._inputs, self._outputs = (_Side.of(self._members, side) for side in (0, 1))
        self._layout = Layout()

    def plan(self) -> Plan:
        """Place everything, then resolve operands."""
        listed = self._terms()
        fills, externals = self._place_externals(*listed[:2])
        regions, slots = self._place_slots()
        # Externals are numbered from -1 downwards: from the end of the tables.
        places = np.concatenate([slots, externals[:, ::-1]], axis=1)
        reads, whole = self._reads(listed, places)
        operands, pieces = self._operands(reads, whole)
        return Plan(
            self._graph,
            tuple(self._launches(operands, regions)),
            fills,
            tuple(self._layout.arenas),
            tuple(self._layout.sizes),
            pieces,
            reads,
            *places,
        )

    def _terms(self) -> Tuple[Array, Array, Array]:
        """Return the terms that are read: by which operand, which they are, where they belong."""
        graph, members, side = self._graph, self._members, self._inputs
        operand, at = np.empty((2, len(graph.term)), dtype=np.int32)
        target = np.empty(len(graph.term), dtype=np.int64)
        count = resolving.terms(
            *(members.first, np.array(side.first), side.shared, side.joins, members.units),
            *(graph.input0, graph.term0, graph.term_size, operand, at, target),
        )
        return operand[:count], at[:count], target[:count]

    def _place_externals(self, operand: Array, at: Array) -> Tuple[Tuple[Fill, ...], Array]:
        """Return the fills, and per external its arena, first element and target."""
        outside, side = self._outside, self._inputs
        found = np.full((3, len(outside.size)), -1, dtype=np.int64)
        arena, element, target = found
        order, pair = np.empty((2, len(outside.size)), dtype=np.int64)
        count, pairs = resolving.externals(
            *(operand, at, self._graph.term, side.shared, side.row_size),
            *(outside.kind, order, pair),
        )
        order = order[:count]
        fills: List[Fill] = []
        for number, (size, kind) in enumerate(pairs):
            own = order[pair[order] == number]
            counts = outside.size[own]
            ends = np.cumsum(counts)
            region = self._layout.reserve((size, *outside.kinds[kind]), int(ends[-1]) // size)
            arena[own] = region.arena
            element[own] = region.start * size + ends - counts
            target[own] = self._outputs.first[-1] + len(fills)
            fills.append(Fill(region, own, counts))
        return tuple(fills), found

    def _place_slots(self) -> Tuple[List[Region], Array]:
        """Return the regions of all results, and per slot its arena, first element and target."""
        members, graph, side = self._members, self._graph, self._outputs
        sizes, regions = zip(side.row_size.tolist(), side.rows.tolist()), []
        for parts in members.parts:
            segment = parts[0].segment
            for port, (size, rows) in zip(segment.outputs, sizes):
                arena = size, port.dtype, segment.context
                regions.append(self._layout.reserve(arena, rows))
        found = np.empty((3, len(graph.slot_unit)), dtype=np.int64)
        starts = np.array([region[:2] for region in regions], dtype=np.int64).reshape((-1, 2))
        starts[:, 1] *= side.row_size
        resolving.slots(
            *(members.first, np.array(side.first), members.units),
            *(graph.slot0, graph.slot_size, starts, *found),
        )
        return regions, found

    def _reads(self, listed: Tuple[Array, ...], places: Array) -> Tuple[Reads, Array]:
        """Return the reads, and per operand the array that it is as a whole, -1 if it is none."""
        graph, side = self._graph, self._inputs
        found = np.empty((len(Reads._fields), len(listed[0])), dtype=np.int64)
        whole = np.full(len(side.rows), -1, dtype=np.int64)
        count = resolving.runs(
            *(*listed, graph.term, graph.term_offset, graph.term_size, side.shared, places),
            *(found, whole),
        )
        return Reads(*found[:, :count].copy()), whole

    def _operands(self, reads: Reads, whole: Array) -> Tuple[List[Operand], Array]:
        side = self._inputs
        rows = np.where(side.shared, 1, side.rows)
        rows[whole >= 0] = -1
        found, pieces = resolve(rows, side.row_size, reads)
        for number in np.flatnonzero(whole >= 0).tolist():
            found[number] = Whole(int(whole[number]))
        return [operand for operand in found if operand is not None], pieces

    def _launches(self, operands: List[Operand], regions: List[Region]) -> Iterator[Launch]:
        members, read, made = self._members, self._inputs.first, self._outputs.first
        first = members.first.tolist()
        for k, parts in enumerate(members.parts):
            yield Launch(
                *(k, parts[0].segment, parts, members.units[first[k] : first[k + 1]]),
                tuple(operands[read[k] : read[k + 1]]),
                tuple(regions[made[k] : made[k + 1]]),
            )


class Layout:
    """Arenas being laid out."""

    def __init__(self) -> None:
        self.arenas: List[Arena] = []
        #: Rows reserved so far.
        self.sizes: List[int] = []
        self._numbers: Dict[Any, int] = {}

    def reserve(self, arena: Tuple[int, str, Context], rows: int) -> Region:
        """Reserve the next rows of an arena, given what it is made of."""
        row_size, dtype, context = arena
        # The hash of a context is a function in Python.
        key = row_size, dtype, context.device_typeid, context.device_id
        number = self._numbers.setdefault(key, len(self.arenas))
        if number == len(self.arenas):
            self.arenas.append(Arena(*arena))
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
