"""The input of a rule (`Site`) with its attributes, and the refusal of a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Tuple

from .spelling import written

Shape = Tuple[int, ...]
#: A value of a program: position of the operator and number of the output.
Ref = Tuple[int, int]


class RefuseError(Exception):
    """Raised by a rule that refuses a site, with a sentence for the user.

    A stack rule that raises it without a sentence leaves the site to the rows rule; it must do so
    before it appends anything.
    """


def require(condition: bool, reason: str) -> None:
    """Refuse with `reason` if `condition` does not hold."""
    if not condition:
        raise RefuseError(reason)


@dataclass(frozen=True)
class Site:
    """One operator call of one sample."""

    #: Canonical name (``"broadcast_add"``) and attributes, as in ``Symbol.tojson()``.
    op: str
    attrs: Mapping[str, str]
    #: Shapes of one sample.
    inputs: Tuple[Shape, ...]
    outputs: Tuple[Shape, ...]
    #: Per input: each sample has its own array (True), or all share one (False).
    batched: Tuple[bool, ...]
    #: ``autograd.is_training()`` when the call was recorded.
    training: bool

    def __hash__(self) -> int:
        attrs = frozenset(self.attrs.items())
        return hash((self.op, attrs, self.inputs, self.outputs, self.batched, self.training))

    @property
    def called(self) -> str:
        """The operator as users write it, for messages."""
        return written(self.op)

    def flag(self, name: str, default: bool = False) -> bool:
        """Read a boolean attribute; MXNet writes both ``True`` and ``1``."""
        text = self.attrs.get(name)
        return default if text in (None, "", "None") else text in ("True", "true", "1")

    def integer(self, name: str, default: Optional[int]) -> Optional[int]:
        """Read an integer attribute; the text ``None`` is None, not the default."""
        return next(iter(self.optional_integers(name)), None) if name in self.attrs else default

    def optional_integers(self, name: str) -> Tuple[Optional[int], ...]:
        """Read a tuple of integers or None, like ``(None, 2)``; ``()`` if it is missing or None."""
        text = self.attrs.get(name, "None")
        words = text.strip("()[]").replace(",", " ").split() if text != "None" else ()
        try:
            return tuple(None if word == "None" else int(word) for word in words)
        except ValueError:
            raise RefuseError(
                f"The batching rule of operator {self.called} cannot read {name}={text!r}."
            ) from None

    def integers(self, name: str) -> Tuple[int, ...]:
        """Read a tuple of integers; leave out each None."""
        return tuple(value for value in self.optional_integers(name) if value is not None)

    def normalize_axis(self, axis: int, ndim: Optional[int] = None) -> int:
        """Count an axis from the front; `ndim` is that of the first input unless given."""
        ndim = len(self.inputs[0]) if ndim is None else ndim
        require(
            -ndim <= axis < ndim,
            f"Axis {axis} of operator {self.called} is outside {ndim} dimensions.",
        )
        return axis % ndim

    def axis(self, name: str, default: int) -> int:
        """Read an axis of the first input, counted from the front; refuse None."""
        axis = self.integer(name, default)
        if axis is None:
            raise RefuseError(f"Operator {self.called} with {name}=None works on all elements.")
        return self.normalize_axis(axis)

    def axes(self, name: str) -> Tuple[int, ...]:
        """Read a tuple of axes of the first input, counted from the front."""
        return tuple(self.normalize_axis(axis) for axis in self.integers(name))

    def keep_rows(self, condition: bool) -> None:
        """Refuse to merge in rows, because they depend on each other, unless `condition` holds."""
        require(
            condition, f"Operator {self.called} works along axis 0, so rows depend on each other."
        )


def padded(shape: Shape, ndim: int) -> Shape:
    """Prepend axes of size 1 until `shape` has `ndim` dimensions."""
    return (1,) * (ndim - len(shape)) + shape


def public_attrs(attrs: Mapping[str, str]) -> Dict[str, str]:
    """Drop attributes of `mxnet.AttrScope` (``__ctx_group__``), which operators do not take."""
    return {k: v for k, v in attrs.items() if not (k.startswith("__") and k.endswith("__"))}
