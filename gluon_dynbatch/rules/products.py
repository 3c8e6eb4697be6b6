"""Products of matrices and vectors, and other operators on matrices."""

from __future__ import annotations

from math import prod
from typing import Sequence, Tuple

from .build import Builder
from .site import Ref, Shape, Site, require


def matrix(site: Site, build: Builder) -> Tuple[Ref, ...]:
    require(
        site.integer("axis", -2) in (-2, len(site.inputs[0]) - 2),
        f"Operator {site.called} has a batching rule only for axis=-2.",
    )
    if not build.stacked and site.op == "_linalg_gemm2" and len(site.inputs[0]) == 2:
        site.keep_rows(site.batched == (True, False) and not site.flag("transpose_a"))
        return build.call(*build.refs)
    # Counted from the back, the matrix axis is the same in a stack.
    return build.same_with_scalars(**({"axis": -2} if "axis" in site.attrs else {}))


def _product(
    build: Builder,
    refs: Sequence[Ref],
    shapes: Sequence[Tuple[int, int]],
    batched: Sequence[bool],
    transposed: Sequence[bool],
) -> Ref:
    """Multiply two matrices per sample; each may be shared, and used transposed.

    The elements of the product are in the order (N, rows, columns); its shape may differ.
    """
    lhs, rhs = (
        build.reshape(ref, *(-1,) * has_batch_axis, *shape)
        for ref, has_batch_axis, shape in zip(refs, batched, shapes)
    )
    transpose_a, transpose_b = transposed
    if all(batched):
        return build.add("batch_dot", lhs, rhs, transpose_a=transpose_a, transpose_b=transpose_b)
    if batched[1]:
        # A B_n = (B_n^T A^T)^T: the samples' columns become the rows of one tall matrix.
        swapped = refs[::-1], shapes[::-1], batched[::-1], (not transpose_b, not transpose_a)
        rows, columns = shapes[0][transpose_a], shapes[1][not transpose_b]
        product = build.reshape(_product(build, *swapped), -1, columns, rows)
        return build.add("transpose", product, axes=(0, 2, 1))
    if transpose_a:
        lhs = build.add("transpose", lhs, axes=(0, 2, 1))
    tall = build.reshape(lhs, -1, shapes[0][not transpose_a])
    return build.add("dot", tall, rhs, transpose_b=transpose_b)


def dense_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, (hidden, width) = site.inputs[0], site.inputs[1]
    out = site.outputs[0]
    if site.batched[0] and not any(site.batched[1:]) and (*data[:-1], hidden) == out:
        return build.call(*build.refs, flatten=False)
    shapes = (prod(data) // width, width), (hidden, width)
    product = _product(build, build.refs[:2], shapes, site.batched[:2], (False, True))
    result = build.reshape(product, -1 if any(site.batched[:2]) else 1, *out)
    if len(site.inputs) == 3:
        bias = build.refs[2]
        if site.batched[2]:
            bias = build.reshape(bias, -1, *(1,) * (len(out) - 1), out[-1])
        result = build.add("broadcast_add", result, bias)
    return (result,)


def _as_matrix(shape: Shape, first: bool) -> Tuple[int, int]:
    """Return the shape of a matrix that keeps the first (or last) axis and flattens the others."""
    if first:
        return shape[0], prod(shape[1:])
    return prod(shape[:-1]), shape[-1]


def dot_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    lhs, rhs = site.inputs
    # The only axis of a vector is summed over, whatever the flags say.
    transposed = (
        site.flag("transpose_a") and len(lhs) > 1,
        site.flag("transpose_b") and len(rhs) > 1,
    )
    if site.batched == (True, False) and not transposed[0]:
        # The batch axis is one more axis of `lhs` that dot keeps.
        outputs = build.call(*build.refs, transpose_a=False)
        return build.unfold(outputs) if len(lhs) == len(rhs) == 1 else outputs
    left = (1, lhs[0]) if len(lhs) == 1 else _as_matrix(lhs, transposed[0])
    right = (rhs[0], 1) if len(rhs) == 1 else _as_matrix(rhs, not transposed[1])
    product = _product(build, build.refs, (left, right), site.batched, transposed)
    return build.unfold((product,))
