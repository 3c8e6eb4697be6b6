"""The checker of plans, forward and transposed: every invariant, spelled out against the graph.

What operands read is checked by running the plan on random integers in place of the rows that
launches write.  Forward, an operand is right if it is the sum of what the graph says that it reads.
Backward, gradients are right if the transposed plan is the adjoint of the plan: for any values and
any gradients, what launches read times what they are given for it is what launches made times what
they get for it.
"""

from __future__ import annotations

from typing import Any, List

import numpy as np

from ..native import resolving
from ..schedule.dependencies import Array
from .plan import PLACES, Plan, Region, Rows, Slice, Whole
from .transpose import Heads

WHOLE, SLICE, ROWS, REGION = map(PLACES.index, (Whole, Slice, Rows, Region))


def check_plan(plan: Plan) -> None:
    """Raise ``AssertionError`` if `plan` breaks an invariant.

    Every unit runs once, members of a launch share one signature, operands come from earlier
    launches and are the rows that the members need, results are where the table of places says,
    and every arena row is written once.
    """
    _check_launches(plan)
    _check_writes(plan)
    graph, machine = plan.graph, _Machine(plan)
    writers = [(-1 - numbers, counts) for numbers, counts in plan.filled]
    slots = [graph.slot0[launch.units] for launch in plan.launches]
    ports = np.diff(plan.outputs.first).tolist()
    made = [own + k for own, count in zip(slots, ports) for k in range(count)]
    writers = [*((terms, graph.slot_size[terms]) for terms in made), *writers]
    assert len(writers) == len(plan.regions), "regions are not results and fills"
    for number, (terms, sizes) in enumerate(writers):
        _, arena, start, rows, row_size = plan.regions[number].tolist()
        assert sizes.sum() == rows * row_size, f"region {number}: rows"
        right = plan.region_of[terms] == number, plan.arena_of[terms] == arena
        place = plan.element_of[terms] == start * row_size + np.cumsum(sizes) - sizes
        assert np.all([*right, place]), f"what is in region {number} has another place"
    for launch in plan.launches:
        for p in range(len(launch.segment.inputs)):
            where = f"operand {p} of launch {launch.number}"
            operand = plan.operands[plan.inputs.first[launch.number] + p]
            if operand[0] == WHOLE:
                (at,) = _terms(plan, launch.units[0], p)
                assert graph.term[at] == -1 - operand[1], f"{where} is another array"
            else:
                found, wanted = machine.read(operand), _operand(plan, launch, p, machine)
                assert len(found) == len(wanted), f"{where} has {len(found)} elements"
                assert (found == wanted).all(), f"{where} reads other rows than its members need"


def check_transposed(plan: Plan, heads: Heads, backward: Plan) -> None:
    """Raise ``AssertionError`` if `backward` is not how gradients of `heads` go back in `plan`.

    Launches run in reverse, every arena row is written once, and the plan is the adjoint of `plan`.
    """
    assert (np.diff(backward.order) < 0).all(), "launches are not in reverse"
    _check_writes(backward)
    runs = np.zeros(len(plan.order), dtype=bool)
    runs[backward.order] = True
    outside = [bool(heads.in_graph[numbers].any()) for numbers, _ in plan.filled]
    made = np.append(np.repeat(runs, np.diff(plan.outputs.first)), np.array(outside, dtype=bool))
    # What is made by others, or is from outside and gets no gradient, is zero.
    values, gradients = _Machine(plan, made), _Machine(backward)
    operands, regions = len(plan.operands), len(plan.regions)
    assert len(backward.operands) == regions, "gradients of results and fills"
    for number in backward.order.tolist():
        own = slice(*plan.outputs.first[number : number + 2])
        assert backward.operands[own, 0].any(), f"launch {number} gets no gradient"
    assert made[backward.operands[:, 0] > 0].all(), "a gradient of what gets none"
    _check_gradients(plan, backward, made)
    taken = given = 0
    for number in np.flatnonzero(backward.operands[:, 0]).tolist():
        gradient, value = gradients.read(backward.operands[number]), plan.regions[number]
        taken += _times(gradient, values.at(value), f"what is made in region {number}")
    for number in np.flatnonzero(backward.regions[:operands, 0]).tolist():
        gradient, value = gradients.at(backward.regions[number]), plan.operands[number]
        given += _times(gradient, values.read(value), f"operand {number}")
    for region, (numbers, sizes) in zip(backward.regions[operands:], backward.filled):
        first = plan.element_of[heads.term[numbers]] + heads.offset[numbers]
        arenas = [values.arenas[arena] for arena in plan.arena_of[heads.term[numbers]].tolist()]
        rows = np.concatenate([*map(_part, arenas, first.tolist(), sizes.tolist())])
        given += _times(gradients.at(region), rows, "gradients of heads")
    assert taken == given, "gradients go to other rows than were read"


