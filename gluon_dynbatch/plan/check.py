"""The checker of plans: every invariant, spelled out against the units that a plan was made for."""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np

from ..schedule.dependencies import Array, ragged_range
from .plan import Gather, Launch, Mixed, Plan, Shared, Slice, Sum, Whole, spare_rows


def check_plan(plan: Plan) -> None:
    """Raise ``AssertionError`` if `plan` breaks an invariant.

    Every unit runs once, members of a launch share one signature, operands come from earlier
    launches and are the rows that the members need, and every arena row is written once.
    """
    _check_launches(plan)
    _check_writes(plan)
    for number, launch in enumerate(plan.launches):
        assert launch.spare in (0, spare_rows(launch.rows)), f"launch {number}: spare rows"
        assert not launch.spare or launch.segment.spares_rows, f"launch {number} spares no rows"
        assert len(launch.operands) == len(launch.segment.inputs), f"launch {number}: operands"
        for p, operand in enumerate(launch.operands):
            where = f"operand {p} of launch {number}"
            if isinstance(operand, (Whole, Shared)):
                _check_shared(plan, launch, p, where)
                continue
            levels = operand.levels if isinstance(operand, Sum) else (operand,)
            for level, fetch in enumerate(levels):
                _check_rows(plan, launch, p, level, fetch, where)


def _check_launches(plan: Plan) -> None:
    graph = plan.units.dependencies
    ran = np.concatenate([launch.units for launch in plan.launches] or [np.zeros(0, np.int64)])
    assert np.array_equal(np.sort(ran), np.arange(graph.size)), "a unit does not run exactly once"
    launch_of = np.zeros(graph.size, dtype=np.int64)
    for number, launch in enumerate(plan.launches):
        launch_of[launch.units] = number
        signatures = graph.signature[launch.units]
        assert (signatures == signatures[0]).all(), f"launch {number} mixes signatures"
        assert launch.rows == int(graph.rows[launch.units].sum()), f"launch {number}: wrong rows"
    owners = np.repeat(np.arange(graph.size), np.diff(graph.offsets))
    assert (launch_of[graph.preds] < launch_of[owners]).all(), (
        "an operand comes from a later launch"
    )


def _check_writes(plan: Plan) -> None:
    written = [np.zeros(rows, dtype=np.int64) for rows in plan.sizes]
    regions = [region for launch in plan.launches for region in launch.outputs]
    for region in regions + [fill.region for fill in plan.fills]:
        written[region.arena][region.start : region.start + region.rows] += 1
    for rows in written:
        assert rows[0] == 0, "the zero row is written"
        assert (rows <= 1).all(), "an arena row is not written exactly once"
    spare = sum(
        spare_rows(launch.rows) * len(launch.outputs)
        for launch in plan.launches
        if launch.segment.spares_rows
    )
    left = sum(int((rows[1:] == 0).sum()) for rows in written)
    assert left == spare, f"{left} rows are not written exactly once, {spare} are spare"


def _check_shared(plan: Plan, launch: Launch, p: int, where: str) -> None:
    units, operand = plan.units, launch.operands[p]
    at = int(units.term0[units.input0[launch.units[0]] + p])
    if isinstance(operand, Whole):
        assert units.term[at] == -1 - operand.external, f"{where} is another array"
    else:
        assert isinstance(operand, Shared)
        place = int(plan.term_arena[at]), int(plan.term_element[at])
        assert place == (operand.arena, operand.element), f"{where} is another array"


def _check_rows(plan: Plan, launch: Launch, p: int, level: int, fetch: Any, where: str) -> None:
    arena, element, have = _rows_wanted(plan, launch, p, level)
    got_arena, got = _rows_read(plan, fetch, where)
    reached = len(got)
    if level:
        assert not have[reached:].any(), f"{where} leaves out a summand"
    else:
        assert reached == launch.rows, f"{where} has {reached} rows, not {launch.rows}"
    arena, element, have = arena[:reached], element[:reached], have[:reached]
    right = (got_arena == arena) & (got == element)
    assert right[have].all(), f"{where} reads other rows than its members need"
    assert (got[~have] == 0).all(), f"{where} adds something where there is nothing to add"


def _rows_wanted(plan: Plan, launch: Launch, p: int, level: int) -> Tuple[Array, Array, Array]:
    """Return per row of a summand: arena, first element, and whether its member has it at all."""
    units = plan.units
    inputs = units.input0[launch.units] + p
    first = units.term0[inputs]
    if launch.segment.inputs[p].joined:
        counts = units.term0[inputs + 1] - first
        at = np.repeat(first, counts) + ragged_range(counts)
        rows = units.joined_rows(launch.units)
        element = np.repeat(plan.term_element[at], rows)
        element = element + ragged_range(rows) * launch.segment.inputs[p].row_size
        return np.repeat(plan.term_arena[at], rows), element, np.ones(len(element), dtype=bool)
    have = units.term0[inputs + 1] - first > level
    at = np.where(have, first + level, first)
    rows = units.dependencies.rows[launch.units]
    steps = ragged_range(rows) * launch.segment.inputs[p].row_size
    element = np.repeat(plan.term_element[at], rows) + steps
    return np.repeat(plan.term_arena[at], rows), element, np.repeat(have, rows)


def _rows_read(plan: Plan, fetch: Any, where: str) -> Tuple[Array, Array]:
    """Return arena and first element of every row that a fetch reads."""
    if isinstance(fetch, Slice):
        size = plan.sizes[fetch.arena] * plan.arenas[fetch.arena].unit
        assert 0 <= fetch.element <= size - fetch.rows * fetch.unit, f"{where} leaves its arena"
        return (
            np.full(fetch.rows, fetch.arena),
            fetch.element + np.arange(fetch.rows) * fetch.unit,
        )
    if isinstance(fetch, Gather):
        assert fetch.first + fetch.indices <= len(plan.indices), f"{where} lacks indices"
        index = plan.indices[fetch.first : fetch.first + fetch.indices].astype(np.int64)
        index = index.reshape(fetch.rows, -1)
        whole = (np.diff(index, axis=1) == 1).all() and index.shape[1] * fetch.grain == fetch.unit
        assert whole, f"{where} does not read a row in one piece"
        return np.full(fetch.rows, fetch.arena), index[:, 0] * fetch.grain
    assert isinstance(fetch, Mixed), f"{where} is of unknown kind"
    parts = [_rows_read(plan, part, where) for part in fetch.parts]
    arenas = np.concatenate([arena for arena, _ in parts])
    elements = np.concatenate([element for _, element in parts])
    order: Array = plan.indices[fetch.first : fetch.first + fetch.rows]
    return arenas[order], elements[order]
