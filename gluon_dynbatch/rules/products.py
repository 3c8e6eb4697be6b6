"""Products of matrices and vectors."""

from __future__ import annotations

from math import prod
from typing import Sequence, Tuple

from .build import Builder
from .site import Ref, Shape, Site, require


def matrix(site: Site, build: Builder) -> Tuple[Ref, ...]:
    require(
        site.integer("axis", -2) in (-2, len(site.inputs[0]) - 2),
        f"Operator {site.op} with another matrix axis has no batching rule.",
    )
    if not build.stacked and site.op == "_linalg_gemm2" and len(site.inputs[0]) == 2:
        site.keep_rows(site.batched == (True, False) and not site.flag("transpose_a"))
        return build.call(*build.refs)
    # Counted from the back the matrix axis stays where it is.
    return build.reduced(**({"axis": -2} if "axis" in site.attrs else {}))


def _product(
    build: Builder,
    refs: Sequence[Ref],
    shapes: Sequence[Tuple[int, int]],
    batched: Sequence[bool],
    turned: Sequence[bool],
) -> Ref:
    """Multiply two matrices, each of which may be shared, or used transposed, per sample.

    The result has (N, rows, columns) elements in this order.
    """
    lhs, rhs = (
        build.reshape(ref, *(-1,) * own, *shape) for ref, own, shape in zip(refs, batched, shapes)
    )
    if all(batched):
        return build.add("batch_dot", lhs, rhs, transpose_a=turned[0], transpose_b=turned[1])
    if batched[1]:
        # A B_n = (B_n^T A^T)^T: the samples' columns become the rows of one tall matrix.
        sides = refs[::-1], shapes[::-1], batched[::-1], (not turned[1], not turned[0])
        rows, columns = shapes[0][turned[0]], shapes[1][not turned[1]]
        result = build.reshape(_product(build, *sides), -1, columns, rows)
        return build.add("transpose", result, axes=(0, 2, 1))
    if turned[0]:
        lhs = build.add("transpose", lhs, axes=(0, 2, 1))
    tall = build.reshape(lhs, -1, shapes[0][not turned[0]])
    return build.add("dot", tall, rhs, transpose_b=turned[1])


def dense_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, (hidden, width) = site.inputs[0], site.inputs[1]
    out = site.outputs[0]
    if site.batched[0] and not any(site.batched[1:]) and (*data[:-1], hidden) == out:
        return build.call(*build.refs, flatten=False)
    shapes = (prod(data) // width, width), (hidden, width)
    result = _product(build, build.refs[:2], shapes, site.batched[:2], (False, True))
    result = build.reshape(result, -1 if any(site.batched[:2]) else 1, *out)
    if len(site.inputs) == 3:
        bias = build.refs[2]
        if site.batched[2]:
            bias = build.reshape(bias, -1, *(1,) * (len(out) - 1), out[-1])
        result = build.add("broadcast_add", result, bias)
    return (result,)


def _as_matrix(shape: Shape, first: bool) -> Tuple[int, int]:
    """Flatten to a matrix whose first (or last) axis is that of the array."""
    if first:
        return shape[0], prod(shape[1:])
    return prod(shape[:-1]), shape[-1]


def dot_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    lhs, rhs = site.inputs
    # A vector has one axis, which is summed over whatever the flags say.
    turned_left = site.flag("transpose_a") and len(lhs) > 1
    turned_right = site.flag("transpose_b") and len(rhs) > 1
    if site.batched == (True, False) and not turned_left:
        # The batch axis is one more of the axes that dot keeps.
        outputs = build.call(*build.refs, transpose_a=False)
        return build.restored(outputs) if len(lhs) == len(rhs) == 1 else outputs
    left = (1, lhs[0]) if len(lhs) == 1 else _as_matrix(lhs, turned_left)
    right = (rhs[0], 1) if len(rhs) == 1 else _as_matrix(rhs, not turned_right)
    turned = turned_left, turned_right
    return build.restored((_product(build, build.refs, (left, right), site.batched, turned),))
