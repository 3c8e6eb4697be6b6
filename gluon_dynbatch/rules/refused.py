"""Dtypes of which MXNet refuses to compute operators: calls that have them run at once."""

from __future__ import annotations

from typing import Dict, FrozenSet, Iterable

#: Those that MXNet refuses to compute of booleans: of ``mx.nd``, and of ``mx.np``.
_NO_BOOLEANS = """
    amp_cast elemwise_add broadcast_add add_n Dropout take where scatter_nd _backward_gather_nd
    SequenceMask SequenceLast SequenceReverse transpose SwapAxis Concat slice_axis slice_like
    reverse broadcast_axis diag
    _npi_tril _npi_flip _npi_column_stack
    _np_transpose _np_moveaxis _np_roll _np_diag _np_diagflat
"""

REFUSED: Dict[str, FrozenSet[str]] = {
    **dict.fromkeys(_NO_BOOLEANS.split(), frozenset(["bool"])),
    "_backward_gather_nd": frozenset(["bool", "int8", "uint8"]),
    "_contrib_BatchNormWithReLU": frozenset(["float16", "float64"]),
    **dict.fromkeys(["_npi_tensordot", "_npi_tensordot_int_axes"], frozenset(["float16"])),
    "Dropout": frozenset(["bool", "int8", "uint8", "int32", "int64"]),
}
"""Dtypes by operator.  Of some, MXNet takes them as one of several inputs, or along some axes."""

NEEDS_AXES = frozenset(["LeakyReLU", "_np_cumsum", "_npi_tril", "pick", "softmax"])
"""Operators that MXNet may refuse for arrays without axes, but computes for one axis."""


def refuses(op: str, dtypes: Iterable[str]) -> str:
    """Return a dtype of an operator's inputs of which MXNet may refuse to compute it, or ""."""
    refused = REFUSED.get(op)
    return "" if refused is None else next((d for d in dtypes if d in refused), "")
