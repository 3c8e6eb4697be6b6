"""What can be said of the value of a node."""

from __future__ import annotations

from typing import Any, Protocol, Sequence, Tuple

from .layout import Order


class Value(Protocol):
    """What this module reads of a `Node`."""

    @property
    def kind(self) -> str:
        """How it is computed."""

    @property
    def args(self) -> Sequence[Any]:
        """What it is computed from."""

    @property
    def attrs(self) -> Tuple[Any, ...]:
        """Numbers and names of its kind."""

    @property
    def width(self) -> int:
        """Its columns."""

    @property
    def dtype(self) -> str:
        """Of all columns."""


#: Reductions of columns to their sum, maximum or product.
SUM, MAX, PROD = "sum", "max", "prod"
#: The same for two values.
OF_TWO = {SUM: "add", MAX: "greatest", PROD: "mul"}
#: Functions of two values whose results are 0 or 1.
COMPARISONS = (
    *("equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal"),
    *("logical_and", "logical_or", "logical_xor"),
)
#: All such functions, those that keep 0 and 1, and kinds of nodes that do.
_ZERO_OR_ONE = frozenset([*COMPARISONS, "logical_not"])
_KEEPING = frozenset(["mul", "maximum", "greatest", "minimum", "select", "multiplier"])
_MOVING = frozenset(
    ["columns", "join", "permuted", "repeated", "gathered", "stretched", "tiled", "whole"]
)
_PASSING = ("reduced", MAX), ("cast", "row")


def is_truth(x: Value) -> bool:
    """Return whether all columns of a value are 0 or 1, and no gradient flows through it."""
    seen, stack = {x}, [x]
    while stack:
        node = stack.pop()
        name = node.attrs[0] if node.kind in ("const", "function") else None
        if name in _ZERO_OR_ONE or name in ("0.0", "1.0") or node.dtype == "bool":
            continue
        detail = node.attrs[1 if node.kind == "cast" else 0] if node.attrs else None
        passes = node.kind in _MOVING or (node.kind, detail) in _PASSING
        if not (passes or name in _KEEPING):
            return False
        args = node.args[:1] if node.kind == "gathered" else node.args
        if name == "select":
            args = args[1:]
        stack += [a for a in args if a not in seen]
        seen.update(args)
    return True


def is_permuted(x: Value) -> bool:
    """Return whether a value has all columns of another in some order."""
    return x.kind == "permuted" and x.width == x.args[0].width


def is_transpose(x: Value, matrices: int, rows: int, columns: int) -> bool:
    """Return whether a value, some matrices of this shape, has those of another transposed."""
    return is_permuted(x) and x.attrs[0] == Order.of_transposes(matrices, columns, rows)


def is_transposed_product(x: Value, order: Order) -> bool:
    """Return whether `order` transposes a product whose left operand is a transpose, too.

    Its value is then the matrix times the operand before the first transpose, so that nothing is
    moved.  Only for matrices with no more elements than would be moved.
    """
    if x.kind != "product" or len(x.args) > 1 or not is_permuted(x.args[0]):
        return False
    (weight,), biases = x.attrs
    parts = x.width // weight.units
    return (
        not (biases or weight.gathered or weight.place.column)
        and weight.rows * weight.columns <= x.width + x.args[0].width
        and order == Order.of_transpose(parts, weight.units)
        and x.args[0].attrs[0] == Order.of_transpose(weight.inputs, parts)
    )
