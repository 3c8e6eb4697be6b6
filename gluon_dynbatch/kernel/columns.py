"""Arrays of several axes within the columns of a row: moved, repeated, reduced.

Axis 0 counts rows of an array per row of a launch.  Elements lie one after another in the order of
the axes, so what an operator does along an axis is done to pieces of the columns, one for each
element of the axes before.
"""

from __future__ import annotations

from math import prod
from typing import List, Sequence, Tuple

import numpy as np

from ..schedule.dependencies import Array
from .expression import CONST, FUNCTION, PLACED, SPREAD, Expressions, Node

Shape = Tuple[int, ...]

#: Functions that are computed again for each column rather than kept.
CHEAP = frozenset(["copy", "multiplier", "add", "sub", "mul", "div", "negative", "square"])
#: More pieces than these make a kernel slower than MXNet's operators.
MOST_PIECES = 32


class NotExpressed(Exception):
    """Raised for what has no kernel, with a short reason."""


def require(condition: bool, reason: str) -> None:
    """Give up with `reason` if `condition` does not hold."""
    if not condition:
        raise NotExpressed(reason)


def _limit(pieces: int) -> None:
    require(pieces <= MOST_PIECES, f"its rows fall into more than {MOST_PIECES} pieces")


def pieces(x: Node, count: int) -> List[Node]:
    """Return equal parts of the columns."""
    _limit(count)
    width = x.width // count
    return [x.owner.part(x, number * width, width) for number in range(count)]


def places(shape: Shape) -> Array:
    """Return the number of each element of an array."""
    return np.arange(prod(shape)).reshape(shape)


def moved(x: Node, where: Array) -> Node:
    """Return the elements that stand at some places: neighbours and repeated ones together."""
    order, found, at = where.ravel(), [], 0
    steps = np.append(np.diff(order), 2)
    changes = np.append(np.flatnonzero(np.diff(steps)) + 1, len(order))
    while at < len(order):
        first, step = int(order[at]), steps[at]
        end = int(changes[np.searchsorted(changes, at, "right")]) if step in (0, 1) else at
        if step == 0:
            found.append(spread(x.owner.part(x, first, 1), end - at + 1))
        else:
            found.append(x.owner.part(x, first, end - at + 1))
        at = end + 1
        _limit(len(found))
    return x.owner.join(found)


def spread(x: Node, width: int) -> Node:
    """Return a single column, in so many; what is dear to compute is computed once."""
    # The sum of a single column is a place for it.
    return x.owner.spread(x.owner.total(x) if width > 1 and _is_dear(x) else x, width)


def _is_dear(x: Node) -> bool:
    stack, seen = [x], {x}
    while stack:
        node = stack.pop()
        if node.kind == FUNCTION and node.attrs[0] not in CHEAP:
            return True
        if node.kind not in PLACED:
            stack += set(node.args) - seen
            seen |= set(node.args)
    return False


def broadcast(x: Node, shape: Shape, wanted: Shape) -> Node:
    """Repeat elements along axes of extent 1."""
    return moved(x, np.broadcast_to(places(shape), wanted))


def reduced(x: Node, shape: Shape, axes: Sequence[int], top: bool = False) -> Node:
    """Return sums, or largest elements, along neighbouring axes."""
    own = [axis for axis in axes if shape[axis] != 1]
    if not own:
        return x
    low, high = own[0], own[-1] + 1
    if prod(shape[a] for a in own) != prod(shape[low:high]):
        last, rest = own[-1], (*shape[: own[-1]], 1, *shape[own[-1] + 1 :])
        return reduced(reduced(x, shape, [last], top), rest, own[:-1], top)
    build, found = x.owner, []
    for piece in pieces(x, prod(shape[:low])):
        if prod(shape[high:]) == 1:
            found.append(build.top(piece) if top else build.total(piece))
        else:
            first, *others = pieces(piece, prod(shape[low:high]))
            for one in others:
                first = build.function("greatest" if top else "add", first, one)
            found.append(first)
    return build.join(found)


def numbers(build: Expressions, shape: Shape, axis: int, dtype: str) -> Node:
    """Return for each element of an array its place along an axis."""
    outer, inner = prod(shape[:axis]), prod(shape[axis + 1 :])
    if inner == 1:
        row = [build.ramp(0, shape[axis], dtype)]
    else:
        _limit(shape[axis])
        row = [build.const(number, inner, dtype) for number in range(shape[axis])]
    _limit(outer * len(row))
    return build.join(row * outer)


def chosen(x: Node, mask: Node) -> Node:
    """Return the column where a mask is one.

    A function of a column and of what all columns share is computed for that column only.
    """
    build, functions = x.owner, []
    while x.kind == FUNCTION and all(map(_is_shared, x.args[1:])):
        functions.append(x)
        x = x.args[0]
    found = build.total(build.function("select", mask, x, 0))
    for f in reversed(functions):
        name, values = f.attrs
        found = build.function(
            name, found, *(build.part(a, 0, 1) for a in f.args[1:]), values=values
        )
    return found


def _is_shared(x: Node) -> bool:
    while x.kind == FUNCTION and x.attrs[0] == "multiplier":
        x = x.args[0]
    return x.kind in (SPREAD, CONST)
