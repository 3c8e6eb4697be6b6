"""Handlers of operators that draw random numbers (page 0017 of ``docs/design``)."""

from __future__ import annotations

from math import pi, prod
from typing import Dict, List, Sequence, Tuple

import numpy as np

from ..rules.site import require
from .recognize import MAX
from .tensor import FLOAT_DTYPES, Call, Tensor, TensorHandler

#: For more numbers, a binary search in their sums, as MXNet's operator does it, is faster.
MOST_CLASSES = 1024
#: Why there are no native steps for numbers that are no parameters of a distribution.
MXNET_RAISES = "MXNet's operator raises for its parameters"


def uniform(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Draw an array of numbers in [0, 1), with the dtype of `x`, for each row of the launch."""
    require(x.per_row, "all rows share its first input")
    require(x.dtype in FLOAT_DTYPES, f"{x.dtype} has no native steps")
    return x.with_node(x.build.uniform(prod(shape), x.dtype), tuple(shape))


def normal(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Draw an array of normally distributed numbers, by the method of Box and Muller (1958)."""
    # Never the logarithm of 0: the numbers that are drawn are less than 1.
    square = _log(1 - uniform(x, shape)) * -2
    angle = uniform(x, shape) * (2 * pi)
    return square.apply("sqrt", square) * angle.apply("cos", angle)


def exponential(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Draw an array of exponentially distributed numbers with the mean 1."""
    return -_log(1 - uniform(x, shape))


def _log(x: Tensor) -> Tensor:
    return x.apply("log", x)


def dropout(call: Call) -> Tensor:
    """Multiply with a mask, which the backward pass computes again."""
    x, rate = call.tensors[0], call.number("p", 0.5)
    if rate == 0 or not (call.training or call.attrs.get("mode") == "always"):
        return x
    kept, axes = np.float32(1) - np.float32(rate), call.axes("axes")
    require(bool(kept > 0), "it keeps no element")
    drawn = uniform(x, [1 if axis in axes else extent for axis, extent in enumerate(x.shape)])
    return x * drawn.apply("keep", drawn, values=(float(kept), float(1 / kept)))


def uniform_like(call: Call) -> Tensor:
    """Draw numbers between two bounds."""
    x, low, high = call.tensors[0], call.number("low", 0), call.number("high", 1)
    require(high >= low, MXNET_RAISES)
    return uniform(x, x.shape) * (high - low) + low


def normal_like(call: Call) -> Tensor:
    """Draw numbers with a mean and a standard deviation."""
    x, mean, deviation = call.tensors[0], call.number("loc", 0), call.number("scale", 1)
    require(deviation > 0, MXNET_RAISES)
    return normal(x, x.shape) * deviation + mean


def exponential_like(call: Call) -> Tensor:
    """Draw numbers with a rate."""
    x, rate = call.tensors[0], call.number("lam", 1)
    require(rate > 0, MXNET_RAISES)
    return exponential(x, x.shape) / rate


def _parameters(call: Call) -> Tuple[Tensor, ...]:
    """Return the parameters of distributions, each with an axis per axis of its samples."""
    dtype = call.attrs.get("dtype", "None")
    require(dtype in ("None", call.tensors[0].dtype), "dtypes differ")
    require(dtype != "None" or call.tensors[0].dtype == "float32", "dtypes differ")
    ones = (1,) * len(call.integers("shape"))
    return tuple(_fixed(x).reshaped(x.shape + ones) for x in call.tensors)


def _fixed(x: Tensor) -> Tensor:
    """Return the same numbers, which get no gradient."""
    return x.apply("multiplier", x, values=(0,))


def _shape(call: Call) -> Sequence[int]:
    """Return the shape of the samples of all distributions."""
    return (*call.inputs[0], *call.integers("shape"))


def sample_uniform(call: Call) -> Tensor:
    """Draw numbers between the elements of two arrays."""
    low, high = _parameters(call)
    return uniform(call.tensors[0], _shape(call)) * (high - low) + low


def sample_normal(call: Call) -> Tensor:
    """Draw numbers with the means and the standard deviations in two arrays."""
    mean, deviation = _parameters(call)
    return normal(call.tensors[0], _shape(call)) * deviation + mean


def sample_exponential(call: Call) -> Tensor:
    """Draw numbers with the rates in an array."""
    (rate,) = _parameters(call)
    return exponential(call.tensors[0], _shape(call)) / rate


def sample_multinomial(call: Call) -> List[Tensor]:
    """Draw indices with the probabilities in the rows of an array.

    Of exponentially distributed times with these rates, the index of the least one is drawn.
    """
    x, (*outer, classes), shape = call.tensors[0], call.inputs[0], call.integers("shape")
    require(call.attrs.get("dtype", "int32") == x.dtype, "its indices are of another type")
    require(classes <= MOST_CLASSES, f"it draws from more than {MOST_CLASSES} numbers")
    each = (*outer, prod(shape), classes)
    rates = x.reshaped((*outer, 1, classes)).broadcast(each)
    # A rate of 0 is never drawn.
    speed = _fixed(rates) / exponential(x, each)
    first = speed.apply("equal", speed, speed.reduced([len(outer) + 1], MAX).broadcast(each))
    numbers = x.with_node(x.build.iota(0, classes, x.dtype), (*(1,) * (len(outer) + 1), classes))
    # If several are least, the last one is drawn.
    chosen = first.apply("select", first, numbers, -1).reduced([len(outer) + 1], MAX)
    results, total = [chosen], chosen.broadcast(each)
    if call.flag("get_prob"):
        is_chosen = total.apply("equal", total, numbers)
        logarithm = is_chosen.apply("select", is_chosen, _log(rates), 0)
        results.append(logarithm.reduced([len(outer) + 1]))
    return [result.reshaped((*outer, *shape)) for result in results]


#: Handlers by operator.
DRAWS: Dict[str, TensorHandler] = {
    "Dropout": dropout,
    "_random_uniform_like": uniform_like,
    "_random_normal_like": normal_like,
    "_random_exponential_like": exponential_like,
    "_sample_multinomial": sample_multinomial,
    "_sample_uniform": sample_uniform,
    "_sample_normal": sample_normal,
    "_sample_exponential": sample_exponential,
}
