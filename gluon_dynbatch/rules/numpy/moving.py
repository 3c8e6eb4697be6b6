"""Translations of operators that move, slice, join or repeat elements."""

from __future__ import annotations

from math import prod
from typing import Dict, List, Sequence, Tuple

from ..site import Ref, require
from .call import NumPyArray, NumPyCall, Translator, numeric


def reshaped(call: NumPyCall) -> Tuple[Ref, ...]:
    """Return the same elements in the shape of the result."""
    require(call.attrs.get("order", "C") == "C", "MXNet reshapes in the order of C.")
    return call.done(call.reshape(call.arrays[0], call.outputs[0]))


def copied(call: NumPyCall) -> Tuple[Ref, ...]:
    return (call.add("_copy", call.arrays[0].ref),)


def _ordered(call: NumPyCall, order: Sequence[int]) -> Tuple[Ref, ...]:
    return call.done(call.transpose(call.arrays[0], order))


def reorder_axes(call: NumPyCall) -> Tuple[Ref, ...]:
    ndim = len(call.inputs[0])
    return _ordered(call, call.axes("axes") or tuple(range(ndim))[::-1])


def move_axis(call: NumPyCall) -> Tuple[Ref, ...]:
    sources, targets = call.axes("source"), call.axes("destination")
    order = [axis for axis in range(len(call.inputs[0])) if axis not in sources]
    for target, source in sorted(zip(targets, sources)):
        order.insert(target, source)
    return _ordered(call, order)


def broadcast_to(call: NumPyCall) -> Tuple[Ref, ...]:
    return call.done(call.broadcast(call.arrays[0], call.outputs[0]))


def flip(call: NumPyCall) -> Tuple[Ref, ...]:
    x = call.arrays[0]
    axes = call.given_axes()
    return call.done(call.apply("reverse", x, shape=x.shape, axis=axes) if axes else x)


def roll(call: NumPyCall) -> Tuple[Ref, ...]:
    """Put the end of an axis in front of it."""
    x, shifts = call.arrays[0], call.integers("shift")
    axes: Tuple[int, ...]
    if call.attrs.get("axis", "None") == "None":
        x, axes = call.reshape(x, (prod(x.shape),)), (0,)
        shifts = (sum(shifts),)
    else:
        axes = call.axes("axis")
    require(
        len(shifts) == len(axes),
        "Operator _np_roll by one shift for several axes has no translation.",
    )
    for shift, axis in zip(shifts, axes):
        cut = -shift % x.shape[axis]
        if cut:
            parts = [_part(call, x, axis, cut, x.shape[axis]), _part(call, x, axis, 0, cut)]
            x = _joined(call, parts, axis)
    return call.done(call.reshape(x, call.outputs[0]))


def _part(call: NumPyCall, x: NumPyArray, axis: int, begin: int, end: int) -> NumPyArray:
    shape = (*x.shape[:axis], end - begin, *x.shape[axis + 1 :])
    return call.apply("slice_axis", x, shape=shape, axis=axis, begin=begin, end=end)


def _joined(call: NumPyCall, arrays: Sequence[NumPyArray], axis: int) -> NumPyArray:
    first, arrays = arrays[0].axed, _alike(call, arrays)
    total = sum(array.axed[axis] for array in arrays)
    shape = (*first[:axis], total, *first[axis + 1 :])
    return call.apply("Concat", *arrays, shape=shape, dim=axis, num_args=len(arrays))


def _alike(call: NumPyCall, arrays: Sequence[NumPyArray]) -> List[NumPyArray]:
    """Convert arrays to a dtype in which they can be joined: ``mx.nd`` cannot join booleans."""
    return [call.cast(array, numeric(call.out_dtypes[0])) for array in arrays]


def concatenate(call: NumPyCall) -> Tuple[Ref, ...]:
    # MXNet takes both names.
    axis = call.integer("axis", call.integer("dim", 1))
    arrays = list(call.arrays)
    if axis is None:
        arrays, axis = [call.reshape(array, (prod(array.shape),)) for array in arrays], 0
    return call.done(_joined(call, arrays, call.normalize_axis(axis, len(arrays[0].shape))))


def stack(call: NumPyCall) -> Tuple[Ref, ...]:
    axis = call.normalize_axis(call.integer("axis", 0) or 0, len(call.outputs[0]))
    arrays = _alike(call, call.arrays)
    if not call.inputs[0]:
        return call.done(_joined(call, arrays, 0))
    count = len(arrays)
    return call.done(call.apply("stack", *arrays, shape=call.outputs[0], axis=axis, num_args=count))


