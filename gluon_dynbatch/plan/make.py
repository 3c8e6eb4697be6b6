"""Groups of units in, the forward plan out.

The members of launches are put in order, everything is given its place, and operands are resolved.
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
    sides = [Ports.of(tables) for tables in zip(*(s.columns for s in graph.segments))]
    members = order_members(graph, groups, *sides)
    segment = members.segment[members.part0[:-1]]
    inputs, outputs = (side.of_launches(segment) for side in sides)
    operands, results = _places(members, sides[0], inputs), _places(members, sides[1], outputs)
    operands[inputs.shared > 0, 3] = 1
    found = np.empty((len(Reads._fields), len(graph.term)), dtype=np.int64)
    # Externals are numbered from -1 downwards: from the end of the table.
    terms = np.full((2, len(graph.slot_unit) + len(outside.size)), -1, dtype=np.int64)
    order = np.empty(len(outside.size), dtype=np.int64)
    reader = resolving.Reader(
        *(graph, members, inputs, outputs, outside, operands, terms, order, found)
    )
    reads = Reads(*found[:, : reader.reads].copy())
    row_size, kind = np.array(reader.fills, dtype=np.int64).reshape((-1, 2)).T
    fills = places_of(np.array(reader.sizes, dtype=np.int64) // row_size, row_size)
    regions, kind = np.concatenate([results, fills]), np.concatenate([outputs.kind, kind])
    # Fills come first.
    first = np.roll(np.arange(len(regions)), len(fills))
    arenas, sizes, pieces = resolve(operands, regions, reads, kind, first, outside.kinds)
    order = order[: reader.externals]
    numbers = [order[terms[0, -1 - order] == n] for n in range(len(results), len(regions))]
    filled = tuple((own, outside.size[own]) for own in numbers)
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
    """Give regions their rows, and find out how operands are read: in place, or put together.

    Parameters
    ----------
    operands, regions : numpy.ndarray of int64, shape (places, 5)
        Tables, in which rows and elements of each row are known.
    reads : Reads
        What to read.  Several reads of one element are added up, in their order.
    kind : numpy.ndarray of int64
        Per region the type of elements and the device.
    order : numpy.ndarray of int64
        The regions that are written, in the order of their rows.
    kinds : sequence of (str, Context)
        These types and devices.

    Returns
    -------
    tuple
        The arenas, rows of each, and all pieces.
    """
    found = resolving.reserve(regions, kind, order)
    arenas = tuple(Arena(row_size, *kinds[number]) for row_size, number in found)
    pieces = np.frombuffer(resolving.resolve(operands, regions, *reads), dtype=np.int64)
    return arenas, tuple(found.values()), pieces.reshape((-1, 5))


def _places(members: Members, side: Ports, ports: Ports) -> Array:
    """Return a table of what inputs or outputs of launches stand for, with the rows of each.

    Parameters
    ----------
    members : Members
        The launches.
    side, ports : Ports
        Those of the graph's segments, and of the launches.
    """
    rows = np.add.reduceat(members.rows, members.part0[:-1])
    rows, row_size = np.repeat(rows, np.diff(ports.first)), ports.row_size.copy()
    for number in np.flatnonzero(np.diff(members.part0) > 1).tolist():
        # Rows of several sizes are seen as shorter ones.
        own = slice(*ports.first[number : number + 2])
        parts = slice(*members.part0[number : number + 2])
        firsts = side.first[members.segment[parts]]
        sizes = side.row_size[np.add.outer(firsts, np.arange(own.stop - own.start))]
        row_size[own] = np.gcd.reduce(sizes)
        rows[own] = members.rows[parts] @ sizes // row_size[own]
    return places_of(rows, row_size)


def _placed(terms: Array, regions: Array) -> Tuple[Array, Array, Array]:
    """Return the region of each term, its arena, and its first element; -1 for what has none."""
    region, element = terms
    start = regions[:, 2] * regions[:, 4]
    arena, start = (np.append(column, -1)[region] for column in (regions[:, 1], start))
    return region, arena, np.where(region < 0, -1, start + element)
