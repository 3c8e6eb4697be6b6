"""Translations of reductions."""

from __future__ import annotations

from math import prod
from typing import Sequence, Tuple

from ...modes import FLOATS
from ..site import Ref, require
from .call import NumPyArray, NumPyCall, Translator, working_dtype


def _reduced(
    call: NumPyCall, op: str, x: NumPyArray, axes: Sequence[int], keepdims: bool
) -> NumPyArray:
    kept = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
    rest = [n for axis, n in enumerate(x.shape) if axis not in axes]
    if not x.shape:
        return x
    attrs = {"axis": tuple(axes), "keepdims": keepdims}
    return call.apply(op, x, shape=tuple(kept if keepdims else rest), **attrs)


def reduction(op: str) -> Translator:
    """Return the translator of a reduction along one or several axes, or all."""

    def translator(call: NumPyCall) -> Tuple[Ref, ...]:
        no_initial = call.attrs.get("initial", "None") == "None"
        require(no_initial, f"Operator {call.called} with an initial value has no translation.")
        _require_no_rounding(call)
        # MXNet rounds results to a narrower type, not the elements.
        x, out = call.arrays[0], working_dtype(call)
        narrower = x.dtype in FLOATS and FLOATS.index(out) < FLOATS.index(x.dtype)
        if x.dtype == "bool" and out not in FLOATS:
            out = "float64"  # exact, and kernels add floats only
        x = call.cast(x, x.dtype if narrower else out)
        x = _reduced(call, op, x, call.given_axes(), call.flag("keepdims"))
        return call.done(x)

    return translator


def _require_no_rounding(call: NumPyCall) -> None:
    """Refuse integers of floats: MXNet adds floats, and rounds their sum."""
    rounds = call.arrays[0].dtype in FLOATS and call.out_dtypes[0] not in FLOATS
    require(not rounds, f"Operator {call.called} of floats to integers has no translation.")


def variance(call: NumPyCall) -> Tuple[Ref, ...]:
    """Compute the variance, or its root, from the differences to the mean.

    In MXNet 1.9.1, its gradient is zero.
    """
    require(call.out_dtypes[0] in FLOATS, f"Operator {call.op} has a translation only for floats.")
    axes, ddof = call.given_axes(), call.integer("ddof", 0) or 0
    count = prod(call.inputs[0][axis] for axis in axes)
    require(count > ddof, f"Operator {call.called} of too few elements has no translation.")
    x = call.cast(call.arrays[0], working_dtype(call))
    mean = _reduced(call, "mean", x, axes, True)
    x = call.apply("broadcast_sub", x, mean, shape=x.shape)
    x = call.apply("square", x, shape=x.shape)
    x = _reduced(call, "mean", x, axes, call.flag("keepdims"))
    if ddof:
        x = call.apply("_mul_scalar", x, shape=x.shape, scalar=count / (count - ddof))
    x = call.apply("sqrt", x, shape=x.shape) if call.op == "_npi_std" else x
    return call.done(call.apply("BlockGrad", x, shape=x.shape))


def extreme(op: str) -> Translator:
    """Return the translator of ``argmax`` or ``argmin``, whose results are integers here."""

    def translator(call: NumPyCall) -> Tuple[Ref, ...]:
        x, axis = call.arrays[0], call.integer("axis", None)
        extent = prod(x.shape) if axis is None else x.axed[axis]
        require(extent <= 1 << 24, "The index may not be exact in single precision.")
        if axis is None:
            x, axis = call.reshape(x, (prod(x.shape),)), 0
        at = call.normalize_axis(axis, len(x.shape))
        require(x.dtype != "bool", f"MXNet refuses booleans as operands of {call.op}.")
        ref = call.add(op, x.ref, axis=at)
        shape = (*x.shape[:at], *x.shape[at + 1 :])
        return call.done(call.reshape(NumPyArray(ref, shape, "float32"), call.outputs[0]))

    return translator


def truth(all_true: bool) -> Translator:
    """Return the translator of ``any``, the largest truth value, or ``all``: none is false."""

    def translator(call: NumPyCall) -> Tuple[Ref, ...]:
        x = call.cast(call.arrays[0], working_dtype(call))
        x = call.apply(f"_{'' if all_true else 'not_'}equal_scalar", x, shape=x.shape, scalar=0)
        x = _reduced(call, "max", x, call.given_axes(), call.flag("keepdims"))
        return call.done(call.apply("logical_not", x, shape=x.shape) if all_true else x)

    return translator


def norm(call: NumPyCall) -> Tuple[Ref, ...]:
    """Compute the norm of vectors, or of all elements."""
    require(call.out_dtypes[0] in FLOATS, f"Operator {call.op} has a translation only for floats.")
    axes, order = call.given_axes(), call.number("ord", 2)
    vector = len(axes) == 1 and order in (1, 2)
    require(vector or order == 2, "Operator _npi_norm of matrices has no translation.")
    keepdims, x = call.flag("keepdims"), call.arrays[0]
    shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    shape = shape if keepdims else tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    if not vector:  # the operator of `mx.nd` takes two axes at most
        x = call.apply("square", x, shape=x.shape)
        x = _reduced(call, "sum", x, axes, keepdims)
        return call.done(call.apply("sqrt", x, shape=shape))
    attrs = {"ord": int(order), "axis": axes, "keepdims": keepdims}
    return call.done(call.apply("norm", x, shape=shape, **attrs))


def average(call: NumPyCall) -> Tuple[Ref, ...]:
    """Compute the mean, or the weighted mean, along an axis or several, or of all elements."""
    require(not call.flag("returned"), "Operator _npi_average with two results has no translation.")
    axes, dtype = call.given_axes(), call.out_dtypes[0]
    require(dtype in FLOATS, f"Operator {call.op} has a translation only for floats.")
    x = call.cast(call.arrays[0], dtype)
    if len(call.arrays) == 1:
        return call.done(_reduced(call, "mean", x, axes, False))
    weights = call.cast(call.arrays[1], dtype)
    if len(weights.shape) < len(x.shape):  # one weight per index along the axis
        shape = tuple(n if axis in axes else 1 for axis, n in enumerate(x.shape))
        weights = call.reshape(weights, shape)
    weights = call.broadcast(weights, x.shape)
    product = call.apply("broadcast_mul", x, weights, shape=x.shape)
    total, count = (_reduced(call, "sum", array, axes, False) for array in (product, weights))
    return call.done(call.apply("broadcast_div", total, count, shape=total.shape))
