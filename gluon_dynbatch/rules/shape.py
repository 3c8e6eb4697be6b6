"""Operators that move, cut, join or repeat elements without computing on them."""

from __future__ import annotations

from math import prod
from typing import Tuple

from .axes import check_groups
from .build import Builder
from .site import Ref, Site, padded, refuse_unless

MAX_SLICE_DIMS = 5


def _keeps_rows(site: Site) -> bool:
    """Whether the codes of a ``Reshape`` leave axis 0 as it is, whatever its size.

    The caller knows that it does so for the number of rows of this site.  So it is enough that the
    first code reads axis 0 and no number: 0 copies it, -1 infers it, -2 copies all axes, -3 joins
    it with the next one, and -4 splits it into the two sizes that follow, of which -1 is inferred.
    """
    codes, ndim = site.integers("shape"), len(site.inputs[0])
    if not site.flag("reverse"):
        return codes[:1] in ((0,), (-1,), (-2,), (-3,)) or codes[:2] == (-4, -1)
    # From the right, the first code reads what the others leave over.
    left = ndim - sum(2 if code == -3 else 1 for code in codes[1:])
    if not codes or {-2, -4}.intersection(codes[1:]) or left < 1:
        return False
    return codes[0] in (-1, -2) or (codes[0], left) in ((0, 1), (-3, 2))


def reshape_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, out = site.inputs[0], site.outputs[0]
    site.keep_rows(prod(data) == prod(out) and _keeps_rows(site))
    return (build.reshape(build.refs[0], 0, *out[1:]),)


def reshape_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    # MXNet 1.9.1 lets codes before -2 lose elements, and then reads past the array's end.
    refuse_unless(
        prod(site.inputs[0]) == prod(site.outputs[0]),
        f"Operator {site.op} changes the number of elements.",
    )
    return build.restored([build.spread(0)])


def reshape_like_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    bounds = [
        site.integer(f"{side}_{end}", None) for end in ("begin", "end") for side in ("lhs", "rhs")
    ]
    inner = all((begin or 0) >= 1 for begin in bounds[:2])
    site.keep_rows(site.batched[0] and (inner or (site.batched[1] and bounds == [None] * 4)))
    data, out = site.inputs[0], site.outputs[0]
    site.keep_rows(prod(out[1:]) == prod(data[1:]))
    return (build.reshape(build.refs[0], 0, *out[1:]),)


def _order(site: Site) -> Tuple[int, ...]:
    return site.integers("axes") or tuple(range(len(site.inputs[0])))[::-1]


def transpose_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    site.keep_rows(_order(site)[0] == 0)
    return build.same()


def transpose_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    return build.same(axes=(0, *(axis + 1 for axis in _order(site))))


def slice_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    begin, end, step = (site.slots(name)[:1] for name in ("begin", "end", "step"))
    site.keep_rows(begin in ((), (None,), (0,)) and end in ((), (None,)))
    site.keep_rows(step in ((), (None,), (1,)))
    return build.same()


def _check_slice(site: Site) -> None:
    refuse_unless(
        len(site.inputs[0]) < MAX_SLICE_DIMS, "With a batch axis, slice has too many dimensions."
    )


def slice_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _check_slice(site)
    bounds = {name: (None, *site.slots(name)) for name in ("begin", "end")}
    step = site.slots("step")
    return build.same(**bounds, step=(None, *step) if step else ())


def slice_like_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axes = site.axes("axes")
    site.keep_rows(site.batched[0] and (site.batched[1] or (bool(axes) and 0 not in axes)))
    return build.call(*build.refs)


def slice_like_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    _check_slice(site)
    out = site.outputs[0]
    begin, end = (None,) + (0,) * len(out), (None, *out)
    return (build.add("slice", build.spread(0), begin=begin, end=end),)


def tile_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    reps, ndim = site.integers("reps"), len(site.inputs[0])
    site.keep_rows(len(reps) <= ndim and padded(reps, ndim)[0] == 1)
    return build.same()


def tile_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    ndim = len(site.outputs[0])
    shape, reps = padded(site.inputs[0], ndim), padded(site.integers("reps"), ndim)
    kinds = ["kept"]
    for rep, extent in zip(reps, shape):
        kinds += ["new"] * (rep != 1) + ["kept"] * (extent != 1)
    check_groups(site, kinds)
    ref = build.refs[0]
    if len(site.inputs[0]) < ndim:
        ref = build.reshape(ref, -1, *shape)
    return build.call(ref, reps=(1, *reps))


def broadcast_to_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    site.keep_rows(site.integers("shape")[:1] == (0,))
    return build.same()


def broadcast_like_rows(site: Site, build: Builder) -> Tuple[Ref, ...]:
    lhs = site.axes("lhs_axes") or (0,)
    rhs = site.axes("rhs_axes", len(site.inputs[1])) or (0,)
    own_rows = site.batched[1]
    for left, right in zip(lhs, rhs):
        # The rows of a sample may come from its own second array, and may not become its width.
        grown = right == 0 and (own_rows or site.inputs[1][0] == 1)
        site.keep_rows(grown if left == 0 else not (right == 0 and own_rows))
    site.keep_rows(0 in lhs or site.batched[0])
    return (build.add("broadcast_to", build.spread(0), shape=(0, *site.outputs[0][1:])),)


def broadcast_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    data, out = site.inputs[0], site.outputs[0]
    check_groups(site, [False, *(a != b for a, b in zip(data, out) if b != 1)])
    return (build.add("broadcast_to", build.spread(0), shape=(0, *out)),)


def diag_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    ndim = len(site.inputs[0])
    if ndim == 1:
        return (_matrices(site, build),)
    axis1, axis2 = site.axis("axis1", 0), site.axis("axis2", 1)
    return build.same(axis1=axis1 + 1, axis2=axis2 + 1)


def _matrices(site: Site, build: Builder) -> Ref:
    """Put vectors on a diagonal each; `linalg.makediag` does so too, but not in half precision."""
    size, k = site.outputs[0][0], site.integer("k", 0) or 0
    zero = build.add("zeros_like", build.add("slice_axis", *build.refs, axis=1, begin=0, end=1))
    # In a matrix row by row, each element of the diagonal is followed by `size` zeros.
    column = build.add("expand_dims", *build.refs, axis=2)
    gaps = build.add("broadcast_axis", build.add("zeros_like", column), axis=2, size=size)
    parts = [build.reshape(build.add("Concat", column, gaps, dim=2, num_args=2), 0, -1)]
    before = k if k >= 0 else -k * size
    missing = size * size - before - site.inputs[0][0] * (size + 1)
    if before:
        parts.insert(0, build.add("broadcast_axis", zero, axis=1, size=before))
    if missing > 0:
        parts.append(build.add("broadcast_axis", zero, axis=1, size=missing))
    flat = build.add("Concat", *parts, dim=1, num_args=len(parts))
    return build.reshape(
        build.add("slice_axis", flat, axis=1, begin=0, end=size * size), -1, size, size
    )


def arange_like_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    refuse_unless(site.integer("axis", None) is not None, "This arange_like counts all elements.")
    axis = site.axis("axis", 0)
    row = build.add("expand_dims", *build.call(*build.refs, axis=axis + 1), axis=0)
    return (build.add("broadcast_like", row, build.like, lhs_axes=(0,), rhs_axes=(0,)),)
