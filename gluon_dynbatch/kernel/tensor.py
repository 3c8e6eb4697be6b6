"""Arrays with several axes, built of expressions, and calls of operators on them.

The elements of an array, in row-major order, are the columns of a node.  So an operation along an
axis is done piece by piece: there is one piece of the columns for each index of the axes before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Callable, List, Optional, Sequence, Tuple, Union

import numpy as np

from ..rules.site import Shape, Site, padded, require
from ..schedule.dependencies import Array
from .arithmetic import Arithmetic
from .expression import Expressions, Node
from .layout import Columns, Order, Repeats
from .recognize import SUM, is_truth

#: Dtypes that kernels compute with; and with integers, which they read as indices, and on which
#: they compute some functions.
FLOAT_DTYPES = ("float32", "float64")
INDEX_DTYPES = (*FLOAT_DTYPES, "int32", "int64")
#: The dtypes of arrays of launches, and the dtype in which kernels have booleans: as 0 and 1.
STORED_DTYPES = (*INDEX_DTYPES, "bool")
TRUTHS_DTYPE = "float32"
#: The functions of integers, and those of them without a derivative.  MXNet computes others, such
#: as the absolute value, in floats.
NOT_DERIVED = frozenset(["div"])
INTEGER_FUNCTIONS = NOT_DERIVED.union(
    ["add", "sub", "mul", "mod", "negative", "sign", "relu", "maximum", "greatest", "minimum"],
    ["select", "clip", "equal", "not_equal", "greater", "greater_equal", "lesser"],
    ["lesser_equal", "logical_and", "logical_or", "logical_xor", "logical_not", "multiplier"],
)
#: Numbers below these are converted to integers exactly.
BOUNDS = {"int32": 2.0**31, "int64": 2.0**53}
#: Functions for which MXNet, in values or gradients, uses constants in single precision.
ROUGH = frozenset(["degrees", "erf", "radians"])
#: With more pieces than these, a kernel is slower than MXNet's operators.
MOST_PIECES = 32
#: As many rows of a matrix are added up one by one.
FEW = 4
#: Longer rows are moved by MXNet's operators, because kernels store an index per element.
MOST_MOVED = 1 << 20


@dataclass(frozen=True)
class Tensor(Arithmetic):
    """An array of a segment."""

    source: Node
    #: For one row of the launch; axis 0 is the axis of rows if each row has its own array.
    shape: Shape
    #: Whether each row of the launch has its own array; otherwise all rows share one.
    per_row: bool
    #: Whether only one operator or result reads it.
    read_once: bool = True
    #: Whether it is an array of booleans: its elements are 0 or 1, of `TRUTHS_DTYPE`.
    truths: bool = False

    @property
    def build(self) -> Expressions:
        """The expressions to which its node belongs."""
        return self.source.owner

    @property
    def dtype(self) -> str:
        """Its dtype."""
        return "bool" if self.truths else self.source.dtype

    def node(self, dtypes: Sequence[str] = FLOAT_DTYPES) -> Node:
        """Return the elements; refuse if their dtype is not one of `dtypes`."""
        require(self.dtype in dtypes, f"{self.dtype} has no native steps")
        return self.source

    def copied(self, dtypes: Sequence[str] = FLOAT_DTYPES) -> Node:
        """Return the elements as `node` does; an array that all rows share is copied to each."""
        node = self.node(dtypes)
        return self.build.whole(node) if node.kind == "read" and node.attrs[1] else node

    def elements(self) -> Node:
        """Return the elements of any dtype, through which gradients may flow."""
        node = self.node(STORED_DTYPES)
        # Sums over rows, such as the gradient of a shared array, are not computed for integers.
        is_summed = self.build.recorded and not (self.per_row or node.dtype in FLOAT_DTYPES)
        require(not is_summed, "all rows share its integers")
        return node

    def with_node(self, node: Node, shape: Optional[Shape] = None, per_row: bool = False) -> Tensor:
        """Return an array with other elements, which is per row if this one or `per_row` is."""
        shape = self.shape if shape is None else shape
        assert node.width == prod(shape), (node, shape)
        return Tensor(node, shape, self.per_row or per_row, truths=self.truths)

    def reshaped(self, shape: Sequence[int]) -> Tensor:
        """Return the same elements in another shape."""
        return replace(self, shape=tuple(shape))

    def cast(self, dtype: str) -> Tensor:
        """Convert to another dtype."""
        require(dtype in STORED_DTYPES, f"{dtype} has no native steps")
        if dtype == self.dtype:
            return self
        if dtype == "bool":
            return self._truths()
        return replace(self.with_node(self.build.cast(self.elements(), dtype)), truths=False)

    def _truths(self) -> Tensor:
        """Convert to booleans."""
        node = self.elements()
        if not is_truth(node):
            # Its gradient in MXNet is not the derivative, which is zero.
            require(not self.build.recorded, "it makes booleans of numbers")
            node = self.apply("not_equal", self, 0).elements()
        return replace(self.with_node(self.build.cast(node, TRUTHS_DTYPE)), truths=True)

    def index(self, dtype: str) -> Tensor:
        """Convert indices to another dtype, by way of integers of 32 bits, as MXNet does."""
        require(dtype in INDEX_DTYPES, f"{dtype} has no native steps")
        return self.with_node(self.build.cast(self.node(INDEX_DTYPES), dtype, "index"))

    def refuse_axis_of_rows(self, *axes: int) -> None:
        """Refuse if one of `axes` is the axis of rows."""
        require(not self.per_row or 0 not in axes, "it works along the axis of rows")

    def gathered(self, indices: Array, per_row: bool = False) -> Tensor:
        """Return the elements at flat `indices`, in their shape."""
        is_whole = indices.size == prod(self.shape) and (np.diff(indices.ravel()) == 1).all()
        if is_whole and self.per_row >= per_row:
            return self.reshaped(indices.shape)
        node = _gathered(self.elements(), indices.ravel(), self.per_row)
        return self.with_node(node, indices.shape, per_row)

    def broadcast(self, shape: Shape, per_row: bool = False) -> Tensor:
        """Repeat elements along axes of extent 1."""
        if self.shape == shape and self.per_row >= per_row:
            return self
        require_movable(prod(shape))
        indices = np.arange(prod(self.shape)).reshape(self.shape)
        return self.gathered(np.broadcast_to(indices, shape), per_row)

    def apply(
        self, name: str, *args: Union[Tensor, float], values: Tuple[float, ...] = ()
    ) -> Tensor:
        """Apply a function to arrays, which are broadcast, and numbers."""
        is_rough = name in ROUGH and self.dtype == "float64"
        require(not is_rough, f"MXNet computes {name} of float64 in lower precision")
        tensors = [a for a in args if isinstance(a, Tensor)]
        require(len({t.dtype for t in tensors}) == 1, "dtypes differ")
        if self.dtype not in FLOAT_DTYPES:
            numbers = [a for a in args if not isinstance(a, Tensor)]
            self._require_integers(name, *numbers, *values)
        shape, per_row = common_shape(tensors), any(t.per_row for t in tensors)
        nodes = (
            a.broadcast(shape, per_row).elements() if isinstance(a, Tensor) else a for a in args
        )
        return self.with_node(self.build.function(name, *nodes, values=values), shape, per_row)

    def _require_integers(self, name: str, *numbers: float) -> None:
        """Refuse a function and numbers that kernels do not have for integers."""
        require(self.dtype in BOUNDS, f"{self.dtype} has no native steps")
        derived = name not in NOT_DERIVED or not self.build.recorded
        known = name in INTEGER_FUNCTIONS and derived
        require(known, f"{self.dtype} has no native steps for {name}")
        exact = all(abs(x) < BOUNDS[self.dtype] and x == int(x) for x in numbers)
        require(exact, f"a number is not in {self.dtype}")

    def const(self, value: float) -> Tensor:
        """Return an array of this shape, filled with a number."""
        return self.with_node(self.build.const(value, prod(self.shape), self.source.dtype))

    def reduced(self, axes: Sequence[int], reduction: str = SUM) -> Tensor:
        """Reduce axes, which stay with extent 1."""
        self.refuse_axis_of_rows(*axes)
        reduced = [axis for axis in axes if self.shape[axis] != 1]
        if not reduced:
            return self
        low, high = reduced[0], reduced[-1] + 1
        if prod(self.shape[a] for a in reduced) != prod(self.shape[low:high]):
            # Not adjacent.
            return self.reduced(reduced[-1:], reduction).reduced(reduced[:-1], reduction)
        build, results = self.build, []
        outer, count = prod(self.shape[:low]), prod(self.shape[low:high])
        inner = prod(self.shape[high:])
        shape = (*self.shape[:low], *(1,) * (high - low), *self.shape[high:])
        if inner == 1:
            return self.with_node(build.reduced(self.node(), reduction, outer), shape)
        many = max(outer, count) > FEW
        if many and reduction == SUM:
            return self.with_node(build.sums(self.node(), outer, count, inner), shape)
        if many:
            require_movable(outer * count * inner)
            indices = np.arange(outer * count * inner).reshape(outer, count, inner)
            turned = self.gathered(np.moveaxis(indices, 1, 0)).node()
            return self.with_node(_halved(turned, count, reduction), shape)
        for piece in _pieces(self.node(), outer):
            results.append(build.fold(_pieces(piece, count), reduction))
        return self.with_node(build.join(results), shape)


def require_movable(count: int) -> None:
    """Refuse to move so many elements, before an index is made for each."""
    require(count <= MOST_MOVED, "its rows are too long to be moved")


def common_shape(tensors: Sequence[Tensor]) -> Shape:
    """Return the shape to which arrays broadcast; axes of rows must coincide."""
    ndim = max(len(t.shape) for t in tensors)
    any_per_row = any(t.per_row for t in tensors)
    shapes = [padded(t.shape, ndim) for t in tensors]
    common = tuple(max(extents) for extents in zip(*shapes))
    for t, shape in zip(tensors, shapes):
        has_rows = len(t.shape) == ndim and shape[0] == common[0]
        is_aligned = has_rows if t.per_row else shape[0] == 1
        require(is_aligned or not any_per_row, "rows are not along axis 0")
        require(all(n in (1, m) for n, m in zip(shape, common)), "shapes do not fit")
    return common


def _pieces(x: Node, count: int) -> List[Node]:
    """Split the columns into equal pieces."""
    width = x.width // count
    return [x.owner.part(x, number * width, width) for number in range(count)]


def _halved(x: Node, count: int, reduction: str) -> Node:
    """Reduce `count` equal pieces of the columns to one, by reducing each half to the other."""
    build, width = x.owner, x.width // count
    while count > 1:
        half = count // 2
        first, second = (build.part(x, k * half * width, half * width) for k in range(2))
        rest = [build.part(x, 2 * half * width, width)] if count % 2 else []
        x = build.join([build.fold([first, second], reduction), *rest])
        count -= half
    return x


def _gathered(x: Node, indices: Array, per_row: bool) -> Node:
    """Return columns by index, as runs of adjacent or repeated ones if there are few runs."""
    regular = _regular(x, indices)
    if regular is not None:
        return regular
    pieces, start = [], 0
    steps = np.append(np.diff(indices), 2)
    changes = np.append(np.flatnonzero(np.diff(steps)) + 1, len(indices))
    while start < len(indices):
        first, step, last = int(indices[start]), steps[start], start
        if step in (0, 1):
            last = int(changes[np.searchsorted(changes, start, "right")])
        width = last - start + 1
        piece = x.owner.part(x, first, width if step == 1 else 1)
        pieces.append(_repeated(piece, width) if step == 0 else piece)
        start = last + 1
        if len(pieces) > MOST_PIECES and per_row and len(np.unique(indices)) == len(indices):
            return x.owner.permuted(x, Order(indices.tolist()))
        if len(pieces) > MOST_PIECES:
            counts = np.unique(indices, return_counts=True)[1]
            require(
                len(np.unique(counts)) == 1,
                f"its rows fall into more than {MOST_PIECES} pieces",
            )
            return x.owner.repeated(x, Repeats(indices.tolist()))
    return x.owner.join(pieces)


def _regular(x: Node, indices: Array) -> Optional[Node]:
    """Return adjacent columns, each or all of them repeated; None if the indices are others."""
    first = int(indices[0]) if indices.size > 1 else 0
    step = int(indices[1]) - first if indices.size > 1 else -1
    if step not in (0, 1):
        return None
    ends = np.flatnonzero(np.diff(indices) != step)
    size = int(ends[0]) + 1 if ends.size else len(indices)
    if size == len(indices) or len(indices) % size:
        return None
    times = len(indices) // size
    column = first + np.arange(size if step else times)
    if (indices.reshape(times, size) != (column if step else column[:, None])).any():
        return None
    build = x.owner
    if step:
        return build.tiled(build.part(x, first, size), times)
    return build.stretched(build.part(x, first, times), size)


def _repeated(x: Node, width: int) -> Node:
    """Repeat a single column; a function is computed once per row."""
    # Sums are stored, even those of one column, so the loop over all columns reads it from memory.
    is_computed = width > 1 and x.kind == "function" and x.attrs[0] not in ("multiplier", "as_if")
    return x.owner.spread(x.owner.reduced(x) if is_computed else x, width)


@dataclass(frozen=True)
class Call(Site):
    """A call of an operator within a segment, with shapes for one row of the launch."""

    build: Expressions
    tensors: Tuple[Tensor, ...]

    def shared_place(self, number: int, like: int = 0) -> Columns:
        """Return the place of a shared input; refuse if its dtype is not that of input `like`."""
        tensor = self.tensors[number]
        require(tensor.source.kind == "read" and not tensor.per_row, "a factor is computed")
        require(tensor.dtype == self.tensors[like].dtype, "dtypes differ")
        return Columns(tensor.source.attrs[0])

    def number(self, name: str, default: float = 1, single: bool = True) -> float:
        """Read a number; MXNet keeps most attributes in `single` precision."""
        text = self.attrs.get(name, "None")
        value = default if text == "None" else float(text)
        return float(np.float32(value)) if single else value

    def inner_axis(self, default: int = -1) -> int:
        """Read an axis of the first input; refuse if it is the axis of rows."""
        axis = self.axis("axis", default)
        self.tensors[0].refuse_axis_of_rows(axis)
        return axis


#: Returns the result of a call, or a list of results.
TensorHandler = Callable[[Call], Union[Tensor, List[Tensor]]]
