"""Reverse-mode differentiation of expressions."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Dict, List, Optional, Tuple

from ..modes import FLOATS
from .expression import Expressions, Node
from .functions import DERIVATIVES, Conditional, Derivative
from .layout import OF_DATA, OF_KERNEL, Columns, Slot, Weight
from .recognize import SUM
from .step import Sum


class Differentiation:
    """Differentiates the results of a segment with respect to the arrays that it reads.

    A zero gradient stays zero even where the derivative is infinite or NaN, so that values on which
    no loss depends contribute nothing.

    Gradients are built in `build`.  For each node of the forward pass, in topological order,
    `values` has the node in `build` with its value; `heads` are its results, with their gradients.
    """

    def __init__(
        self, build: Expressions, values: Dict[Node, Node], heads: List[Tuple[Node, Node]]
    ):
        self._build, self._values = build, values
        #: Per node, gradients of ranges of its columns: the first column, and the gradient.
        self._pieces: Dict[Node, List[Tuple[int, Node]]] = {}
        self._row_gradients: Dict[Slot, Node] = {}
        self._sums: List[Sum] = []
        for node, gradient in heads:
            self._add(node, gradient)

    def gradients(self) -> Tuple[Dict[Slot, Node], List[Sum]]:
        """Return the gradients of arrays with a row per row of the launch, and of shared arrays."""
        for node in reversed(list(self._values)):
            if node in self._pieces:
                self._visit(node, self._assembled(node))
        return self._row_gradients, self._sums

    def _add(self, node: Node, gradient: Node, start: int = 0) -> None:
        self._pieces.setdefault(node, []).append((start, gradient))

    def _assembled(self, node: Node) -> Node:
        """Return the gradient of a node: add pieces that overlap, fill gaps with zeros."""
        build, pieces, gradients = self._build, self._pieces[node], []
        ends = (end for start, piece in pieces for end in (start, start + piece.width))
        cuts = sorted({0, node.width, *ends})
        for low, high in zip(cuts, cuts[1:]):
            terms = [
                build.part(piece, low - start, high - low)
                for start, piece in pieces
                if start <= low < start + piece.width
            ]
            dtype = gradient_dtype(node.dtype)
            total = reduce(add, terms) if terms else build.const(0, high - low, dtype)
            gradients.append(total)
        return build.join(gradients)

    def _visit(self, node: Node, g: Node) -> None:
        build, value = self._build, self._values
        if node.kind == "read":
            slot, shared = node.attrs
            if shared:
                self._sums.append(Sum(Weight(Columns(slot), 1, g.width, False), g, None, 1))
            else:
                self._row_gradients[slot] = g
        elif node.kind == "columns":
            start, step = node.attrs
            self._add(node.args[0], g if step else build.reduced(g), start)
        elif node.kind == "join":
            for start, piece in node.pieces():
                self._add(piece, build.part(g, start, piece.width))
        elif node.kind == "cast" and node.attrs[1] == "row":
            self._cast(node.args[0], g)
        elif node.kind == "reduced":
            self._reduced(node, g)
        elif node.kind == "product":
            self._product(node, g)
        elif node.kind == "dot":
            self._dot(node, g)
        elif node.kind == "convolved":
            self._convolved(node, g)
        elif node.kind == "gathered":
            (x, chosen), (index,) = node.args, node.attrs
            self._add(x, build.scattered(g, value[chosen], index._replace(lenient=True)))
        elif node.kind == "scattered":
            (x, chosen), (index, _) = node.args, node.attrs
            self._add(x, build.gathered(g, value[chosen], index._replace(lenient=True)))
        elif node.kind == "permuted":
            (x,), (order,) = node.args, node.attrs
            self._add(x, build.permuted(g, order.inverse(x.width)))
        elif node.kind == "repeated":
            (x,), (repeats,) = node.args, node.attrs
            together = build.permuted(g, repeats.together())
            total = build.sums(together, len(repeats) // repeats.times, repeats.times)
            self._add(x, build.permuted(total, repeats.inverse(x.width)))
        elif node.kind == "stretched":
            self._add(node.args[0], build.reduced(g, SUM, node.parts))
        elif node.kind == "tiled":
            self._tiled(node, g)
        elif node.kind == "whole":
            self._add(node.args[0], g)
        elif node.kind == "function":
            self._function(node, g)

    def _cast(self, x: Node, g: Node) -> None:
        if x.dtype == "bool":
            g = g.apply("not_equal", g, 0)
        back = self._build.cast(g, gradient_dtype(x.dtype))
        # Before gradients of integers are added up, they become whole numbers.
        self._add(x, back if x.dtype in FLOATS else back.apply("trunc", back))

    def _reduced(self, node: Node, g: Node) -> None:
        build, value = self._build, self._values
        (x,), size = node.args, node.args[0].width // node.width
        spread = build.stretched(g, size)
        if node.attrs[0] != SUM:
            is_top = build.function("equal", value[x], build.stretched(value[node], size))
            spread = build.function("gate", spread, is_top)
        self._add(x, spread)

    def _product(self, node: Node, g: Node) -> None:
        weights, biases = node.attrs
        units = weights[0].units
        parts = node.width // units
        for x, weight in zip(node.args, weights):
            self._sums.append(Sum(weight, g, self._values[x], parts))
            if not weight.gathered:
                transpose = weight._replace(transposed=not weight.transposed)
                self._add(x, self._build.product([(g, transpose)]))
        self._sums += [Sum(Weight(bias, 1, units, False), g, None, parts) for bias in biases]

    def _tiled(self, node: Node, g: Node) -> None:
        (x,), build = node.args, self._build
        source, first, step = x.column_run()
        if step and source.kind == "read" and source.attrs[1]:
            columns = Weight(Columns(source.attrs[0], first), 1, x.width, False)
            self._sums.append(Sum(columns, g, None, node.parts))
        else:
            self._add(x, build.sums(g, 1, node.parts, x.width))

    def _dot(self, node: Node, g: Node) -> None:
        (dot,), (left, right), value = node.attrs, node.args, self._values
        shared = left.kind == "read" and left.attrs[1]
        for x, other, gradient in zip((left, right), (right, left), dot.gradients()):
            if x is right and left.kind == "const" and dot.matrices == dot.m == 1:
                constant = float(left.attrs[0])
                scaled = g if constant == 1 else g.apply("mul", g, constant)
                repeat = self._build.stretched if dot.transposed[1] else self._build.tiled
                self._add(x, repeat(scaled, dot.k))
            elif x.kind == "const":
                continue
            elif x is left and shared and dot.matrices == 1 and not dot.transposed[1]:
                # One product of the columns of the matrices of all rows.
                transposed = dot.transposed[0]
                shape = (dot.k, dot.m) if transposed else (dot.m, dot.k)
                weight = Weight(Columns(left.attrs[0]), *shape, not transposed)
                self._sums.append(Sum(weight, g, value[right], 1, dot.n))
            else:
                factors = (value[other], g) if gradient.gradient else (g, value[other])
                self._add(x, self._build.dot(*factors, gradient))

    def _convolved(self, node: Node, g: Node) -> None:
        (x, *parameters), (maps,), build = node.args, node.attrs, self._build
        kernel = self._values[parameters[0]]
        self._add(x, build.convolved((g, kernel), maps._replace(of=OF_DATA)))
        joined, start = build.convolved((g, self._values[x]), maps._replace(of=OF_KERNEL)), 0
        for parameter in parameters:
            self._add(parameter, build.part(joined, start, parameter.width))
            start += parameter.width

    def _function(self, node: Node, g: Node) -> None:
        (name, numbers), args = node.attrs, [self._values[x] for x in node.args]
        build = self._build
        if name == "select":
            # Selected, not multiplied: 0 times a gradient that is not finite is NaN.
            chosen = build.cast(args[0], g.dtype)
            first, second = (g.apply(name, chosen, *pair) for pair in ((g, 0), (0, g)))
            gradients = [None, first, second]
        else:
            factors = DERIVATIVES[name](self._values[node], *args, *numbers)
            pairs = zip(node.args, factors if isinstance(factors, tuple) else (factors,))
            gradients = [None if x.kind == "const" else _times(g, factor) for x, factor in pairs]
        for x, gradient in zip(node.args, gradients):
            if gradient is not None:
                self._add(x, gradient)


def gradient_dtype(dtype: str) -> str:
    """Return the dtype in which the gradient of an array is computed; a store converts it."""
    return dtype if dtype in FLOATS else "float64"


def _times(g: Node, factor: Derivative) -> Optional[Node]:
    """Multiply a gradient with a derivative; return None if the derivative is the number 0."""
    if isinstance(factor, Conditional):
        condition, passed = g.owner.cast(factor.condition, g.dtype), _times(g, factor.factor)
        return passed and g.apply("select", condition, passed, 0)
    if isinstance(factor, Node):
        # Gradients of integers are computed in double precision.
        return g.apply("gate", g, g.owner.cast(factor, g.dtype))
    return None if factor == 0 else g if factor == 1 else -g if factor == -1 else g * factor
