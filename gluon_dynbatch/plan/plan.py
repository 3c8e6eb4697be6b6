"""A plan: the launches of one pass in order, with the place of every operand and result.

Inert data: a plan holds integers, names and segments, never an array of the model.  All values
live in *arenas*, one per (row size, dtype, context).  A place in an arena is counted in elements,
so that a value can be read with another shape than it was written.

The backward pass is a plan, too: its arenas hold gradients, a launch reads the gradients of results
and writes those of operands, and what it fills arenas with are the gradients of heads.
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from ..native import resolving
from ..schedule.dependencies import Array
from ..show.draw import MOST_NODES, draw, plan_html

if TYPE_CHECKING:
    from mxnet import Context

    from ..lower.graph import Graph
    from ..lower.segment import Segment


class Arena(NamedTuple):
    """One buffer."""

    row_size: int
    dtype: str
    context: Context


class Region(NamedTuple):
    """Consecutive rows of an arena."""

    arena: int
    start: int
    rows: int

    def __str__(self) -> str:
        return f"arena {self.arena}[{self.start}:{self.start + self.rows}]"


class Whole(NamedTuple):
    """An array from outside, passed as it is."""

    external: int

    def __str__(self) -> str:
        return f"external {self.external}"


class Slice(NamedTuple):
    """Consecutive elements of an arena, in place; one row is what all members share."""

    arena: int
    element: int
    rows: int
    row_size: int

    def __str__(self) -> str:
        return f"arena {self.arena}[{self.element}:{self.element + self.rows * self.row_size}]"


class Rows(NamedTuple):
    """Rows that are put together: copied, and added up where several are read."""

    #: Which pieces of the plan.
    first: int
    pieces: int
    rows: int
    row_size: int

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.pieces} pieces"


Operand = Union[Whole, Slice, Rows]

#: What a place may be, by number.
PLACES = None, Whole, Slice, Rows, Region


class Part(NamedTuple):
    """Members of a launch whose arrays have equal sizes."""

    segment: Segment
    rows: int


class Launch(NamedTuple):
    """One run of a segment for all its members, forward or backward: what tables say of it."""

    #: Of a backward run, the number of the forward run.
    number: int
    #: The segment of the first part, which tells of all what does not depend on sizes.
    segment: Segment
    #: What is run, once for each size that arrays have; the segments are equal but for that.
    parts: Tuple[Part, ...]
    #: Member units, in the order of their rows.
    units: Array
    #: Per input of the segment; backward, per result its gradient, None if there is none.
    operands: Tuple[Optional[Operand], ...]
    #: Per result of the segment; backward, per input its gradient, None if there is none.
    outputs: Tuple[Optional[Region], ...]

    @property
    def regions(self) -> Iterator[Region]:
        """What is written."""
        return (region for region in self.outputs if region is not None)


class Fill(NamedTuple):
    """Arrays from outside that are copied side by side into an arena."""

    region: Region
    #: Numbers of arrays; backward, of heads.
    externals: Array
    #: Elements of each.
    counts: Array

    @property
    def starts(self) -> Array:
        """First element of each within the region."""
        return np.cumsum(self.counts) - self.counts

    def pieces(self, arrays: Array) -> Array:
        """Return the pieces that make up the region, given numbers for the arrays."""
        return pieces_of(resolving.COPY, self.starts, arrays, 0, self.counts)


class Reads(NamedTuple):
    """What operands are made of: elements of regions that belong somewhere in an operand.

    Arrays of one length.  Forward, they are in the order of operands, summands and members; all
    members share what a shared operand reads.
    """

    #: Rows of the tables `Plan.operands` and `Plan.regions`.
    operand: Array
    region: Array
    #: First element within the operand, number of elements, and first element within the region.
    target: Array
    length: Array
    element: Array


class Ports(NamedTuple):
    """The inputs, or the results, of segments or of launches, numbered in their order."""

    #: Per segment or launch, one more at the end: its first port.
    first: Array
    #: As in `Port`; the type of elements and the device are a number.
    row_size: Array
    kind: Array
    shared: Array
    differentiable: Array
    concat: Array

    @classmethod
    def of(cls, tables: Sequence[bytes]) -> Ports:
        """Put together what segments have as their columns."""
        table = np.frombuffer(b"".join(tables), dtype=np.int64).reshape((-1, 5))
        return cls(np.cumsum([0, *map(len, tables)]) // table.strides[0], *table.T)

    def of_launches(self, segment: Array) -> Ports:
        """Return the ports of launches, given the numbers of their segments."""
        counts = np.diff(self.first)[segment]
        first = np.concatenate([[0], np.cumsum(counts)])
        own = np.repeat(self.first[segment] - first[:-1], counts) + np.arange(first[-1])
        return Ports(first, *(column[own] for column in self[1:]))

    def sums(self, column: Array) -> Array:
        """Add up a column per segment or launch."""
        return np.diff(np.concatenate([[0], np.cumsum(column)])[self.first])


class Members(NamedTuple):
    """The units of launches."""

    #: Per unit its launch; and the units in the order of launches and of their rows.
    launch: Array
    units: Array
    #: Per launch, one more at the end: where its units begin, and its parts.
    first: Array
    part0: Array
    #: Per part its segment and its rows.
    segment: Array
    rows: Array


class Plan(NamedTuple):
    """The launches of one pass, as tables.

    What launches read and write are places.  A place is the number of a type in `PLACES`, its first
    two fields, its rows, and the elements of each.
    """

    graph: Graph
    #: Of all launches forward, in both directions; and per launch its segment.
    members: Members
    segment: Array
    #: Numbers of the launches that run, in their order.
    order: Array
    #: What launches read and write, in the order of their numbers.
    inputs: Ports
    outputs: Ports
    #: A place per input; backward also, per fill of the forward plan, for its gradient.
    operands: Array
    #: A place per output, and per fill.
    regions: Array
    #: Per fill: numbers of arrays, and elements of each.
    filled: Tuple[Tuple[Array, Array], ...]
    #: Types of elements and devices by number.
    kinds: Sequence[Tuple[str, Context]]
    arenas: Tuple[Arena, ...]
    #: Rows per arena.
    sizes: Tuple[int, ...]
    #: What operands are put together from, shape (pieces, 5): COPY, ADD or ZERO, the first element
    #: in the operand, arena and first element of what is read, and how many elements.
    pieces: Array
    reads: Reads
    #: Forward, per term number (slots, then externals from the last on) its region, or -1, and the
    #: arena and first element.
    region_of: Array
    arena_of: Array
    element_of: Array

    def segments(self, number: int) -> List[Segment]:
        """Return the segments of the parts of a launch."""
        parts = slice(*self.members.part0[number : number + 2])
        return [self.graph.segments[k] for k in self.members.segment[parts].tolist()]

    def launch(self, number: int) -> Launch:
        """Return a launch as an object."""
        members, own, segments = self.members, slice(number, number + 2), self.segments(number)
        return Launch(
            number,
            segments[0],
            tuple(map(Part, segments, members.rows[slice(*members.part0[own])].tolist())),
            members.units[slice(*members.first[own])],
            objects(self.operands[slice(*self.inputs.first[own])]),
            objects(self.regions[slice(*self.outputs.first[own])]),
        )

    @property
    def launches(self) -> Tuple[Launch, ...]:
        """All launches that run, in order."""
        return tuple(map(self.launch, self.order.tolist()))

    @property
    def fills(self) -> Tuple[Fill, ...]:
        """What arenas are filled with before."""
        regions = objects(self.regions[self.outputs.first[-1] :])
        return tuple(Fill(region, *own) for region, own in zip(regions, self.filled))

    @property
    def results(self) -> Tuple[Optional[Operand], ...]:
        """Backward, per fill of the forward plan its gradient, None if there is none."""
        return objects(self.operands[self.inputs.first[-1] :])

    def place(self, term: int) -> Tuple[int, int]:
        """Return arena and first element of a term."""
        return int(self.arena_of[term]), int(self.element_of[term])

    def stretches(self, operand: Optional[Operand]) -> Iterator[Tuple[int, int, int]]:
        """Yield what an operand reads of arenas: arena, first element, and how many elements."""
        if isinstance(operand, Rows):
            for what, _, *stretch in self.pieces[operand.first :][: operand.pieces].tolist():
                if what != resolving.ZERO:
                    yield tuple(stretch)
        elif isinstance(operand, Slice):
            yield operand.arena, operand.element, operand.rows * operand.row_size

    @property
    def arena_bytes(self) -> int:
        """Bytes that the arenas take."""
        return sum(
            rows * arena.row_size * np.dtype(arena.dtype).itemsize
            for rows, arena in zip(self.sizes, self.arenas)
        )

    @property
    def rows_gathered(self) -> int:
        """Rows that are copied to stand side by side."""
        return int(self.operands[self.operands[:, 0] == resolving.TOGETHER, 3].sum())

    def draw(self, limit: int = MOST_NODES) -> Any:
        """Draw the launches and the rows that flow between them, with Graphviz.

        Parameters
        ----------
        limit : int
            Largest number of launches that are drawn one by one.  If there are more, launches that
            run the same are one node, with a row of bars for their widths.

        Returns
        -------
        graphviz.Digraph
            Notebooks display it; ``format="svg"`` and ``render("plan")`` write a file.

        Raises
        ------
        MissingError
            Graphviz is not installed.
        """
        return draw(self, limit)

    def _repr_html_(self) -> str:
        return plan_html(self)

    def __str__(self) -> str:
        lines = [
            f"arena {i}: {rows} rows of {a.row_size} {a.dtype} on {a.context}"
            for i, (rows, a) in enumerate(zip(self.sizes, self.arenas))
        ]
        for fill in self.fills:
            lines.append(f"fill    {fill.region} <- {len(fill.externals)} arrays from outside")
        for launch in self.launches:
            made, read = (", ".join(map(_text, x)) for x in (launch.outputs, launch.operands))
            kind = f" ({launch.segment.layout})" if launch.segment.layout != "rows" else ""
            parts = f" in {len(launch.parts)} parts" if len(launch.parts) > 1 else ""
            name = f"{self.graph.name(int(launch.units[0]))}{kind} x{len(launch.units)}{parts}"
            lines.append(f"{launch.number:<7d} {made} <- {name}({read})")
        lines += [f"fill {i}  <- {_text(found)}" for i, found in enumerate(self.results)]
        if not self.results:
            lines += self._steps()
        return "\n".join(lines)

    def _steps(self) -> Iterator[str]:
        """Say what launches do: the steps of each segment, or why it has none."""
        numbers: Dict[Segment, List[int]] = {}
        for launch in self.launches:
            for part in launch.parts:
                numbers.setdefault(part.segment, []).append(launch.number)
        for segment, own in numbers.items():
            kernels = segment.kernels
            if kernels is None:
                continue
            many = "launch " if len(own) == 1 else "launches "
            yield f"{many}{', '.join(map(str, own))}:"
            if isinstance(kernels, str):
                yield f"    by MXNet: {kernels}"
            else:
                yield from (f"    {step}" for step in kernels.forward.steps)


def pieces_of(what: int, targets: Array, *columns: Any) -> Array:
    """Return pieces with which the same is done: see `Plan`; columns may be single numbers."""
    pieces = np.empty((len(targets), 5), dtype=np.int64)
    for i, column in enumerate((what, targets, *columns)):
        pieces[:, i] = column
    return pieces


def places_of(rows: Any, row_size: Any) -> Array:
    """Return a table of places that have rows of some size."""
    places = np.zeros((len(row_size), 5), dtype=np.int64)
    places[:, 3], places[:, 4] = rows, row_size
    return places


def objects(places: Array) -> Tuple[Any, ...]:
    """Return some rows of a table of places as what they are: None, or named tuples."""
    kinds = ((PLACES[what], fields) for what, *fields in places.tolist())
    return tuple(kind and kind(*fields[: len(kind._fields)]) for kind, fields in kinds)


def _text(place: Optional[object]) -> str:
    return "-" if place is None else str(place)
