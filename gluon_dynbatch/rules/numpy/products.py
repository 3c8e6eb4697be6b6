"""Translations of products of arrays: all of them are sums over common indices."""

from __future__ import annotations

from collections import Counter
from math import prod
from string import ascii_letters
from typing import Dict, List, Tuple

from ..site import Ref, require
from .call import NumPyArray, NumPyCall


def _summed(call: NumPyCall, x: NumPyArray, labels: str, kept: str) -> Tuple[NumPyArray, str]:
    """Sum over the labels that are not kept."""
    axes = tuple(axis for axis, label in enumerate(labels) if label not in kept)
    if not axes:
        return x, labels
    shape = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    labels = "".join(label for label in labels if label in kept)
    return call.apply("sum", x, shape=shape, axis=axes), labels


def _ordered(call: NumPyCall, x: NumPyArray, labels: str, order: str) -> NumPyArray:
    """Transpose an array whose axes have labels."""
    return call.transpose(x, [labels.index(label) for label in order])


def contract(
    call: NumPyCall, lhs: NumPyArray, left: str, rhs: NumPyArray, right: str, result: str
) -> Tuple[NumPyArray, str]:
    """Multiply two arrays whose axes have labels, and sum over those that `result` lacks.

    Returns an array with all labels of the result that either array has, and its labels.
    """
    lhs, left = _summed(call, lhs, left, right + result)
    rhs, right = _summed(call, rhs, right, left + result)
    size: Dict[str, int] = {**dict(zip(left, lhs.shape)), **dict(zip(right, rhs.shape))}
    batch = "".join(label for label in left if label in right and label in result)
    inner = "".join(label for label in left if label in right and label not in result)
    rows = "".join(label for label in left if label not in right)
    columns = "".join(label for label in right if label not in left)
    labels = batch + rows + columns
    # MXNet's products take no others; its `einsum` does.
    require(
        not inner or lhs.dtype in ("float32", "float64"),
        f"Operator {call.called} of {lhs.dtype} has no translation.",
    )
    if not inner:
        return _multiplied(call, lhs, left, rhs, right, labels), labels
    extents = [prod(size[label] for label in part) for part in (batch, rows, inner, columns)]
    shape = tuple(size[label] for label in labels)
    lhs = _ordered(call, lhs, left, batch + rows + inner)
    if not batch:
        # The first axes of the left array stay, so its rows may be those of many samples.
        rhs = _ordered(call, rhs, right, inner + columns)
        lhs = call.reshape(lhs, (*(size[label] for label in rows), extents[2]))
        if columns:
            rhs = call.reshape(rhs, (extents[2], extents[3]))
        else:
            rhs = call.reshape(rhs, (extents[2],))
        flat = (*lhs.shape[:-1], *rhs.shape[1:])
        return call.reshape(call.apply("dot", lhs, rhs, shape=flat), shape), labels
    swapped = right.endswith(inner) and right[: len(batch)] == batch and bool(columns)
    rhs = _ordered(call, rhs, right, batch + (columns + inner if swapped else inner + columns))
    sizes = (extents[0], extents[1], extents[2])
    lhs = call.reshape(lhs, sizes)
    middle = (extents[3], extents[2]) if swapped else (extents[2], extents[3])
    rhs = call.reshape(rhs, (extents[0], *middle))
    flat = (extents[0], extents[1], extents[3])
    product = call.apply("batch_dot", lhs, rhs, shape=flat, transpose_b=swapped)
    return call.reshape(product, shape), labels


def _multiplied(
    call: NumPyCall, lhs: NumPyArray, left: str, rhs: NumPyArray, right: str, labels: str
) -> NumPyArray:
    """Multiply arrays of which no common label is summed over."""
    arrays = []
    for x, own in ((lhs, left), (rhs, right)):
        x = _ordered(call, x, own, "".join(label for label in labels if label in own))
        size = dict(zip(own, (lhs if own is left else rhs).shape))
        arrays.append(call.reshape(x, tuple(size.get(label, 1) for label in labels)))
    extent = {**dict(zip(left, lhs.shape)), **dict(zip(right, rhs.shape))}
    shape = tuple(extent[label] for label in labels)
    return call.apply("broadcast_mul", *arrays, shape=shape)


def _result(call: NumPyCall, x: NumPyArray, labels: str, order: str) -> Tuple[Ref, ...]:
    return call.done(_ordered(call, x, labels, order))


