"""Translations of operators that work element by element."""

from __future__ import annotations

from math import inf
from typing import Set, Tuple

from ...modes import FLOATS
from ..site import Ref, require
from .call import NumPyArray, NumPyCall, Translator, numeric, working_dtype


def unary(op: str) -> Translator:
    """Return the translator of a function of one array."""

    def translator(call: NumPyCall) -> Tuple[Ref, ...]:
        refused = call.arrays[0].dtype == "bool" and op != "logical_not"
        require(not refused, f"MXNet refuses booleans as operands of {call.op}.")
        x = call.cast(call.arrays[0], working_dtype(call))
        return call.done(call.apply(op, x, shape=x.shape))

    return translator


def _refuses(op: str, dtypes: Set[str]) -> bool:
    """Return whether MXNet refuses operands of these dtypes."""
    floats, mixed = dtypes & {*FLOATS}, len(dtypes) > 1
    if op == "div":
        return mixed and len(floats) != 1
    if op in ("sub", "mod"):
        return not floats and (mixed or "bool" in dtypes)
    return op in ("add", "mul", "power") and dtypes == {"int8", "uint8"}


def binary(op: str) -> Translator:
    """Return the translator of a function of two arrays, which are broadcast."""

    def translator(call: NumPyCall) -> Tuple[Ref, ...]:
        dtype = working_dtype(call)
        refused = _refuses(op, {array.dtype for array in call.arrays})
        require(not refused, f"MXNet refuses such operands of {call.called}.")
        lhs, rhs = (call.cast(array, dtype) for array in call.arrays)
        return call.done(call.apply(f"broadcast_{op}", lhs, rhs, shape=call.outputs[0]))

    return translator


def with_scalar(op: str) -> Translator:
    """Return the translator of a function of an array and a number."""

    def translator(call: NumPyCall) -> Tuple[Ref, ...]:
        x = call.cast(call.arrays[0], working_dtype(call))
        attrs = {name: call.attrs[name] for name in ("scalar", "is_int") if name in call.attrs}
        if call.arrays[0].dtype == call.out_dtypes[0] == "bool":
            # MXNet compares booleans with the number as a boolean.
            attrs["scalar"] = str(float(bool(call.number("scalar", 0))))
        return call.done(call.apply(op, x, shape=x.shape, **attrs))

    return translator


def _test(call: NumPyCall, op: str, x: NumPyArray, number: float) -> NumPyArray:
    return call.apply(f"_{op}_scalar", x, shape=x.shape, scalar=number)


def is_nan(call: NumPyCall) -> Tuple[Ref, ...]:
    x = call.cast(call.arrays[0], working_dtype(call))
    return call.done(call.apply("broadcast_not_equal", x, x, shape=x.shape))


def compared(op: str, number: float, absolute: bool = False) -> Translator:
    """Return the translator of a comparison with a number, perhaps of absolute values."""

    def translator(call: NumPyCall) -> Tuple[Ref, ...]:
        x = call.cast(call.arrays[0], working_dtype(call))
        require(
            x.dtype.startswith("float"),
            f"Operator {call.called} has a translation only for floats.",
        )
        x = call.apply("abs", x, shape=x.shape) if absolute else x
        return call.done(_test(call, op, x, number))

    return translator


def logical(op: str) -> Translator:
    """Return the translator of a function of booleans; of integers, it has none."""

    def translator(call: NumPyCall) -> Tuple[Ref, ...]:
        require(
            call.out_dtypes[0] == "bool",
            f"Operator {call.called} has a translation only for booleans.",
        )
        one_shape = len(set(call.inputs)) == 1
        require(one_shape, f"MXNet refuses booleans of several shapes in {call.called}.")
        arrays = [call.cast(array, "float32") for array in call.arrays]
        return call.done(call.apply(op, *arrays, shape=call.outputs[0]))

    return translator


def ldexp(call: NumPyCall) -> Tuple[Ref, ...]:
    """Multiply by a power of two."""
    dtype = working_dtype(call)
    require(call.out_dtypes[0] != "bool", f"MXNet refuses booleans as operands of {call.op}.")
    lhs, rhs = (call.cast(array, dtype) for array in call.arrays)
    rhs = call.apply("_rpower_scalar", rhs, shape=rhs.shape, scalar=2)
    return call.done(call.apply("broadcast_mul", lhs, rhs, shape=call.outputs[0]))


def around(call: NumPyCall) -> Tuple[Ref, ...]:
    """Round to the nearest integer, halves to the even one, which no operator of ``mx.nd`` does."""
    require(not call.integer("decimals", 0), "Operator _npi_around to decimals has no translation.")
    require(call.out_dtypes[0] in FLOATS, f"Operator {call.op} has a translation only for floats.")
    x = call.arrays[0]

    def apply(op: str, *arrays: NumPyArray, **attrs: object) -> NumPyArray:
        return call.apply(op, *arrays, shape=x.shape, **attrs)

    fraction = apply("abs", apply("elemwise_sub", x, apply("trunc", x)))
    is_half = apply("_equal_scalar", fraction, scalar=0.5)
    # The half of such a number is closer to one integer than to the others.
    even = apply("_mul_scalar", apply("round", apply("_mul_scalar", x, scalar=0.5)), scalar=2)
    rounded = apply("where", is_half, even, apply("round", x))
    return call.done(apply("BlockGrad", rounded))


def full_like(call: NumPyCall) -> Tuple[Ref, ...]:
    return call.done(_filled(call, call.arrays[0], call.number("fill_value", 0)))


def _filled(call: NumPyCall, like: NumPyArray, number: float) -> NumPyArray:
    """Return an array that is filled with a number, in the dtype of the result."""
    like = call.cast(like, call.out_dtypes[0])
    if number == 1:
        return call.apply("ones_like", like, shape=like.shape)
    zeros = call.apply("zeros_like", like, shape=like.shape)
    if not number:
        return zeros
    return call.apply("_plus_scalar", zeros, shape=like.shape, scalar=number)


def where(call: NumPyCall) -> Tuple[Ref, ...]:
    """Select elements of two arrays, or of an array and a number, by a condition.

    For an array and a number, MXNet 1.9.1 computes wrong gradients; these are right.
    """
    condition, *arrays = (call.broadcast(array, call.outputs[0]) for array in call.arrays)
    if condition.dtype == "bool":
        condition = call.cast(condition, "float32")
    if call.op == "_npi_where_lscalar":
        arrays.insert(0, _filled(call, arrays[0], call.number("scalar", 0)))
    elif call.op == "_npi_where_rscalar":
        arrays.append(_filled(call, arrays[0], call.number("scalar", 0)))
    elif call.op == "_npi_where_scalar2":
        arrays = [_filled(call, condition, call.number(name, 0)) for name in ("x", "y")]
    # `mx.nd` does not select booleans.
    x, y = (call.cast(array, numeric(call.out_dtypes[0])) for array in arrays)
    ref = call.add("where", condition.ref, x.ref, y.ref)
    return call.done(NumPyArray(ref, call.outputs[0], x.dtype))


POSITIVE_INFINITY, NEGATIVE_INFINITY = inf, -inf
