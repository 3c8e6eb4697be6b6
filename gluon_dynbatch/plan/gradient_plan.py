"""Plan the backward pass: which launches take part, where gradients stand, and who pulls what.

Pure: integers only.  See `gradient.py` for how it runs, and why it is done like this.
"""

from __future__ import annotations

import functools
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from ..modes import RECORDING
from ..schedule.dependencies import Array, ragged_range
from .plan import Arena, Fetches, Mixed, Plan, Region, Scatter, Slice, Sum, Whole, multiples

#: Beyond this many readers of one row, rows are added up by index instead of level by level.
MOST_LEVELS = 12


class Head(NamedTuple):
    """A result that the user still holds."""

    term: int
    offset: int
    shape: Tuple[int, ...]
    dtype: str
    context: Any


class HeadFill(NamedTuple):
    """Head gradients of one type, side by side in a gradient arena."""

    region: Region
    heads: Tuple[int, ...]


class Pull(NamedTuple):
    """The gradient of some rows: the sum of these fetches."""

    parts: Tuple[Any, ...]


class Pulls(NamedTuple):
    """Where the gradients of results come from."""

    #: Per launch: per result its pull, or None.
    results: Dict[int, Tuple[Optional[Pull], ...]]
    #: Per fill of the plan: pull of its rows, or None.
    fills: Tuple[Optional[Pull], ...]
    indices: Array


class Reach(NamedTuple):
    """What calls on the way to a head read: the loop gives all of this a gradient."""

    #: Numbers of arrays from outside into which a gradient flows.
    flowing: FrozenSet[int]
    #: Those into which none flows, and launches for whose parameters this is so: they get zeros.
    idle: Tuple[int, ...]
    launches: Tuple[int, ...]
    #: Numbers of heads that no other head depends on.
    last: FrozenSet[int]


class GradientPlan(NamedTuple):
    """How a plan is run backward."""

    #: Launches to record, in forward order.
    launches: Tuple[int, ...]
    #: Per launch and operand: rows for its gradient, or None.
    regions: Dict[int, Tuple[Optional[Region], ...]]
    heads: Tuple[HeadFill, ...]
    arenas: Tuple[Arena, ...]
    sizes: Tuple[int, ...]
    #: Names the pulls, which nobody needs before the launches have been recorded.
    pulls: Callable[[], Pulls]
    reach: Callable[[], Reach]
    #: Marks the units that recorded calls lead to from some heads, by number.
    reached: Callable[[Sequence[int]], Array]


def plan_gradient(plan: Plan, heads: Sequence[Head]) -> GradientPlan:
    """Plan the backward pass of `plan` for gradients that arrive at `heads`.

    Parameters
    ----------
    plan : Plan
        The launches forward.
    heads : sequence of Head
        Results that the user still holds.

    Returns
    -------
    GradientPlan
        The places of all gradients; its `pulls` are found on the first call, so that the engine
        can run forward meanwhile.
    """
    return _Backward(plan, heads).plan()


class _Operand(NamedTuple):
    """An operand through which a gradient can flow."""

    port: int
    #: Rows of each member.
    members_rows: Array
    #: Terms it is made of, and for each the member that reads it, the rows it has, and those of
    #: the member that it follows.
    terms: Array
    members: Array
    rows: Array
    behind: Array
    #: Launches that make them, one for each term that is not from outside.
    makers: Array


