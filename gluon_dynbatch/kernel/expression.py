"""What a segment computes for each row, as expressions.

A node stands for some columns of every row of a launch: numbers of one type.  Equal nodes are one
object.  Slices of columns and spread columns are pushed down to where values are in memory, so that
what is left in between are functions of one element at a time.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Callable, Dict, Iterable, List, Literal, Sequence, Tuple, TypeVar, Union

from .layout import Dot, Maps, Order, Place, Slot, Weight

#: What a node stands for.  In memory are what is read, and what a step of its own computes; columns
#: are neighbours, or the same again and again, and what is joined stands side by side.
Kind = Literal[
    "read", "product", "dot", "convolved", "moved", "reduced",
    "const", "ramp", "function", "cast", "columns", "join",
]  # fmt: skip
#: Reductions of columns, and the function of two values that does the same.
TOTAL, TOP = "total", "top"
_OF_TWO = {TOTAL: "add", TOP: "greatest"}

T = TypeVar("T", bound="Arithmetic")


def _operator(name: str, swapped: bool = False) -> Callable[[T, Union[T, float]], T]:
    def method(self: T, other: Union[T, float]) -> T:
        return self.apply(name, *((other, self) if swapped else (self, other)))

    return method


class Arithmetic:
    """What can be added and multiplied with its like and with numbers."""

    __slots__ = ()
    __add__, __radd__ = _operator("add"), _operator("add", swapped=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swapped=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", swapped=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", swapped=True)

    def apply(self: T, name: str, *args: Union[T, float], values: Tuple[float, ...] = ()) -> T:
        """Return a function of such things."""
        raise NotImplementedError

    def __neg__(self: T) -> T:
        return self.apply("negative", self)


class Node(Arithmetic):
    """A value per row; made by `Expressions` only."""

    __slots__ = ("args", "attrs", "dtype", "kind", "number", "owner", "width")

    def __init__(
        self,
        owner: Expressions,
        kind: Kind,
        args: Tuple[Node, ...],
        attrs: Tuple[Any, ...],
        width: int,
        dtype: str,
    ):
        self.owner, self.kind, self.args, self.attrs = owner, kind, args, attrs
        self.width, self.dtype = width, dtype
        #: In topological order.
        self.number = len(owner.nodes)

    def apply(self, name: str, *args: Operand, values: Tuple[float, ...] = ()) -> Node:
        """Return a function of values and numbers."""
        return self.owner.function(name, *args, values=values)

    def pieces(self) -> Iterable[Tuple[int, Node]]:
        """Return what stands side by side in the value, each with its first column."""
        start = 0
        for piece in self.args if self.kind == "join" else (self,):
            yield start, piece
            start += piece.width

    def run(self) -> Tuple[Node, int, int]:
        """Return of what the value has columns, the first, and whether others follow."""
        return (self.args[0], *self.attrs) if self.kind == "columns" else (self, 0, 1)

    def __str__(self) -> str:
        if self.kind == "function":
            name, values = self.attrs
            return f"{name}({', '.join([*map(str, self.args), *(f'{v:g}' for v in values)])})"
        if self.kind in ("const", "read"):
            return str(self.attrs[0])
        attrs = ", ".join(map(str, self.attrs))
        return f"{self.kind}[{attrs}]({', '.join(map(str, self.args))})"


Operand = Union[Node, float]


class Expressions:
    """The expressions of one segment."""

    def __init__(self) -> None:
        self.nodes: List[Node] = []
        self._known: Dict[Any, Node] = {}
        self._moved: Dict[Tuple[Node, int, int, int], Node] = {}

    def _make(
        self,
        kind: Kind,
        args: Sequence[Node],
        attrs: Tuple[Any, ...],
        width: int,
        dtype: str,
    ) -> Node:
        key = kind, tuple(a.number for a in args), attrs, width, dtype
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Node(self, kind, tuple(args), attrs, width, dtype)
            self.nodes.append(found)
        return found

    def read(self, slot: Slot, width: int, dtype: str, every: bool = False) -> Node:
        """Return what is in memory: its own row for each row, or the same row for `every` row."""
        return self._make("read", (), (slot, every), width, dtype)

    def const(self, value: float, width: int, dtype: str) -> Node:
        """Return a number."""
        # As text, so that zeros of either sign and NaN are told apart.
        return self._make("const", (), (repr(float(value)),), width, dtype)

    def ramp(self, start: float, width: int, dtype: str) -> Node:
        """Return a number in the first column, and one more in each next."""
        return self._make("ramp", (), (float(start),), width, dtype)

    def function(self, name: str, *args: Operand, values: Tuple[float, ...] = ()) -> Node:
        """Return a function, element by element; numbers are as wide as the other arguments."""
        like = next(a for a in args if isinstance(a, Node))
        nodes = [a if isinstance(a, Node) else self.const(a, like.width, like.dtype) for a in args]
        assert all((a.width, a.dtype) == (like.width, like.dtype) for a in nodes), (name, nodes)
        if any(a.kind == "join" for a in nodes):
            return self._piecewise(lambda *own: self.function(name, *own, values=values), nodes)
        # Of equal sums and products of two there is one.
        if name in ("add", "mul") and nodes[0].number > nodes[1].number:
            nodes.reverse()
        return self._make(
            "function", nodes, (name, tuple(map(float, values))), like.width, like.dtype
        )

    def _piecewise(self, make: Callable[..., Node], nodes: Sequence[Node]) -> Node:
        """Return what is made of values side by side, side by side."""
        starts = {start for node in nodes for start, _ in node.pieces()}
        cuts = sorted({*starts, nodes[0].width})
        return self.join(
            make(*(self.part(node, low, high - low) for node in nodes))
            for low, high in zip(cuts, cuts[1:])
        )

    def cast(self, x: Node, dtype: str) -> Node:
        """Return the numbers in another type."""
        if x.kind == "join":
            return self.join(self.cast(piece, dtype) for piece in x.args)
        return x if x.dtype == dtype else self._make("cast", (x,), (dtype,), x.width, dtype)

    def part(self, x: Node, start: int, width: int) -> Node:
        """Return some columns."""
        return self.columns(x, start, 1, width)

    def spread(self, x: Node, width: int) -> Node:
        """Return a single column, in so many columns."""
        assert x.width == 1
        return self.columns(x, 0, 0, width)

    def columns(self, x: Node, start: int, step: int, width: int) -> Node:
        """Return neighbouring columns, or with step 0 one column in many.

        They are those of what functions are of.  Iterative, and once for each node, because
        segments can be deep and share values.
        """
        step = step if width > 1 else 1
        if (start, step, width) == (0, 1, x.width):
            return x
        assert 0 <= start <= start + step * (width - 1) < x.width, (start, step, width, x.width)
        known, stack = self._moved, [x]
        while stack:
            node = stack[-1]
            needed = node.args if node.kind in ("function", "cast") else ()
            missing = [a for a in needed if (a, start, step, width) not in known]
            if missing:
                stack += reversed(missing)
                continue
            args = [known[a, start, step, width] for a in needed]
            made = self._columns_of(stack.pop(), args, start, step, width)
            known[node, start, step, width] = made
        return known[x, start, step, width]

    def _columns_of(self, x: Node, args: Sequence[Node], start: int, step: int, width: int) -> Node:
        if x.kind in ("function", "cast"):
            return self.again(x, args)
        if x.kind == "const":
            return self._make("const", (), x.attrs, width, x.dtype)
        if x.kind == "ramp":
            make = self.ramp if step else self.const
            return make(x.attrs[0] + start, width, x.dtype)
        if x.kind == "join":
            return self._part_of_join(x, start, width)
        if x.kind == "columns":
            first, inner = x.attrs
            return self.columns(x.args[0], first + inner * start, inner * step, width)
        return self._make("columns", (x,), (start, step), width, x.dtype)

    def again(self, x: Node, args: Sequence[Node]) -> Node:
        """Return what some node is, of other arguments."""
        if x.kind == "function":
            return self.function(x.attrs[0], *args, values=x.attrs[1])
        if x.kind == "cast":
            return self.cast(args[0], *x.attrs)
        if x.kind == "columns":
            return self.columns(args[0], x.attrs[0], x.attrs[1], x.width)
        if x.kind == "reduced":
            return self.reduced(args[0], *x.attrs)
        if x.kind == "join":
            return self.join(args)
        return self._make(x.kind, args, x.attrs, x.width, x.dtype)

    def _part_of_join(self, x: Node, start: int, width: int) -> Node:
        pieces = []
        for at, piece in x.pieces():
            low, high = max(start - at, 0), min(start + width - at, piece.width)
            if low < high:
                pieces.append(self.part(piece, low, high - low))
        return self.join(pieces)

    def join(self, pieces: Iterable[Node]) -> Node:
        """Return columns side by side."""
        flat: List[Node] = []
        for piece in pieces:
            for _, one in piece.pieces():
                source, first, step = flat[-1].run() if flat else (one, 0, 0)
                before = flat[-1].width if flat else 0
                if step and one.run() == (source, first + before, 1):
                    # They are neighbours in memory.
                    flat[-1] = self.part(source, first, before + one.width)
                else:
                    flat.append(one)
        if len(flat) == 1:
            return flat[0]
        return self._make("join", flat, (), sum(p.width for p in flat), flat[0].dtype)

    def product(
        self, terms: Sequence[Tuple[Node, Weight]], biases: Sequence[Place] = (), dtype: str = ""
    ) -> Node:
        """Return the sum of products with matrices, and of biases.

        Where a row is several times as wide as a matrix has inputs, each part is multiplied.
        """
        x, weight = terms[0]
        width = x.width // weight.inputs * weight.units
        attrs = tuple(weight for _, weight in terms), tuple(biases)
        return self._make("product", [x for x, _ in terms], attrs, width, dtype or x.dtype)

    def own_product(self, x: Node) -> Node:
        """Return columns of one product with the transpose of a matrix as a product."""
        product, first, step = x.run()
        is_one = product.kind == "product" and len(product.args) == 1
        weight = product.attrs[0][0] if is_one else None
        if weight is None or not (step and weight.transposed and weight.units == product.width):
            return x
        part = weight._replace(place=weight.place.at(first * weight.columns), rows=x.width)
        return self.product([(product.args[0], part)], [b.at(first) for b in product.attrs[1]])

    def dot(self, left: Node, right: Node, how: Dot) -> Node:
        """Return products of matrices that each row has its own of."""
        if how.n == 1 and how.m != 1:
            # A column is a row as well; products are made for many columns.
            turned, gradient = (False, not how.turned[0]), how.gradient
            gradient = gradient if gradient < 0 else 1 - gradient
            return self.dot(right, left, Dot(how.matrices, 1, how.k, how.m, turned, gradient))
        width = how.matrices * how.m * how.n
        return self._make("dot", (left, right), (how,), width, left.dtype)

    def convolved(self, args: Sequence[Node], how: Maps) -> Node:
        """Return a convolution of maps, or a gradient of one."""
        return self._make("convolved", args, (how,), how.width, args[0].dtype)

    def moved(self, x: Node, order: Order) -> Node:
        """Return columns in another order, each at most once."""
        if x.kind == "moved":
            before = x.attrs[0]
            return self.moved(x.args[0], Order(before[i] if i >= 0 else -1 for i in order))
        if order == tuple(range(x.width)):
            return x
        if x.kind == "join" and any(map(_is_permuted, x.args)):
            sources = [p.args[0] if _is_permuted(p) else p for p in x.args]
            before = []
            for start, piece in x.pieces():
                own = piece.attrs[0] if _is_permuted(piece) else range(piece.width)
                before += [start + i for i in own]
            return self.moved(self.join(sources), Order(before[i] if i >= 0 else -1 for i in order))
        if _is_transposed_product(x, order):
            (source,), ((weight,), _) = x.args[0].args, x.attrs
            matrix = self.read(weight.place.slot, weight.rows * weight.columns, x.dtype, every=True)
            m, k = weight.units, weight.inputs
            how = Dot(1, m, k, x.width // m, (not weight.transposed, False))
            return self.dot(matrix, source, how)
        return self._make("moved", (x,), (order,), len(order), x.dtype)

    def reduced(self, x: Node, how: str = TOTAL) -> Node:
        """Return the sum, or the largest, of all columns."""
        if x.kind == "join":
            return self.reduced_by_two([self.reduced(piece, how) for piece in x.args], how)
        return self._make("reduced", (x,), (how,), 1, x.dtype)

    def reduced_by_two(self, values: Iterable[Node], how: str) -> Node:
        """Return the sum, or the largest, of values."""
        return reduce(lambda a, b: self.function(_OF_TWO[how], a, b), values)


def _is_permuted(x: Node) -> bool:
    """Whether a value is all columns of another, in another order."""
    return x.kind == "moved" and x.width == x.args[0].width


def _is_transposed_product(x: Node, order: Order) -> bool:
    """Whether a value in some order is a matrix times that of which the transpose is multiplied.

    Then each row has a gradient of the matrix, which is to be no larger than what else is moved.
    """
    if x.kind != "product" or len(x.args) > 1 or not _is_permuted(x.args[0]):
        return False
    (weight,), biases = x.attrs
    parts = x.width // weight.units
    return (
        not (biases or weight.chosen or weight.place.column)
        and weight.rows * weight.columns <= x.width + x.args[0].width
        and order == Order.of_transpose(parts, weight.units)
        and x.args[0].attrs[0] == Order.of_transpose(weight.inputs, parts)
    )
