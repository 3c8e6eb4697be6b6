"""Operators that work along axes: elements move, and what is within a row is reduced or chosen."""

from __future__ import annotations

from math import prod
from typing import List, Sequence

import numpy as np

from ..rules.axes import reduced_axes
from .call import Call
from .expression import TOP, TOTAL
from .tensor import DTYPES, NUMBERS, Shape, Tensor, chosen, require

# The same elements in another shape.


def unchanged(call: Call) -> Tensor:
    return call.tensors[0]


def reshape(call: Call) -> Tensor:
    x, codes = call.tensors[0], call.integers("shape")
    require(min(codes) >= -1 and not call.flag("reverse"), "its shape has codes")
    require(not x.rows or codes[0] in (0, -1), "rows are not along axis 0")
    shape = [x.shape[axis] if code == 0 else code for axis, code in enumerate(codes)]
    if -1 in shape:
        rest = -prod(shape)
        require(prod(x.shape) % rest == 0, "rows are not along axis 0")
        shape[shape.index(-1)] = prod(x.shape) // rest
    require(prod(shape) == prod(x.shape), "it loses elements")
    return x.shaped(shape)


def flatten(call: Call) -> Tensor:
    x = call.tensors[0]
    return x.shaped((x.shape[0], prod(x.shape[1:])))


def expand_dims(call: Call) -> Tensor:
    x = call.tensors[0]
    axis = call.positive(call.integer("axis", 0) or 0, len(x.shape) + 1)
    require(axis > 0 or not x.rows, "rows are not along axis 0")
    return x.shaped((*x.shape[:axis], 1, *x.shape[axis:]))


def squeeze(call: Call) -> Tensor:
    x = call.tensors[0]
    axes = call.axes("axis") or [a for a in range(int(x.rows), len(x.shape)) if x.shape[a] == 1]
    return without(x, axes)


