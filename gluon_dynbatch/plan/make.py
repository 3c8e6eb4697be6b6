"""Build the forward plan from groups of units.

Three steps: order the members of each launch (see `native/ordering.pxi`), allocate arena rows to
all results and external arrays, and resolve each operand to a slice of an arena or to pieces that
are gathered.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from ..native import planning
from ..schedule.dependencies import Array
from .launch import Arena, empty_places
from .plan import Members, Plan, Ports, Reads

if TYPE_CHECKING:
    from mxnet import Context

    from ..kernel.kernels import KernelsOrReason
    from ..lower.graph import Graph


class Externals(NamedTuple):
    """The external arrays: those that existed before the scope."""

    #: Per array: number of elements, and index into `kinds`.
    size: Array
    kind: Array
    #: Pairs of dtype and context.
    kinds: Sequence[Tuple[str, Context]]


def make_plan(
    graph: Graph, groups: Array, outside: Externals, kernels: Tuple[KernelsOrReason, ...]
) -> Plan:
    """Turn a grouping of units into launches.

    `groups`, of int32, has the launch of each unit; predecessors have smaller numbers.  `kernels`
    are those of each segment.
    """
    ports = [segment.ports for segment in graph.segments]
    members = Members(launch=groups, **planning.order(graph, ports, groups))
    inputs, operands = _lay_out([of_inputs for of_inputs, _ in ports], members)
    outputs, results = _lay_out([of_outputs for _, of_outputs in ports], members)
    # Externals are numbered from -1 downwards: they are at the end of the table.
    terms = len(graph.slot_unit) + len(outside.size)
    places = np.full((terms, 2), -1, dtype=np.int32)
    reader = planning.Reader(graph, members, inputs, outputs, outside, operands, places)
    reads = Reads(*reader.reads)
    row_size, kind = np.array(list(reader.fill_of), dtype=np.int64).reshape((-1, 2)).T
    fills = empty_places(np.array(reader.sizes, dtype=np.int64) // row_size, row_size)
    regions, kind = np.concatenate([results, fills]), np.concatenate([outputs.kind, kind])
    # Fills are written before all results, so their rows come first.
    order = array("q", chain(range(len(results), len(regions)), range(len(results))))
    arenas, sizes, pieces = place_operands(operands, regions, reads, kind, order, outside.kinds)
    return Plan(
        graph=graph,
        kernels=kernels,
        members=members,
        segment=members.segment[members.part0[:-1]],
        order=np.arange(len(members.first) - 1),
        inputs=inputs,
        outputs=outputs,
        operands=operands,
        regions=regions,
        filled=tuple((n, outside.size[n]) for n in map(np.asarray, reader.filled)),
        kinds=outside.kinds,
        arenas=arenas,
        sizes=sizes,
        pieces=pieces,
        reads=reads,
        region_of=places[:, 0],
        element_of=places[:, 1],
    )


def _lay_out(tables: List[bytes], members: Members) -> Tuple[Ports, Array]:
    """Return the inputs or outputs of launches, and a table of places with their rows.

    `tables` has the inputs or outputs of each segment.
    """
    columns, places = planning.lay_out(tables, members.part0, members.segment, members.rows)
    return Ports(**columns), places


def place_operands(
    operands: Array,
    regions: Array,
    reads: Reads,
    kind: Array,
    order: Union[array[int], Array],
    kinds: Sequence[Tuple[str, Context]],
) -> Tuple[Tuple[Arena, ...], Tuple[int, ...], Array]:
    """Allocate arena rows to regions, and resolve operands: in place, or gathered from pieces.

    Both tables of places have rows and row sizes; the other columns are filled in.  Several reads
    of one element are summed in their order.  `kind` has per region its index into `kinds`, and
    `order` the regions that are written, in the order of their rows.  Return the arenas, the number
    of rows of each, and all pieces.
    """
    rows = planning.reserve_rows(regions, kind, order)
    arenas = tuple(Arena(row_size, *kinds[number]) for row_size, number in rows)
    pieces = np.frombuffer(planning.resolve(operands, regions, reads), dtype=np.int64)
    return arenas, tuple(rows.values()), pieces.reshape((-1, 5))