def _operands(call: NumPyCall) -> List[NumPyArray]:
    dtype = call.out_dtypes[0]
    require(dtype.startswith("float"), f"Operator {call.called} has a translation only for floats.")
    return [call.cast(array, dtype) for array in call.arrays]


def dot(call: NumPyCall) -> Tuple[Ref, ...]:
    lhs, rhs = _operands(call)
    left = ascii_letters[: len(lhs.shape)]
    right = ascii_letters[26 : 26 + len(rhs.shape)]
    result = left + right
    if lhs.shape and rhs.shape:
        summed = right[-2:][0]
        right = right.replace(summed, left[-1])
        result = left[:-1] + right.replace(left[-1], "")
    return _result(call, *contract(call, lhs, left, rhs, right, result), result)


def matmul(call: NumPyCall) -> Tuple[Ref, ...]:
    """Multiply matrices; axes before the last two are broadcast."""
    lhs, rhs = _operands(call)
    outer = max(len(lhs.shape), len(rhs.shape), 2) - 2
    names = ascii_letters[:outer]
    left = _matrix_labels(lhs, names, "YZ"[-min(len(lhs.shape), 2) :])
    right = _matrix_labels(rhs, names, "ZX"[: min(len(rhs.shape), 2)])
    size = dict(zip(right, rhs.shape))
    # In MXNet 1.9.1, the gradient of a matrix that is repeated along an axis of extent 1 is wrong.
    fits = all(size.get(label, n) == n for label, n in zip(left, lhs.shape))
    require(fits, "Operator _npi_matmul that repeats a matrix has no translation.")
    result = "".join(label for label in names + "YX" if label in left + right)
    x, labels = contract(call, lhs, left, rhs, right, result)
    return _result(call, x, labels, result)


def _matrix_labels(x: NumPyArray, names: str, matrix: str) -> str:
    outer = len(x.shape) - len(matrix)
    return names[len(names) - outer :] + matrix


def tensordot(call: NumPyCall) -> Tuple[Ref, ...]:
    lhs, rhs = _operands(call)
    if call.op == "_npi_tensordot_int_axes":
        count = call.integer("axes", 0) or 0
        require(
            count <= min(len(lhs.shape), len(rhs.shape)),
            "Operator _npi_tensordot of arrays with too few axes has no translation.",
        )
        first = tuple(range(len(lhs.shape) - count, len(lhs.shape)))
        second = tuple(range(count))
    else:
        first = call.axes("a_axes_summed")
        ndim = len(rhs.shape)
        second = tuple(axis % ndim for axis in call.integers("b_axes_summed"))
    left = ascii_letters[: len(lhs.shape)]
    letters = list(ascii_letters[26 : 26 + len(rhs.shape)])
    for a, b in zip(first, second):
        letters[b] = left[a]
    right, summed = "".join(letters), [left[a] for a in first]
    result = "".join(label for label in left + right if label not in summed)
    return _result(call, *contract(call, lhs, left, rhs, right, result), result)


def einsum(call: NumPyCall) -> Tuple[Ref, ...]:
    """Contract two arrays after another, from the left."""
    terms, arrow, result = call.attrs["subscripts"].replace(" ", "").partition("->")
    labels = terms.split(",")
    require(
        "..." not in terms or bool(arrow),
        "Operator _npi_einsum with an ellipsis and no result has no translation.",
    )
    # Each axis that an ellipsis stands for has a label, counted from the last one.
    outer = [len(shape) - len(own.replace("...", "")) for shape, own in zip(call.inputs, labels)]
    free = [label for label in reversed(ascii_letters) if label not in terms]
    named = "".join(free[: max(outer)])
    labels = [own.replace("...", named[len(named) - n :]) for n, own in zip(outer, labels)]
    result = result.replace("...", named)
    sizes: Dict[str, int] = {}
    for own, shape in zip(labels, call.inputs):
        for label, n in zip(own, shape):
            require(
                sizes.setdefault(label, n) == n,
                "Operator _npi_einsum that repeats elements has no translation.",
            )
    repeated = any(len(set(label)) < len(label) for label in labels)
    require(not repeated, "Operator _npi_einsum of diagonals has no translation.")
    if not arrow:
        counts = Counter(terms.replace(",", ""))
        result = "".join(sorted(label for label, count in counts.items() if count == 1))
    x, *others = _operands(call)
    own = labels[0]
    if not others:
        x, own = _summed(call, x, own, result)
    for number, other in enumerate(others, 1):
        kept = result + "".join(labels[number + 1 :])
        x, own = contract(call, x, own, other, labels[number], kept)
    return _result(call, x, own, result)
