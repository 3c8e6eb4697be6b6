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
PLACES = type(None), Whole, Slice, Rows, Region


class Part(NamedTuple):
    """Members of a launch whose arrays have equal sizes."""

    segment: Segment
    rows: int


class Launch(NamedTuple):
    """One run of a segment for all its members, forward or backward."""

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
    """What operands are made of: pieces of arenas that belong somewhere in an operand.

    Arrays of one length.  Forward, the operands of all launches are numbered in their order, and
    reads are in the order of operands, summands and members; all members share what a shared
    operand reads.  Backward, operands are the gradients of results and of fills, so numbered.
    """

    operand: Array
    #: The target that is read, see `Plan.target_of`; backward, the operand forward whose gradient
    #: is read, or -1 for a head.
    source: Array
    #: First element within the operand, and number of elements.
    target: Array
    length: Array
    #: Place that is read.
    arena: Array
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


class Columns(NamedTuple):
    """What the launches of a forward plan are, as numbers, for who looks at all of them."""

    #: Per unit its launch.
    launch: Array
    #: Per launch its segment.
    segment: Array
    inputs: Ports
    outputs: Ports
    #: Operands, and the regions of results and then of fills, as a table of places: its columns are
    #: the number of a type in `PLACES`, the first two fields, rows, and elements of a row.
    operands: Array
    regions: Array
    #: Type of elements and device by number.
    kinds: Sequence[Tuple[str, Context]]


class Plan(NamedTuple):
    """The launches of one pass."""

    graph: Graph
    launches: Tuple[Launch, ...]
    fills: Tuple[Fill, ...]
    arenas: Tuple[Arena, ...]
    #: Rows per arena.
    sizes: Tuple[int, ...]
    #: What operands are put together from, shape (pieces, 5): COPY, ADD or ZERO, the first element
    #: in the operand, arena and first element of what is read, and how many elements.
    pieces: Array
    reads: Reads
    #: Of launches forward, in both directions.
    columns: Columns
    #: Forward, arena and first element per term number: slots, then externals from the last on.
    arena_of: Array
    element_of: Array
    #: And the target that it is a part of, -1 if of none: results of all launches are numbered in
    #: their order, then fills.
    target_of: Array
    #: Backward, per fill of the forward plan its gradient, None if there is none.
    results: Tuple[Optional[Operand], ...] = ()

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
        operands = [o for launch in self.launches for o in launch.operands]
        return sum(o.rows for o in (*operands, *self.results) if isinstance(o, Rows))

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
            sizes = f" of {len(launch.parts)} sizes" if len(launch.parts) > 1 else ""
            name = f"{self.graph.name(int(launch.units[0]))}{kind} x{len(launch.units)}{sizes}"
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


def resolve(places: Array, reads: Reads) -> Array:
    """Find out how operands are read: in place, or put together from pieces.

    Parameters
    ----------
    places : numpy.ndarray of int64, shape (operands, 5)
        A table, in which rows and elements of each row are known.
    reads : Reads
        What to read.  Several reads of one element are added up, in their order.

    Returns
    -------
    numpy.ndarray of int64, shape (pieces, 5)
        All pieces.
    """
    operand, _, *columns = reads
    pieces = resolving.resolve(places, operand, *columns)
    return np.frombuffer(pieces, dtype=np.int64).reshape((-1, 5))


def arenas_of(layout: resolving.Layout, kinds: Sequence[Tuple[str, Context]]) -> Tuple[Any, Any]:
    """Return the arenas that were laid out, and their rows."""
    arenas = (Arena(row_size, *kinds[kind]) for row_size, kind in layout.numbers)
    return tuple(arenas), tuple(layout.sizes)


def _text(place: Optional[object]) -> str:
    return "-" if place is None else str(place)