def without(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Leave out axes of extent 1."""
    x.own_axes(*axes)
    return x.shaped([n for axis, n in enumerate(x.shape) if axis not in axes] or [1])


# Elements that move.


def transpose(call: Call) -> Tensor:
    x = call.tensors[0]
    if call.op == "SwapAxis":
        first, second = (call.own_axis(name, 0) for name in ("dim1", "dim2"))
        return x.moved(x.places().swapaxes(first, second))
    order = call.axes("axes") or tuple(range(len(x.shape))[::-1])
    x.own_axes(*order[1:])
    return x.moved(x.places().transpose(order))


def reverse(call: Call) -> Tensor:
    x, axes = call.tensors[0], call.axes("axis")
    x.own_axes(*axes)
    return x.moved(np.flip(x.places(), axes))


def repeat(call: Call) -> Tensor:
    x, axis = call.tensors[0], call.own_axis(default=0)
    times = call.integer("repeats", 1) or 1
    return x.moved(np.repeat(x.places(times), times, axis))


def tile(call: Call) -> Tensor:
    x, times = call.tensors[0], call.integers("reps")
    require(len(times) <= len(x.shape) or not x.rows, "it moves rows")
    x.own_axes(*[0] * (len(times) == len(x.shape) and times[0] != 1))
    return x.moved(np.tile(x.places(prod(times)), times))


def split(call: Call) -> List[Tensor]:
    x, axis = call.tensors[0], call.own_axis(default=1)
    parts = call.integer("num_outputs" if call.op == "SliceChannel" else "sections", 0) or 0
    pieces = np.split(x.places(), parts or call.integers("indices")[1:], axis)
    squeezed = [axis] if call.flag("squeeze_axis") else []
    return [without(x.moved(piece), squeezed) for piece in pieces]


def slices(call: Call) -> Tensor:
    x = call.tensors[0]
    index = [slice(None)] * len(x.shape)
    if call.op == "slice_like":
        like = call.tensors[1].shape
        for axis in call.axes("axes") or range(len(like)):
            index[axis] = slice(like[axis] if axis or not x.rows else None)
    else:
        first = call.axis("axis", 0) if call.op == "slice_axis" else 0
        bounds = [call.slots(name) for name in ("begin", "end", "step")]
        for axis, begin in enumerate(bounds[0], first):
            end, step = (own[axis - first] if own else None for own in bounds[1:])
            index[axis] = slice(begin, end, step)
    along_rows = index[0].start or index[0].stop is not None or index[0].step not in (None, 1)
    x.own_axes(*[0] * bool(along_rows))
    return x.moved(x.places()[tuple(index)])


def concat(call: Call) -> Tensor:
    stacks = call.op == "stack"
    name, default = ("axis", 0) if stacks else ("dim", 1)
    axis = call.integer(name, default)
    axis = call.positive(default if axis is None else axis, len(call.inputs[0]) + stacks)
    require(axis > 0 or not any(call.batched), "it moves rows")
    require(len(set(call.batched)) == 1, "rows are not along axis 0")
    arrays, start = [], 0
    for value in call.tensors:
        arrays.append(value.places() + start)
        start += arrays[-1].size
    where = (np.stack if stacks else np.concatenate)(arrays, axis)
    every = call.build.join(value.node() for value in call.tensors)
    return call.tensors[0].of(every, (start,)).moved(where)


def broadcast(call: Call) -> Tensor:
    x = call.tensors[0]
    if call.op == "broadcast_to":
        wanted = call.integers("shape")
        return _spread(x, [axis for axis, n in enumerate(wanted) if n], [n for n in wanted if n])
    if call.op == "broadcast_axis":
        return _spread(x, call.axes("axis"), call.integers("size"))
    like = call.tensors[1]
    left, right = call.axes("lhs_axes"), call.axes("rhs_axes", len(like.shape))
    if not left:
        left = right = tuple(range(len(like.shape)))
    rows = like.rows and (0, 0) in zip(left, right)
    require(rows or 0 not in right or not like.rows, "rows are not along axis 0")
    return _spread(x, left, [like.shape[axis] for axis in right], rows)


def _spread(x: Tensor, axes: Sequence[int], sizes: Sequence[int], rows: bool = False) -> Tensor:
    shape = list(x.shape)
    for axis, size in zip(axes, sizes):
        shape[axis] = size
    require(rows or not x.rows or 0 not in axes, "it moves rows")
    return x.to(tuple(shape), rows)


# Along an axis.


def reduction(call: Call, x: Tensor, mean: bool = False, how: str = TOTAL) -> Tensor:
    axes = reduced_axes(call)
    found = x.reduced(axes, how)
    if mean:
        found = found / prod(x.shape[axis] for axis in axes)
    return found if call.flag("keepdims") else without(found, axes)


def norm(call: Call) -> Tensor:
    x = call.tensors[0]
    if call.integer("ord", 2) == 1:
        return reduction(call, x.apply("abs", x))
    total = reduction(call, x * x)
    return total.apply("sqrt", total)


def l2_normalization(call: Call) -> Tensor:
    x = call.tensors[0]
    first = {"instance": 1, "channel": 1, "spatial": 2}[call.attrs.get("mode", "instance")]
    last = 2 if call.attrs.get("mode") == "channel" else len(x.shape)
    total = (x * x).reduced(range(first, last)) + call.number("eps", 1e-10)
    return x / total.apply("sqrt", total)


def ramp(x: Tensor, count: int, dtype: str, ndim: int = 1) -> Tensor:
    """Return numbers from zero on, along the first of some axes."""
    require(dtype in DTYPES, f"{dtype} has no kernels")
    shape: Shape = (count, *(1,) * (ndim - 1))
    return Tensor(x.build, x.build.ramp(0, count, dtype), dtype, shape, False)


def arange_like(call: Call) -> Tensor:
    x, axis = call.tensors[0], call.own_axis(default=0)
    require(call.integer("repeat", 1) == 1, "it repeats numbers")
    start, step = (call.number(name, default) for name, default in (("start", 0), ("step", 1)))
    return ramp(x, x.shape[axis], x.dtype) * step + start


def softmax(call: Call) -> Tensor:
    x, axis = call.tensors[0], [call.own_axis()]
    require(not call.flag("use_length"), "rows have lengths")
    require(call.attrs.get("dtype") in (None, "None", x.dtype), "dtypes differ")
    if call.op == "softmin":
        x = -x
    # No gradient flows through the largest: it makes no difference.
    x = x - x.apply("multiplier", x.reduced(axis, TOP), values=(0,))
    temperature = call.number("temperature", single=False)
    if temperature != 1:
        x = x / temperature
    powers = x.apply("exp", x)
    total = powers.reduced(axis)
    if call.op == "log_softmax":
        return x - x.apply("log", total)
    return powers / total


def layer_norm(call: Call) -> Tensor:
    x, axis = call.tensors[0], call.own_axis()
    width = x.shape[axis]
    vector = (width, *(1,) * (len(x.shape) - axis - 1))
    gamma, beta = (call.tensors[k].shaped(vector) for k in (1, 2))
    centred = x - x.reduced([axis]) / width
    variance = (centred * centred).reduced([axis]) / width + call.number("eps", 1e-5)
    return centred * x.apply("rsqrt", variance) * gamma + beta


def pick(call: Call) -> Tensor:
    x, index = call.tensors
    axis, build = call.own_axis(), call.build
    require(index.rows or not x.rows, "all rows choose the same")
    kept = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    last, places = x.shape[axis] - 1, build.cast(index.node(NUMBERS), x.dtype)
    places = build.function("trunc", places)
    if call.attrs.get("mode", "clip") == "wrap":
        places = build.function("mod", places, last + 1)
    else:
        least = build.function("minimum", places, last)
        places = build.function("select", build.function("greater", places, 0), least, 0)
    numbers = ramp(x, last + 1, x.dtype, len(x.shape) - axis)
    mask = x.apply("equal", index.of(places).shaped(kept), numbers)
    if prod(x.shape) == last + 1:
        found = mask.of(chosen(x.node(), mask.node()), kept)
    else:
        found = x.apply("select", mask, x, 0).reduced([axis])
    return found if call.flag("keepdims") else without(found, [axis])


def one_hot(call: Call) -> Tensor:
    x, dtype = call.tensors[0], call.attrs.get("dtype", "float32")
    numbers = ramp(x, call.integer("depth", 0) or 0, dtype)
    places = call.build.function("trunc", call.build.cast(x.node(NUMBERS), dtype))
    found = x.apply("equal", x.of(places).shaped((*x.shape, 1)), numbers)
    on, off = call.number("on_value", 1), call.number("off_value", 0)
    return found.apply("select", found, found.const(on), off)
