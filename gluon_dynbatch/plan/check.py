"""The checker of plans, forward and transposed: every invariant, spelled out against the graph.

What operands read is checked by running the plan on random integers in place of the rows that
launches write: an operand is right if it is the sum of what the graph says that it reads.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from ..native import resolving
from ..schedule.dependencies import Array
from .plan import Launch, Operand, Plan, Region, Shared, Slice, Whole
from .transpose import Head


class _Piece(NamedTuple):
    """Something that an operand reads."""

    #: First element within the operand.
    target: int
    size: int
    #: Place that is read.
    arena: int
    element: int


def check_plan(plan: Plan) -> None:
    """Raise ``AssertionError`` if `plan` breaks an invariant.

    Every unit runs once, members of a launch share one signature, operands come from earlier
    launches and are the rows that the members need, and every arena row is written once.
    """
    _check_launches(plan)
    _check_writes(plan)
    _check_places(plan)
    machine = _Machine(plan)
    for launch in plan.launches:
        name = f"launch {launch.number}"
        assert len(launch.operands) == len(launch.segment.inputs), f"{name}: operands"
        for p, operand in enumerate(launch.operands):
            where, pieces = f"operand {p} of {name}", _pieces(plan, launch, p)
            if isinstance(operand, Whole):
                at = plan.graph.term0[plan.graph.input0[launch.units[0]] + p]
                assert plan.graph.term[at] == -1 - operand.external, f"{where} is another array"
            else:
                size = max(piece.target + piece.size for piece in pieces)
                machine.check(operand, size, pieces, where)
        machine.run(launch)


def check_transposed(plan: Plan, heads: Sequence[Head], backward: Plan) -> None:
    """Raise ``AssertionError`` if `backward` is not how gradients of `heads` go back in `plan`.

    Launches run in reverse.  Each gets the sum of the gradients that readers of its results have
    written by then, so do the fills of `plan`, and every arena row is written once.
    """
    numbers = [launch.number for launch in backward.launches]
    assert numbers == sorted(set(numbers), reverse=True), "launches are not in reverse"
    _check_writes(backward)
    machine, pieces = _Machine(backward), _gradients(plan, heads, backward)

    def check(operand: Optional[Operand], region: Optional[Region], where: str) -> None:
        assert region is not None
        size = region.rows * plan.arenas[region.arena].row_size
        machine.check(operand, size, pieces.get(region, []), where)

    for launch in backward.launches:
        name, results = f"launch {launch.number}", plan.launches[launch.number].outputs
        assert len(launch.operands) == len(results), f"{name}: gradients of results"
        assert any(launch.operands), f"{name} gets no gradient"
        _check_gradients(plan, launch, set(numbers))
        for out, (operand, region) in enumerate(zip(launch.operands, results)):
            check(operand, region, f"the gradient of result {out} of {name}")
        machine.run(launch)
    assert len(backward.results) == len(plan.fills), "gradients of fills"
    for number, (operand, fill) in enumerate(zip(backward.results, plan.fills)):
        check(operand, fill.region, f"the gradient of fill {number}")


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
    launch_of = plan.launch_of()
    assert (launch_of[graph.preds] < launch_of[owners]).all(), (
        "an operand comes from a later launch"
    )


def _check_writes(plan: Plan) -> None:
    written = [np.zeros(rows, dtype=np.int64) for rows in plan.sizes]
    regions = [region for launch in plan.launches for region in launch.regions]
    for region in regions + [fill.region for fill in plan.fills]:
        written[region.arena][region.start : region.start + region.rows] += 1
    for rows in written:
        assert (rows == 1).all(), "an arena row is not written exactly once"


def _check_places(plan: Plan) -> None:
    """Check that results and arrays from outside are where the tables of places say."""
    for launch in plan.launches:
        rows = plan.graph.dependencies.rows[launch.units]
        for out, region in enumerate(launch.regions):
            slot = plan.graph.slot0[launch.units] + out
            ports = [plan.graph.segments[n].outputs[out] for n in plan.graph.segment[launch.units]]
            counts = rows * [port.row_size for port in ports]
            row_size = plan.arenas[region.arena].row_size
            assert counts.sum() == region.rows * row_size, f"launch {launch.number}: a region"
            element = region.start * row_size + np.cumsum(counts) - counts
            right = (plan.arena_of[slot] == region.arena) & (plan.element_of[slot] == element)
            assert right.all(), f"a result of launch {launch.number} has another place"
    for number, fill in enumerate(plan.fills):
        term = -1 - np.array(fill.externals)
        low, size = fill.region.start, plan.arenas[fill.region.arena].row_size
        element = [*plan.element_of[term].tolist(), (low + fill.region.rows) * size]
        right = element[0] == low * size and (np.diff(element) > 0).all()
        assert right and (plan.arena_of[term] == fill.region.arena).all(), f"fill {number}"


def _check_gradients(plan: Plan, launch: Launch, numbers: Set[int]) -> None:
    """Check which inputs of a launch get a gradient: those behind which one is wanted."""
    for p, port in enumerate(launch.segment.inputs):
        whole = isinstance(plan.launches[launch.number].operands[p], Whole)
        wanted = False
        if port.differentiable and not whole:
            own = plan.graph.term[[at for at, _, _ in _terms(plan, launch, p)]]
            makers = plan.launch_of()[plan.graph.slot_unit[own[own >= 0]]]
            wanted = bool((own < 0).any()) or not numbers.isdisjoint(makers.tolist())
        found = launch.outputs[p] is not None
        assert found == wanted, f"input {p} of launch {launch.number}: gradient"


def _terms(plan: Plan, launch: Launch, p: int) -> Iterator[Tuple[int, int, int]]:
    """Yield per term of an operand: which it is, its first element there, and its elements."""
    graph, first = plan.graph, 0
    for unit in launch.units[:1] if launch.segment.inputs[p].shared else launch.units:
        port = graph.segments[graph.segment[unit]].inputs[p]
        size = port.row_size * (1 if port.shared else int(graph.dependencies.rows[unit]))
        terms = range(*graph.term0[graph.input0[unit] + p :][:2].tolist())
        if port.concat:
            for at, count in zip(terms, graph.concat_rows(np.array([unit])).tolist()):
                yield at, first, count * port.row_size
                first += count * port.row_size
        else:
            yield from ((at, first, size) for at in terms)
            first += size


def _pieces(plan: Plan, launch: Launch, p: int) -> List[_Piece]:
    """Return what operand `p` of a launch reads."""
    found = []
    for at, first, size in _terms(plan, launch, p):
        arena, element = plan.place(int(plan.graph.term[at]))
        element += int(plan.graph.term_offset[at])
        found.append(_Piece(first, size, arena, element))
    return found


def _gradients(plan: Plan, heads: Sequence[Head], backward: Plan) -> Dict[Region, List[_Piece]]:
    """Return per region of `plan` what its gradient is the sum of."""
    regions = [region for launch in plan.launches for region in launch.regions]
    regions = sorted(regions + [fill.region for fill in plan.fills])
    found: Dict[Region, List[_Piece]] = {}

    def add(read: _Piece, arena: int, element: int) -> None:
        row = read.element // plan.arenas[read.arena].row_size
        region = regions[bisect_left(regions, (read.arena, row + 1)) - 1]
        first = read.element - region.start * plan.arenas[region.arena].row_size
        found.setdefault(region, []).append(_Piece(first, read.size, arena, element))

    for fill in backward.fills:
        size = backward.arenas[fill.region.arena].row_size
        for row, number in enumerate(fill.externals, fill.region.start):
            arena, element = plan.place(heads[number].term)
            read = _Piece(0, size, arena, element + heads[number].offset)
            add(read, fill.region.arena, row * size)
    for launch in backward.launches:
        for p, region in enumerate(launch.outputs):
            if region is not None:
                start = region.start * backward.arenas[region.arena].row_size
                for read in _pieces(plan, plan.launches[launch.number], p):
                    add(read, region.arena, start + read.target)
    return found


class _Machine:
    """Runs a plan on random integers."""

    def __init__(self, plan: Plan):
        self._plan = plan
        draw = np.random.RandomState(0).randint
        sizes = [rows * arena.row_size for rows, arena in zip(plan.sizes, plan.arenas)]
        #: What will stand in the arenas in the end, and what does by now.
        self._made = [draw(-(2**31), 2**31, size, dtype=np.int32) for size in sizes]
        self._arenas = [np.zeros(size, dtype=np.int32) for size in sizes]
        for fill in plan.fills:
            self._write(fill.region)

    def run(self, launch: Launch) -> None:
        """Write the results of a launch."""
        for region in launch.regions:
            self._write(region)

    def _write(self, region: Region) -> None:
        size = self._plan.arenas[region.arena].row_size
        rows = slice(region.start * size, (region.start + region.rows) * size)
        self._arenas[region.arena][rows] = self._made[region.arena][rows]

    def check(
        self, operand: Optional[Operand], size: int, pieces: Sequence[_Piece], where: str
    ) -> None:
        """Check that an operand of `size` elements is the sum of some pieces."""
        assert (operand is None) == (not pieces), f"{where} is missing, or should be"
        if operand is not None:
            wanted = np.zeros(size, dtype=np.int32)
            for target, length, arena, element in pieces:
                made = self._made[arena][element : element + length]
                wanted[target : target + length] += made
            got = evaluate(operand, self._arenas, self._plan.pieces).reshape(-1)
            assert len(got) == size, f"{where} has {len(got)} elements, not {size}"
            assert (got == wanted).all(), f"{where} reads other rows than its members need"


def evaluate(operand: Operand, arenas: Sequence[Array], pieces: Array) -> Array:
    """Return the rows that an operand names, out of arenas of one axis.

    Parameters
    ----------
    operand : Operand
        Anything but an array from outside.
    arenas : sequence of numpy.ndarray
        The elements of each arena.
    pieces : numpy.ndarray
        Those of the plan.
    """
    assert not isinstance(operand, Whole), "it is an array from outside"
    if isinstance(operand, (Slice, Shared)):
        shape = (operand.rows, operand.row_size) if isinstance(operand, Slice) else operand.shape
        return _part(arenas[operand.arena], operand.element, int(np.prod(shape))).reshape(shape)
    total = np.full(operand.rows * operand.row_size, -1, dtype=arenas[0].dtype)
    own = pieces[operand.first : operand.first + operand.pieces].tolist()
    assert len(own) == operand.pieces, "it lacks pieces"
    for what, target, arena, element, count in own:
        assert 0 <= arena < len(arenas), "it leaves its arena"
        made = _part(total, target, count)
        if what == resolving.ADD:
            made += _part(arenas[arena], element, count)
        else:
            made[:] = 0 if what == resolving.ZERO else _part(arenas[arena], element, count)
    return total.reshape((operand.rows, operand.row_size))


def _part(array: Array, first: int, count: int) -> Array:
    assert first >= 0 and first + count <= len(array), "it leaves its arena"
    return array[first : first + count]
