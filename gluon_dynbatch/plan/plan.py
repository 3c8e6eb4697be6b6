"""A plan: the launches of one flush in order, with the place of every operand and result.

Inert data: a plan holds integers, names and segments, never an array of the model.  All values live
in *arenas*, one per (row length, dtype, context); row 0 of an arena is kept zero.  A place in an
arena is counted in elements, so that a value can be read with another shape than it was written.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ..native import PLANNING
from ..schedule.dependencies import Array, ragged_range
from .order import order_members


class Arena(NamedTuple):
    """One buffer."""

    unit: int
    dtype: str
    context: Any


class Region(NamedTuple):
    """Consecutive rows of an arena."""

    arena: int
    start: int
    rows: int


class Whole(NamedTuple):
    """An array from outside, passed as it is."""

    external: int

    def __str__(self) -> str:
        return f"external {self.external}"


class Slice(NamedTuple):
    """Consecutive elements of an arena, in place."""

    arena: int
    element: int
    rows: int
    unit: int

    def __str__(self) -> str:
        return f"arena {self.arena}[{self.element}:{self.element + self.rows * self.unit}]"


class Gather(NamedTuple):
    """Rows of an arena, read as rows of `grain` elements, copied by index."""

    arena: int
    grain: int
    #: Where the indices stand in the plan's index vector, and how many there are.
    first: int
    indices: int
    rows: int
    unit: int

    def follows(self, other: Gather, first: int) -> bool:
        """Whether one copy serves both, if the indices of `other` end at `first`."""
        alike = self.arena == other.arena and self.grain == other.grain
        return alike and self.unit == other.unit and self.first == first

    def __str__(self) -> str:
        return f"arena {self.arena}{{{self.rows} rows}}"


class Mixed(NamedTuple):
    """Rows out of several arenas, or of a sum, brought into order by index."""

    parts: Tuple[Any, ...]
    first: int
    rows: int
    unit: int

    def __str__(self) -> str:
        return " & ".join(map(str, self.parts))


Fetch = Union[Slice, Gather, Mixed]


class Sum(NamedTuple):
    """The sum of several fetches; each covers the first rows of the one before."""

    levels: Tuple[Fetch, ...]

    def __str__(self) -> str:
        return "sum(" + " + ".join(map(str, self.levels)) + ")"


class Scatter(NamedTuple):
    """Rows added up by index: what many readers of few rows leave behind."""

    source: Fetch
    first: int
    rows: int


class Shared(NamedTuple):
    """One array of an arena for all members, with its own shape."""

    arena: int
    element: int
    shape: Tuple[int, ...]

    def __str__(self) -> str:
        return f"shared arena {self.arena}[{self.element}:] as {self.shape}"


Operand = Union[Whole, Slice, Gather, Mixed, Sum, Shared]


class Launch(NamedTuple):
    """One run of a segment for all its members."""

    segment: Any
    #: Member units, in the order of their rows.
    units: Array
    rows: int
    operands: Tuple[Operand, ...]
    outputs: Tuple[Region, ...]
    #: Further rows of all operands and outputs that are computed too, and read by nobody.
    spare: int = 0


class Fill(NamedTuple):
    """Arrays from outside that are copied side by side into an arena."""

    region: Region
    externals: Tuple[int, ...]
    #: Shape of an array behind its first axis.
    trailing: Tuple[int, ...]


class Plan(NamedTuple):
    """The launches of one flush."""

    launches: Tuple[Launch, ...]
    fills: Tuple[Fill, ...]
    arenas: Tuple[Arena, ...]
    #: Rows per arena.
    sizes: Tuple[int, ...]
    #: All gather indices, int32.
    indices: Array
    #: Per term of the units: arena and first element.
    term_arena: Array
    term_element: Array
    #: Per slot, and per external, the same.
    slot_arena: Array
    slot_element: Array
    external_arena: Array
    external_element: Array
    units: Any

    def place(self, term: int) -> Tuple[int, int]:
        """Return arena and first element of a term."""
        if term >= 0:
            return int(self.slot_arena[term]), int(self.slot_element[term])
        return int(self.external_arena[-1 - term]), int(self.external_element[-1 - term])

    @property
    def arena_bytes(self) -> int:
        """Bytes that the arenas take."""
        return sum(n * a.unit * np.dtype(a.dtype).itemsize for n, a in zip(self.sizes, self.arenas))

    @property
    def rows_gathered(self) -> int:
        """Rows that are copied to stand side by side."""
        return len(self.indices)

    def __str__(self) -> str:
        lines = [
            f"arena {i}: {n} rows of {a.unit} {a.dtype} on {a.context}"
            for i, (n, a) in enumerate(zip(self.sizes, self.arenas))
        ]
        for fill in self.fills:
            lines.append(
                f"fill    {_region(fill.region)} <- {len(fill.externals)} arrays from outside"
            )
        for i, launch in enumerate(self.launches):
            made = ", ".join(map(_region, launch.outputs))
            read = ", ".join(map(str, launch.operands))
            kind = f" ({launch.segment.layout})" if launch.segment.layout != "rows" else ""
            name = self.units.name(int(launch.units[0]))
            lines.append(f"{i:<7d} {made} <- {name}{kind} x{len(launch.units)}({read})")
        return "\n".join(lines)


def spare_rows(rows: int) -> int:
    """Return by how much a number of rows is rounded up: by 3 % at most, from 256 on.

    For each number of rows that they have not had yet, many operators are built anew; so there
    shall be few such numbers.
    """
    return -rows % (1 << (rows.bit_length() - 6)) if rows >= 256 else 0


def multiples(numbers: Array, of: int) -> bool:
    """Whether all numbers are multiples of one; in half the time that remainders take."""
    return bool((numbers // of * of == numbers).all())


def _region(region: Region) -> str:
    return f"arena {region.arena}[{region.start}:{region.start + region.rows}]"


class Fetches:
    """Arenas being laid out, and the cheapest way to read rows out of them."""

    def __init__(self) -> None:
        self.arenas: List[Arena] = []
        #: Rows reserved so far; row 0 is the zero row.
        self.sizes: List[int] = []
        self._numbers: Dict[Arena, int] = {}
        self._parts: List[Array] = []
        self._count = 0

    def reserve(self, arena: Arena, rows: int, spare: int = 0) -> Region:
        """Reserve the next rows of `arena`, and some behind them that are nobody's."""
        number = self._numbers.setdefault(arena, len(self.arenas))
        if number == len(self.arenas):
            self.arenas.append(arena)
            self.sizes.append(1)
        start = self.sizes[number]
        self.sizes[number] += rows + spare
        return Region(number, start, rows)

    def fetch(self, arena: int, elements: Array, unit: int) -> Union[Slice, Gather]:
        """Name the rows of `unit` elements that start at `elements`."""
        count = len(elements)
        start = int(elements[0])
        if int(elements[-1]) - start == (count - 1) * unit and (
            count < 3 or (np.diff(elements) == unit).all()
        ):
            return Slice(arena, start, count, unit)
        grain = int(np.gcd(unit, self.arenas[arena].unit))
        if not multiples(elements, grain):
            grain = int(np.gcd.reduce(np.append(elements, grain)))
        index = elements // grain
        if grain != unit:
            index = (index[:, None] + np.arange(unit // grain)).reshape(-1)
        return Gather(arena, grain, self.index(index), len(index), count, unit)

    def index(self, index: Array) -> int:
        """Keep an index vector and return where it stands."""
        first = self._count
        self._parts.append(index)
        self._count += len(index)
        return first

    def indices(self) -> Array:
        """Return all index vectors as one."""
        joined = np.concatenate(self._parts) if self._parts else np.zeros(0)
        return joined.astype(np.int32)


def make_plan(units: Any, groups: Array, external_types: Sequence[Any]) -> Plan:
    """Turn a grouping of units into launches.

    Parameters
    ----------
    units : Graph
        What the analyzer saw, with operands.
    groups : numpy.ndarray of int32, shape (units,)
        Launch of each unit; predecessors have smaller numbers.
    external_types : sequence of ArrayType
        Types of the arrays from outside.
    """
    return _Planner(units, groups, external_types).plan()


class _Planner:
    def __init__(self, units: Any, groups: Array, external_types: Sequence[Any]):
        self._units = units
        self._types = external_types
        self._order = order_members(units, groups)
        self._launch_of = groups.take(self._order)
        count = int(groups.max()) + 1 if len(groups) else 0
        self._first = np.searchsorted(self._launch_of, np.arange(count + 1))
        self._rows = units.dependencies.rows.take(self._order)
        before = np.cumsum(self._rows) - self._rows
        self._row = before - before[self._first[self._launch_of]] if len(groups) else before
        self.fetches = Fetches()

    def plan(self) -> Plan:
        """Place everything, then resolve operands."""
        fills = self._place_externals()
        outputs = self._place_slots()
        units = self._units
        source = np.concatenate([self._external_element[::-1], self._slot_element])
        arenas = np.concatenate([self._external_arena[::-1], self._slot_arena])
        # Externals are numbered -1, -2, ...: shifted by their count, terms index one table.
        at = units.term + len(self._external_element)
        self._element = source.take(at) + units.term_offset
        self._arena = arenas.take(at)
        resolved = self._resolve() if PLANNING is not None else []
        launches = tuple(
            self._launch(k, outputs[k], resolved[k] if resolved else None)
            for k in range(len(self._first) - 1)
        )
        return Plan(
            launches,
            fills,
            tuple(self.fetches.arenas),
            tuple(self.fetches.sizes),
            self.fetches.indices(),
            self._arena,
            self._element,
            self._slot_arena,
            self._slot_element,
            self._external_arena,
            self._external_element,
            units,
        )

    def _external_units(self) -> Tuple[Array, Array]:
        """Return the externals that have to stand in arenas, and the row length each is read with.

        They are in the order in which they are read first.
        """
        units = self._units
        outside = np.flatnonzero(units.term < 0)
        at = np.searchsorted(units.term0, outside, side="right") - 1
        owner = np.searchsorted(units.input0, at, side="right") - 1
        port = at - units.input0[owner]
        first_port = np.cumsum([0] + [len(segment.inputs) for segment in units.segments])
        ports = [port for segment in units.segments for port in segment.inputs]
        number = first_port[units.segment[owner]] + port
        own = ~np.array([port.shared for port in ports], dtype=bool)[number]
        place = np.empty(len(self._order), dtype=np.int64)
        place[self._order] = np.arange(len(self._order))
        level = outside - units.term0[at]
        launch = np.searchsorted(self._first, place[owner], side="right")
        read = np.lexsort((place[owner], level, port, launch))
        read = read[own[read]]
        externals, first = np.unique(-1 - units.term[outside[read]], return_index=True)
        order = np.argsort(first)
        unit = np.array([port.row_size for port in ports], dtype=np.int64)
        return externals[order], unit[number[read[first[order]]]]

    def _place_externals(self) -> Tuple[Fill, ...]:
        count = len(self._types)
        self._external_arena = np.full(count, -1, dtype=np.int64)
        self._external_element = np.zeros(count, dtype=np.int64)
        externals, unit = self._external_units()
        types = [self._types[e] for e in externals.tolist()]
        # Comparing types takes longer than knowing them.
        _, first, kind = np.unique(
            np.array([id(t) for t in types]), return_index=True, return_inverse=True
        )
        kinds = [types[i] for i in first.tolist()]
        elements = np.array([k.elements for k in kinds], dtype=np.int64)[kind]
        fills = []
        for key, members in _alike(kinds, kind, unit).items():
            length, dtype, context, trailing = key
            sizes, own = elements[members], externals[members]
            region = self.fetches.reserve(Arena(length, dtype, context), int(sizes.sum()) // length)
            self._external_arena[own] = region.arena
            self._external_element[own] = region.start * length + np.cumsum(sizes) - sizes
            fills.append(Fill(region, tuple(own.tolist()), trailing))
        return tuple(fills)

    def _place_slots(self) -> List[Tuple[Region, ...]]:
        units = self._units
        slots = len(units.slot_unit)
        self._slot_arena = np.zeros(slots, dtype=np.int64)
        self._slot_element = np.zeros(slots, dtype=np.int64)
        placed = []
        for k in range(len(self._first) - 1):
            low, high = self._first[k], self._first[k + 1]
            members = self._order[low:high]
            segment = units.segments[units.segment[members[0]]]
            total = int(self._row[high - 1] + self._rows[high - 1])
            spare = spare_rows(total) if segment.spares_rows else 0
            regions = []
            for out, port in enumerate(segment.outputs):
                arena = Arena(port.row_size, port.dtype, segment.context)
                region = self.fetches.reserve(arena, total, spare)
                at = units.slot0[members] + out
                self._slot_arena[at] = region.arena
                self._slot_element[at] = (region.start + self._row[low:high]) * port.row_size
                regions.append(region)
            placed.append(tuple(regions))
        return placed

    def _resolve(self) -> List[List[Optional[List[Fetch]]]]:
        """Name per launch and input its summands, where that is simple; see ``_planning.c``."""
        units = self._units
        ports = [port for segment in units.segments for port in segment.inputs]
        counts = [len(segment.inputs) for segment in units.segments]
        index = np.empty(len(units.term), dtype=np.int32)
        found, indices = PLANNING.resolve(
            self._order,
            self._first,
            units.segment,
            units.dependencies.rows,
            np.append(units.input0, len(units.term0) - 1),
            units.term0,
            self._element,
            self._arena,
            np.cumsum([0] + counts).astype(np.int32),
            np.array([port.row_size for port in ports], dtype=np.int32),
            np.array([port.shared for port in ports], dtype=bool),
            np.array([arena.unit for arena in self.fetches.arenas], dtype=np.int32),
            index,
        )
        base = self.fetches.index(index[:indices])
        return [
            [
                operand and [_named(summand, base, port.row_size) for summand in operand]
                for operand, port in zip(launch, self._segment(k).inputs)
            ]
            for k, launch in enumerate(found)
        ]

    def _segment(self, k: int) -> Any:
        return self._units.segments[self._units.segment[self._order[self._first[k]]]]

    def _launch(
        self, k: int, outputs: Tuple[Region, ...], resolved: Optional[List[Optional[List[Fetch]]]]
    ) -> Launch:
        low, high = self._first[k], self._first[k + 1]
        segment = self._segment(k)
        operands: List[Operand] = []
        for p, port in enumerate(segment.inputs):
            levels = None if resolved is None else resolved[p]
            if levels is None:
                operands.append(self._operand(k, p, port))
            else:
                operands.append(levels[0] if len(levels) == 1 else Sum(tuple(levels)))
        total = int(self._row[high - 1] + self._rows[high - 1])
        spare = self._spare(operands, total) if segment.spares_rows else 0
        return Launch(segment, self._order[low:high], total, tuple(operands), outputs, spare)

    def _spare(self, operands: Sequence[Operand], rows: int) -> int:
        """Return the spare rows of a launch; none if an operand is at the end of its memory."""
        spare = spare_rows(rows)
        for operand in operands:
            first = operand.levels[0] if type(operand) is Sum else operand
            if type(first) is Slice:
                size = self.fetches.sizes[first.arena] * self.fetches.arenas[first.arena].unit
                if first.element + (rows + spare) * first.unit > size:
                    return 0
        return spare

    def _operand(self, k: int, p: int, port: Any) -> Operand:
        units = self._units
        low, high = self._first[k], self._first[k + 1]
        inputs = units.input0[self._order[low:high]] + p
        first = units.term0[inputs]
        if port.shared:
            return self._shared(int(first[0]), port)
        counts = units.term0[inputs + 1] - first
        if port.joined:
            terms = np.repeat(first, counts) + ragged_range(counts)
            return self._fetch(terms, units.joined_rows(self._order[low:high]), port.row_size)
        if int(counts.max()) == 1:
            return self._fetch(first, self._rows[low:high], port.row_size)
        return self._sum(first, counts, self._rows[low:high], port.row_size)

    def _shared(self, term: int, port: Any) -> Operand:
        number = int(self._units.term[term])
        if number < 0:
            return Whole(-1 - number)
        return Shared(int(self._arena[term]), int(self._element[term]), port.shape)

    def _sum(self, first: Array, counts: Array, rows: Array, unit: int) -> Sum:
        levels = []
        for level in range(int(counts.max())):
            reached = int(np.flatnonzero(counts > level)[-1]) + 1
            have = counts[:reached] > level
            # Whoever has no such summand inside the prefix adds the arena's zero row.
            terms = np.where(have, first[:reached] + level, -1)
            levels.append(self._fetch(terms, rows[:reached], unit))
        return Sum(tuple(levels))

    def _fetch(self, terms: Array, rows: Array, unit: int) -> Fetch:
        elements, arenas = self._element[terms], self._arena[terms]
        if terms.min() < 0:
            some = arenas[np.argmax(terms >= 0)]
            elements, arenas = np.where(terms < 0, 0, elements), np.where(terms < 0, some, arenas)
        if rows.max() != 1:
            steps = ragged_range(rows) * unit
            # The zero row is one row: it is read again and again.
            steps[np.repeat(terms < 0, rows)] = 0
            elements, arenas = np.repeat(elements, rows) + steps, np.repeat(arenas, rows)
        if arenas[0] == arenas[-1] and (arenas == arenas[0]).all():
            return self.fetches.fetch(int(arenas[0]), elements, unit)
        parts, order = [], []
        for arena in np.unique(arenas).tolist():
            at = np.flatnonzero(arenas == arena)
            parts.append(self.fetches.fetch(arena, elements[at], unit))
            order.append(at)
        places = np.empty(len(elements), dtype=np.int64)
        places[np.concatenate(order)] = np.arange(len(elements))
        return Mixed(tuple(parts), self.fetches.index(places), len(elements), unit)


def _alike(kinds: Sequence[Any], kind: Array, unit: Array) -> Dict[Any, Array]:
    """Group arrays that may stand side by side; groups and members are in the order given.

    Parameters
    ----------
    kinds : sequence of ArrayType
    kind, unit : numpy.ndarray of int
        Per array: the number of its type, and the row length it is read with.
    """
    numbers: Dict[Any, int] = {}
    pairs, first, pair = np.unique(unit * len(kinds) + kind, return_index=True, return_inverse=True)
    number = np.zeros(len(pairs), dtype=np.int64)
    for p in np.argsort(first).tolist():
        length, found = divmod(int(pairs[p]), len(kinds))
        key = (length, kinds[found].dtype, kinds[found].context, kinds[found].shape[1:])
        number[p] = numbers.setdefault(key, len(numbers))
    return {key: np.flatnonzero(number[pair] == n) for key, n in numbers.items()}


def _named(summand: Tuple[int, int, int, int], base: int, unit: int) -> Fetch:
    """Read a summand as ``resolve`` of ``_planning.c`` tells it."""
    arena, first, indices, rows = summand
    if indices < 0:
        return Slice(arena, first, rows, unit)
    return Gather(arena, unit, base + first, indices, rows, unit)
