"""Take nested arguments apart into arrays and a hashable description, and put them together again.

``unflatten(spec, leaves)`` is the exact inverse of ``flatten``: lists stay lists, tuples stay
tuples (named ones too), dictionaries keep their keys and their order.  Numbers, strings and
``None`` are part of the description, so two calls that differ in one of them never look alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Hashable, List, Tuple

from ..native import recording

#: `LEAF` for an array; for a list, tuple or dictionary a tuple of its type, the specs of what is in
#: it, and the keys of a dictionary; a `Static` for all else.
Spec = Hashable

LEAF = "*"

unflatten = recording.unflatten


@dataclass(unsafe_hash=True)
class Static:
    """A number, a string or the like."""

    #: The type takes part in the comparison: ``1``, ``1.0`` and ``True`` are three arguments.
    kind: type
    #: Its ``repr``, so that ``0.0`` and ``-0.0`` differ and NaN equals itself.
    token: str
    value: Any = field(compare=False)


class Flattener:
    """Flattens arguments whose arrays are instances of `array_type`.

    Parameters
    ----------
    array_type : type
        What counts as an array.
    """

    def __init__(self, array_type: type):
        self._array_type = array_type
        #: By class of a value: itself for one that holds others, else `LEAF` or `Static`.
        self._kinds: Dict[type, Any] = {list: list, tuple: tuple, dict: dict}

    def flatten(self, value: Any) -> Tuple[List[Any], Spec]:
        """Return the arrays of `value`, from left to right, and a hashable spec.

        Raises
        ------
        TypeError
            Something inside is neither an array, a number, a string, ``None`` nor a list, tuple or
            dictionary of these; the argument of the exception is the offending object.
        """
        leaves: List[Any] = []
        return leaves, self._spec(value, leaves)

    def _spec(self, value: Any, leaves: List[Any]) -> Spec:
        kind = self._kinds.get(type(value))
        if kind is None:
            kind = self._kinds[type(value)] = self._kind_of(type(value), value)
        if kind is LEAF:
            leaves.append(value)
            return LEAF
        if kind is Static:
            return Static(type(value), repr(value), value)
        items = value.values() if kind is dict else value
        parts = tuple([self._spec(item, leaves) for item in items])
        return (kind, parts, tuple(value)) if kind is dict else (kind, parts)

    def _kind_of(self, kind: type, value: Any) -> Any:
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return kind
        if issubclass(kind, self._array_type):
            return LEAF
        if value is None or issubclass(kind, (bool, int, float, complex, str, bytes, slice)):
            return Static
        if kind.__module__ == "numpy" and hasattr(value, "item") and not hasattr(value, "__len__"):
            return Static
        raise TypeError(value)
