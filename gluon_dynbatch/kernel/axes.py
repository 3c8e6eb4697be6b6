"""Operators that work along axes: elements move, and what is within a row is reduced or chosen."""

from __future__ import annotations

from itertools import zip_longest
from math import prod
from typing import Callable, Dict, List, Sequence, Union

import numpy as np

from ..rules.axes import reduced_axes
from ..schedule.dependencies import Array
from .expression import TOP, TOTAL
from .tensor import DTYPES, NUMBERS, Call, Handler, NotExpressed, Shape, Tensor, few, require

# Elements that move: what operators do to arrays of NumPy.


def _reshape(call: Call, x: Array) -> Array:
    codes = call.integers("shape")
    require(min(codes) >= -1 and not call.flag("reverse"), "its shape has codes")
    require(not call.batched[0] or codes[0] < 1, "rows are not along axis 0")
    return x.reshape([x.shape[axis] if code == 0 else code for axis, code in enumerate(codes)])


def _tile(call: Call, x: Array) -> Array:
    times = call.integers("reps")
    return np.tile(few(x, prod(times)), times)


def _repeat(call: Call, x: Array) -> Array:
    times = call.integer("repeats", 1) or 1
    return np.repeat(few(x, times), times, call.integer("axis", None))


def _split(call: Call, x: Array) -> List[Array]:
    axis = call.axis("axis", 1)
    parts = call.integer("num_outputs" if call.op == "SliceChannel" else "sections", 0) or 0
    pieces = np.split(x, parts or call.integers("indices")[1:], axis)
    return [piece.squeeze(axis) for piece in pieces] if call.flag("squeeze_axis") else pieces


def _slice(call: Call, x: Array) -> Array:
    first = call.axis("axis", 0) if call.op == "slice_axis" else 0
    bounds = [call.slots(name) for name in ("begin", "end", "step")]
    # Texts without a number, "None" and "()", stand for nothing.
    own = (slice(*some) for some in zip_longest(*bounds))
    index = (*[slice(None)] * first, *own)
    require(not call.batched[0] or index[0].stop is None, "it works along the axis of rows")
    return x[index]


def _slice_like(call: Call, x: Array, like: Array) -> Array:
    axes = call.axes("axes") or range(like.ndim)
    return x[tuple(slice(like.shape[axis] if axis in axes else None) for axis in range(x.ndim))]


def _broadcast(call: Call, x: Array, *like: Array) -> Array:
    axes, sizes = call.axes("axis"), call.integers("size")
    if call.op == "broadcast_to":
        sizes = call.integers("shape")
        axes = tuple(axis for axis, size in enumerate(sizes) if size)
        sizes = tuple(filter(None, sizes))
    elif like:
        axes = call.axes("lhs_axes") or tuple(range(x.ndim))
        sizes = tuple(like[0].shape[a] for a in call.axes("rhs_axes", like[0].ndim) or axes)
    shape = list(x.shape)
    for axis, size in zip(axes, sizes):
        shape[axis] = size
    return np.broadcast_to(x, shape)


_MOVES: Dict[str, Callable[..., Union[Array, List[Array]]]] = {
    "_copy": lambda call, x: x,
    "Reshape": _reshape,
    "Flatten": lambda call, x: x.reshape(len(x), -1),
    "expand_dims": lambda call, x: np.expand_dims(x, call.integer("axis", 0)),
    "squeeze": lambda call, x: np.squeeze(x, call.axes("axis") or None),
    "transpose": lambda call, x: x.transpose(call.axes("axes") or None),
    "SwapAxis": lambda call, x: x.swapaxes(call.axis("dim1", 0), call.axis("dim2", 0)),
    "reverse": lambda call, x: np.flip(x, call.axes("axis")),
    "repeat": _repeat,
    "tile": _tile,
    **dict.fromkeys(["SliceChannel", "_split_v2"], _split),
    **dict.fromkeys(["slice", "slice_axis"], _slice),
    "slice_like": _slice_like,
    "Concat": lambda call, *x: np.concatenate(x, call.integer("dim", 1)),
    "stack": lambda call, *x: np.stack(x, call.integer("axis", 0)),
    **dict.fromkeys(["broadcast_to", "broadcast_axis", "broadcast_like"], _broadcast),
}


def move(call: Call) -> List[Tensor]:
    """Do it to the numbers of elements of two rows: the second has to do as the first."""
    arrays, sizes = [], [prod(x.shape) for x in call.tensors]
    far, start = sum(sizes), 0
    for x, size in zip(call.tensors, sizes):
        own = np.arange(start, start + size).reshape(x.shape)
        arrays.append(few(np.concatenate([own, own + far]) if x.rows else own))
        start += size
    try:
        made = _MOVES[call.op](call, *arrays)
    except (ValueError, IndexError) as error:
        raise NotExpressed(str(error)) from None
    found, rows = [], any(call.batched)
    for where in made if isinstance(made, list) else [made]:
        half = few(where).reshape(where.shape or (1,))
        if rows:
            half, other = half[: len(where) // 2], where[len(where) // 2 :]
            alike = half.shape == other.shape and half.max(initial=0) < far
            require(alike, "rows are not along axis 0")
            shift = far if all(call.batched) else np.repeat(call.batched, sizes)[half] * far
            require((other == half + shift).all(), "rows are not along axis 0")
        source = call.tensors[0]
        if half.max(initial=0) >= sizes[0]:
            source = source.of(call.build.join(x.node() for x in call.tensors), (far,))
        found.append(source.moved(half, rows))
    return found


MOVES: Dict[str, Handler] = dict.fromkeys(_MOVES, move)


def without(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Leave out axes of extent 1."""
    return x.shaped([n for axis, n in enumerate(x.shape) if axis not in axes] or [1])


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
    found = x.apply("select", mask, x, 0).reduced([axis])
    return found if call.flag("keepdims") else without(found, [axis])


def one_hot(call: Call) -> Tensor:
    x, dtype = call.tensors[0], call.attrs.get("dtype", "float32")
    numbers = ramp(x, call.integer("depth", 0) or 0, dtype)
    places = call.build.function("trunc", call.build.cast(x.node(NUMBERS), dtype))
    found = x.apply("equal", x.of(places).shaped((*x.shape, 1)), numbers)
    on, off = call.number("on_value", 1), call.number("off_value", 0)
    return found.apply("select", found, found.const(on), off)
