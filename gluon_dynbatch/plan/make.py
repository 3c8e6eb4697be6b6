"""Build the forward plan from groups of units.

Three steps: order the members of each launch, allocate arena rows to all results and external
arrays, and resolve each operand to a slice of an arena or to pieces that are gathered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Sequence, Tuple

import numpy as np

from ..native import resolving
from ..schedule.dependencies import Array
from .order import order_members
from .plan import Arena, Members, Plan, Ports, Reads, places_of

if TYPE_CHECKING:
    from mxnet import Context

    from ..lower.graph import Graph


class Externals(NamedTuple):
    """The external arrays: those that existed before the scope."""

    #: Per array: number of elements, and index into `kinds`.
    size: Array
    kind: Array
    #: Pairs of dtype and device.
    kinds: Sequence[Tuple[str, Context]]


def make_plan(graph: Graph, groups: Array, outside: Externals) -> Plan:
    """Turn a grouping of units into launches.

    `groups`, of int32, has the launch of each unit; predecessors have smaller numbers.
    """
    sides = [Ports.of(tables) for tables in zip(*(s.columns for s in graph.segments))]
    members = order_members(graph, groups, *sides)
    segment = members.segment[members.part0[:-1]]
    inputs, outputs = (side.of_launches(segment) for side in sides)
    operands, results = _places(members, sides[0], inputs), _places(members, sides[1], outputs)
    operands[inputs.shared > 0, 3] = 1
    columns = np.empty((len(Reads._fields), len(graph.term)), dtype=np.int64)
    # Externals are numbered from -1 downwards: they are at the end of the table.
    terms = np.full((2, len(graph.slot_unit) + len(outside.size)), -1, dtype=np.int64)
    externals = np.empty(len(outside.size), dtype=np.int64)
    reader = resolving.Reader(
        *(graph, members, inputs, outputs, outside, operands, terms, externals, columns)
    )
    reads = Reads(*columns[:, : reader.reads].copy())
    row_size, kind = np.array(list(reader.fill_of), dtype=np.int64).reshape((-1, 2)).T
    fills = places_of(np.array(reader.sizes, dtype=np.int64) // row_size, row_size)
    regions, kind = np.concatenate([results, fills]), np.concatenate([outputs.kind, kind])
    # Fills are written before all results, so their rows come first.
    order = np.roll(np.arange(len(regions)), len(fills))
    arenas, sizes, pieces = resolve(operands, regions, reads, kind, order, outside.kinds)
    externals = externals[: reader.externals]
    by_fill = [
        externals[terms[0, -1 - externals] == fill] for fill in range(len(results), len(regions))
    ]
    filled = tuple((numbers, outside.size[numbers]) for numbers in by_fill)
    return Plan(
        *(graph, members, segment, np.arange(len(segment)), inputs, outputs, operands, regions),
        filled,
        outside.kinds,
        arenas,
        sizes,
        pieces,
        reads,
        *_placed(terms, regions),
    )


def resolve(
    operands: Array,
    regions: Array,
    reads: Reads,
    kind: Array,
    order: Array,
    kinds: Sequence[Tuple[str, Context]],
) -> Tuple[Tuple[Arena, ...], Tuple[int, ...], Array]:
    """Allocate arena rows to regions, and resolve operands: in place, or gathered from pieces.

    Both tables of places have rows and row sizes; the other columns are filled in.  Several reads
    of one element are summed in their order.  `kind` has per region its index into `kinds`, and
    `order` the regions that are written, in the order of their rows.  Return the arenas, the number
    of rows of each, and all pieces.
    """
    rows = resolving.reserve(regions, kind, order)
    arenas = tuple(Arena(row_size, *kinds[number]) for row_size, number in rows)
    pieces = np.frombuffer(resolving.resolve(operands, regions, *reads), dtype=np.int64)
    return arenas, tuple(rows.values()), pieces.reshape((-1, 5))


def _places(members: Members, side: Ports, ports: Ports) -> Array:
    """Return a table of places for the inputs or outputs of launches, with rows and row sizes.

    `side` has the inputs or outputs of the graph's segments, and `ports` those of launches.
    """
    rows = np.add.reduceat(members.rows, members.part0[:-1])
    rows, row_size = np.repeat(rows, np.diff(ports.first)), ports.row_size.copy()
    for number in np.flatnonzero(np.diff(members.part0) > 1).tolist():
        # Rows of several sizes become rows of their greatest common divisor.
        launch_ports = slice(*ports.first[number : number + 2])
        parts = slice(*members.part0[number : number + 2])
        firsts = side.first[members.segment[parts]]
        count = launch_ports.stop - launch_ports.start
        sizes = side.row_size[np.add.outer(firsts, np.arange(count))]
        row_size[launch_ports] = np.gcd.reduce(sizes)
        rows[launch_ports] = members.rows[parts] @ sizes // row_size[launch_ports]
    return places_of(rows, row_size)


def _placed(terms: Array, regions: Array) -> Tuple[Array, Array, Array]:
    """Return per term its region, its arena and its first element, or -1 where there is none."""
    region, element = terms
    start = regions[:, 2] * regions[:, 4]
    arena, start = (np.append(column, -1)[region] for column in (regions[:, 1], start))
    return region, arena, np.where(region < 0, -1, start + element)
