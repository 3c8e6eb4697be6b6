"""Products of matrices and vectors."""

from __future__ import annotations

from math import prod
from typing import NamedTuple, Tuple

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
    outputs = build.same(**({"axis": -2} if "axis" in site.attrs else {}))
    return build.restored(outputs) if build.stacked and (1,) in site.outputs else outputs


class _Factor(NamedTuple):
    """A matrix (one per sample, or shared) and whether it is used transposed."""

    ref: Ref
    shape: Tuple[int, int]
    batched: bool
    turned: bool

    def flat(self, build: Builder) -> Ref:
        """Append a reshape to a matrix, or to one for each sample."""
        return build.reshape(self.ref, *((-1,) if self.batched else ()), *self.shape)


def _product(build: Builder, left: _Factor, right: _Factor) -> Ref:
    """Multiply per sample; the result has (N, rows, columns) elements in this order."""
    lhs, rhs = left.flat(build), right.flat(build)
    if left.batched and right.batched:
        return build.add("batch_dot", lhs, rhs, transpose_a=left.turned, transpose_b=right.turned)
    inner = left.shape[0 if left.turned else 1]
    if not right.batched:
        if left.turned:
            lhs = build.add("transpose", lhs, axes=(0, 2, 1))
        return build.add("dot", build.reshape(lhs, -1, inner), rhs, transpose_b=right.turned)
    # A B_n = (B_n^T A^T)^T: the samples' columns become the rows of one tall matrix.
    if not right.turned:
        rhs = build.add("transpose", rhs, axes=(0, 2, 1))
    result = build.add("dot", build.reshape(rhs, -1, inner), lhs, transpose_b=not left.turned)
    rows = left.shape[1 if left.turned else 0]
    columns = right.shape[0 if right.turned else 1]
    return build.add("transpose", build.reshape(result, -1, columns, rows), axes=(0, 2, 1))


def dense_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, (hidden, width) = site.inputs[0], site.inputs[1]
    out = site.outputs[0]
    if site.batched[0] and not any(site.batched[1:]) and (*data[:-1], hidden) == out:
        return build.call(*build.refs, flatten=False)
    left = _Factor(build.refs[0], (prod(data) // width, width), site.batched[0], False)
    right = _Factor(build.refs[1], (hidden, width), site.batched[1], True)
    result = _product(build, left, right)
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
    result = _product(
        build,
        _Factor(build.refs[0], left, site.batched[0], turned_left),
        _Factor(build.refs[1], right, site.batched[1], turned_right),
    )
    return build.restored((result,))
