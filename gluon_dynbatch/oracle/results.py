"""Results of any kind, taken apart into values that can be compared."""

from __future__ import annotations

import collections
import types
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Block, Parameter
from mxnet.ndarray import NDArray

from ..errors import ArgumentError
from ..record.where import user_line

#: Relative and absolute tolerance by dtype; Python's numbers are mostly read from float32 arrays.
TOLERANCES = {"float16": (2e-2, 2e-2), "float32": (1e-4, 1e-5), "float64": (1e-8, 1e-9)}
Tolerance = Optional[Tuple[float, float]]
#: Sums of many terms, such as gradients, have rounding errors in proportion to the largest terms:
#: absolute tolerance by dtype, as a share of the largest value of an array.
OF_LARGEST = {"float32": 1e-6, "float64": 1e-14}

#: Objects that are what they are, rather than what they hold.
SINGLE = (type, types.ModuleType)
#: Code and networks, of which only the type is compared: each run may make new ones.
OPAQUE = (
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType),
    *(Block, Parameter),
)
SEQUENCES = (list, tuple, collections.deque)


class Outside(NamedTuple):
    """The outside of an object that holds others."""

    type: type
    #: The keys of a dictionary, the attributes of an object, or the number of items.
    content: Any

    def __str__(self) -> str:
        return f"a {self.type.__name__} of {self.content}"


#: The outsides of arrays, lazy or not.
OF_MXNET, OF_NUMPY = Outside(NDArray, "mx.nd"), Outside(mx.np.ndarray, "mx.np")
Values = List[Tuple[str, Any]]


def values_of(value: Any, path: str, strict: bool = True) -> Values:
    """Return the values in a result, from left to right, each with its path for messages.

    Arrays stay arrays of MXNet.  Of an object that cannot be compared, only the type is a value;
    with `strict`, it raises `ArgumentError`.
    """
    return list(_walk(value, path, strict, frozenset()))


def _walk(value: Any, path: str, strict: bool, outer: FrozenSet[int]) -> Iterator[Tuple[str, Any]]:
    if isinstance(value, NDArray):
        yield path, OF_NUMPY if isinstance(value, mx.np.ndarray) else OF_MXNET
    if isinstance(value, (NDArray, np.generic)) or _is_plain(value):
        yield path, value
        return
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield path, value.copy()  # the program may change it later
        return
    if id(value) in outer:
        yield path, "an object that holds this"
        return
    shape, items = _take_apart(value)
    if strict and shape.content is None and not isinstance(value, OPAQUE):
        raise ArgumentError(
            f"{path} holds an object of type {shape.type.__name__}, which cannot be compared",
            user_line(),
            advice="return arrays, numbers, strings, None, or objects and containers of these",
        )
    yield path, shape
    for name, item in items:
        yield from _walk(item, f"{path}{name}", strict, outer | {id(value)})


def _is_plain(value: Any) -> bool:
    """Return whether a value has no parts, and ``==`` compares it."""
    if value is None or isinstance(value, (str, bytes, *SINGLE)):
        return True
    if isinstance(value, (*SEQUENCES, dict, set, frozenset, np.ndarray, BaseException, *OPAQUE)):
        return False
    compare: Any = type(value).__eq__
    compares = compare is not object.__eq__
    return compares and not (hasattr(value, "__dict__") and vars(value))


def _take_apart(value: Any) -> Tuple[Outside, List[Tuple[str, Any]]]:
    """Return the outside of an object, and the objects in it with what leads to them."""
    class_ = type(value)
    if isinstance(value, np.ndarray):
        items = [(f"[{i}]", item) for i, item in enumerate(value.reshape(-1).tolist())]
        return Outside(class_, f"shape {value.shape}"), items
    if isinstance(value, SEQUENCES):
        items = [(f"[{i}]", item) for i, item in enumerate(value)]
        return Outside(class_, f"{len(items)} items"), items
    if isinstance(value, dict):
        return Outside(class_, set(value)), [(f"[{key!r}]", value[key]) for key in _sorted(value)]
    if isinstance(value, (set, frozenset)):
        items = [(" (an item)", item) for item in _sorted(value)]
        return Outside(class_, f"{len(items)} items"), items
    if isinstance(value, BaseException):
        return Outside(class_, "arguments"), [(".args", value.args)]
    fields = {} if isinstance(value, OPAQUE) else _fields_of(value)
    items = [(f".{name}", fields[name]) for name in sorted(fields)]
    return Outside(class_, set(fields) or None), items


