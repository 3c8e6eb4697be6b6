"""Gradients of expressions, as expressions: reverse accumulation."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

from ..modes import FLOATS
from .expression import (
    CAST,
    CONST,
    DOT,
    FUNCTION,
    JOIN,
    PART,
    PRODUCT,
    READ,
    SPREAD,
    TOP,
    TOTAL,
    Expressions,
    Node,
    Slot,
    Weight,
)
from .functions import FUNCTIONS


class Summand(NamedTuple):
    """Rows that add up to the gradient of a matrix: their outer products with what was multiplied.

    An array of which every row is the same is a matrix of one row: they themselves are added up.
    """

    weight: Weight
    gradient: Node
    rows: Optional[Node]

    @property
    def parts(self) -> int:
        """How many rows one row of a launch has."""
        return self.gradient.width // self.weight.units


class Gradients(NamedTuple):
    """What the gradients of results are turned into."""

    #: Per array of which each row has its own row.
    rows: Dict[Slot, Node]
    sums: Tuple[Summand, ...]


class Differentiation:
    """Finds the gradients of what was read, from those of results.

    A gradient that is zero stays zero, also at a place where the derivative is infinite or no
    number: what no loss depends on contributes nothing.

    Parameters
    ----------
    expressions : Expressions
        Where to build.
    heads : list of (Node, Node)
        Results with their gradients.
    """

    def __init__(self, expressions: Expressions, heads: List[Tuple[Node, Node]]):
        self._expressions = expressions
        #: Per node the gradients of some of its columns: first column, and a node.
        self._pieces: Dict[Node, List[Tuple[int, Node]]] = {}
        self._rows: Dict[Slot, Node] = {}
        self._sums: List[Summand] = []
        for node, gradient in heads:
            self._add(node, gradient)

    def gradients(self) -> Gradients:
        """Go through all nodes, the last one first."""
        for node in reversed(list(self._expressions.nodes)):
            if node in self._pieces:
                self._visit(node, self._assembled(node))
        return Gradients(self._rows, tuple(self._sums))

    def _add(self, node: Node, gradient: Node, start: int = 0) -> None:
        self._pieces.setdefault(node, []).append((start, gradient))

    def _assembled(self, node: Node) -> Node:
        """Return the gradient of a node: sums of pieces that overlap, zeros between pieces."""
        build, pieces = self._expressions, self._pieces[node]
        ends = {0, node.width}
        for start, piece in pieces:
            ends |= {start, start + piece.width}
        cuts = sorted(ends)
        number = {cut: i for i, cut in enumerate(cuts)}
        totals: List[Optional[Node]] = [None] * (len(cuts) - 1)
        for start, piece in pieces:
            for i in range(number[start], number[start + piece.width]):
                term = build.part(piece, cuts[i] - start, cuts[i + 1] - cuts[i])
                before = totals[i]
                totals[i] = term if before is None else before + term
        return build.join(
            build.const(0, cuts[i + 1] - cuts[i], node.dtype) if total is None else total
            for i, total in enumerate(totals)
        )

    def _visit(self, node: Node, g: Node) -> None:
        build = self._expressions
        if node.kind == READ:
            slot, every = node.attrs
            if every:
                self._sums.append(Summand(Weight(slot, 1, g.width, False), g, None))
            else:
                self._rows[slot] = g
        elif node.kind == PART:
            self._add(node.args[0], g, node.attrs[0])
        elif node.kind == SPREAD:
            self._add(node.args[0], build.total(g), node.attrs[0])
        elif node.kind == JOIN:
            start = 0
            for piece in node.args:
                self._add(piece, build.part(g, start, piece.width))
                start += piece.width
        elif node.kind == CAST:
            if node.args[0].dtype in FLOATS:
                self._add(node.args[0], build.cast(g, node.args[0].dtype))
        elif node.kind == TOTAL:
            self._add(node.args[0], build.spread(g, node.args[0].width))
        elif node.kind == TOP:
            (x,) = node.args
            largest = build.function("equal", x, build.spread(node, x.width))
            self._add(x, build.function("gate", build.spread(g, x.width), largest))
        elif node.kind == PRODUCT:
            self._product(node, g)
        elif node.kind == DOT:
            for k, (second, how) in enumerate(node.attrs[0].gradients()):
                pair = (node.args[1 - k], g) if second else (g, node.args[1 - k])
                self._add(node.args[k], build.dot(*pair, how))
        elif node.kind == FUNCTION:
            self._function(node, g)

    def _product(self, node: Node, g: Node) -> None:
        weights, biases = node.attrs
        for x, weight in zip(node.args, weights):
            self._sums.append(Summand(weight, g, x))
            if not weight.chosen:
                self._add(x, self._expressions.product([(g, weight.flipped())]))
        units = weights[0].units
        self._sums += [Summand(Weight(bias, 1, units, False), g, None) for bias in biases]

    def _function(self, node: Node, g: Node) -> None:
        name, _ = node.attrs
        for arg, factor in zip(node.args, FUNCTIONS[name].derivative(node, *node.args)):
            part = None if arg.kind == CONST else _times(g, factor, name == "select")
            if part is not None:
                self._add(arg, part)


def _times(g: Node, factor: object, chosen: bool) -> Optional[Node]:
    """Multiply a gradient with a derivative: a node or a number; None if that is zero.

    Where something else was chosen a gradient is zero whatever it was.
    """
    if isinstance(factor, Node):
        return g.owner.function("gate", *((factor, g) if chosen else (g, factor)))
    return None if factor == 0 else g if factor == 1 else -g if factor == -1 else g * factor  # type: ignore[operator]
