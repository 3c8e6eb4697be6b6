"""Operators that work along axes: columns move, and what is within a row is reduced or chosen."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Sequence

import numpy as np

from ..rules.axes import reduced_axes
from ..schedule.dependencies import Array
from . import columns
from .call import DTYPES, NUMBERS, Call
from .columns import Shape, require
from .expression import Node

# Columns that move.


def unchanged(call: Call) -> None:
    """Leave all elements where they are, in another shape."""


def moved(call: Call, where: Array) -> Sequence[Node]:
    return [columns.moved(call.node(), where)]


def own_axes(call: Call, *axes: int) -> None:
    """Give up if one of these is the axis of rows."""
    require(0 not in axes or not call.values[0].rows, "it moves rows")


def transpose(call: Call) -> Sequence[Node]:
    numbers = columns.places(call.values[0].shape)
    if call.site.op == "SwapAxis":
        axes = [call.site.axis(name, 0) for name in ("dim1", "dim2")]
        own_axes(call, *axes)
        return moved(call, numbers.swapaxes(*axes))
    order = call.site.axes("axes") or tuple(range(numbers.ndim)[::-1])
    own_axes(call, *order[1:])
    return moved(call, numbers.transpose(order))


def reverse(call: Call) -> Sequence[Node]:
    axes = call.site.axes("axis")
    own_axes(call, *axes)
    return moved(call, np.flip(columns.places(call.values[0].shape), axes))


def repeat(call: Call) -> Sequence[Node]:
    axis = call.site.axis("axis", 0)
    own_axes(call, axis)
    times = call.site.integer("repeats", 1) or 1
    return moved(call, np.repeat(columns.places(call.values[0].shape), times, axis))


def tile(call: Call) -> Sequence[Node]:
    shape, times = call.values[0].shape, call.site.integers("reps")
    require(len(times) <= len(shape) or not call.values[0].rows, "it moves rows")
    own_axes(call, *[0] * (len(times) == len(shape) and times[0] != 1))
    return moved(call, np.tile(columns.places(shape), times))


def split(call: Call) -> Sequence[Node]:
    site, shape = call.site, call.values[0].shape
    axis = site.axis("axis", 1)
    parts = site.integer("num_outputs" if site.op == "SliceChannel" else "sections", 0) or 0
    own_axes(call, axis)
    where = parts or site.integers("indices")[1:]
    pieces = np.split(columns.places(shape), where, axis)
    return [columns.moved(call.node(), piece) for piece in pieces]


def slices(call: Call) -> Sequence[Node]:
    site, where = call.site, columns.places(call.values[0].shape)
    begins, steps = (dict(enumerate(site.slots(name))) for name in ("begin", "step"))
    if site.op == "slice_axis":
        begins = {site.axis("axis", 0): begins.get(0)}
    for axis, (before, extent) in enumerate(zip(where.shape, call.out)):
        step = steps.get(axis) or 1
        begin = begins.get(axis)
        if begin is None:
            begin = 0 if step > 0 else before - 1
        if (begin, step, extent) != (0, 1, before):
            own_axes(call, axis)
            where = where.take(begin % before + step * np.arange(extent), axis)
    return moved(call, where)


def concat(call: Call) -> Sequence[Node]:
    name, default = ("axis", 0) if call.site.op == "stack" else ("dim", 1)
    axis = call.site.integer(name, default)
    axis = call.site.positive(default if axis is None else axis, len(call.out))
    require(axis > 0 or not any(value.rows for value in call.values), "it moves rows")
    arrays, start = [], 0
    for value in call.values:
        arrays.append(columns.places(value.shape) + start)
        start += arrays[-1].size
    join = np.stack if call.site.op == "stack" else np.concatenate
    every = call.build.join(call.node(k) for k in range(len(call.values)))
    return [columns.moved(every, join(arrays, axis))]


def broadcast(call: Call) -> Sequence[Node]:
    return [call.wide()]


# Along columns.


def reduction(call: Call, x: Node, mean: bool = False, top: bool = False) -> Node:
    shape, axes = call.values[0].shape, reduced_axes(call.site)
    require(0 not in axes or not call.values[0].rows, "it reduces rows")
    found = columns.reduced(x, shape, axes, top)
    return found / prod(shape[axis] for axis in axes) if mean else found


def norm(call: Call) -> Sequence[Node]:
    x = call.node()
    if call.site.integer("ord", 2) == 1:
        return [reduction(call, call.build.function("abs", x))]
    return [call.build.function("sqrt", reduction(call, x * x))]


def l2_normalization(call: Call) -> Sequence[Node]:
    shape, x = call.values[0].shape, call.node()
    first = {"instance": 1, "channel": 1, "spatial": 2}[call.site.attrs.get("mode", "instance")]
    last = 2 if call.site.attrs.get("mode") == "channel" else len(shape)
    kept = (*shape[:first], *(1,) * (last - first), *shape[last:])
    total = columns.reduced(x * x, shape, range(first, last)) + call.number("eps", 1e-10)
    return [x / columns.broadcast(call.build.function("sqrt", total), kept, shape)]


def arange_like(call: Call) -> Sequence[Node]:
    shape, dtype, axis = call.values[0].shape, call.values[0].dtype, call.site.axis("axis", 0)
    require(axis > 0 or not call.values[0].rows, "it counts rows")
    require(dtype in DTYPES and call.site.integer("repeat", 1) == 1, "it repeats numbers")
    ramp = call.build.ramp(0, shape[axis], dtype)
    start, step = (call.number(name, default) for name, default in (("start", 0), ("step", 1)))
    return [ramp * step + start]


@dataclass(frozen=True)
class Along:
    """The columns of the first input along the axis that an operator is about."""

    call: Call
    shape: Shape
    axis: int

    @property
    def kept(self) -> Shape:
        """What an array has that is broadcast along the axis."""
        return (*self.shape[: self.axis], 1, *self.shape[self.axis + 1 :])

    def spread(self, x: Node) -> Node:
        """Repeat elements along the axis."""
        return columns.broadcast(x, self.kept, self.shape)

    def total(self, x: Node, top: bool = False) -> Node:
        """Return sums, or largest elements."""
        return columns.reduced(x, self.shape, [self.axis], top)

    def are_at(self, places: Node) -> Node:
        """Return one where an element is at the place that is wanted, else zero."""
        numbers = columns.numbers(places.owner, self.shape, self.axis, places.dtype)
        return places.owner.function("equal", self.spread(places), numbers)


def along(call: Call, default: int = -1) -> Along:
    """Return columns along the axis that an operator names."""
    shape, axis = call.values[0].shape, call.site.axis("axis", default)
    require(axis > 0 or not call.values[0].rows, "it mixes rows")
    return Along(call, shape, axis)


def softmax(call: Call) -> Sequence[Node]:
    site, build, own, x = call.site, call.build, along(call), call.node()
    require(not site.flag("use_length"), "rows have lengths")
    require(site.attrs.get("dtype") in (None, "None", call.values[0].dtype), "dtypes differ")
    if site.op == "softmin":
        x = -x
    # No gradient flows through the largest: it makes no difference.
    x = x - own.spread(build.function("multiplier", own.total(x, top=True), values=(0,)))
    temperature = call.number("temperature", single=False)
    if temperature != 1:
        x = x / temperature
    powers = build.function("exp", x)
    total = own.total(powers)
    if site.op == "log_softmax":
        return [x - own.spread(build.function("log", total))]
    return [powers / own.spread(total)]


def layer_norm(call: Call) -> Sequence[Node]:
    own, x = along(call), call.node()
    width = own.shape[own.axis]
    vector = (width, *(1,) * (len(own.shape) - own.axis - 1))
    gamma, beta = (columns.broadcast(call.node(k), vector, own.shape) for k in (1, 2))
    centred = x - own.spread(own.total(x) / width)
    variance = own.total(centred * centred) / width
    scale = call.build.function("rsqrt", variance + call.number("eps", 1e-5))
    return [centred * own.spread(scale) * gamma + beta]


def pick(call: Call) -> Sequence[Node]:
    build, own, x = call.build, along(call), call.node()
    require(call.values[1].rows or not call.values[0].rows, "all rows choose the same")
    places = build.function("trunc", build.cast(call.node(1, NUMBERS), x.dtype))
    last = own.shape[own.axis] - 1
    if call.site.attrs.get("mode", "clip") == "wrap":
        places = build.function("mod", places, last + 1)
    else:
        least = build.function("minimum", places, last)
        places = build.function("select", build.function("greater", places, 0), least, 0)
    if x.width == last + 1:
        return [columns.chosen(x, own.are_at(places))]
    return [own.total(build.function("select", own.are_at(places), x, 0))]


def one_hot(call: Call) -> Sequence[Node]:
    build, dtype, axis = call.build, call.site.attrs.get("dtype", "float32"), len(call.out) - 1
    require(dtype in DTYPES, f"{dtype} has no kernels")
    places = build.function("trunc", build.cast(call.node(dtypes=NUMBERS), dtype))
    found = Along(call, call.out, axis).are_at(places)
    on, off = call.number("on_value", 1), call.number("off_value", 0)
    return [build.function("select", found, build.const(on, found.width, dtype), off)]
