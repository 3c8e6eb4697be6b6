"""Results of any kind, taken apart into values that can be compared."""

from __future__ import annotations

import collections
import types
from typing import Any, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
from mxnet.ndarray import NDArray

from .errors import ArgumentError
from .record.where import user_line
from .schedule.dependencies import Array

#: Relative and absolute tolerance by dtype; Python's numbers are mostly read from float32 arrays.
TOLERANCES = {"float16": (2e-2, 2e-2), "float32": (1e-4, 1e-5), "float64": (1e-8, 1e-9)}
Tolerance = Optional[Tuple[float, float]]

#: Objects that are what they are, rather than what they hold.
SINGLE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
SEQUENCES = (list, tuple, collections.deque)


class Shape(NamedTuple):
    """The outside of an object that holds others."""

    type: type
    #: The keys of a dictionary, the attributes of an object, or the number of items.
    content: Any

    def __str__(self) -> str:
        return f"a {self.type.__name__} of {self.content}"


Values = List[Tuple[str, Any]]


def values_of(value: Any, path: str) -> Values:
    """Return the values in a result, from left to right, each with its path for messages.

    Arrays stay arrays of MXNet.  Raises `ArgumentError` for an object that cannot be compared.
    """
    return list(_walk(value, path, frozenset()))


def _walk(value: Any, path: str, outer: FrozenSet[int]) -> Iterator[Tuple[str, Any]]:
    if isinstance(value, (NDArray, np.generic)) or _is_plain(value):
        yield path, value
        return
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield path, value.copy()  # the program may change it later
        return
    if id(value) in outer:
        yield path, "an object that holds this"
        return
    shape, items = _take_apart(value, path)
    yield path, shape
    for name, item in items:
        yield from _walk(item, f"{path}{name}", outer | {id(value)})


def _is_plain(value: Any) -> bool:
    """Return whether a value has no parts, and ``==`` compares it."""
    if value is None or isinstance(value, (str, bytes, *SINGLE)):
        return True
    if isinstance(value, (*SEQUENCES, dict, set, frozenset, np.ndarray, BaseException)):
        return False
    compare: Any = type(value).__eq__
    compares = compare is not object.__eq__
    return compares and not (hasattr(value, "__dict__") and vars(value))


def _take_apart(value: Any, path: str) -> Tuple[Shape, List[Tuple[str, Any]]]:
    """Return the outside of an object, and the objects in it with what leads to them."""
    class_ = type(value)
    if isinstance(value, np.ndarray):
        items = [(f"[{i}]", item) for i, item in enumerate(value.reshape(-1).tolist())]
        return Shape(class_, f"shape {value.shape}"), items
    if isinstance(value, SEQUENCES):
        items = [(f"[{i}]", item) for i, item in enumerate(value)]
        return Shape(class_, f"{len(items)} items"), items
    if isinstance(value, dict):
        return Shape(class_, set(value)), [(f"[{key!r}]", value[key]) for key in _sorted(value)]
    if isinstance(value, (set, frozenset)):
        items = [(" (an item)", item) for item in _sorted(value)]
        return Shape(class_, f"{len(items)} items"), items
    if isinstance(value, BaseException):
        return Shape(class_, "arguments"), [(".args", value.args)]
    fields = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for base in class_.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, name) and not name.startswith("__"):
                fields[name] = getattr(value, name)
    if not fields:
        raise ArgumentError(
            f"{path} holds an object of type {class_.__name__}, which cannot be compared",
            user_line(),
            advice="return arrays, numbers, strings, None, or objects and containers of these",
        )
    return Shape(class_, set(fields)), [(f".{name}", fields[name]) for name in sorted(fields)]


def _sorted(items: Any) -> List[Any]:
    """Return items in an order that does not depend on how they came into their container."""
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=repr)


def to_numpy(values: Values) -> Values:
    """Return copies of the values, with NumPy arrays in place of MXNet's."""
    return [(name, x.asnumpy() if isinstance(x, NDArray) else x) for name, x in values]


def compare(expected: Values, actual: Values, tolerance: Tolerance) -> None:
    """Raise `AssertionError` for the first value that differs, with its name."""
    for (name, a), (_, b) in zip(expected, actual):
        both = f"{name} is {{}} in the scope and {{}} in the loop"
        if isinstance(a, (np.ndarray, np.generic)) and isinstance(b, type(a)):
            _compare_arrays(name, np.asarray(a), np.asarray(b), tolerance, both)
            continue
        assert type(a) is type(b), both.format(f"of type {type(b).__name__}", type(a).__name__)
        if isinstance(a, (float, complex)):
            relative, absolute = tolerance or TOLERANCES["float32"]
            equal: Any = np.isclose(b, a, relative, absolute, equal_nan=True)
        else:
            equal = a is b or a == b
        assert isinstance(equal, (bool, np.bool_)) and equal, both.format(b, a)
    assert len(expected) == len(actual), "the scope changes the number of results"


def _compare_arrays(
    name: str, expected: Array, actual: Array, tolerance: Tolerance, both: str
) -> None:
    assert expected.dtype == actual.dtype, both.format(actual.dtype, expected.dtype)
    assert expected.shape == actual.shape, both.format(f"of shape {actual.shape}", expected.shape)
    message = f"{name} differs between scope and loop"
    if expected.dtype.kind in "biufc":
        relative, absolute = tolerance or TOLERANCES.get(expected.dtype.name, (0, 0))
        np.testing.assert_allclose(actual, expected, relative, absolute, err_msg=message)
    else:
        np.testing.assert_array_equal(actual, expected, err_msg=message)
