"""MXNet's operators, as calls of ``mx.nd`` name them."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Dict, NamedTuple, Tuple

from mxnet.base import _LIB, check_call, mx_uint, py_str

from .. import rules
from ..native import recording

#: Creation operators whose results are recorded, once per flush.  Others run at once: MXNet's own
#: code uses them, and there relies on the exact type.
CONSTANTS = frozenset(["_zeros", "_ones", "_full"])


_ARITHMETIC = "mul", "div", "mod", "power", "maximum", "minimum"
_COMPARISONS = "equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal"
#: By operator of an array and a number: that of two arrays, and whether the number comes first.
OF_NUMBERS: Dict[str, Tuple[str, bool]] = {
    **{f"_{name}_scalar": (f"broadcast_{name}", False) for name in (*_ARITHMETIC, *_COMPARISONS)},
    **{f"_r{name}_scalar": (f"broadcast_{name}", True) for name in ("div", "mod", "power")},
    "_plus_scalar": ("broadcast_add", False),
    "_minus_scalar": ("broadcast_sub", False),
    "_rminus_scalar": ("broadcast_sub", True),
}


class OperatorInfo(NamedTuple):
    """What is known of an operator."""

    name: str
    #: The attribute that counts its inputs; empty if it takes no other number of them.
    count_attribute: str
    creates: bool
    #: When it writes to its arguments: see `rules.Rule`.
    writes: str


@functools.lru_cache(maxsize=None)
def operator_of(handle: int) -> OperatorInfo:
    """Return what is known of the operator that MXNet has under a handle."""
    name, description, count, returned = (ctypes.c_char_p() for _ in range(4))
    lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
    told: Any = (name, description, mx_uint(), *lists, count, returned)
    check_call(_LIB.MXSymbolGetAtomicSymbolInfo(ctypes.c_void_p(handle), *map(ctypes.byref, told)))
    text = py_str(name.value)
    counted = py_str(count.value) if count.value else ""
    return OperatorInfo(text, counted, text in CONSTANTS, rules.of(text).writes)


class Operator(recording.Callee):  # type: ignore[misc]
    """An operator with its attributes: what recorded ``mx.nd`` calls call.

    Parameters
    ----------
    token : tuple
        "op", the name, and names and values of the attributes.
    info : OperatorInfo
        What is known of the operator.
    """

    def __init__(self, token: Tuple[Any, ...], info: OperatorInfo) -> None:
        self.token, self.info, self.name = token, info, token[1]
        self.programs: Dict[Any, Any] = {}

    def attributes(self, inputs: int) -> Dict[str, str]:
        """Return the attributes of a call with this number of inputs."""
        counted = self.info.count_attribute
        return {**dict(zip(*self.token[2:])), **({counted: str(inputs)} if counted else {})}
