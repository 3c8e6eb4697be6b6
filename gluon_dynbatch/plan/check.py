"""The checker of plans, forward and transposed: every invariant, spelled out against the graph.

What operands read is checked by running the plan on random integers in place of the rows that
launches write.  Forward, an operand is right if it is the sum of what the graph says that it reads.
Backward, gradients are right if the transposed plan is the adjoint of the plan: for any values and
any gradients, what launches read times what they are given for it is what launches made times what
they get for it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Set

import numpy as np

from ..native import resolving
from ..schedule.dependencies import Array
from .plan import PLACES, Launch, Operand, Plan, Region, Slice, Whole
from .transpose import Heads


def check_plan(plan: Plan) -> None:
    """Raise ``AssertionError`` if `plan` breaks an invariant.

    Every unit runs once, members of a launch share one signature, operands come from earlier
    launches and are the rows that the members need, results are where the table of places says,
    and every arena row is written once.
    """
    _check_launches(plan)
    _check_writes(plan)
    graph, machine = plan.graph, _Machine(plan)
    #: Per term, its values.
    made: Dict[int, Array] = {}

    def write(region: Region, terms: Array, sizes: Array, where: str) -> None:
        rows, place = machine.write(region), region.start * machine.row_size(region)
        assert sizes.sum() == len(rows), f"{where}: rows"
        for term, end, size in zip(terms.tolist(), np.cumsum(sizes).tolist(), sizes.tolist()):
            right = plan.place(term) == (region.arena, place + end - size)
            assert right, f"{where} has another place"
            made[term] = rows[end - size : end]

    for number, fill in enumerate(plan.fills):
        write(fill.region, -1 - fill.externals, fill.counts, f"fill {number}")
    for launch in plan.launches:
        name = f"launch {launch.number}"
        assert len(launch.operands) == len(launch.segment.inputs), f"{name}: operands"
        for p, operand in enumerate(launch.operands):
            where = f"operand {p} of {name}"
            if isinstance(operand, Whole):
                (at,) = _terms(plan, launch.units[0], p)
                assert graph.term[at] == -1 - operand.external, f"{where} is another array"
            else:
                found, wanted = machine.read(operand), _operand(plan, launch, p, made)
                assert len(found) == len(wanted), f"{where} has {len(found)} elements"
                assert (found == wanted).all(), f"{where} reads other rows than its members need"
        for out, region in enumerate(launch.outputs):
            assert region is not None, f"{name}: result {out} is missing"
            slots = graph.slot0[launch.units] + out
            write(region, slots, graph.slot_size[slots], f"result {out} of {name}")
    _check_columns(plan)


def _check_columns(plan: Plan) -> None:
    """Check that columns say of launches what these say themselves."""
    columns = plan.columns
    sides = (columns.inputs, columns.operands), (columns.outputs, columns.regions)
    for launch in plan.launches:
        number, own = launch.number, slice(launch.number, launch.number + 2)
        segment = plan.graph.segments[columns.segment[number]]
        right = segment is launch.segment and (columns.launch[launch.units] == number).all()
        for places, (ports, table) in zip((launch.operands, launch.outputs), sides):
            found = resolving.objects(table[slice(*ports.first[own])], PLACES)
            right = right and tuple(found) == places
        assert right, f"launch {number} has other columns"


def check_transposed(plan: Plan, heads: Heads, backward: Plan) -> None:
    """Raise ``AssertionError`` if `backward` is not how gradients of `heads` go back in `plan`.

    Launches run in reverse, every arena row is written once, and the plan is the adjoint of `plan`.
    """
    numbers = [launch.number for launch in backward.launches]
    assert numbers == sorted(set(numbers), reverse=True), "launches are not in reverse"
    _check_writes(backward)
    values, gradients = _Machine(plan), _Machine(backward)
    regions = [region for number in numbers for region in plan.launches[number].regions]
    made = {region: values.write(region) for region in regions}
    # What is from outside and gets no gradient stays zero.
    fills = [fill for fill in plan.fills if heads.in_graph[fill.externals].any()]
    made.update((fill.region, values.write(fill.region)) for fill in fills)
    outside = {number for fill in fills for number in fill.externals.tolist()}
    taken = given = 0
    for fill in backward.fills:
        size = gradients.row_size(fill.region)
        terms = heads.term[fill.externals]
        own = zip(plan.arena_of[terms], plan.element_of[terms] + heads.offset[fill.externals])
        rows = np.concatenate([_part(values.arenas[arena], low, size) for arena, low in own])
        given += _times(gradients.write(fill.region), rows, "gradients of heads")
    for launch in backward.launches:
        name, forward = f"launch {launch.number}", plan.launches[launch.number]
        assert len(launch.operands) == len(forward.outputs), f"{name}: gradients of results"
        assert any(launch.operands), f"{name} gets no gradient"
        _check_gradients(plan, launch, set(numbers), outside)
        for operand, region in zip(launch.operands, forward.regions):
            if operand is not None:
                taken += _times(gradients.read(operand), made[region], f"a result of {name}")
        for operand, gradient in zip(forward.operands, launch.outputs):
            if gradient is not None:
                rows = values.read(operand)
                given += _times(gradients.write(gradient), rows, f"an operand of {name}")
    assert len(backward.results) == len(plan.fills), "gradients of fills"
    for operand, fill in zip(backward.results, plan.fills):
        if operand is not None:
            taken += _times(gradients.read(operand), made[fill.region], "gradients of a fill")
    assert taken == given, "gradients go to other rows than were read"


class _Machine:
    """Runs a plan on random integers, so small that sums of their products are exact."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._draw: Any = np.random.RandomState(0).randint
        sizes = [rows * arena.row_size for rows, arena in zip(plan.sizes, plan.arenas)]
        self.arenas = [np.zeros(size, dtype=np.int64) for size in sizes]

    def row_size(self, region: Region) -> int:
        """Return the elements of a row."""
        return self._plan.arenas[region.arena].row_size

    def write(self, region: Region) -> Array:
        """Fill a region; return its elements."""
        size = self.row_size(region)
        rows = _part(self.arenas[region.arena], region.start * size, region.rows * size)
        rows[:] = self._draw(-(2**20), 2**20, len(rows))
        return rows

    def read(self, operand: Optional[Operand]) -> Array:
        """Return the elements of an operand."""
        assert operand is not None, "an operand is missing"
        assert not isinstance(operand, Whole), "it is an array from outside"
        size = operand.rows * operand.row_size
        if isinstance(operand, Slice):
            return _part(self.arenas[operand.arena], operand.element, size)
        total = np.full(size, -1)
        own = self._plan.pieces[operand.first : operand.first + operand.pieces].tolist()
        assert len(own) == operand.pieces, "it lacks pieces"
        for what, target, arena, element, count in own:
            assert 0 <= arena < len(self.arenas), "it leaves its arena"
            made = _part(total, target, count)
            if what == resolving.ADD:
                made += _part(self.arenas[arena], element, count)
            else:
                zero = what == resolving.ZERO
                made[:] = 0 if zero else _part(self.arenas[arena], element, count)
        return total


