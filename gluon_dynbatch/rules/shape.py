"""Operators that move, slice, join or repeat elements without computing on them."""

from __future__ import annotations

from math import prod
from typing import Tuple

from .axes import MAX_GROUPS, require_few_groups
from .build import Builder
from .site import Ref, Site, padded, require


def _check_slice_dims(site: Site) -> None:
    """Leave a slice to the rows rule if MXNet does not support one more dimension."""
    require(len(site.inputs[0]) < MAX_GROUPS, "")


def reshape(site: Site, build: Builder) -> Tuple[Ref, ...]:
    # In MXNet 1.9.1, codes before -2 may lose elements, and it then reads past the array's end.
    require(
        prod(site.inputs[0]) == prod(site.outputs[0]),
        f"Operator {site.called} changes the number of elements.",
    )
    if build.stacked:
        return build.unfold([build.batched_input(0)])
    return (build.reshape(build.refs[0], 0, *site.outputs[0][1:]),)


def transpose_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    order = site.integers("axes") or tuple(range(len(site.inputs[0])))[::-1]
    return build.same(axes=(0, *(axis + 1 for axis in order)))


def cut(site: Site, build: Builder) -> Tuple[Ref, ...]:
    bounds = {name: site.optional_integers(name) for name in ("begin", "end", "step")}
    if not build.stacked:
        # Bounds of axis 0; empty if the attribute is missing.
        begin, end, step = ({*bound[:1]} for bound in bounds.values())
        site.keep_rows(begin <= {None, 0} and end <= {None} and step <= {None, 1})
        return build.same()
    _check_slice_dims(site)
    if not bounds["step"]:
        del bounds["step"]
    return build.same(**{name: (None, *bound) for name, bound in bounds.items()})


def slice_like_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _check_slice_dims(site)
    out = site.outputs[0]
    begin, end = (None,) + (0,) * len(out), (None, *out)
    return (build.add("slice", build.batched_input(0), begin=begin, end=end),)


def tile_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    ndim = len(site.outputs[0])
    shape, reps = padded(site.inputs[0], ndim), padded(site.integers("reps"), ndim)
    kinds = ["data"]
    for rep, extent in zip(reps, shape):
        kinds += ["repeats"] * (rep != 1) + ["data"] * (extent != 1)
    require_few_groups(site, kinds)
    ref = build.refs[0]
    if len(site.inputs[0]) < ndim:
        ref = build.reshape(ref, -1, *shape)
    return build.call(ref, reps=(1, *reps))


def broadcast_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, out = site.inputs[0], site.outputs[0]
    require_few_groups(site, [False, *(a != b for a, b in zip(data, out) if b != 1)])
    return (build.add("broadcast_to", build.batched_input(0), shape=(0, *out)),)


def diag_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    ndim = len(site.inputs[0])
    if ndim == 1:
        return (_diagonal_matrices(site, build),)
    axis1, axis2 = site.axis("axis1", 0), site.axis("axis2", 1)
    return build.same(axis1=axis1 + 1, axis2=axis2 + 1)


def _diagonal_matrices(site: Site, build: Builder) -> Ref:
    """Put each vector on the diagonal of a matrix, as `linalg.makediag` does except in float16."""
    size, k = site.outputs[0][0], site.integer("k", 0) or 0
    zero = build.add("zeros_like", build.add("slice_axis", *build.refs, axis=1, begin=0, end=1))
    # In row-major order, `size` zeros follow each element of the diagonal.
    column = build.add("expand_dims", *build.refs, axis=2)
    gaps = build.add("broadcast_axis", build.add("zeros_like", column), axis=2, size=size)
    parts = [build.reshape(build.add("Concat", column, gaps, dim=2, num_args=2), 0, -1)]
    leading = k if k >= 0 else -k * size
    trailing = size * size - leading - site.inputs[0][0] * (size + 1)
    if leading:
        parts.insert(0, build.add("broadcast_axis", zero, axis=1, size=leading))
    if trailing > 0:
        parts.append(build.add("broadcast_axis", zero, axis=1, size=trailing))
    flat = build.add("Concat", *parts, dim=1, num_args=len(parts))
    return build.reshape(
        build.add("slice_axis", flat, axis=1, begin=0, end=size * size), -1, size, size
    )


def arange_like_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    require(site.integer("axis", None) is not None, "This arange_like numbers all elements.")
    axis = site.axis("axis", 0)
    row = build.add("expand_dims", *build.call(*build.refs, axis=axis + 1), axis=0)
    return (build.broadcast(row),)


def triangles(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Clear triangles of matrices; of a vector, the operator makes a matrix."""
    require(len(site.inputs[0]) > 1, f"Operator {site.called} of a vector has no batching rule.")
    return build.same()
