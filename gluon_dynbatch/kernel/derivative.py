"""Gradients of expressions, as expressions: reverse accumulation."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Dict, List, Optional, Tuple

from ..modes import FLOATS
from .expression import TOTAL, Expressions, Node
from .functions import DERIVATIVES, Factor
from .layout import OF_DATA, OF_KERNEL, Place, Slot, Weight
from .step import Sum


class Differentiation:
    """Finds the gradients of what was read, from those of results.

    A gradient that is zero stays zero, also at a place where the derivative is infinite or no
    number: what no loss depends on contributes nothing.
    """

    def __init__(
        self, build: Expressions, values: Dict[Node, Node], heads: List[Tuple[Node, Node]]
    ):
        """Take results with their gradients, in expressions in which gradients are built."""
        #: What was computed, the last of it last, and what it is in these.
        self._build, self._values = build, values
        #: Per node the gradients of some of its columns: first column, and a node.
        self._pieces: Dict[Node, List[Tuple[int, Node]]] = {}
        self._rows: Dict[Slot, Node] = {}
        self._sums: List[Sum] = []
        for node, gradient in heads:
            self._add(node, gradient)

    def gradients(self) -> Tuple[Dict[Slot, Node], List[Sum]]:
        """Return gradients of arrays of which each row has its own row, and of all others."""
        for node in reversed(list(self._values)):
            if node in self._pieces:
                self._visit(node, self._assembled(node))
        return self._rows, self._sums

    def _add(self, node: Node, gradient: Node, start: int = 0) -> None:
        self._pieces.setdefault(node, []).append((start, gradient))

    def _assembled(self, node: Node) -> Node:
        """Return the gradient of a node: sums of pieces that overlap, zeros between pieces."""
        build, pieces, found = self._build, self._pieces[node], []
        ends = (end for start, piece in pieces for end in (start, start + piece.width))
        cuts = sorted({0, node.width, *ends})
        for low, high in zip(cuts, cuts[1:]):
            terms = [
                build.part(piece, low - start, high - low)
                for start, piece in pieces
                if start <= low < start + piece.width
            ]
            found.append(reduce(add, terms) if terms else build.const(0, high - low, node.dtype))
        return build.join(found)

    def _visit(self, node: Node, g: Node) -> None:
        build, value = self._build, self._values
        if node.kind == "read":
            slot, every = node.attrs
            if every:
                self._sums.append(Sum(Weight(Place(slot), 1, g.width, False), g, None, 1))
            else:
                self._rows[slot] = g
        elif node.kind == "columns":
            start, step = node.attrs
            self._add(node.args[0], g if step else build.reduced(g), start)
        elif node.kind == "join":
            for start, piece in node.pieces():
                self._add(piece, build.part(g, start, piece.width))
        elif node.kind == "cast":
            if node.args[0].dtype in FLOATS:
                self._add(node.args[0], build.cast(g, node.args[0].dtype))
        elif node.kind == "reduced":
            (x,), spread = node.args, build.spread(g, node.args[0].width)
            if node.attrs[0] != TOTAL:
                largest = build.function("equal", value[x], build.spread(value[node], x.width))
                spread = build.function("gate", spread, largest)
            self._add(x, spread)
        elif node.kind == "product":
            self._product(node, g)
        elif node.kind == "dot":
            self._dot(node, g)
        elif node.kind == "convolved":
            self._convolved(node, g)
        elif node.kind == "moved":
            (x,), (order,) = node.args, node.attrs
            self._add(x, build.moved(g, order.turned(x.width)))
        elif node.kind == "function":
            self._function(node, g)

    def _product(self, node: Node, g: Node) -> None:
        weights, biases = node.attrs
        units = weights[0].units
        parts = node.width // units
        for x, weight in zip(node.args, weights):
            self._sums.append(Sum(weight, g, self._values[x], parts))
            if not weight.chosen:
                self._add(x, self._build.product([(g, weight.flipped())]))
        self._sums += [Sum(Weight(bias, 1, units, False), g, None, parts) for bias in biases]

    def _dot(self, node: Node, g: Node) -> None:
        (how,), (left, right), value = node.attrs, node.args, self._values
        shared = left.kind == "read" and left.attrs[1]
        for x, other, own in zip((left, right), (right, left), how.gradients()):
            if x is left and shared and how.matrices == 1 and not how.turned[1]:
                # What adds up is one product, of the columns of all rows.
                turned = how.turned[0]
                sizes = (how.k, how.m) if turned else (how.m, how.k)
                weight = Weight(Place(left.attrs[0]), *sizes, not turned)
                self._sums.append(Sum(weight, g, value[right], 1, how.n))
            else:
                pair = (value[other], g) if own.gradient else (g, value[other])
                self._add(x, self._build.dot(*pair, own))

    def _convolved(self, node: Node, g: Node) -> None:
        (x, *shared), (how,), build = node.args, node.attrs, self._build
        kernel = self._values[shared[0]]
        self._add(x, build.convolved((g, kernel), how._replace(of=OF_DATA)))
        both, start = build.convolved((g, self._values[x]), how._replace(of=OF_KERNEL)), 0
        for each in shared:
            self._add(each, build.part(both, start, each.width))
            start += each.width

    def _function(self, node: Node, g: Node) -> None:
        (name, numbers), args = node.attrs, [self._values[x] for x in node.args]
        if name == "select":
            # Where something else was chosen a gradient is zero whatever it was.
            first, second = (g.apply(name, args[0], *pair) for pair in ((g, 0), (0, g)))
            parts = [None, first, second]
        else:
            found = DERIVATIVES[name](self._values[node], *args, *numbers)
            factors = found if isinstance(found, tuple) else (found,)
            pairs = zip(node.args, factors)
            parts = [None if arg.kind == "const" else _times(g, factor) for arg, factor in pairs]
        for arg, part in zip(node.args, parts):
            if part is not None:
                self._add(arg, part)


def _times(g: Node, factor: Factor) -> Optional[Node]:
    """Multiply a gradient with a derivative: a node or a number; None if that is zero."""
    if isinstance(factor, Node):
        return g.apply("gate", g, factor)
    return None if factor == 0 else g if factor == 1 else -g if factor == -1 else g * factor
