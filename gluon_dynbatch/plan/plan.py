"""A plan: the launches of one pass in order, with a memory location for every operand and result.

A plan has integers, names and segments, but no values.  (A segment refers to the parameters that it
uses.)  All values live in *arenas*, one per (row size, dtype, context).  Locations are counted in
elements, so that a value can be read with another shape than it was written with.

The backward pass is a plan as well.  Its arenas hold gradients: a launch reads the gradients of its
results and writes those of its operands, and the fills are the gradients of heads.
"""

from __future__ import annotations

from itertools import chain
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from ..errors import ScopeError, Where
from ..native import planning
from ..report.report import Report
from ..report.summary import counted
from ..schedule import lower_bound
from ..schedule.dependencies import Array
from ..show.draw import MOST_NODES, MOST_TABLE_ROWS, Picture, draw, plan_html
from .flow import ends, flow, groups, piece_of
from .launch import (
    FIRST,
    ROW_SIZE,
    ROWS,
    SECOND,
    TYPE,
    Arena,
    Fill,
    Launch,
    Operand,
    Part,
    Rows,
    Slice,
    objects,
    pieces_in,
)

#: Most letters of a native step in the text of a plan.
MOST_LETTERS = 160

if TYPE_CHECKING:
    from mxnet import Context

    from ..kernel.kernels import KernelsOrReason
    from ..lower.graph import Graph
    from ..lower.segment import Segment


class Reads(NamedTuple):
    """The elements of regions that operands read; arrays of one length.

    In a forward plan, they are in the order of operands, terms and members.  The read of an
    operand that all members share is listed once.
    """

    #: Rows of the tables `Plan.operands` and `Plan.regions`.
    operand: Array
    region: Array
    #: First element within the operand, number of elements, and first element within the region.
    target: Array
    length: Array
    element: Array


class Ports(NamedTuple):
    """All inputs, or all outputs, of a list of segments or launches."""

    #: Per segment or launch, one more at the end: its first port.
    first: Array
    #: Per port, as in `Port`; `kind` numbers pairs of dtype and context.
    row_size: Array
    kind: Array
    shared: Array
    differentiable: Array
    concat: Array


