"""Arrays of a segment, of several axes: broadcast, moved, reduced; and its operators' calls.

An array is some columns of a row.  Elements lie one after another in the order of the axes, so what
an operator does along an axis is done to pieces of the columns, one for each element of the axes
before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Callable, List, Optional, Sequence, Tuple, Union

import numpy as np

from ..rules.site import Site, require
from ..schedule.dependencies import Array
from .expression import TOTAL, Arithmetic, Expressions, Node
from .layout import Order, Place

Shape = Tuple[int, ...]

#: Element types that kernels know, and those that they read numbers of places from.
DTYPES = ("float32", "float64")
NUMBERS = (*DTYPES, "int32", "int64")
#: Of doubles MXNet computes these, or their gradients, with constants in single precision.
ROUGH = frozenset(["degrees", "erf"])
#: More pieces than these make a kernel slower than MXNet's operators.
MOST_PIECES = 32
#: Longer rows are moved by MXNet's operators: here each element would have a number.
MOST_MOVED = 1 << 20


@dataclass(frozen=True)
class Tensor(Arithmetic):
    """An array of a segment."""

    #: Its elements.
    source: Node
    #: Axis 0 is counted per row of the launch.
    shape: Shape
    #: Whether each row of a launch has its own; else all rows share it.
    rows: bool
    #: Whether there is only one reader.
    once: bool = True

    @property
    def build(self) -> Expressions:
        """What makes others."""
        return self.source.owner

    @property
    def dtype(self) -> str:
        """The type of its elements."""
        return self.source.dtype

    def node(self, dtypes: Sequence[str] = DTYPES) -> Node:
        """Return the elements, to compute with them."""
        require(self.dtype in dtypes, f"{self.dtype} has no kernels")
        return self.source

    def of(self, node: Node, shape: Optional[Shape] = None, rows: bool = False) -> Tensor:
        """Return an array, of rows if this one is, with other elements."""
        shape = self.shape if shape is None else shape
        assert node.width == prod(shape), (node, shape)
        return Tensor(node, shape, self.rows or rows)

    def shaped(self, shape: Sequence[int]) -> Tensor:
        """Return the same elements in another shape."""
        return replace(self, shape=tuple(shape))

    def cast(self, dtype: str) -> Tensor:
        """Return the same numbers in another type."""
        require(dtype in DTYPES, f"{dtype} has no kernels")
        return self if dtype == self.dtype else self.of(self.build.cast(self.node(NUMBERS), dtype))

    def own_axes(self, *axes: int) -> None:
        """Give up if one of these is the axis of rows."""
        require(not self.rows or 0 not in axes, "it works along the axis of rows")

    def moved(self, where: Array, rows: bool = False) -> Tensor:
        """Return the elements that stand at some places."""
        whole = where.size == prod(self.shape) and (np.diff(where.ravel()) == 1).all()
        if whole and self.rows >= rows:
            return self.shaped(where.shape)
        return self.of(_moved(self.node(), where.ravel(), self.rows), where.shape, rows)

    def to(self, shape: Shape, rows: bool = False) -> Tensor:
        """Repeat elements along axes of extent 1."""
        if self.shape == shape and self.rows >= rows:
            return self
        places = np.arange(prod(self.shape)).reshape(self.shape)
        return self.moved(few(np.broadcast_to(places, shape)), rows)

    def apply(
        self, name: str, *args: Union[Tensor, float], values: Tuple[float, ...] = ()
    ) -> Tensor:
        """Return a function of arrays, which are broadcast, and numbers."""
        rough = name in ROUGH and self.dtype == "float64"
        require(not rough, "MXNet computes functions of doubles with single constants")
        tensors = [a for a in args if isinstance(a, Tensor)]
        shape, rows = common_shape(tensors), any(t.rows for t in tensors)
        nodes = (a.to(shape, rows).node() if isinstance(a, Tensor) else a for a in args)
        return self.of(self.build.function(name, *nodes, values=values), shape, rows)

    def const(self, value: float) -> Tensor:
        """Return an array of this shape that is filled with a number."""
        return self.of(self.build.const(value, prod(self.shape), self.dtype))

    def reduced(self, axes: Sequence[int], how: str = TOTAL) -> Tensor:
        """Return sums, or largest elements, along axes, which stay with extent 1."""
        self.own_axes(*axes)
        own = [axis for axis in axes if self.shape[axis] != 1]
        if not own:
            return self
        low, high = own[0], own[-1] + 1
        if prod(self.shape[a] for a in own) != prod(self.shape[low:high]):
            return self.reduced(own[-1:], how).reduced(own[:-1], how)
        build, found = self.build, []
        for piece in _pieces(self.node(), prod(self.shape[:low])):
            if prod(self.shape[high:]) == 1:
                found.append(build.reduced(piece, how))
            else:
                columns = _pieces(piece, prod(self.shape[low:high]))
                found.append(build.reduced_by_two(columns, how))
        kept = (*self.shape[:low], *(1,) * (high - low), *self.shape[high:])
        return self.of(build.join(found), kept)


def few(places: Array) -> Array:
    """Give up if elements are too many to be moved."""
    require(places.size <= MOST_MOVED, "its rows are too long to be moved")
    return places


def common_shape(tensors: Sequence[Tensor]) -> Shape:
    """Return the shape to which arrays are broadcast; rows meet rows only."""
    ndim = max(len(t.shape) for t in tensors)
    rows = any(t.rows for t in tensors)
    shapes = [(1,) * (ndim - len(t.shape)) + t.shape for t in tensors]
    shape = tuple(max(extents) for extents in zip(*shapes))
    for t, own in zip(tensors, shapes):
        aligned = len(t.shape) == ndim and own[0] == shape[0] if t.rows else own[0] == 1
        require(aligned or not rows, "rows are not along axis 0")
        require(all(n in (1, m) for n, m in zip(own, shape)), "shapes do not fit")
    return shape


def _limit(pieces: int) -> None:
    require(pieces <= MOST_PIECES, f"its rows fall into more than {MOST_PIECES} pieces")


def _pieces(x: Node, count: int) -> List[Node]:
    """Return equal parts of the columns."""
    _limit(count)
    width = x.width // count
    return [x.owner.part(x, number * width, width) for number in range(count)]


def _moved(x: Node, order: Array, rows: bool) -> Node:
    """Return columns by number: neighbours and repeated ones together, if these are few."""
    found, at = [], 0
    steps = np.append(np.diff(order), 2)
    changes = np.append(np.flatnonzero(np.diff(steps)) + 1, len(order))
    while at < len(order):
        first, step = int(order[at]), steps[at]
        end = int(changes[np.searchsorted(changes, at, "right")]) if step in (0, 1) else at
        piece = x.owner.part(x, first, end - at + 1 if step == 1 else 1)
        found.append(_spread(piece, end - at + 1) if step == 0 else piece)
        at = end + 1
        if len(found) > MOST_PIECES and rows and len(np.unique(order)) == len(order):
            return x.owner.moved(x, Order(order.tolist()))
        _limit(len(found))
    return x.owner.join(found)


def _spread(x: Node, width: int) -> Node:
    """Return a single column, in so many; a function is computed once."""
    # The sum of a single column is a place for it.
    computed = width > 1 and x.kind == "function" and x.attrs[0] != "multiplier"
    return x.owner.spread(x.owner.reduced(x) if computed else x, width)


@dataclass(frozen=True)
class Call(Site):
    """One operator of a segment; axis 0 of what has rows is counted per row of the launch."""

    build: Expressions
    tensors: Tuple[Tensor, ...]

    def matrix(self, number: int, like: int = 0) -> Place:
        """Return a variable that all rows share, of the type of some input."""
        value = self.tensors[number]
        require(value.source.kind == "read" and not value.rows, "a factor is computed")
        require(value.dtype == self.tensors[like].dtype, "dtypes differ")
        return Place(value.source.attrs[0])

    def number(self, name: str, default: float = 1, single: bool = True) -> float:
        """Read a number, which MXNet keeps in single precision."""
        text = self.attrs.get(name, "None")
        value = default if text == "None" else float(text)
        return float(np.float32(value)) if single else value

    def own_axis(self, default: int = -1) -> int:
        """Read an axis of the first input that is not that of rows."""
        axis = self.axis("axis", default)
        self.tensors[0].own_axes(axis)
        return axis


#: Returns the result, or several.
Handler = Callable[[Call], Union[Tensor, List[Tensor]]]
