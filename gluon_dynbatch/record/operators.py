"""MXNet's operators, as ``mx.nd`` calls them."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Dict, NamedTuple, Tuple

from mxnet.base import _LIB, check_call, mx_uint, py_str

from .. import rules
from ..native import recording
from ..rules.spelling import written

#: Creation operators whose results are constants, with the number that they write.  Others run at
#: once: MXNet's own code calls them and relies on the exact type of the result.
CONSTANTS = {"_zeros": 0, "_ones": 1, "_npi_zeros": 0, "_npi_ones": 1}

#: Ends the tokens of operators whose calls are a part of one that the user makes.
PART = "part"

_ARITHMETIC = "mul", "div", "mod", "power", "maximum", "minimum"
_NUMPY_ARITHMETIC = "add", "subtract", "multiply", "true_divide", "mod", "power"
_NUMPY_COMPARISONS = "equal", "not_equal", "greater", "greater_equal", "less", "less_equal"
_COMPARISONS = "equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal"
#: Per operator of an array and a number: the operator of two arrays, and whether the number is its
#: first operand.
SCALAR_OPERATORS: Dict[str, Tuple[str, bool]] = {
    **{f"_{name}_scalar": (f"broadcast_{name}", False) for name in (*_ARITHMETIC, *_COMPARISONS)},
    **{f"_r{name}_scalar": (f"broadcast_{name}", True) for name in ("div", "mod", "power")},
    "_plus_scalar": ("broadcast_add", False),
    "_minus_scalar": ("broadcast_sub", False),
    "_rminus_scalar": ("broadcast_sub", True),
    **{
        f"_npi_{name}_scalar": (f"_npi_{name}", False)
        for name in (*_NUMPY_ARITHMETIC, *_NUMPY_COMPARISONS)
    },
    **{
        f"_npi_r{name}_scalar": (f"_npi_{name}", True)
        for name in ("subtract", "true_divide", "mod", "power")
    },
}


class OperatorInfo(NamedTuple):
    """Properties of an operator."""

    name: str
    #: As users write it, for messages.
    called: str
    #: The attribute that holds the number of inputs; empty if that number is fixed.
    count_attribute: str
    #: When it writes to its inputs: see `rules.Rule`.
    writes: str


@functools.lru_cache(maxsize=None)
def operator_of(handle: int) -> OperatorInfo:
    """Return the properties of the operator with a handle."""
    name, description, count, return_type = (ctypes.c_char_p() for _ in range(4))
    lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
    outputs: Any = (name, description, mx_uint(), *lists, count, return_type)
    references = map(ctypes.byref, outputs)
    check_call(_LIB.MXSymbolGetAtomicSymbolInfo(ctypes.c_void_p(handle), *references))
    text = py_str(name.value)
    return OperatorInfo(text, written(text), py_str(count.value or b""), rules.of(text).writes)


class Operator(recording.Callee):
    """An operator with its attributes: the callee of recorded calls of operators.

    The token is a tuple of "op" for ``mx.nd`` or "np" for ``mx.np``, the name, names and values of
    the attributes, and for calls that are a part of the user's (see `many_arrays.py`), `PART`.
    """

    def __init__(self, token: Tuple[Any, ...], info: OperatorInfo) -> None:
        self.token, self.info, self.name = token, info, written(token[1])
        self.programs: Dict[Any, Any] = {}

    def attributes(self, inputs: int) -> Dict[str, str]:
        """Return the attributes of a call with this number of inputs."""
        count = self.info.count_attribute
        return {**dict(zip(*self.token[2:4])), **({count: str(inputs)} if count else {})}
