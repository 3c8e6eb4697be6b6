"""Operators that work along axes: elements move, and what is within a row is reduced or chosen."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, Dict, List, Sequence

import numpy as np
from mxnet import nd, sym
from mxnet.base import MXNetError

from ..rules.axes import reduced_axes
from ..rules.site import RefuseError, Site, public_attrs, require
from ..schedule.dependencies import Array
from .expression import TOP, TOTAL
from .tensor import DTYPES, MOST_MOVED, Call, Handler, Shape, Tensor, few

# Elements that move.

_MOVES = (
    "_copy Reshape Flatten expand_dims squeeze transpose SwapAxis reverse repeat tile SliceChannel "
    "_split_v2 slice slice_axis slice_like Concat stack broadcast_to broadcast_axis broadcast_like"
)


def move(call: Call) -> List[Tensor]:
    """Take elements from where MXNet's operator takes them."""
    found, sizes = [], [prod(x.shape) for x in call.tensors]
    for where in _elements(Site(call.op, call.attrs, call.inputs, (), call.batched, False)):
        source = call.tensors[0]
        if where.max(initial=0) >= sizes[0]:
            source = source.of(call.build.join(x.node() for x in call.tensors), (sum(sizes),))
        found.append(source.moved(where, any(call.batched)))
    return found


# The cells of a tree move elements alike again and again.
@lru_cache(maxsize=64)
def _elements(site: Site) -> List[Array]:
    """Run an operator on the numbers of elements of two rows: the second has to do as the first."""
    arrays, sizes = [], [prod(shape) for shape in site.inputs]
    far, start = sum(sizes), 0
    for shape, size, own in zip(site.inputs, sizes, site.batched):
        row = np.arange(start, start + size).reshape(shape)
        arrays.append(few(np.concatenate([row, row + far]) if own else row))
        start += size
    shapes, attrs = {f"x{i}": x.shape for i, x in enumerate(arrays)}, public_attrs(site.attrs)
    try:
        symbol = _operator(sym, site.op)(*map(sym.var, shapes), **attrs, name="moved")
        results = symbol.infer_shape(**shapes)[1]
        require(sum(map(prod, results)) <= 2 * MOST_MOVED, "its rows are too long to be moved")
        made = _operator(nd, site.op)(*map(nd.from_numpy, arrays), **attrs)
    except MXNetError:
        raise RefuseError("rows are not along axis 0") from None
    found = []
    for where in (x.asnumpy() for x in (made if isinstance(made, list) else [made])):
        half = few(where)
        if any(site.batched):
            half, other = half[: len(where) // 2], where[len(where) // 2 :]
            alike = half.shape == other.shape and half.max(initial=0) < far
            require(alike, "rows are not along axis 0")
            shift = np.repeat(site.batched, sizes)[half] * far
            require((other == half + shift).all(), "rows are not along axis 0")
        found.append(half)
    return found


def _operator(module: Any, name: str) -> Any:
    return getattr(module._internal if name.startswith("_") else module.op, name)


MOVES: Dict[str, Handler] = dict.fromkeys(_MOVES.split(), move)


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
    return Tensor(x.build.ramp(0, count, dtype), shape, False)


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
    axis = call.own_axis()
    require(index.rows or not x.rows, "all rows choose the same")
    kept = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    last, places = x.shape[axis] - 1, x.apply("trunc", index.cast(x.dtype))
    if call.attrs.get("mode", "clip") == "wrap":
        places = x.apply("mod", places, last + 1)
    else:
        least = x.apply("minimum", places, last)
        places = x.apply("select", x.apply("greater", places, 0), least, 0)
    numbers = ramp(x, last + 1, x.dtype, len(x.shape) - axis)
    mask = x.apply("equal", places.shaped(kept), numbers)
    found = x.apply("select", mask, x, 0).reduced([axis])
    return found if call.flag("keepdims") else without(found, [axis])


def one_hot(call: Call) -> Tensor:
    x, dtype = call.tensors[0], call.attrs.get("dtype", "float32")
    numbers = ramp(x, call.integer("depth", 0) or 0, dtype)
    places = x.apply("trunc", x.cast(dtype)).shaped((*x.shape, 1))
    found = x.apply("equal", places, numbers)
    on, off = call.number("on_value", 1), call.number("off_value", 0)
    return found.apply("select", found, found.const(on), off)
