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
        return build.unfold((_take_from_own_tables(site, build, axis),))
    (taken,) = build.call(*build.refs, axis=axis)
    if axis == 0:
        return (taken,)
    # The batch axis of the indices comes after the first axes of the table.
    ndim = len(site.outputs[0]) + 1
    axes = (axis, *(i for i in range(ndim) if i != axis))
    return (build.add("transpose", taken, axes=axes),)


def _take_from_own_tables(site: Site, build: Builder, axis: int) -> Ref:
    """Take from the concatenated tables, with each index shifted to the table of its sample."""
    shape, indices = site.inputs
    # With the axis that indices choose along in front.
    table = shape[axis], *shape[:axis], *shape[axis + 1 :]
    # Taken from the numbers of rows, indices become integers of 64 bits within the table.
    numbers = build.add("_arange", start=0, stop=table[0], dtype="int64")
    (index,) = build.call(numbers, build.refs[1], axis=0)
    index = build.reshape(index, -1, prod(indices))
    start = build.add("_contrib_arange_like", index, axis=0)
    start = build.reshape(build.add("_mul_scalar", start, scalar=table[0]), -1, 1)
    index = build.add("broadcast_add", index, start)
    data = build.refs[0]
    if axis:
        others = (i for i in range(1, len(shape) + 1) if i != axis + 1)
        data = build.add("transpose", data, axes=(0, axis + 1, *others))
    rows = build.reshape(data, -1, *table[1:])
    taken = build.add("take", rows, index, axis=0, mode="clip")
    if not axis:
        return taken
    # The axes are those of rows and indices, of the table before `axis`, and of the table after it.
    last = range(2 + axis, len(shape) + 1)
    return build.add("transpose", taken, axes=(0, *range(2, 2 + axis), 1, *last))


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


def scatter_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    """Sum the elements of each sample whose index is that of the position."""
    shape, (axes, *numbers) = site.integers("shape"), site.inputs[1]
    count, inner, number = prod(shape[:axes]), prod(shape[axes:]), prod(numbers)
    # Cast twice, as fractions are cut off, and integers of 32 bits may become too large.
    index = build.add("BlockGrad", build.add("Cast", build.batched_input(1), dtype="int32"))
    index = build.reshape(build.add("Cast", index, dtype="int64"), -1, axes, number, 1)
    parts = [build.add("slice_axis", index, axis=1, begin=i, end=i + 1) for i in range(axes)]
    position = parts[0]
    for part, size in zip(parts[1:], shape[1:]):
        position = build.add("_mul_scalar", position, scalar=size)
        position = build.add("elemwise_add", position, part)
    positions = build.add("_arange", start=0, stop=count, dtype="int64")
    positions = build.reshape(positions, 1, count, 1, 1)
    chosen = build.add("broadcast_equal", position, positions)
    data = build.reshape(build.batched_input(0), -1, 1, number, inner)
    data = build.add("broadcast_axis", data, axis=1, size=count)
    chosen = build.add("broadcast_axis", chosen, axis=3, size=inner)
    chosen = build.add("where", chosen, data, build.add("zeros_like", data))
    return build.unfold((build.add("sum", chosen, axis=2),))


def unravel_stack(site: Site, build: Builder) -> Tuple[Ref, ...]:
    # For indices of more dimensions, MXNet 1.9.1 writes past the end of its result.
    require(len(site.inputs[0]) == 1, "This unravel_index has indices of several dimensions.")
    return fold_minibatch((), True, site, build)
