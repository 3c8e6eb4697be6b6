"""Take nested arguments apart into arrays and a hashable description, and put them together again.

``unflatten(spec, leaves)`` is the exact inverse of ``flatten``: lists stay lists, tuples stay
tuples (named ones too), dictionaries keep their keys and their order.  Numbers, strings and
``None`` are part of the description, so two calls that differ in one of them never look alike.
"""

from __future__ import annotations

import itertools
from typing import (
    Any,
    Callable,
    Dict,
    Hashable,
    Iterator,
    List,
    NamedTuple,
    Sequence,
    Tuple,
)

#: The description of an array in a spec.
LEAF = "*"

Spec = Hashable


class _List(NamedTuple):
    items: Tuple[Spec, ...]


class _Tuple(NamedTuple):
    make: Callable[[List[Any]], Any]
    items: Tuple[Spec, ...]


class _Dict(NamedTuple):
    keys: Tuple[Hashable, ...]
    items: Tuple[Spec, ...]


class _Static(NamedTuple):
    #: The type takes part in the comparison: ``1``, ``1.0`` and ``True`` are three arguments.
    kind: type
    #: ``repr`` for floats, so that ``0.0`` and ``-0.0`` differ and NaN equals itself.
    token: Hashable
    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self[:2] == other[:2]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:2])


class Flattener:
    """Flattens arguments whose arrays are instances of `array_type`.

    Parameters
    ----------
    array_type : type
        What counts as an array.
    """

    def __init__(self, array_type: type):
        self._array_type = array_type
        self._visit: Dict[type, Callable[[Any, List[Any]], Spec]] = {
            list: self._visit_list,
            tuple: self._visit_tuple,
            dict: self._visit_dict,
        }

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
        visit = self._visit.get(type(value))
        if visit is None:
            visit = self._visit[type(value)] = self._visitor_for(type(value), value)
        return visit(value, leaves)

    def _visitor_for(self, kind: type, value: Any) -> Callable[[Any, List[Any]], Spec]:
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._visit_tuple
        if issubclass(kind, self._array_type):
            return _visit_array
        if value is None or issubclass(kind, (bool, int, float, complex, str, bytes, slice)):
            return _visit_static
        if kind.__module__ == "numpy" and hasattr(value, "item") and not hasattr(value, "__len__"):
            return _visit_static
        raise TypeError(value)

    def _visit_list(self, value: List[Any], leaves: List[Any]) -> Spec:
        spec = self._spec
        return _List(tuple([spec(item, leaves) for item in value]))

    def _visit_tuple(self, value: Tuple[Any, ...], leaves: List[Any]) -> Spec:
        kind = type(value)
        make: Callable[[List[Any]], Any] = kind if kind is tuple else kind._make  # type: ignore[attr-defined]
        spec = self._spec
        return _Tuple(make, tuple([spec(item, leaves) for item in value]))

    def _visit_dict(self, value: Dict[Hashable, Any], leaves: List[Any]) -> Spec:
        spec = self._spec
        return _Dict(tuple(value), tuple([spec(item, leaves) for item in value.values()]))


def _visit_array(value: Any, leaves: List[Any]) -> Spec:
    leaves.append(value)
    return LEAF


def _visit_static(value: Any, leaves: List[Any]) -> Spec:
    del leaves
    return _Static(type(value), repr(value), value)


def unflatten(spec: Spec, leaves: Sequence[Any]) -> Any:
    """Put `leaves` back into the places that `spec` describes."""
    rest = iter(leaves)
    value = _rebuild(spec, rest)
    if next(rest, rest) is not rest:
        raise ValueError("more arrays than places")
    return value


def _rebuild(spec: Spec, rest: Any) -> Any:
    if isinstance(spec, _List):
        return [_rebuild(item, rest) for item in spec.items]
    if isinstance(spec, _Tuple):
        return spec.make([_rebuild(item, rest) for item in spec.items])
    if isinstance(spec, _Dict):
        return dict(zip(spec.keys, [_rebuild(item, rest) for item in spec.items]))
    if isinstance(spec, _Static):
        return spec.value
    return next(rest)


def rebuilder(spec: Spec) -> Any:
    """Return what `recording.rebuild` needs to put arrays together as ``unflatten`` does.

    None stands for the only array; lists and tuples of numbers for those of arrays; all else is a
    function of the list.
    """
    if spec == LEAF:
        return None
    plain = _plain(spec, itertools.count(), DEEPEST)
    if plain is not None:
        return plain
    names: Dict[str, Any] = {}
    text = _display(spec, names, itertools.count())
    # Python's parser takes some hundred brackets within one another, at most.
    if max(itertools.accumulate(map(_step, text))) > DEEPEST:
        return lambda leaves: unflatten(spec, leaves)
    return eval(f"lambda a: {text}", names)


#: Structures within each other, beyond which `unflatten` does it.
DEEPEST = 50


def _plain(spec: Spec, leaves: Iterator[int], deepest: int) -> Any:
    """Return lists and tuples of the numbers of arrays; None if there is anything else."""
    if spec == LEAF:
        return next(leaves)
    if not deepest or not isinstance(spec, (_List, _Tuple)):
        return None
    make: Any = list if isinstance(spec, _List) else spec.make
    items = [_plain(item, leaves, deepest - 1) for item in spec.items]
    return None if None in items or make not in (list, tuple) else make(items)


def _step(character: str) -> int:
    return (character in "([{") - (character in ")]}")


def _display(spec: Spec, names: Dict[str, Any], leaves: Iterator[int]) -> str:
    """Return Python's text for the value that `spec` describes; `names` gets what it refers to."""

    def name(value: Any) -> str:
        names[f"v{len(names)}"] = value
        return f"v{len(names) - 1}"

    if isinstance(spec, _Static):
        return name(spec.value)
    if not isinstance(spec, (_List, _Tuple, _Dict)):
        return f"a[{next(leaves)}]"
    items = [_display(item, names, leaves) for item in spec.items]
    if isinstance(spec, _Dict):
        return "{" + ", ".join(f"{name(k)}: {v}" for k, v in zip(spec.keys, items)) + "}"
    if isinstance(spec, _Tuple) and spec.make is tuple:
        return "(" + "".join(f"{item}, " for item in items) + ")"
    listed = "[" + ", ".join(items) + "]"
    return f"{name(spec.make)}({listed})" if isinstance(spec, _Tuple) else listed