def _at_least(ndim: int, array: Tuple[int, ...]) -> Tuple[int, ...]:
    """Return a shape with at least so many axes, as ``np.atleast_1d`` and similar functions do."""
    if len(array) >= ndim:
        return array
    if ndim < 3:
        return (1,) * (ndim - len(array)) + array
    return ((1, 1, 1), (1, *array, 1), (*array, 1))[len(array)]


def joined(ndim: int, axis: int) -> Translator:
    """Return the translator that joins arrays along an axis, each with at least `ndim` axes."""

    def translator(call: NumPyCall) -> Tuple[Ref, ...]:
        require(call.out_dtypes[0] != "bool", f"MXNet refuses booleans as operands of {call.op}.")
        arrays = [call.reshape(array, _at_least(ndim, array.shape)) for array in call.arrays]
        # `hstack` joins vectors along their only axis.
        return call.done(_joined(call, arrays, min(axis, len(arrays[0].shape) - 1)))

    return translator


def column_stack(call: NumPyCall) -> Tuple[Ref, ...]:
    arrays: List[NumPyArray] = []
    for array in call.arrays:
        columns = array.shape if len(array.shape) > 1 else (prod(array.shape), 1)
        arrays.append(call.reshape(array, columns))
    return call.done(_joined(call, arrays, 1))


def at_least(call: NumPyCall) -> Tuple[Ref, ...]:
    """Give each array more axes."""
    # In MXNet 1.9.1, the gradient is zero.
    reshaped_ = (call.reshape(array, shape) for array, shape in zip(call.arrays, call.outputs))
    return tuple(call.add("BlockGrad", array.ref) for array in reshaped_)


def split(axis: int) -> Translator:
    """Return the translator of a split along an axis, or along the last axis of fewer."""

    def translator(call: NumPyCall) -> Tuple[Ref, ...]:
        at = min(axis, len(call.inputs[0]) - 1)
        attrs = {name: call.attrs[name] for name in ("indices", "sections") if name in call.attrs}
        x = call.arrays[0]
        position, _ = call.add("_split_v2", x.ref, axis=at, squeeze_axis=False, **attrs)
        return tuple((position, k) for k in range(len(call.outputs)))

    return translator


def diagonal(call: NumPyCall) -> Tuple[Ref, ...]:
    return call.done(_diagonal(call))


def _diagonal(call: NumPyCall) -> NumPyArray:
    """Return the diagonals of matrices, along the last axis."""
    x, k = call.arrays[0], call.integer("k", call.integer("offset", 0)) or 0
    axes: Dict[str, object] = {}
    if len(x.shape) > 1:
        first, second = call.axis("axis1", 0), call.axis("axis2", 1)
        axes = {"axis1": first, "axis2": second}
        rest = [n for axis, n in enumerate(x.shape) if axis not in (first, second)]
        extent = min(x.shape[first] + min(k, 0), x.shape[second] - max(k, 0))
        shape = (*rest, extent)
    else:
        shape = (x.shape[0] + abs(k),) * 2
    return call.apply("diag", x, shape=shape, k=k, **axes)


def diagflat(call: NumPyCall) -> Tuple[Ref, ...]:
    x = call.reshape(call.arrays[0], (prod(call.inputs[0]),))
    k = call.integer("k", 0) or 0
    return call.done(call.apply("diag", x, shape=call.outputs[0], k=k))


def trace(call: NumPyCall) -> Tuple[Ref, ...]:
    x = _diagonal(call)
    require(x.shape[-1] > 0, "Operator _np_trace of an empty diagonal has no translation.")
    return call.done(call.apply("sum", x, shape=x.shape[:-1], axis=(len(x.shape) - 1,)))


def difference(call: NumPyCall) -> Tuple[Ref, ...]:
    x, axis = call.arrays[0], call.axis("axis", -1)
    count = call.integer("n", 1) or 0
    require(count > 0, "Operator _npi_diff of order 0 has no translation.")
    for _ in range(count):
        extent = x.shape[axis]
        later, earlier = _part(call, x, axis, 1, extent), _part(call, x, axis, 0, extent - 1)
        x = call.apply("elemwise_sub", later, earlier, shape=later.shape)
    return call.done(x)
