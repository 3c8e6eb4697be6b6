"""Operators that select elements by index."""

from __future__ import annotations

from math import prod
from typing import Tuple

from .build import Builder
from .sequence import fold_minibatch
from .site import Ref, Site, require


def take(site: Site, build: Builder) -> Tuple[Ref, ...]:
    axis = site.axis("axis", 0)
    if not build.stacked:
        site.keep_rows(site.batched == ((False, True) if axis == 0 else (True, False)))
        return build.call(*build.refs)
    if not site.batched[1]:
        return build.call(*build.refs, axis=axis + 1)
    if site.batched[0]:
        require(axis == 0, "Operator take with indices per sample merges only along axis 0.")
        return build.unfold((_take_from_own_tables(site, build),))
    (taken,) = build.call(*build.refs, axis=axis)
    if axis == 0:
        return (taken,)
    # The batch axis of the indices comes after the first axes of the table.
    ndim = len(site.outputs[0]) + 1
    axes = (axis, *(i for i in range(ndim) if i != axis))
    return (build.add("transpose", taken, axes=axes),)


def _take_from_own_tables(site: Site, build: Builder) -> Ref:
    """Take from the concatenated tables, with each index shifted to the table of its sample."""
    table, indices = site.inputs
    # Taken from the numbers of rows, indices become integers of 64 bits within the table.
    numbers = build.add("_arange", start=0, stop=table[0], dtype="int64")
    (index,) = build.call(numbers, build.refs[1], axis=0)
    index = build.reshape(index, -1, prod(indices))
    start = build.add("_contrib_arange_like", index, axis=0)
    start = build.reshape(build.add("_mul_scalar", start, scalar=table[0]), -1, 1)
    index = build.add("broadcast_add", index, start)
    rows = build.reshape(build.refs[0], -1, *table[1:])
    return build.add("take", rows, index, axis=0, mode="clip")


def gather_nd_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    if not site.batched[0]:
        indices = build.add("SwapAxis", build.refs[1], dim1=0, dim2=1)
        return build.unfold(build.call(build.refs[0], indices))
    cast = build.add("BlockGrad", build.add("Cast", build.batched_input(1), dtype="int32"))
    indices = build.add("SwapAxis", cast, dim1=0, dim2=1)
    # Prepend a coordinate: the number of the sample whose array to gather from.
    first = build.add("slice_axis", indices, axis=0, begin=0, end=1)
    sample = build.add("_contrib_arange_like", indices, axis=1)
    sample = build.reshape(sample, 1, -1, *(1,) * (len(site.inputs[1]) - 1))
    sample = build.add("broadcast_like", sample, first)
    indices = build.add("Concat", sample, indices, dim=0, num_args=2)
    return build.unfold(build.call(build.refs[0], indices))


def unravel_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    # For indices of more dimensions, MXNet 1.9.1 writes past the end of its result.
    require(len(site.inputs[0]) == 1, "This unravel_index has indices of several dimensions.")
    return fold_minibatch((), True, site, build)