def _fields_of(value: Any) -> Dict[str, Any]:
    """Return the attributes of an object."""
    fields = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, name) and not name.startswith("__"):
                fields[name] = getattr(value, name)
    return fields


def _sorted(items: Any) -> List[Any]:
    """Return items in an order that does not depend on how they came into their container."""
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=repr)


def to_numpy(values: Values) -> Values:
    """Return copies of the values, with NumPy arrays in place of MXNet's."""
    return [(name, x.asnumpy() if isinstance(x, NDArray) else x) for name, x in values]


def find_difference(
    expected: Values,
    actual: Values,
    tolerance: Tolerance,
    place: str = "scope",
    are_sums: bool = False,
) -> Optional[str]:
    """Return a sentence about the first value that differs, with its path; None if none does.

    If they `are_sums`, a default tolerance is not below `OF_LARGEST`.
    """
    for (path, a), (_, b) in zip(expected, actual):
        if isinstance(a, (np.ndarray, np.generic)) and isinstance(b, type(a)):
            given = _tolerance_of(a) if are_sums and not tolerance else tolerance
            found = _differing(a, b, given)
        else:
            found = _differing_values(a, b, tolerance)
        if found is not None:
            where, one, other = found
            return f"{path}{where} is {other} in the {place} and {one} in the loop"
    if len(expected) != len(actual):
        return f"the {place} changes the number of results"
    return None


def _tolerance_of(sums: Any) -> Tolerance:
    """Return the tolerance of an array of sums, of which the largest is about a largest term."""
    name = np.asarray(sums).dtype.name
    if name not in OF_LARGEST or not np.size(sums):
        return None
    relative, absolute = TOLERANCES[name]
    finite = np.where(np.isfinite(sums), sums, 0)
    return relative, max(absolute, OF_LARGEST[name] * float(np.abs(finite).max()))


#: Where two values differ, and a text for each.
Difference = Optional[Tuple[str, Any, Any]]


def _differing_values(a: Any, b: Any, tolerance: Tolerance) -> Difference:
    """Compare two values of Python."""
    if type(a) is not type(b):
        return "", _kind_of(a), _kind_of(b)
    if isinstance(a, (float, complex)):
        relative, absolute = tolerance or TOLERANCES["float32"]
        equal = np.isclose(b, a, relative, absolute, equal_nan=True)
    else:
        equal = a is b or a == b
    return None if isinstance(equal, (bool, np.bool_)) and equal else ("", a, b)


def _kind_of(value: Any) -> str:
    return str(value) if isinstance(value, Outside) else f"of type {type(value).__name__}"


def _differing(a: Any, b: Any, tolerance: Tolerance) -> Difference:
    """Compare two arrays of NumPy; return the first element that differs."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype:
        return "", a.dtype, b.dtype
    if a.shape != b.shape:
        return "", f"of shape {a.shape}", f"of shape {b.shape}"
    if a.dtype.kind in "biufc":
        relative, absolute = tolerance or TOLERANCES.get(a.dtype.name, (0, 0))
        equal = np.isclose(b, a, relative, absolute, equal_nan=a.dtype.kind in "fc")
    else:
        equal = a == b
    if np.all(equal):
        return None
    place = np.unravel_index(np.argmin(equal), a.shape)
    return str(list(map(int, place))) if a.ndim else "", a[place], b[place]