def _operand(plan: Plan, launch: Launch, p: int, made: Dict[int, Array]) -> Array:
    """Return what the graph says that an operand is, given the values of terms."""
    graph, port, found = plan.graph, launch.segment.inputs[p], []
    for unit in launch.units[:1] if port.shared else launch.units:
        at = _terms(plan, unit, p)
        columns = (graph.term[at], graph.term_offset[at], graph.term_size[at])
        terms = [
            _part(made[term], low, size)
            for term, low, size in zip(*(column.tolist() for column in columns))
        ]
        found.append(np.concatenate(terms) if port.concat else np.sum(terms, axis=0))
    return np.concatenate(found)


def _check_launches(plan: Plan) -> None:
    graph = plan.graph.dependencies
    ran = np.concatenate([launch.units for launch in plan.launches] or [np.zeros(0, np.int64)])
    assert np.array_equal(np.sort(ran), np.arange(graph.size)), "a unit does not run exactly once"
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
    owners = np.repeat(np.arange(graph.size), np.diff(graph.offsets))
    position = np.empty(graph.size, dtype=np.int64)
    position[ran] = np.repeat(
        np.arange(len(plan.launches)), [len(one.units) for one in plan.launches]
    )
    late = position[graph.preds] >= position[owners]
    assert not late.any(), "an operand comes from a later launch"


def _check_writes(plan: Plan) -> None:
    written = [np.zeros(rows, dtype=np.int64) for rows in plan.sizes]
    regions = [region for launch in plan.launches for region in launch.regions]
    for region in regions + [fill.region for fill in plan.fills]:
        written[region.arena][region.start : region.start + region.rows] += 1
    for rows in written:
        assert (rows == 1).all(), "an arena row is not written exactly once"


def _check_gradients(plan: Plan, launch: Launch, numbers: Set[int], outside: Set[int]) -> None:
    """Check which inputs of a launch get a gradient: those behind which one is wanted."""
    forward, slot_unit = plan.launches[launch.number], plan.graph.slot_unit
    for p, port in enumerate(launch.segment.inputs):
        wanted = False
        if port.differentiable and not isinstance(forward.operands[p], Whole):
            own = plan.graph.term[[at for unit in launch.units for at in _terms(plan, unit, p)]]
            makers = plan.columns.launch[slot_unit[own[own >= 0]]]
            wanted = not outside.isdisjoint((-1 - own).tolist())
            wanted |= not numbers.isdisjoint(makers.tolist())
        found = launch.outputs[p] is not None
        assert found == wanted, f"input {p} of launch {launch.number}: gradient"


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