class _Backward:
    """Finds out what takes part, gives every gradient its rows, and names the pulls."""

    def __init__(self, plan: Plan, heads: Sequence[Head]):
        self._plan = plan
        self._heads = heads
        self._fetches = Fetches()
        #: Per source arena and gradient arena: lists of (source element, gradient element, length).
        self._pairs: Dict[Tuple[int, int], List[Tuple[Array, Array, Array]]] = {}
        units = plan.units
        owner = np.zeros(units.dependencies.size, dtype=np.int64)
        for number, launch in enumerate(plan.launches):
            owner[launch.units] = number
        self._maker = owner[units.slot_unit] if len(units.slot_unit) else owner[:0]

    def plan(self) -> GradientPlan:
        operands = self._flowing = self._flowing_operands()
        live = self._live(operands)
        heads = self._place_heads()
        regions = self._place_operands(
            [(number, operand) for number in live for operand in operands[number]]
        )
        return GradientPlan(
            tuple(live),
            {number: tuple(regions[number]) for number in live},
            heads,
            tuple(self._fetches.arenas),
            tuple(self._fetches.sizes),
            functools.lru_cache(maxsize=None)(functools.partial(self._pulls, live)),
            functools.lru_cache(maxsize=None)(functools.partial(self._reach, live)),
            self._reached,
        )

    def _pulls(self, live: List[int]) -> Pulls:
        launches, fills = self._plan.launches, self._plan.fills
        counts = [len(launches[number].outputs) for number in live]
        regions = [region for number in live for region in launches[number].outputs]
        pulls = self._pull(regions + [fill.region for fill in fills])
        own = iter(pulls)
        results = {number: tuple(next(own) for _ in range(n)) for number, n in zip(live, counts)}
        self._pairs.clear()
        return Pulls(results, tuple(own), self._fetches.indices())

    def _flowing_operands(self) -> Dict[int, List[_Operand]]:
        """Per recorded launch with anything to train behind it: operands that lead there."""
        flowing: Dict[int, List[_Operand]] = {}
        flows = np.zeros(len(self._plan.launches), dtype=bool)
        for number, launch in enumerate(self._plan.launches):
            if not launch.segment.mode & RECORDING:
                continue
            found = []
            for p, port in enumerate(launch.segment.inputs):
                if port.differentiable and type(launch.operands[p]) is not Whole:
                    operand = self._operand(launch, p, port.shared)
                    outside = (self._plan.units.term[operand.terms] < 0).any()
                    if outside or flows[operand.makers].any():
                        found.append(operand)
            whole = any(
                type(operand) is Whole and port.differentiable
                for operand, port in zip(launch.operands, launch.segment.inputs)
            )
            if found or whole or any(p.grad_req != "null" for p in launch.segment.parameters):
                flowing[number] = found
                flows[number] = True
        return flowing

    def _operand(self, launch: Any, p: int, shared: bool) -> _Operand:
        units = self._plan.units
        inputs = units.input0[launch.units[:1] if shared else launch.units] + p
        first, last = units.term0[inputs], units.term0[inputs + 1]
        terms, members = _ranges(first, last)
        made = units.term[terms]
        makers = self._maker[made[made >= 0]]
        own = np.ones(1, dtype=np.int64) if shared else units.dependencies.rows[launch.units]
        rows, behind = own[members], np.zeros(len(terms), dtype=np.int64)
        if launch.segment.inputs[p].joined:
            rows = units.joined_rows(launch.units)
            before = np.cumsum(rows) - rows
            counts = last - first
            behind = before - before[np.cumsum(counts) - counts][members]
        return _Operand(p, own, terms, members, rows, behind, makers)

    def _live(self, operands: Dict[int, List[_Operand]]) -> List[int]:
        """Return the launches that a gradient reaches from the heads, in forward order."""
        reached = np.zeros(len(self._plan.launches), dtype=bool)
        reached[[int(self._maker[head.term]) for head in self._heads if head.term >= 0]] = True
        for number in sorted(operands, reverse=True):
            if reached[number]:
                for operand in operands[number]:
                    reached[operand.makers] = True
        return [number for number in sorted(operands) if reached[number]]

    def _reach(self, live: List[int]) -> Reach:
        """Find what the loop's graph has, unit by unit."""
        launches, term = self._plan.launches, self._plan.units.term
        read, passed = [np.zeros(0, dtype=np.int64)], set()
        inner = np.zeros(self._plan.units.dependencies.size, dtype=bool)
        for number, _, terms in self._recorded(range(len(self._heads))):
            passed.add(number)
            read.append(-1 - terms[terms < 0])
            inner[self._plan.units.slot_unit[terms[terms >= 0]]] = True
        flowing = [term[operand.terms] for number in live for operand in self._flowing[number]]
        self._flowing.clear()
        outside = np.concatenate([*flowing, read[0]])
        fed = set(np.unique(-1 - outside[outside < 0]).tolist())
        for number in live:
            launch = launches[number]
            for operand, port in zip(launch.operands, launch.segment.inputs):
                if type(operand) is Whole and port.differentiable:
                    fed.add(operand.external)
        externals = set(np.unique(np.concatenate(read)).tolist())
        return Reach(
            frozenset(externals & fed),
            tuple(sorted(externals - fed)),
            tuple(sorted(passed.difference(live))),
            frozenset(
                number
                for number, head in enumerate(self._heads)
                if head.term >= 0 and not inner[self._plan.units.slot_unit[head.term]]
            ),
        )

    def _recorded(self, heads: Sequence[int]) -> Iterator[Tuple[int, Array, Array]]:
        """Walk the loop's graph back from some heads: launches, units in it, terms they read."""
        launches, units = self._plan.launches, self._plan.units
        reached = np.zeros(units.dependencies.size, dtype=bool)
        places = [self._heads[head].term for head in heads]
        reached[units.slot_unit[[place for place in places if place >= 0]]] = True
        for number in reversed(range(len(launches))):
            launch = launches[number]
            members = launch.units[reached[launch.units]]
            if len(members) and launch.segment.mode & RECORDING:
                terms = units.term[self._terms_read(members, len(launch.segment.inputs))]
                reached[units.slot_unit[terms[terms >= 0]]] = True
                yield number, members, terms

    def _reached(self, heads: Sequence[int]) -> Array:
        live = np.zeros(self._plan.units.dependencies.size, dtype=bool)
        for _, members, _ in self._recorded(heads):
            live[members] = True
        return live

    def _terms_read(self, members: Array, ports: int) -> Array:
        """Return the terms of all inputs of some units of one launch."""
        units = self._plan.units
        inputs = (units.input0[members][:, None] + np.arange(ports)).reshape(-1)
        return _ranges(units.term0[inputs], units.term0[inputs + 1])[0]

    def _place_heads(self) -> Tuple[HeadFill, ...]:
        groups: Dict[Any, List[int]] = {}
        for i, head in enumerate(self._heads):
            arena = self._plan.place(head.term)[0]
            groups.setdefault((head.shape, head.dtype, head.context, arena), []).append(i)
        fills = []
        for (shape, dtype, context, arena), members in groups.items():
            unit = int(np.prod(shape))
            region = self._fetches.reserve(Arena(unit, dtype, context), len(members))
            source = np.array(
                [self._plan.place(self._heads[i].term)[1] + self._heads[i].offset for i in members]
            )
            target = (region.start + np.arange(len(members))) * unit
            self._add_pairs(arena, region.arena, source, target, np.full(len(members), unit))
            fills.append(HeadFill(region, tuple(members)))
        return tuple(fills)

    def _add_pairs(
        self, arena: int, gradient: int, source: Array, target: Array, length: Array
    ) -> None:
        self._pairs.setdefault((arena, gradient), []).append((source, target, length))

    def _place_operands(
        self, operands: List[Tuple[int, _Operand]]
    ) -> Dict[int, List[Optional[Region]]]:
        """Give every operand of every launch rows for its gradient.

        What is read in place, side by side, gets gradients side by side, so that these are pulled
        in place as well.
        """
        placed: Dict[int, List[Optional[Region]]] = {}
        for number, launch in enumerate(self._plan.launches):
            placed[number] = [None] * len(launch.operands)
        for number, operand in sorted(operands, key=self._rank):
            launch = self._plan.launches[number]
            port = launch.segment.inputs[operand.port]
            members = operand.members_rows
            region = self._fetches.reserve(
                Arena(port.row_size, port.dtype, launch.segment.context), int(members.sum())
            )
            placed[number][operand.port] = region
            start = (region.start + np.cumsum(members) - members) * port.row_size
            self._add_terms(
                operand.terms,
                start[operand.members] + operand.behind * port.row_size,
                operand.rows * port.row_size,
                region.arena,
            )
        return placed

    def _rank(self, numbered: Tuple[int, _Operand]) -> Tuple[int, int, int]:
        number, operand = numbered
        read = self._plan.launches[number].operands[operand.port]
        if type(read) is Slice:
            return 0, read.arena, read.element
        return 1, number, operand.port

    def _add_terms(self, terms: Array, target: Array, length: Array, gradient: int) -> None:
        arena, element = self._plan.term_arena[terms], self._plan.term_element[terms]
        if len(arena) and (arena == arena[0]).all():
            self._add_pairs(int(arena[0]), gradient, element, target, length)
            return
        for a in np.unique(arena).tolist():
            at = arena == a
            self._add_pairs(a, gradient, element[at], target[at], length[at])

    def _sorted_rows(self, key: Tuple[int, int]) -> Tuple[int, Array, Array]:
        """Return pairs as rows of one length, sorted by source."""
        source, target, length = (np.concatenate(part) for part in zip(*self._pairs[key]))
        grain = int(np.gcd(self._plan.arenas[key[0]].unit, self._fetches.arenas[key[1]].unit))
        if not all(multiples(array, grain) for array in (source, target, length)):
            grain = int(np.gcd.reduce(np.concatenate([[grain], source, target, length])))
        source, target, length = source // grain, target // grain, length // grain
        if length.max() > 1:
            steps = ragged_range(length)
            source, target = np.repeat(source, length) + steps, np.repeat(target, length) + steps
        order = np.argsort(source, kind="stable")
        return grain, source[order], target[order]

    def _pull(self, regions: Sequence[Region]) -> List[Optional[Pull]]:
        """Name per region the gradient rows whose sum is its gradient; None if there are none."""
        parts: List[List[Any]] = [[] for _ in regions]
        bounds = np.array([(r.arena, r.start, r.start + r.rows) for r in regions]).reshape((-1, 3))
        for key in self._pairs:
            arena, gradient = key
            grain, source, target = self._sorted_rows(key)
            inside = np.flatnonzero(bounds[:, 0] == arena)
            rows = bounds[inside, 1:] * self._plan.arenas[arena].unit // grain
            ends = np.searchsorted(source, rows)
            some = np.flatnonzero(ends[:, 0] < ends[:, 1])
            for region, (first, last), (low, high) in zip(
                inside[some].tolist(), rows[some].tolist(), ends[some].tolist()
            ):
                local = source[low:high] - first
                parts[region].append(
                    self._part(gradient, local, target[low:high], last - first, grain)
                )
        return [Pull(tuple(found)) if found else None for found in parts]

    def _part(self, gradient: int, local: Array, target: Array, rows: int, grain: int) -> Any:
        counts = np.bincount(local, minlength=rows)
        most = int(counts.max())
        if most == 1:
            return self._level(gradient, local, target, rows, grain)
        if most > MOST_LEVELS:
            source = self._fetches.fetch(gradient, target * grain, grain)
            return Scatter(source, self._fetches.index(local), rows)
        nth = np.arange(len(local)) - np.repeat(np.cumsum(counts) - counts, counts)
        place, levels = np.arange(rows), []
        sparse = most * rows > 2 * len(local)
        if sparse:
            # Rows with more readers first, so that each further level is added to a prefix.
            place[np.argsort(-counts, kind="stable")] = np.arange(rows)
        for level in range(most):
            at = nth == level
            count = int(at.sum()) if sparse and level else rows
            levels.append(self._level(gradient, place[local[at]], target[at], count, grain))
        total = Sum(tuple(levels))
        return Mixed((total,), self._fetches.index(place), rows, grain) if sparse else total

    def _level(self, gradient: int, local: Array, target: Array, rows: int, grain: int) -> Any:
        """Name one gradient row for each of `local`; the other rows read the zero row."""
        elements = np.zeros(rows, dtype=np.int64)
        elements[local] = target * grain
        return self._fetches.fetch(gradient, elements, grain)


def _ranges(first: Array, last: Array) -> Tuple[Array, Array]:
    """Return ``first[0] .. last[0] - 1``, ``first[1] .. last[1] - 1``, ..., and whose each is."""
    counts, owners = last - first, np.arange(len(first))
    if (counts == 1).all():
        return first, owners
    return np.repeat(first, counts) + ragged_range(counts), np.repeat(owners, counts)
