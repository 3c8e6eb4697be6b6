"""How arguments and attributes of a dynamic block are told apart, once they are written as bytes.

An object is told apart by what it holds, by its identity, or not at all, as its class says.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import random
import types
import weakref
from typing import Any, Dict, Tuple

import numpy as np
from mxnet.gluon import Block, Parameter
from mxnet.ndarray import NDArray

#: Attributes that say nothing of what `forward` does: names, and what is made from the others.
IGNORED = frozenset(
    ["_scope", "_params", "_cached_graph", "_cached_op", "_in_format", "_out_format"]
    + ["_cached_op_args"]  # but see `Pieces.look`
    + ["_dynbatch_callee", "_pieces", "_counter", "_init_counter"]
)
#: Draw when they are asked; nobody can tell whether they were.
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
#: Told apart by identity, as they are not changed.
CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
#: What a class that is written in Python does not have.
IN_C = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)

_NUMBERS = itertools.count()
_IDENTITIES: Dict[int, Tuple[Any, int]] = {}


def number_of(value: Any) -> int:
    """Return a number that no other object has or will have."""
    known = _IDENTITIES.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    number, key = next(_NUMBERS), id(value)
    try:
        held: Any = weakref.ref(value, lambda _: _IDENTITIES.pop(key, None))
    except TypeError:  # an array, whose handle goes with it; or an integer with a name, that stays
        if isinstance(value, NDArray):
            return number_of(value.handle)
        held = itertools.repeat(value).__next__
    _IDENTITIES[key] = held, number
    return number


def _array_values(value: Any) -> Tuple[Any, ...]:
    if value.dtype.hasobject:
        raise TypeError(value)
    return value.dtype.str, value.shape, value.tobytes()


@functools.lru_cache(maxsize=10_000)
def describe(kind: type) -> Tuple[str, int, Any]:
    """Say how the objects of a class are told apart: see `Structure.other`, natively."""
    number = next(_NUMBERS)
    if kind is collections.OrderedDict:
        return "mapping", number, None
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        if kind.__dictoffset__:
            return "values", number, lambda value: (tuple(value), vars(value))
        return "items", number, None
    if kind in (complex, range, slice, bytearray) or issubclass(kind, np.generic):
        return "values", number, repr
    if kind in (set, frozenset):
        return "values", number, tuple
    if kind is np.ndarray:
        return "values", number, _array_values
    if kind is types.MethodType:
        return "values", number, lambda method: (method.__func__, method.__self__)
    if issubclass(kind, GENERATORS):
        return "never", number, None
    if issubclass(kind, CODE) or issubclass(kind, enum.Enum):
        return "identity", number, None
    if issubclass(kind, Block):
        return "block", number, ()
    members = [item for base in kind.__mro__[:-1] for item in vars(base).items()]
    if issubclass(kind, Parameter) or any(isinstance(value, IN_C) for _, value in members):
        return "attribute", number, None
    slots = [name for name, value in members if isinstance(value, types.MemberDescriptorType)]
    return "object", number, tuple(slots)
