"""Expressions: what a segment computes for each row of its launch.

A node is a value with a fixed number of columns in every row, all of one dtype.  Equal nodes are
one object.  Slices of columns and repeated columns are pushed down to the values in memory, so that
everything in between is elementwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any, Callable, Dict, Iterable, List, Literal, Sequence, Tuple, Union

from .arithmetic import Arithmetic
from .layout import Columns, Dot, Index, Maps, Order, Ranking, Repeats, Slot, Weight, parts_between
from .recognize import (
    OF_TWO,
    SUM,
    is_permuted,
    is_transpose,
    is_transposed_product,
    is_truth,
)

#: How a node is computed.  The first line lists values in memory: arrays that are read, and results
#: of steps.  "columns" are adjacent columns or one column repeated; "join" concatenates columns.
NodeKind = Literal[
    "read", "product", "dot", "convolved", "gathered", "scattered", "ranked",
    "permuted", "repeated", "reduced",
    "const", "iota", "uniform", "function", "cast", "columns", "join",
    "stretched", "tiled", "whole",
]  # fmt: skip
#: What a loop loads of a value in memory: each column several times ("stretched"), all columns
#: several times ("tiled"), or all once ("whole", of what a loop over other parts computes).
LOADED = frozenset(["stretched", "tiled", "whole"])


@dataclass(eq=False, repr=False)
class Node(Arithmetic):
    """A value of each row; only `Expressions` creates nodes."""

    __slots__ = ("args", "attrs", "dtype", "kind", "number", "owner", "parts", "width")
    owner: Expressions
    #: The position in topological order.
    number: int
    kind: NodeKind
    args: Tuple[Node, ...]
    attrs: Tuple[Any, ...]
    width: int
    dtype: str
    #: The equal parts of a row over which a loop has to run to compute it, 1 for any.
    parts: int

    def apply(self, name: str, *args: NodeOrNumber, values: Tuple[float, ...] = ()) -> Node:
        """Apply a function to nodes and numbers."""
        return self.owner.function(name, *args, values=values)

    def pieces(self) -> Iterable[Tuple[int, Node]]:
        """Yield the pieces of a join, or the node itself, each with its first column."""
        start = 0
        for piece in self.args if self.kind == "join" else (self,):
            yield start, piece
            start += piece.width

    def column_run(self) -> Tuple[Node, int, int]:
        """Return which node has these columns, the first one, and the step, 0 if it is repeated."""
        return (self.args[0], *self.attrs) if self.kind == "columns" else (self, 0, 1)

    def __str__(self) -> str:
        if self.kind == "function":
            name, values = self.attrs
            return f"{name}({', '.join([*map(str, self.args), *(f'{v:g}' for v in values)])})"
        if self.kind in ("const", "read"):
            return str(self.attrs[0])
        attrs = ", ".join(map(str, self.attrs))
        return f"{self.kind}[{attrs}]({', '.join(map(str, self.args))})"


def _parts_of(kind: NodeKind, args: Sequence[Node], attrs: Tuple[Any, ...]) -> int:
    if kind == "function":
        return max(a.parts for a in args)
    return args[0].width if kind == "stretched" else attrs[0] if kind == "tiled" else 1


NodeOrNumber = Union[Node, float]


class Expressions:
    """The expressions of one segment."""

    def __init__(self, recorded: bool = False, single: bool = False) -> None:
        #: Whether gradients may be computed.
        self.recorded = recorded
        #: Whether its launches have one row, which is computed from what all rows share.
        self.single = single
        self.nodes: List[Node] = []
        #: Number of draws of random numbers.
        self.draws = 0
        self._interned: Dict[Any, Node] = {}
        #: Results of `columns`.
        self._columns: Dict[Tuple[Node, int, int, int], Node] = {}

    def _intern(
        self, kind: NodeKind, args: Sequence[Node], attrs: Tuple[Any, ...], width: int, dtype: str
    ) -> Node:
        key = kind, tuple(args), attrs, width, dtype
        node = self._interned.get(key)
        if node is None:
            assert dtype != "bool" or kind in ("read", "columns"), "kernels only load booleans"
            parts = _parts_of(kind, args, attrs)
            node = self._interned[key] = Node(self, len(self.nodes), *key, parts)
            self.nodes.append(node)
        return node

    def read(self, slot: Slot, width: int, dtype: str, shared: bool = False) -> Node:
        """Return an array in memory: one row per row of the launch, or a `shared` one for all."""
        return self._intern("read", (), (slot, shared), width, dtype)

    def const(self, value: float, width: int, dtype: str) -> Node:
        """Return a constant."""
        # As text, because 0.0 equals -0.0 and NaN does not equal itself.
        return self._intern("const", (), (repr(float(value)),), width, dtype)

    def iota(self, start: float, width: int, dtype: str) -> Node:
        """Return `start`, `start + 1`, ... along the columns."""
        return self._intern("iota", (), (float(start),), width, dtype)

    def uniform(self, width: int, dtype: str) -> Node:
        """Return random numbers in [0, 1), other ones for each call, each row and each column."""
        self.draws += 1
        return self._intern("uniform", (), (self.draws - 1, 0), width, dtype)

    def function(self, name: str, *args: NodeOrNumber, values: Tuple[float, ...] = ()) -> Node:
        """Apply a function element by element; numbers are broadcast to the width of the nodes."""
        like = next(a for a in args if isinstance(a, Node))
        nodes = [a if isinstance(a, Node) else self.const(a, like.width, like.dtype) for a in args]
        assert all((a.width, a.dtype) == (like.width, like.dtype) for a in nodes), (name, nodes)
        if any(a.kind == "join" for a in nodes):
            return self._piecewise(lambda *part: self.function(name, *part, values=values), nodes)
        # A loop runs over one number of parts.
        parts = max(a.parts for a in nodes)
        nodes = [a if a.parts in (1, parts) else self.whole(a) for a in nodes]
        # Sums and products are equal in either order.
        if name in ("add", "mul") and nodes[0].number > nodes[1].number:
            nodes.reverse()
        return self._intern(
            "function", nodes, (name, tuple(map(float, values))), like.width, like.dtype
        )

    def _piecewise(self, make: Callable[..., Node], nodes: Sequence[Node]) -> Node:
        """Apply `make` to parts that lie within one piece of every join, and join the results."""
        starts = {start for node in nodes for start, _ in node.pieces()}
        cuts = sorted({*starts, nodes[0].width})
        return self.join(
            make(*(self.part(node, low, high - low) for node in nodes))
            for low, high in zip(cuts, cuts[1:])
        )

    def cast(self, x: Node, dtype: str, pattern: str = "row") -> Node:
        """Convert to another dtype; `pattern` is that of the `Access` that does so."""
        if x.kind == "join":
            return self.join(self.cast(piece, dtype, pattern) for piece in x.args)
        if (x.dtype, pattern) == (dtype, "row"):
            return x
        if x.kind in LOADED:
            return self.with_args(x, [self.cast(x.args[0], dtype, pattern)])
        if pattern == "row" and x.kind == "cast" and is_truth(x):
            # 0 and 1 are the same in all types.
            return self.cast(x.args[0], dtype)
        if pattern == "index" and x.kind == "columns" and not x.attrs[1]:
            # Loads of indices read adjacent columns: as results of a function, these are stored.
            x = self.function("maximum", x, x)
        return self._intern("cast", (x,), (dtype, pattern), x.width, dtype)

    def part(self, x: Node, start: int, width: int) -> Node:
        """Return adjacent columns."""
        return self.columns(x, start, 1, width)

    def spread(self, x: Node, width: int) -> Node:
        """Repeat a single column."""
        assert x.width == 1
        return self.columns(x, 0, 0, width)

    def columns(self, x: Node, start: int, step: int, width: int) -> Node:
        """Return adjacent columns, or with step 0 one column repeated.

        Columns of a function are the function of columns of its arguments.  Iterative, and
        memoized, because segments can be deep and share values.
        """
        step = step if width > 1 else 1
        if (start, step, width) == (0, 1, x.width):
            return x
        assert 0 <= start <= start + step * (width - 1) < x.width, (start, step, width, x.width)
        memo, stack = self._columns, [x]
        while stack:
            node = stack[-1]
            needed = node.args if node.kind in ("function", "cast", "whole") else ()
            missing = [a for a in needed if (a, start, step, width) not in memo]
            if missing:
                stack += reversed(missing)
                continue
            args = [memo[a, start, step, width] for a in needed]
            columns = self._columns_of(stack.pop(), args, start, step, width)
            memo[node, start, step, width] = columns
        return memo[x, start, step, width]

    def _columns_of(self, x: Node, args: Sequence[Node], start: int, step: int, width: int) -> Node:
        if x.kind in ("function", "cast"):
            return self.with_args(x, args)
        if x.kind in LOADED:
            return args[0] if args else self._columns_of_loaded(x, start, step, width)
        if x.kind == "const":
            return self._intern("const", (), x.attrs, width, x.dtype)
        if x.kind == "iota":
            make = self.iota if step else self.const
            return make(x.attrs[0] + start, width, x.dtype)
        if x.kind == "uniform":
            draw, first = x.attrs
            count = width if step else 1
            drawn = self._intern("uniform", (), (draw, first + start), count, x.dtype)
            return drawn if step else self.spread(self.reduced(drawn), width)
        if x.kind == "join":
            return self._part_of_join(x, start, width)
        if x.kind == "columns":
            first, inner = x.attrs
            return self.columns(x.args[0], first + inner * start, inner * step, width)
        return self._intern("columns", (x,), (start, step), width, x.dtype)

    def _columns_of_loaded(self, x: Node, start: int, step: int, width: int) -> Node:
        if not step:
            return self.spread(self._columns_of_loaded(x, start, 1, 1), width)
        (source,), tiled = x.args, x.kind == "tiled"
        return self.join(
            self.tiled(self.part(source, first, size), parts)
            if tiled
            else self.stretched(self.part(source, number, parts), size)
            for number, parts, first, size in parts_between(start, width, x.width // x.parts)
        )

    def with_args(self, x: Node, args: Sequence[Node]) -> Node:
        """Return the node that computes from `args` what `x` computes from its arguments."""
        if x.kind == "function":
            return self.function(x.attrs[0], *args, values=x.attrs[1])
        if x.kind == "cast":
            return self.cast(args[0], *x.attrs)
        if x.kind == "columns":
            return self.columns(args[0], x.attrs[0], x.attrs[1], x.width)
        if x.kind == "reduced":
            return self.reduced(args[0], *x.attrs)
        if x.kind in ("stretched", "tiled"):
            return (self.tiled if x.kind == "tiled" else self.stretched)(args[0], *x.attrs)
        if x.kind == "whole":
            return self.whole(args[0])
        if x.kind == "join":
            return self.join(args)
        return self._intern(x.kind, args, x.attrs, x.width, x.dtype)

    def _part_of_join(self, x: Node, start: int, width: int) -> Node:
        pieces = []
        for first, piece in x.pieces():
            low, high = max(start - first, 0), min(start + width - first, piece.width)
            if low < high:
                pieces.append(self.part(piece, low, high - low))
        return self.join(pieces)

    def join(self, pieces: Iterable[Node]) -> Node:
        """Concatenate columns."""
        flat: List[Node] = []
        for _, piece in chain.from_iterable(p.pieces() for p in pieces):
            source, first, step = flat[-1].column_run() if flat else (piece, 0, 0)
            width = flat[-1].width if flat else 0
            if step and piece.column_run() == (source, first + width, 1):
                # They are adjacent in memory.
                flat[-1] = self.part(source, first, width + piece.width)
            else:
                flat.append(piece)
        if len(flat) == 1:
            return flat[0]
        return self._intern("join", flat, (), sum(p.width for p in flat), flat[0].dtype)

    def product(
        self, terms: Sequence[Tuple[Node, Weight]], biases: Sequence[Columns] = (), dtype: str = ""
    ) -> Node:
        """Return the sum of some products of rows with matrices, and of biases.

        If a row is several times as wide as a matrix has inputs, each part of it is multiplied.
        """
        x, weight = terms[0]
        width = x.width // weight.inputs * weight.units
        attrs = tuple(weight for _, weight in terms), tuple(biases)
        return self._intern("product", [x for x, _ in terms], attrs, width, dtype or x.dtype)

    def dot(self, left: Node, right: Node, dot: Dot) -> Node:
        """Return products of matrices; at least one factor differs from row to row.

        Factors that are transposes are read where the matrices are, so that nothing is moved.
        """
        if is_transpose(left, dot.matrices, *dot.stored_shapes[0]):
            left, dot = left.args[0], dot.exchanging(0)
        if is_transpose(right, dot.matrices, *dot.stored_shapes[1]):
            right, dot = right.args[0], dot.exchanging(1)
        if dot.n == 1 and dot.m != 1:
            # As a product of transposes, because native products are made for many columns.
            transposed = False, not dot.transposed[0]
            gradient = dot.gradient if dot.gradient < 0 else 1 - dot.gradient
            exchanged = dot._replace(m=1, n=dot.m, transposed=transposed, gradient=gradient)
            return self.dot(right, left, exchanged)
        width = dot.matrices * dot.m * dot.n
        return self._intern("dot", (left, right), (dot,), width, left.dtype)

    def convolved(self, args: Sequence[Node], maps: Maps) -> Node:
        """Return a convolution or one of its gradients."""
        return self._intern("convolved", args, (maps,), maps.width, args[0].dtype)

    def gathered(self, x: Node, chosen: Node, index: Index) -> Node:
        """Return the columns of `x` at the positions that the indices `chosen` say."""
        assert (x.width, chosen.width) == (index.width, index.chosen)
        return self._intern("gathered", (x, chosen), (index,), index.gathered, x.dtype)

    def scattered(self, x: Node, chosen: Node, index: Index, adds: bool = True) -> Node:
        """Return zeros, with columns of `x` added or written at the positions of the indices."""
        assert (x.width, chosen.width) == (index.gathered, index.chosen)
        return self._intern("scattered", (x, chosen), (index, adds), index.width, x.dtype)

    def ranked(self, x: Node, ranking: Ranking, dtype: str) -> Node:
        """Return positions by value."""
        width = ranking.outer * ranking.number * ranking.inner
        return self._intern("ranked", (x,), (ranking,), width, dtype)

    def permuted(self, x: Node, order: Order) -> Node:
        """Reorder columns."""
        if x.kind == "permuted":
            return self.permuted(x.args[0], order.after(x.attrs[0]))
        if order == tuple(range(x.width)):
            return x
        if x.kind == "join" and any(map(is_permuted, x.args)):
            sources = [p.args[0] if is_permuted(p) else p for p in x.args]
            joined: List[int] = []
            for start, piece in x.pieces():
                inner = piece.attrs[0] if is_permuted(piece) else range(piece.width)
                joined += [start + source for source in inner]
            return self.permuted(self.join(sources), order.after(joined))
        if is_transposed_product(x, order):
            (source,), ((weight,), _) = x.args[0].args, x.attrs
            size, (m, k) = weight.rows * weight.columns, (weight.units, weight.inputs)
            matrix = self.read(weight.place.slot, size, x.dtype, shared=True)
            transposed = not weight.transposed, False
            product = Dot(matrices=1, m=m, k=k, n=x.width // m, transposed=transposed)
            return self.dot(matrix, source, product)
        return self._intern("permuted", (x,), (order,), len(order), x.dtype)

    def repeated(self, x: Node, repeats: Repeats) -> Node:
        """Repeat columns in any order."""
        return self._intern("repeated", (x,), (repeats,), len(repeats), x.dtype)

    def sums(self, x: Node, outer: int, count: int, inner: int = 1) -> Node:
        """Sum over the middle axis of an array, as products with ones."""
        ones = self.const(1, (1 if inner == 1 else outer) * count, x.dtype)
        if inner == 1:
            return self.dot(x, ones, Dot(1, outer, count, 1, (False, False)))
        return self.dot(ones, x, Dot(outer, 1, count, inner, (False, False)))

    def stretched(self, x: Node, times: int) -> Node:
        """Repeat each column."""
        if times == 1 or x.width == 1:
            return self.spread(x, times) if times > 1 else x
        if x.kind == "const":
            return self.const(float(x.attrs[0]), x.width * times, x.dtype)
        return self._intern("stretched", (x,), (times,), x.width * times, x.dtype)

    def tiled(self, x: Node, times: int) -> Node:
        """Repeat all columns."""
        if times == 1 or x.width == 1 or x.kind == "const":
            return self.stretched(x, times)
        return self._intern("tiled", (x,), (times,), x.width * times, x.dtype)

    def whole(self, x: Node) -> Node:
        """Return the same columns for loops over other parts."""
        return self._intern("whole", (x,), (), x.width, x.dtype)

    def reduced(self, x: Node, reduction: str = SUM, parts: int = 1) -> Node:
        """Reduce all columns of each of some equal parts to one."""
        size = x.width // parts
        if parts > 1 and size == 1:
            return x
        if x.kind == "join" and parts == 1:
            return self.fold([self.reduced(piece, reduction) for piece in x.args], reduction)
        if x.kind == "join" and not any(start % size for start, _ in x.pieces()):
            return self.join(self.reduced(p, reduction, p.width // size) for p in x.args)
        if x.parts > parts and x.parts % parts == 0:
            return self.reduced(self.reduced(x, reduction, x.parts), reduction, parts)
        x = self.whole(x) if x.kind == "join" or x.parts not in (1, parts) else x
        return self._intern("reduced", (x,), (reduction, parts), parts, x.dtype)

    def fold(self, values: Iterable[Node], reduction: str) -> Node:
        """Reduce several values to one, element by element."""
        return reduce(lambda a, b: self.function(OF_TWO[reduction], a, b), values)
