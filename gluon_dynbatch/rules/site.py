"""What a rule sees (`Site`), what it answers (`Rewrite`, `Refusal`) and how it reads attributes."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Dict, FrozenSet, Mapping, NamedTuple, Optional, Tuple, Union

Shape = Tuple[int, ...]
Ref = Tuple[int, int]

INPUT = -1
"""Step number of a `Ref` that means one of the site's own inputs."""


@dataclass(frozen=True)
class Site:
    """One operator call of one sample.

    Attributes
    ----------
    op : str
        Canonical operator name, as ``Symbol.tojson()`` spells it: ``"broadcast_add"``.
    attrs : mapping of str to str
        Operator attributes as in ``Symbol.tojson()``.
    inputs, outputs : tuple of shapes
        Shapes for one sample.
    batched : tuple of bool
        Per input: every sample brings its own array (True), or all share one array (False).
    training : bool
        What ``autograd.is_training()`` said when the call was recorded.
    """

    op: str
    attrs: Mapping[str, str]
    inputs: Tuple[Shape, ...]
    outputs: Tuple[Shape, ...]
    batched: Tuple[bool, ...]
    training: bool


class Step(NamedTuple):
    """One operator call of a rewrite; `inputs` refer to the site's inputs or to earlier steps."""

    op: str
    attrs: Mapping[str, str]
    inputs: Tuple[Ref, ...]


class Rewrite(NamedTuple):
    """What to run once instead of a site once per sample."""

    steps: Tuple[Step, ...]
    outputs: Tuple[Ref, ...]


class Refusal(NamedTuple):
    """Why a site has to run sample by sample, as a sentence for the user."""

    reason: str


class RefuseError(Exception):
    """Raised inside a rule to refuse; the entry points turn it into a `Refusal`."""


class UseRowsError(RefuseError):
    """Raised inside a stack rule to leave a site to the rows rule, by folding."""


def words(text: str) -> FrozenSet[str]:
    """Return the operator names in `text`, which is easier to read and to sort than a list."""
    return frozenset(text.split())


def literal(site: Site, name: str) -> object:
    """Return attribute `name` as a Python value, None if it is absent."""
    text = site.attrs.get(name)
    if text is None or text in ("", "None"):
        return None
    try:
        value: object = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        raise RefuseError(
            f"The batching rule of operator {site.op} does not understand {name}={text!r}."
        ) from None
    return value


def flag(site: Site, name: str, default: bool = False) -> bool:
    """Read a boolean attribute; MXNet writes both ``True`` and ``1``."""
    text = site.attrs.get(name)
    return default if text in (None, "", "None") else text in ("True", "true", "1")


def integer(site: Site, name: str, default: Optional[int]) -> Optional[int]:
    """Read an integer attribute; the text ``None`` is None, not the default."""
    if name not in site.attrs:
        return default
    value = literal(site, name)
    if isinstance(value, (tuple, list)) and len(value) == 1:
        value = value[0]
    if value is None or isinstance(value, int):
        return value
    raise RefuseError(f"Attribute {name}={value!r} of operator {site.op} is not an integer.")


def slots(site: Site, name: str) -> Tuple[Optional[int], ...]:
    """Read a tuple of optional integers (``(None, 2)``); absent and None give ``()``."""
    value = literal(site, name)
    if value is None:
        return ()
    items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for item in items:
        if item is not None and not isinstance(item, int):
            raise RefuseError(f"Attribute {name}={value!r} of operator {site.op} is not a tuple.")
    return items


def integers(site: Site, name: str) -> Tuple[int, ...]:
    """Read a tuple of integers."""
    values = slots(site, name)
    if any(value is None for value in values):
        raise RefuseError(f"Attribute {name} of operator {site.op} contains None.")
    return tuple(value for value in values if value is not None)


def positive_axis(site: Site, axis: int, ndim: int) -> int:
    """Count `axis` from the front."""
    if not -ndim <= axis < ndim:
        raise RefuseError(f"Axis {axis} of operator {site.op} is outside {ndim} dimensions.")
    return axis % ndim


def axis_of(site: Site, name: str, default: int, ndim: int) -> int:
    """Read an axis that must be given or have a default, counted from the front."""
    axis = integer(site, name, default)
    if axis is None:
        raise RefuseError(f"Operator {site.op} has {name}=None, which mixes all of its elements.")
    return positive_axis(site, axis, ndim)


def size_of(shape: Shape) -> int:
    """Return the number of elements."""
    size = 1
    for extent in shape:
        size *= extent
    return size


def refuse_unless(condition: bool, reason: str) -> None:
    """Refuse with `reason` if `condition` does not hold."""
    if not condition:
        raise RefuseError(reason)


def public_attrs(attrs: Mapping[str, str]) -> Dict[str, str]:
    """Drop what `mxnet.AttrScope` put there (``__ctx_group__``): it is no operator parameter."""
    return {k: v for k, v in attrs.items() if not (k.startswith("__") and k.endswith("__"))}


Answer = Union[Rewrite, Refusal]
