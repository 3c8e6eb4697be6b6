"""Arrays that operators without inputs create: all rows share them, and each computes them."""

from __future__ import annotations

from math import ceil, prod
from typing import Dict

from ..rules.site import Shape, require
from .tensor import INDEX_DTYPES, Call, Tensor, TensorHandler

#: Integers below are exact in single precision, also after a division that is rounded down.
MOST_EXACT = 1 << 24


def filled(value: float) -> TensorHandler:
    """Return a handler of an operator that creates an array of equal numbers."""
    return lambda call: _const(call, value)


def full(call: Call) -> Tensor:
    """Create an array of equal numbers."""
    return _const(call, call.number("value", single=False))


def _const(call: Call, value: float) -> Tensor:
    shape = call.integers("shape")
    require(prod(shape) > 0, "its result has no elements")
    return Tensor(call.build.const(value, prod(shape), _dtype(call)), shape, per_row=False)


def arange(call: Call) -> Tensor:
    """Create numbers at equal distances, given their distance."""
    require(not call.flag("infer_range"), "its size depends on its readers")
    start, step = call.number("start", 0, single=False), call.number("step", single=False)
    low, stop = (0.0, start) if call.attrs.get("stop", "None") == "None" else (start, None)
    stop = call.number("stop", single=False) if stop is None else stop
    numbers = _counted(call, ceil((stop - low) / step)) * step + low
    repeat = call.integer("repeat", 1) or 1
    count = numbers.shape[0]
    return numbers.reshaped((count, 1)).broadcast((count, repeat)).reshaped((count * repeat,))


def linspace(call: Call) -> Tensor:
    """Create numbers at equal distances, given how many there are."""
    count = call.integer("num", 50) or 0
    start, stop = call.number("start", single=False), call.number("stop", single=False)
    steps = max(count - call.flag("endpoint", True), 1)
    return _counted(call, count) * ((stop - start) / steps) + start


def eye(call: Call) -> Tensor:
    """Create a matrix with ones on a diagonal."""
    rows, diagonal = call.integer("N", 0) or 0, call.integer("k", 0) or 0
    columns = call.integer("M", 0) or rows
    require(0 < rows * columns < MOST_EXACT, "its size is not supported")
    place = _iota(call, (rows, columns), "float32")
    row = place.apply("floor", place / columns)
    return place.apply("equal", place - row * columns, row + diagonal).cast(_dtype(call))


def _counted(call: Call, count: int) -> Tensor:
    """Return 0, 1, ..., `count` - 1."""
    require(count > 0, "its result has no elements")
    return _iota(call, (count,), _dtype(call))


def _iota(call: Call, shape: Shape, dtype: str) -> Tensor:
    return Tensor(call.build.iota(0, prod(shape), dtype), shape, per_row=False)


def _dtype(call: Call) -> str:
    dtype = call.attrs.get("dtype", "float32")
    require(dtype in INDEX_DTYPES, f"{dtype} has no native steps")
    return dtype


#: Handlers by operator.
CREATED: Dict[str, TensorHandler] = {
    "_zeros": filled(0),
    "_ones": filled(1),
    "_full": full,
    "_arange": arange,
    "_linspace": linspace,
    "_eye": eye,
}
