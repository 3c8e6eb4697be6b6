"""MXNet's operators, as calls of ``mx.nd`` name them."""

from __future__ import annotations

import ctypes
from typing import Dict, NamedTuple, Tuple

from mxnet.base import _LIB, check_call, mx_uint, py_str

from .. import rules

#: Creation operators whose results are recorded, once per flush.  Others run at once: MXNet's own
#: code uses them, and there relies on the exact type.
CONSTANTS = frozenset(["_zeros", "_ones", "_full"])


class AtOnce(NamedTuple):
    """In the place of an entry: calls are not recorded as one, and why."""

    reason: str
    recorded: None = None


class OperatorInfo:
    """Name of an operator, and the attribute that counts its inputs if it takes any number."""

    __slots__ = ("name", "count_attribute", "creates", "mutates", "overwrites")

    def __init__(self, handle: int):
        text = [ctypes.c_char_p() for _ in range(4)]
        name, description, count, returned = text
        number = mx_uint()
        lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
        check_call(
            _LIB.MXSymbolGetAtomicSymbolInfo(
                ctypes.c_void_p(handle),
                ctypes.byref(name),
                ctypes.byref(description),
                ctypes.byref(number),
                *[ctypes.byref(part) for part in lists],
                ctypes.byref(count),
                ctypes.byref(returned),
            )
        )
        self.name = py_str(name.value)
        self.count_attribute = py_str(count.value) if count.value else ""
        self.creates = self.name in CONSTANTS
        self.mutates = bool(rules.of(self.name).writes)
        #: Whether it writes to its arguments whatever the mode.
        self.overwrites = rules.of(self.name).writes == "always"


class Operator:
    """An operator with its attributes: what a recorded ``mx.nd`` call calls."""

    __slots__ = ("token", "info", "keys", "values")

    def __init__(self, info: OperatorInfo, keys: Tuple[str, ...], values: Tuple[str, ...]):
        self.info = info
        self.keys = keys
        self.values = values
        self.token = ("op", info.name, keys, values)

    @property
    def name(self) -> str:
        """Name for messages and reports."""
        return str(self.info.name)

    def attributes(self, inputs: int) -> Dict[str, str]:
        """Return the attributes of a call with this number of inputs."""
        attributes = dict(zip(self.keys, self.values))
        if self.info.count_attribute:
            attributes[self.info.count_attribute] = str(inputs)
        return attributes


#: What is known of operators, by handle.
_OPERATORS: Dict[int, OperatorInfo] = {}


def operator_of(handle: int) -> OperatorInfo:
    """Return what is known of the operator that MXNet has under a handle."""
    info = _OPERATORS.get(handle)
    if info is None:
        info = _OPERATORS[handle] = OperatorInfo(handle)
    return info
