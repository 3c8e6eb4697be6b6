"""Launches and fills as objects, and the places that they read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional, Tuple, Union

import numpy as np

from ..native import planning
from ..schedule.dependencies import Array

if TYPE_CHECKING:
    from mxnet import Context

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
    """An external array, read where it is."""

    external: int

    def __str__(self) -> str:
        return f"external {self.external}"


class Slice(NamedTuple):
    """Consecutive elements of an arena, read in place; a single row if all members share it."""

    arena: int
    element: int
    rows: int
    row_size: int

    def __str__(self) -> str:
        return f"arena {self.arena}[{self.element}:{self.element + self.rows * self.row_size}]"


class Rows(NamedTuple):
    """Rows that are gathered into a buffer, and summed where several are read."""

    #: First of their pieces in `Plan.pieces`.
    first: int
    pieces: int
    rows: int
    row_size: int

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.pieces} pieces"


Operand = Union[Whole, Slice, Rows]

Location = Union[Operand, Region]
#: Columns of a table of places, see `objects`: the number of the type, or 0 if there is no place;
#: two numbers that depend on the type; the number of rows; and the elements of a row.
TYPE, FIRST, SECOND, ROWS, ROW_SIZE = range(5)


class Part(NamedTuple):
    """Members of a launch whose arrays have equal sizes."""

    segment: Segment
    rows: int


class Launch(NamedTuple):
    """One run of a segment for all its members, forward or backward, as an object."""

    #: A backward launch has the number of its forward launch.
    number: int
    #: The segment of the first part; those of other parts differ in sizes only.
    segment: Segment
    #: One part for each set of array sizes.
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
    """External arrays that are copied side by side into an arena."""

    region: Region
    #: Numbers of the arrays; in a backward plan, of heads.
    externals: Array
    #: Elements of each.
    counts: Array

    @property
    def starts(self) -> Array:
        """First element of each within the region."""
        return np.cumsum(self.counts) - self.counts

    def pieces(self, arrays: Array) -> Array:
        """Return the pieces that fill the region from arrays with these numbers."""
        return pieces_of(planning.COPY, self.starts, arrays, 0, self.counts)


class CopiedPiece(NamedTuple):
    """A row of a table of pieces: elements that are copied, added, or set to zero."""

    #: COPY, ADD or ZERO.
    action: int
    #: First element in the operand.
    target: int
    #: Arena and first element of the source.
    arena: int
    element: int
    #: Number of elements.
    length: int


def pieces_in(table: Array) -> Iterator[CopiedPiece]:
    """Yield the rows of a table of pieces as objects."""
    return map(CopiedPiece._make, table.tolist())


def pieces_of(action: int, targets: Array, arrays: Any, elements: Any, counts: Any) -> Array:
    """Return a table of pieces with one action; the last three may be scalars.

    `arrays` has numbers of arrays in the place of arenas, and `elements` the first elements there.
    """
    pieces = np.empty((len(targets), 5), dtype=np.int64)
    for i, column in enumerate((action, targets, arrays, elements, counts)):
        pieces[:, i] = column
    return pieces


def empty_places(rows: Any, row_size: Any) -> Array:
    """Return a table of places with these rows and row sizes, and no location yet."""
    places = np.zeros((len(row_size), 5), dtype=np.int64)
    places[:, ROWS], places[:, ROW_SIZE] = rows, row_size
    return places


def objects(places: Array) -> Tuple[Any, ...]:
    """Return rows of a table of places as objects, None where there is no place."""
    return tuple(None if place[TYPE] == 0 else _object(*place) for place in places.tolist())


def _object(number: int, first: int, second: int, rows: int, row_size: int) -> Location:
    if number == planning.WHOLE:
        return Whole(external=first)
    if number == planning.SLICE:
        return Slice(arena=first, element=second, rows=rows, row_size=row_size)
    if number == planning.TOGETHER:
        return Rows(first=first, pieces=second, rows=rows, row_size=row_size)
    return Region(arena=first, start=second, rows=rows)