class Members(NamedTuple):
    """The members of all launches."""

    #: Per unit its launch; and all units, by launch and in the order of their rows.
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

    Launches read and write places; `TYPE` and others are the columns of a table of places.
    """

    graph: Graph
    #: Per segment of the graph its native kernels, or the reason why MXNet's operators run it.
    kernels: Tuple[KernelsOrReason, ...]
    #: The members of forward launches, in both directions; and per launch its segment.
    members: Members
    segment: Array
    #: Numbers of the launches that run, in the order of execution.
    order: Array
    #: What launches read and write, by number of the launch.
    inputs: Ports
    outputs: Ports
    #: A place per input; in a backward plan also one per forward fill, for its gradient.
    operands: Array
    #: A place per output, then one per fill.
    regions: Array
    #: Per fill: numbers of arrays, and elements of each.
    filled: Tuple[Tuple[Array, Array], ...]
    #: Pairs of dtype and context, by number.
    kinds: Sequence[Tuple[str, Context]]
    arenas: Tuple[Arena, ...]
    #: Number of rows per arena.
    sizes: Tuple[int, ...]
    #: The pieces of gathered operands, with a row for each, see `CopiedPiece`.
    pieces: Array
    reads: Reads
    #: Forward, per term (slots, then externals from the last to the first): its region, or -1, and
    #: its first element there.
    region_of: Array
    element_of: Array

    def segments(self, number: int) -> List[Segment]:
        """Return the segment of each part of a launch."""
        parts = slice(*self.members.part0[number : number + 2])
        return [self.graph.segments[k] for k in self.members.segment[parts].tolist()]

    def kernels_of(self, number: int) -> KernelsOrReason:
        """Return the kernels of the first part of a launch, or the reason why there are none."""
        kernels: KernelsOrReason = self.kernels[self.segment[number]]
        return kernels

    def launch(self, number: int) -> Launch:
        """Return a launch as an object."""
        members, bounds, segments = self.members, slice(number, number + 2), self.segments(number)
        return Launch(
            number=number,
            segment=segments[0],
            parts=tuple(map(Part, segments, members.rows[slice(*members.part0[bounds])].tolist())),
            units=members.units[slice(*members.first[bounds])],
            operands=objects(self.operands[slice(*self.inputs.first[bounds])]),
            outputs=objects(self.regions[slice(*self.outputs.first[bounds])]),
        )

    @property
    def launches(self) -> Tuple[Launch, ...]:
        """All launches that run, in order."""
        return tuple(map(self.launch, self.order.tolist()))

    @property
    def fills(self) -> Tuple[Fill, ...]:
        """The copies of external arrays into arenas, before the first launch."""
        regions = objects(self.regions[self.outputs.first[-1] :])
        return tuple(Fill(region, *filled) for region, filled in zip(regions, self.filled))

    @property
    def results(self) -> Tuple[Optional[Operand], ...]:
        """In a backward plan, the gradient of each forward fill, or None if it has none."""
        return objects(self.operands[self.inputs.first[-1] :])

    def locate(self, terms: Array) -> Tuple[Array, Array]:
        """Return the arenas and first elements of terms."""
        regions = self.regions[self.region_of[terms]]
        start = regions[:, SECOND] * regions[:, ROW_SIZE]
        return regions[:, FIRST], start + self.element_of[terms]

    def stretches(self, operand: Optional[Operand]) -> Iterator[Tuple[int, int, int]]:
        """Yield arena, first element and number of elements of each read of an operand."""
        if isinstance(operand, Rows):
            for piece in pieces_in(self.pieces[operand.first :][: operand.pieces]):
                if piece.action != planning.ZERO:
                    yield piece.arena, piece.element, piece.length
        elif isinstance(operand, Slice):
            yield operand.arena, operand.element, operand.rows * operand.row_size

    @property
    def arena_bytes(self) -> int:
        """Size of all arenas in bytes."""
        return sum(
            rows * arena.row_size * np.dtype(arena.dtype).itemsize
            for rows, arena in zip(self.sizes, self.arenas)
        )

    @property
    def rows_gathered(self) -> int:
        """Number of rows that launches gather because they are not contiguous."""
        return int(self.operands[self.operands[:, TYPE] == planning.TOGETHER, ROWS].sum())

    @property
    def fewest_launches(self) -> int:
        """How many launches any grouping of the same units needs at least.

        Some units depend on each other, and others are of different kinds, so they need launches of
        their own.  It takes some milliseconds for thousands of units.
        """
        return lower_bound(self.graph.dependencies)

    def draw(self, limit: int = MOST_NODES) -> Any:
        """Draw the launches and the rows that flow between them, with Graphviz.

        Parameters
        ----------
        limit : int
            Largest number of nodes.  If there are more launches, equal ones that follow each other
            are one node, such as the steps of a chain, with a row of bars for their widths.

        Returns
        -------
        graphviz.Digraph
            Notebooks display it; ``format="svg"`` and ``render("plan")`` write a file.

        Raises
        ------
        MissingError
            Graphviz is not installed.
        """
        return draw(self.picture(limit))

    def picture(self, limit: int) -> Picture:
        """Return nodes and edges of the picture."""
        parts, fills = groups(self.launches, self.graph, limit), self.fills
        arenas = [(rows, arena.row_size) for rows, arena in zip(self.sizes, self.arenas)]
        edges = flow(parts, fills, self.results, arenas, self.stretches)
        nodes = {key: group.node for key, group in parts.items()}
        return Picture(nodes, ends(edges, len(fills), bool(self.results)), edges)

    def _repr_html_(self) -> str:
        graph = self.graph
        nodes = [group.node for group in groups(self.launches, graph, MOST_TABLE_ROWS).values()]
        number = counted(len(graph.entry), graph.dependencies.size, len(self.order))
        return plan_html(f"{number}; {self.arena_bytes / 1e6:.1f} MB", nodes, str(self))

    def __str__(self) -> str:
        lines = [
            f"arena {i}: {rows} rows of {a.row_size} {a.dtype} on {a.context}"
            for i, (rows, a) in enumerate(zip(self.sizes, self.arenas))
        ]
        for fill in self.fills:
            count = len(fill.externals)
            lines.append(f"fill    {fill.region} <- {count} external array{'s' * (count > 1)}")
        for launch in self.launches:
            written, read = (", ".join(map(_text, x)) for x in (launch.outputs, launch.operands))
            layout = f" ({launch.segment.layout})" if launch.segment.layout != "rows" else ""
            parts = f" in {len(launch.parts)} parts" if len(launch.parts) > 1 else ""
            piece = piece_of(self.graph, launch)
            called = self.graph.name(int(launch.units[0])) + f": {piece}" * bool(piece)
            name = f"{called}{layout} x{len(launch.units)}{parts}"
            lines.append(f"{launch.number:<7d} {written} <- {name}({read})")
        lines += [f"fill {i}  <- {_text(gradient)}" for i, gradient in enumerate(self.results)]
        if not self.results:
            lines += self._steps()
        return "\n".join(lines)

    def _steps(self) -> Iterator[str]:
        """Yield lines with the native steps of launches, or the reason why they have none.

        Segments of other sizes often have the same steps, which are shown once.
        """
        launches: dict[Tuple[str, ...], List[int]] = {}
        for number in self.order.tolist():
            parts = slice(*self.members.part0[number : number + 2])
            for segment in dict.fromkeys(self.members.segment[parts].tolist()):
                kernels = self.kernels[segment]
                if isinstance(kernels, str):
                    lines = [f"by MXNet: {kernels}"]
                else:
                    lines = [_shortened(str(step)) for step in kernels.forward.steps]
                numbers = launches.setdefault(tuple(lines), [])
                numbers += [number] * (number not in numbers[-1:])
        for steps, numbers in launches.items():
            yield f"launch{'es' * (len(numbers) > 1)} {ranges(numbers)}:"
            yield from (f"    {step}" for step in steps)


def _shortened(line: str) -> str:
    """Return a line, or its beginning and how long it is."""
    return line if len(line) <= MOST_LETTERS else f"{line[:MOST_LETTERS]} ... ({len(line)} letters)"


class NoPlan:
    """In place of the plan of a scope that has none: false, and a text that says why.

    Any other use raises `ScopeError`.
    """

    def __init__(self, report: Report, line: Callable[[], Where]):
        self._report, self._line = report, line

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        at_once = self._report.at_once
        why = f"{at_once} calls ran at once" if at_once else "no recorded call has been computed"
        if self._report.is_open:
            why += ", and the scope is still open"
        return f"there is no plan: {why}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python and notebooks ask for such names
            raise AttributeError(name)
        advice = (
            "print the report, which says why; a scope with an option, such as "
            'granularity="operator", records all calls'
        )
        raise ScopeError(str(self), self._line(), advice=advice)

    __repr__ = __str__


def ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers, with their ranges.

    >>> ranges([1]), ranges([1, 2, 4, 5, 6])
    ('1', '1, 2, 4-6')
    """
    runs: List[List[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = (map(str, run) if len(run) < 3 else [f"{run[0]}-{run[-1]}"] for run in runs)
    return ", ".join(chain.from_iterable(texts))


def _text(place: Optional[object]) -> str:
    return "-" if place is None else str(place)
