"""The checker of plans, forward and transposed: every invariant, checked against the graph.

Operands are checked by running the plan on random integers in place of computed rows.  A forward
operand is right if it equals the sum of the values that the graph says it reads.  A backward plan
is right if it is the adjoint of the forward plan: for random values and gradients, the inner
product of operands with their gradients equals that of results with their gradients.
"""

from __future__ import annotations

from typing import Any, List, Optional

import numpy as np

from ..native import planning
from ..schedule.dependencies import Array
from .launch import (
    ROW_SIZE,
    ROWS,
    TYPE,
    Launch,
    Operand,
    Region,
    Rows,
    Slice,
    Whole,
    objects,
    pieces_in,
)
from .plan import Plan
from .transpose import Heads


def check_plan(plan: Plan) -> None:
    """Raise ``AssertionError`` if `plan` breaks an invariant.

    Every unit runs once; members of a launch share one signature; operands come from earlier
    launches and are the rows that the members need; results are where the table of terms says;
    every arena row is written once.
    """
    _check_launches(plan)
    _check_writes(plan)
    graph, machine = plan.graph, _Machine(plan)
    launches = plan.launches
    slots = [graph.slot0[x.units] + k for x in launches for k in range(len(x.segment.outputs))]
    writers = [(terms, graph.slot_size[terms]) for terms in slots]
    writers += [(-1 - numbers, counts) for numbers, counts in plan.filled]
    assert len(writers) == len(plan.regions), "regions are not results and fills"
    for number, (terms, sizes) in enumerate(writers):
        elements = plan.regions[number, ROWS] * plan.regions[number, ROW_SIZE]
        assert sizes.sum() == elements, f"region {number}: rows"
        element = plan.element_of[terms] == np.cumsum(sizes) - sizes
        same = np.all([plan.region_of[terms] == number, element])
        assert same, f"a value of region {number} has another location"
    for launch in launches:
        for p in range(len(launch.segment.inputs)):
            where = f"operand {p} of launch {launch.number}"
            operand = launch.operands[p]
            if isinstance(operand, Whole):
                (at,) = _terms(plan, launch.units[0], p)
                assert graph.term[at] == -1 - operand.external, f"{where} is another array"
            else:
                read, wanted = machine.read(operand), _operand(plan, launch, p, machine)
                assert len(read) == len(wanted), f"{where} has {len(read)} elements"
                assert (read == wanted).all(), f"{where} reads other rows than its members need"


def check_transposed(plan: Plan, heads: Heads, backward: Plan) -> None:
    """Raise ``AssertionError`` if `backward` is not the backward plan of `plan` from `heads`.

    Launches run in reverse, every arena row is written once, and the plan is the adjoint of `plan`.
    """
    assert (np.diff(backward.order) < 0).all(), "launches are not in reverse"
    _check_writes(backward)
    runs = np.zeros(len(plan.order), dtype=bool)
    runs[backward.order] = True
    fills = [bool(heads.in_graph[numbers].any()) for numbers, _ in plan.filled]
    live = np.append(np.repeat(runs, np.diff(plan.outputs.first)), np.array(fills, dtype=bool))
    # Regions that get no gradient are zero.
    values, gradients = _Machine(plan, live), _Machine(backward)
    operands, regions = len(plan.operands), len(plan.regions)
    assert len(backward.operands) == regions, "gradients of results and fills"
    for number in backward.order.tolist():
        outputs = slice(*plan.outputs.first[number : number + 2])
        assert backward.operands[outputs, TYPE].any(), f"launch {number} gets no gradient"
    is_read = backward.operands[:, TYPE] > 0
    assert live[is_read].all(), "a region gets a gradient that should have none"
    _check_gradients(plan, backward, live)
    into_results = from_operands = 0
    for number, (read, region) in enumerate(zip(objects(backward.operands), objects(plan.regions))):
        if read is not None:
            gradient = gradients.read(read)
            into_results += _dot(gradient, values.at(region), f"region {number}")
    written = objects(backward.regions)
    for number, (region, operand) in enumerate(zip(written, objects(plan.operands))):
        if region is not None:
            gradient = gradients.at(region)
            from_operands += _dot(gradient, values.read(operand), f"operand {number}")
    for region, (numbers, sizes) in zip(written[operands:], backward.filled):
        arena, first = plan.locate(heads.term[numbers])
        arenas, first = [values.arenas[k] for k in arena.tolist()], first + heads.offset[numbers]
        rows = np.concatenate([*map(_part, arenas, first.tolist(), sizes.tolist())])
        from_operands += _dot(gradients.at(region), rows, "gradients of heads")
    assert into_results == from_operands, "gradients flow to other rows than were read"


