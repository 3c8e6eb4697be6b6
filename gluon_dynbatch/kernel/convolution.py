"""Handlers of convolution and pooling."""

from __future__ import annotations

from math import prod
from typing import Sequence

import numpy as np

from ..rules.site import require
from ..schedule.dependencies import Array
from .expression import Node
from .layout import ARGMAX, CLIP, Index, Maps, Order, Pair, Ranking, Weight
from .tensor import MOST_PIECES, Call, Tensor, require_movable

#: The layout with channels before the axes of maps, by their number.
LAYOUTS = ("", "NCW", "NCHW", "NCDHW")


def _pair(values: Sequence[int], default: int) -> Pair:
    """Return the values for both axes of maps; with one axis, the other has the default."""
    height, width = (default, default, *values)[-2:]
    return height, width


def convolution(call: Call) -> Tensor:
    """Convolve maps with one or two axes."""
    x, (images, channels, *data) = call.tensors[0], call.inputs[0]
    filters, _, *kernel = call.inputs[1]
    require(x.per_row, "all rows share its first input")
    require(len(kernel) <= 2, "its maps have three axes")
    require(call.attrs.get("layout", "None") in ("None", "NCW", "NCHW"), "channels come last")
    for k in range(1, len(call.tensors)):
        call.shared_place(k)
    groups, attrs = call.integer("num_group", 1) or 1, (("stride", 1), ("dilate", 1), ("pad", 0))
    stride, dilate, pad = (_pair(call.integers(name), default) for name, default in attrs)
    require(min(pad) >= 0, "its padding is negative")
    maps = Maps.of_sizes(
        images,
        groups,
        channels,
        filters,
        data=_pair(data, 1),
        kernel=_pair(kernel, 1),
        stride=stride,
        dilate=dilate,
        pad=pad,
    )
    shape = images, filters, *maps.result[2 - len(kernel) :]
    # Each row gets its own gradient of the kernel.
    small = prod(call.inputs[1]) <= prod(call.inputs[0]) + maps.width
    overlaps = all(margin <= reach for margin, reach in zip(pad, maps.reach))
    if groups == 1 and 1 in maps.result and not (small and overlaps):
        return x.with_node(_of_windows(call, maps), shape)
    require(small, "its kernel has more elements than its maps")
    require(overlaps, "its kernel fits into the padding")
    nodes = [tensor.node() for tensor in call.tensors]
    return x.with_node(call.build.convolved(nodes, maps), shape)


def _of_windows(call: Call, maps: Maps) -> Node:
    """Return a convolution along one axis as a product of windows with the kernel.

    So all rows of a launch share the gradient of the kernel.
    """
    build, chosen, size = call.build, _windows(maps), prod(call.inputs[0])
    # Copies of the data, of which each window reads another one.
    copy, order = _rank(chosen), chosen.ravel()
    copies = int(copy.max()) + 1
    require(copies <= MOST_PIECES, "its windows overlap too often")
    order = np.where(order >= 0, copy * size + order, -1)
    data = build.join([call.tensors[0].node()] * copies)
    windows = build.permuted(data, Order(order.tolist()))
    weight = Weight(call.shared_place(1), maps.filters, chosen.shape[-1], transposed=True)
    biases = [call.shared_place(k) for k in range(2, len(call.tensors))]
    product = build.product([(windows, weight)], biases)
    positions = prod(maps.result)
    return build.permuted(product, Order.of_transposes(maps.images, positions, maps.filters))


def _windows(maps: Maps) -> Array:
    """Return per image, position, and element of the kernel the element of the data, or -1."""
    reach = maps.channels * prod(maps.kernel)
    require_movable(maps.images * prod(maps.result) * reach)
    axes = zip(maps.data, maps.result, maps.kernel, maps.stride, maps.dilate, maps.pad)
    places, inside = [], []
    for extent, positions, length, stride, dilate, pad in axes:
        at = np.arange(positions)[:, None] * stride + np.arange(length) * dilate - pad
        places.append(at)
        inside.append((at >= 0) & (at < extent))
    # Axes: image, both of the position, channel, both of the kernel.
    (down, across), (height, width) = places, maps.data
    down, across = down[:, None, None, :, None], across[None, :, None, None, :]
    channel = np.arange(maps.channels)[:, None, None]
    image = np.arange(maps.images).reshape(-1, 1, 1, 1, 1, 1) * maps.channels
    chosen = ((image + channel) * height + down) * width + across
    fits = inside[0][:, None, None, :, None] & inside[1][None, :, None, None, :]
    return np.where(fits, chosen, -1).reshape(-1, reach)


def _rank(chosen: Array) -> Array:
    """Return for each number how often it occurs before, 0 for those below 0."""
    flat = chosen.ravel()
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    first = np.flatnonzero(np.append(True, np.diff(ordered) != 0))
    rank = np.empty_like(flat)
    rank[order] = np.arange(len(flat)) - np.repeat(first, np.diff(np.append(first, len(flat))))
    return np.where(flat < 0, 0, rank)


def pooling(call: Call) -> Tensor:
    """Reduce whole maps; of equal maxima, the gradient goes to the first."""
    x, kind = call.tensors[0], call.attrs.get("pool_type", "max")
    require(call.flag("global_pool"), "it reduces parts of maps")
    require(kind in ("max", "avg", "sum"), f"not for pool_type={kind}")
    # MXNet checks the windows that it does not need when it runs the operator.
    axes, layout = len(x.shape) - 2, call.attrs.get("layout", "None")
    require(layout in ("None", LAYOUTS[axes]), "channels come last, or there are other axes")
    for name in ("kernel", "stride", "pad"):
        require(len(call.integers(name)) in (0, axes), f"its {name} has another number of axes")
    outer, size = prod(x.shape[:2]), prod(x.shape[2:])
    shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
    if kind != "max":
        total = x.reshaped((*x.shape[:2], size)).reduced([2])
        return (total / size if kind == "avg" else total).reshaped(shape)
    first = call.build.ranked(x.node(), Ranking(outer, size, 1, 1, ARGMAX), "int32")
    index = Index(outer, (size,), 1, 1, CLIP, each=True)
    return x.with_node(call.build.gathered(x.node(), first, index), shape)
