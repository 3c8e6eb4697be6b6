"""How `Structure` compares arguments and attributes of a dynamic block when it writes keys.

The class of an object decides: by value, by identity, or not at all.
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

#: Attributes that `forward` does not depend on: names, caches, and data derived from others.
IGNORED = frozenset(
    ["_scope", "_params", "_cached_graph", "_cached_op", "_in_format", "_out_format"]
    + ["_cached_op_args"]  # but see `Pieces.look`
    + ["_dynbatch_callee", "_dynbatch_stock", "_pieces", "_counter", "_init_counter"]
)
#: Attributes in which blocks differ that do the same.
NAMES = frozenset(["_name", "_prefix", "_empty_prefix"])
#: Their state changes with each draw, which cannot be noticed.
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
#: Compared by identity, as they are considered immutable.
CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
#: Types of members that only classes written in C have.
NATIVE = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)

#: What to write for objects of some built-in classes.
VALUES: Dict[type, Any] = {
    complex: lambda value: (value.real, value.imag),
    range: lambda value: (value.start, value.stop, value.step),
    slice: lambda value: (value.start, value.stop, value.step),
    bytearray: bytes,
    set: tuple,
    frozenset: tuple,
}

_NUMBERS = itertools.count()
_IDENTITIES: Dict[int, Tuple[Any, int]] = {}


def number_of(value: Any) -> int:
    """Return a number that no other object has or will have."""
    entry = _IDENTITIES.get(id(value))
    if entry is not None and entry[0]() is value:
        return entry[1]
    number, key = next(_NUMBERS), id(value)
    try:
        reference: Any = weakref.ref(value, lambda _: _IDENTITIES.pop(key, None))
    except TypeError:
        if isinstance(value, NDArray):
            return number_of(value.handle)  # which lives as long as the array
        reference = itertools.repeat(value).__next__  # a member of an IntEnum: keep it alive
    _IDENTITIES[key] = reference, number
    return number


def _array_values(value: Any) -> Tuple[Any, ...]:
    if value.dtype.hasobject:
        raise TypeError(value)
    # Not `dtype.str`, which is the same for all structured types of one size.
    return repr(value.dtype), value.shape, value.tobytes()


@functools.lru_cache(maxsize=10_000)
def describe(class_: type) -> Tuple[str, int, Any]:
    """Return how `Structure.other` writes the objects of a class, and the number of the class.

    The third item is a function that returns the values for "values", and the names of the slots
    for "object" and "block".
    """
    number = next(_NUMBERS)
    if class_ is collections.OrderedDict:
        return "mapping", number, None
    if issubclass(class_, tuple) and hasattr(class_, "_fields"):
        if class_.__dictoffset__:
            return "values", number, lambda value: (tuple(value), vars(value))
        return "items", number, None
    if class_ in VALUES:
        return "values", number, VALUES[class_]
    if class_ is np.ndarray or issubclass(class_, np.generic):
        return "values", number, _array_values
    if class_ is types.MethodType:
        return "values", number, lambda method: (method.__func__, method.__self__)
    if issubclass(class_, GENERATORS):
        return "never", number, None
    if issubclass(class_, CODE) or issubclass(class_, enum.Enum):
        return "identity", number, None
    if issubclass(class_, Block):
        return "block", number, ()
    members = [member for base in class_.__mro__[:-1] for member in vars(base).items()]
    if issubclass(class_, Parameter) or any(isinstance(value, NATIVE) for _, value in members):
        return "attribute", number, None
    slots = [name for name, value in members if isinstance(value, types.MemberDescriptorType)]
    return "object", number, tuple(slots)
