"""Per operator of ``mx.np`` and ``mx.npx``, how it is written with those of ``mx.nd``."""

from __future__ import annotations

from typing import Dict, Tuple

from ..operators import of
from ..refused import NEEDS_AXES
from ..site import Ref, RefuseError, require
from . import moving, pointwise, products, reducing
from .call import NumPyCall, Translator
from .pointwise import NEGATIVE_INFINITY, POSITIVE_INFINITY, binary, unary, with_scalar

_UNARY = (
    "arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh degrees exp expm1 fix floor "
    "log log10 log1p log2 logical_not negative radians reciprocal rint sign sin sinh sqrt square "
    "tan tanh trunc"
)
#: Names of functions of two arrays in ``mx.np`` and ``mx.nd``, and with a number in ``mx.nd``.
_BINARY = (
    ("add", "add", "plus"),
    ("subtract", "sub", "minus"),
    ("multiply", "mul", "mul"),
    ("true_divide", "div", "div"),
    ("mod", "mod", "mod"),
    ("power", "power", "power"),
    ("hypot", "hypot", "hypot"),
    ("equal", "equal", "equal"),
    ("not_equal", "not_equal", "not_equal"),
    ("greater", "greater", "greater"),
    ("greater_equal", "greater_equal", "greater_equal"),
    ("less", "lesser", "lesser"),
    ("less_equal", "lesser_equal", "lesser_equal"),
)
_SWAPPED = "subtract true_divide mod power"

TRANSLATED: Dict[str, Translator] = {
    **{f"_npi_{name}": unary(name) for name in _UNARY.split()},
    "_npi_absolute": unary("abs"),
    **{f"_npx_{name}": unary(name) for name in ("relu", "sigmoid")},
    **{f"_npi_{name}": binary(op) for name, op, _ in _BINARY},
    **{
        f"_npi_{name}_scalar": with_scalar(f"_{op}_scalar")
        for name, _, op in _BINARY
        if name != "hypot"
    },
    **{
        f"_npi_r{name}_scalar": with_scalar(f"_r{op}_scalar")
        for name, _, op in _BINARY
        if name in _SWAPPED.split()
    },
    "_npi_isnan": pointwise.is_nan,
    "_npi_isinf": pointwise.compared("equal", POSITIVE_INFINITY, absolute=True),
    "_npi_isfinite": pointwise.compared("lesser", POSITIVE_INFINITY, absolute=True),
    "_npi_isposinf": pointwise.compared("equal", POSITIVE_INFINITY),
    "_npi_isneginf": pointwise.compared("equal", NEGATIVE_INFINITY),
    "_npi_bitwise_and": pointwise.logical("broadcast_mul"),
    "_npi_bitwise_or": pointwise.logical("broadcast_maximum"),
    "_npi_bitwise_xor": pointwise.logical("broadcast_not_equal"),
    "_npi_bitwise_not": pointwise.logical("logical_not"),
    "_npi_ldexp": pointwise.ldexp,
    "_npi_around": pointwise.around,
    "_npi_full_like": pointwise.full_like,
    **{f"_npi_where{kind}": pointwise.where for kind in ("", "_lscalar", "_rscalar", "_scalar2")},
    "_np_copy": moving.copied,
    **dict.fromkeys(
        ["_np_reshape", "_npx_reshape", "_np_squeeze", "expand_dims", "Flatten"], moving.reshaped
    ),
    "_np_transpose": moving.reorder_axes,
    "_np_moveaxis": moving.move_axis,
    "_npi_broadcast_to": moving.broadcast_to,
    "_npi_flip": moving.flip,
    "_np_roll": moving.roll,
    "_npi_concatenate": moving.concatenate,
    "_npi_stack": moving.stack,
    "_npi_vstack": moving.joined(2, 0),
    "_npi_hstack": moving.joined(1, 1),
    "_npi_dstack": moving.joined(3, 2),
    "_npi_column_stack": moving.column_stack,
    **{f"_np_atleast_{n}d": moving.at_least for n in (1, 2, 3)},
    "_npi_hsplit": moving.split(1),
    "_npi_dsplit": moving.split(2),
    "_np_diag": moving.diagonal,
    "_np_diagonal": moving.diagonal,
    "_np_diagflat": moving.diagflat,
    "_np_trace": moving.trace,
    "_npi_diff": moving.difference,
    "_np_sum": reducing.reduction("sum"),
    "_np_prod": reducing.reduction("prod"),
    "_np_max": reducing.reduction("max"),
    "_np_min": reducing.reduction("min"),
    "_npi_mean": reducing.reduction("mean"),
    "_npi_var": reducing.variance,
    "_npi_std": reducing.variance,
    "_npi_argmax": reducing.extreme("argmax"),
    "_npi_argmin": reducing.extreme("argmin"),
    "_np_any": reducing.truth(all_true=False),
    "_np_all": reducing.truth(all_true=True),
    "_npi_norm": reducing.norm,
    "_npi_average": reducing.average,
    "_np_dot": products.dot,
    "_npi_matmul": products.matmul,
    "_npi_tensordot": products.tensordot,
    "_npi_tensordot_int_axes": products.tensordot,
    "_npi_einsum": products.einsum,
    "_npi_zeros": lambda call: _created(call, "_zeros"),
    "_npi_ones": lambda call: _created(call, "_ones"),
    "_npi_identity": lambda call: (call.add("_eye", N=call.outputs[0][0], **_kind(call)),),
    "_npi_arange": lambda call: _renamed(call, "_arange"),
    "_npi_eye": lambda call: _renamed(call, "_eye"),
}
"""How to translate an operator, by canonical name."""


def _kind(call: NumPyCall) -> Dict[str, str]:
    return {name: call.attrs[name] for name in ("ctx", "dtype") if name in call.attrs}


def _created(call: NumPyCall, op: str) -> Tuple[Ref, ...]:
    return (call.add(op, shape=call.outputs[0] or (1,), **_kind(call)),)


def _renamed(call: NumPyCall, op: str) -> Tuple[Ref, ...]:
    return (call.add(op, **call.attrs),)


ONLY_TRANSLATED = frozenset(["_npi_norm", "_npi_average"])
"""Operators with results that MXNet computes only under NumPy's shapes."""


def translate(call: NumPyCall) -> Tuple[Ref, ...]:
    """Append the operators that do what a call does, and return its results.

    A call without a translation is appended as it is.  Then it merges if its operator has a rule.
    Raises `RefuseError` if it has to run at once.
    """
    translator = TRANSLATED.get(call.op)
    if translator is not None:
        try:
            return translator(call)
        except RefuseError:
            if call.op in ONLY_TRANSLATED:
                raise
    # With one axis instead of none, an axis may be valid that is not.
    own = call.op.startswith("_np") and not of(call.op).merges
    require(
        all(call.inputs) or not own and call.op not in NEEDS_AXES,
        f"Operator {call.called} of an array without axes has no translation.",
    )
    return call.same()