class _Machine:
    """Runs a plan on random integers, so small that sums of their products are exact."""

    def __init__(self, plan: Plan, written: Any = slice(None)):
        self._plan = plan
        draw: Any = np.random.RandomState(0).randint
        sizes = [rows * arena.row_size for rows, arena in zip(plan.sizes, plan.arenas)]
        self.arenas = [np.zeros(size, dtype=np.int64) for size in sizes]
        for region in plan.regions[written]:
            if region[0]:
                rows = self.at(region)
                rows[:] = draw(-(2**20), 2**20, len(rows))

    def at(self, region: Array) -> Array:
        """Return the elements of a region."""
        what, arena, start, rows, row_size = region.tolist()
        assert what == REGION, "it has no rows"
        return _part(self.arenas[arena], start * row_size, rows * row_size)

    def read(self, operand: Array) -> Array:
        """Return the elements of an operand."""
        what, first, second, rows, row_size = operand.tolist()
        assert what in (SLICE, ROWS), "an operand is missing"
        if what == SLICE:
            return _part(self.arenas[first], second, rows * row_size)
        total = np.full(rows * row_size, -1)
        own = self._plan.pieces[first : first + second].tolist()
        assert len(own) == second, "it lacks pieces"
        for done, target, arena, element, count in own:
            assert 0 <= arena < len(self.arenas), "it leaves its arena"
            made = _part(total, target, count)
            if done == resolving.ADD:
                made += _part(self.arenas[arena], element, count)
            else:
                zero = done == resolving.ZERO
                made[:] = 0 if zero else _part(self.arenas[arena], element, count)
        return total


def _operand(plan: Plan, launch: Any, p: int, machine: _Machine) -> Array:
    """Return what the graph says that an operand is."""
    graph, port, found = plan.graph, launch.segment.inputs[p], []
    for unit in launch.units[:1] if port.shared else launch.units:
        at = _terms(plan, unit, p)
        arena, first = plan.arena_of[graph.term[at]], plan.element_of[graph.term[at]]
        columns = arena, first + graph.term_offset[at], graph.term_size[at]
        terms = [_part(machine.arenas[a], *own) for a, *own in zip(*(c.tolist() for c in columns))]
        found.append(np.concatenate(terms) if port.concat else np.sum(terms, axis=0))
    return np.concatenate(found)


def _check_launches(plan: Plan) -> None:
    graph, members, launches = plan.graph.dependencies, plan.members, len(plan.order)
    assert np.array_equal(plan.order, np.arange(launches)), "launches are not in order"
    every = np.arange(graph.size)
    assert np.array_equal(np.sort(members.units), every), "a unit does not run exactly once"
    own = np.repeat(np.arange(launches), np.diff(members.first))
    assert np.array_equal(members.launch[members.units], own), "a unit is in another launch"
    assert (np.diff(members.part0) > 0).all(), "a launch has no parts"
    for launch in plan.launches:
        signatures = graph.signature[launch.units]
        assert (signatures == signatures[0]).all(), f"launch {launch.number} mixes signatures"
        units = 0
        for segment, rows in launch.parts:
            own = np.flatnonzero(
                plan.graph.segment[launch.units] == plan.graph.segments.index(segment)
            )
            right = np.array_equal(own, np.arange(units, units + len(own)))
            assert right, f"launch {launch.number}: units of a part"
            assert graph.rows[launch.units[own]].sum() == rows, f"launch {launch.number}: rows"
            units += len(own)
        assert units == len(launch.units), f"launch {launch.number}: parts"
    owners = np.repeat(every, np.diff(graph.offsets))
    late = members.launch[graph.preds] >= members.launch[owners]
    assert not late.any(), "an operand comes from a later launch"


def _check_writes(plan: Plan) -> None:
    written = [np.zeros(rows, dtype=np.int64) for rows in plan.sizes]
    for what, arena, start, rows, _ in plan.regions.tolist():
        if what:
            written[arena][start : start + rows] += 1
    for counts in written:
        assert (counts == 1).all(), "an arena row is not written exactly once"


def _check_gradients(plan: Plan, backward: Plan, made: Array) -> None:
    """Check which inputs of launches get a gradient: those behind which one is wanted."""
    runs = np.isin(np.arange(len(plan.order)), backward.order)
    wanted = np.repeat(runs, np.diff(plan.inputs.first)) & (plan.inputs.differentiable > 0)
    read = np.zeros(len(wanted), dtype=bool)
    graph, members = plan.graph, plan.members
    for number, first in zip(plan.order.tolist(), plan.inputs.first.tolist()):
        units = members.units[slice(*members.first[number : number + 2])]
        for p in range(plan.inputs.first[number + 1] - first):
            regions = plan.region_of[graph.term[[at for u in units for at in _terms(plan, u, p)]]]
            read[first + p] = made[regions[regions >= 0]].any()
    right = (backward.regions[: len(wanted), 0] > 0) == (wanted & read)
    assert right.all(), f"operands {np.flatnonzero(~right)}: gradient"


def _terms(plan: Plan, unit: int, p: int) -> List[int]:
    """Return the numbers of the terms of an input of a unit."""
    at = plan.graph.input0[unit] + p
    return list(range(*plan.graph.term0[at : at + 2].tolist()))


def _times(one: Array, other: Array, where: str) -> int:
    assert len(one) == len(other), f"{where}: {len(one)} elements, not {len(other)}"
    return int(one @ other)


def _part(array: Array, first: int, count: int) -> Array:
    assert first >= 0 and first + count <= len(array), "it leaves its arena"
    return array[first : first + count]