class _Machine:
    """Runs a plan on random integers that are small enough for exact sums of products.

    Regions that are not `written` stay zero.
    """

    def __init__(self, plan: Plan, written: Any = slice(None)):
        self._plan = plan
        draw: Any = np.random.RandomState(0).randint
        sizes = [rows * arena.row_size for rows, arena in zip(plan.sizes, plan.arenas)]
        self.arenas = [np.zeros(size, dtype=np.int64) for size in sizes]
        for region in objects(plan.regions[written]):
            if region is not None:
                rows = self.at(region)
                rows[:] = draw(-(2**20), 2**20, len(rows))

    def at(self, region: Optional[Region]) -> Array:
        """Return the elements of a region."""
        assert isinstance(region, Region), "it has no rows"
        row_size = self._plan.arenas[region.arena].row_size
        return _part(self.arenas[region.arena], region.start * row_size, region.rows * row_size)

    def read(self, operand: Optional[Operand]) -> Array:
        """Return the elements of an operand."""
        assert isinstance(operand, (Slice, Rows)), "an operand is missing"
        size = operand.rows * operand.row_size
        if isinstance(operand, Slice):
            return _part(self.arenas[operand.arena], operand.element, size)
        total = np.full(size, -1)
        pieces = self._plan.pieces[operand.first :][: operand.pieces]
        assert len(pieces) == operand.pieces, "it lacks pieces"
        for piece in pieces_in(pieces):
            assert 0 <= piece.arena < len(self.arenas), "it leaves its arena"
            part, value = _part(total, piece.target, piece.length), np.zeros(1, dtype=np.int64)
            if piece.action != planning.ZERO:
                value = _part(self.arenas[piece.arena], piece.element, piece.length)
            part[:] = part + value if piece.action == planning.ADD else value
        return total


def _operand(plan: Plan, launch: Launch, p: int, machine: _Machine) -> Array:
    """Return the value that the graph gives to an operand."""
    graph, port, values = plan.graph, launch.segment.inputs[p], []
    for unit in launch.units[:1] if port.shared else launch.units:
        at = _terms(plan, unit, p)
        arena, first = plan.locate(graph.term[at])
        columns = arena, first + graph.term_offset[at], graph.term_size[at]
        reads = zip(*(column.tolist() for column in columns))
        terms = [_part(machine.arenas[arena], *elements) for arena, *elements in reads]
        values.append(np.concatenate(terms) if port.concat else np.sum(terms, axis=0))
    return np.concatenate(values)


def _check_launches(plan: Plan) -> None:
    graph, members, launches = plan.graph.dependencies, plan.members, len(plan.order)
    assert np.array_equal(plan.order, np.arange(launches)), "launches are not in order"
    every = np.arange(graph.size)
    assert np.array_equal(np.sort(members.units), every), "a unit does not run exactly once"
    launch_of = np.repeat(np.arange(launches), np.diff(members.first))
    assert np.array_equal(members.launch[members.units], launch_of), "a unit is in another launch"
    assert (np.diff(members.part0) > 0).all(), "a launch has no parts"
    for launch in plan.launches:
        signatures = graph.signature[launch.units]
        assert (signatures == signatures[0]).all(), f"launch {launch.number} mixes signatures"
        units = 0
        for segment, rows in launch.parts:
            number = plan.graph.segments.index(segment)
            part = np.flatnonzero(plan.graph.segment[launch.units] == number)
            adjacent = np.array_equal(part, np.arange(units, units + len(part)))
            assert adjacent, f"launch {launch.number}: units of a part"
            assert graph.rows[launch.units[part]].sum() == rows, f"launch {launch.number}: rows"
            units += len(part)
        assert units == len(launch.units), f"launch {launch.number}: parts"
    owners = np.repeat(every, np.diff(graph.offsets))
    late = members.launch[graph.preds] >= members.launch[owners]
    assert not late.any(), "an operand comes from a later launch"


def _check_writes(plan: Plan) -> None:
    written = [np.zeros(rows, dtype=np.int64) for rows in plan.sizes]
    for number, region in enumerate(objects(plan.regions)):
        if region is not None:
            row_size = plan.arenas[region.arena].row_size
            assert plan.regions[number, ROW_SIZE] == row_size, (
                "a row of another size than the arena's"
            )
            written[region.arena][region.start : region.start + region.rows] += 1
    for counts in written:
        assert (counts == 1).all(), "an arena row is not written exactly once"


def _check_gradients(plan: Plan, backward: Plan, live: Array) -> None:
    """Check that inputs of launches get a gradient exactly if they read a live region."""
    runs = np.isin(np.arange(len(plan.order)), backward.order)
    wanted = np.repeat(runs, np.diff(plan.inputs.first)) & (plan.inputs.differentiable > 0)
    read = np.zeros(len(wanted), dtype=bool)
    graph, members = plan.graph, plan.members
    for number, first in zip(plan.order.tolist(), plan.inputs.first.tolist()):
        units = members.units[slice(*members.first[number : number + 2])]
        for p in range(plan.inputs.first[number + 1] - first):
            regions = plan.region_of[graph.term[[at for u in units for at in _terms(plan, u, p)]]]
            read[first + p] = live[regions[regions >= 0]].any()
    # Whole arrays are read where they are, even if another launch reads them in a fill.
    read &= plan.operands[:, TYPE] != planning.WHOLE
    correct = (backward.regions[: len(wanted), TYPE] > 0) == (wanted & read)
    assert correct.all(), f"operands {np.flatnonzero(~correct)}: gradient"


def _terms(plan: Plan, unit: int, p: int) -> List[int]:
    """Return the numbers of the terms of an input of a unit."""
    at = plan.graph.input0[unit] + p
    return list(range(*plan.graph.term0[at : at + 2].tolist()))


def _dot(gradient: Array, value: Array, where: str) -> int:
    assert len(gradient) == len(value), f"{where}: {len(gradient)} elements, not {len(value)}"
    return int(gradient @ value)


def _part(array: Array, first: int, count: int) -> Array:
    assert first >= 0 and first + count <= len(array), "it leaves its arena"
    return array[first : first + count]
