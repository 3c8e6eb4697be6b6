"""What a rule sees (`Site`), how it reads attributes, and how it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Mapping, Optional, Tuple

Shape = Tuple[int, ...]
#: A value of a program: position of the operator, and number of the output.
Ref = Tuple[int, int]


class RefuseError(Exception):
    """Raised inside a rule to refuse, with a sentence for the user.

    A stack rule that raises it without a sentence, before it appends anything, leaves the site to
    the rows rule.
    """


def require(condition: bool, reason: str) -> None:
    """Refuse with `reason` if `condition` does not hold."""
    if not condition:
        raise RefuseError(reason)


@dataclass(frozen=True)
class Site:
    """One operator call of one sample."""

    #: Canonical name and attributes, as ``Symbol.tojson()`` spells them: ``"broadcast_add"``.
    op: str
    attrs: Mapping[str, str] = field(hash=False)
    #: Shapes for one sample.
    inputs: Tuple[Shape, ...]
    outputs: Tuple[Shape, ...]
    #: Per input: every sample brings its own array (True), or all share one array (False).
    batched: Tuple[bool, ...]
    #: What ``autograd.is_training()`` said when the call was recorded.
    training: bool

    def flag(self, name: str, default: bool = False) -> bool:
        """Read a boolean attribute; MXNet writes both ``True`` and ``1``."""
        text = self.attrs.get(name)
        return default if text in (None, "", "None") else text in ("True", "true", "1")

    def integer(self, name: str, default: Optional[int]) -> Optional[int]:
        """Read an integer attribute; the text ``None`` is None, not the default."""
        return next(iter(self.slots(name)), None) if name in self.attrs else default

    def slots(self, name: str) -> Tuple[Optional[int], ...]:
        """Read a tuple of optional integers (``(None, 2)``); absent and None give ``()``."""
        text = self.attrs.get(name, "None")
        words = text.strip("()[]").replace(",", " ").split() if text != "None" else ()
        try:
            return tuple(None if word == "None" else int(word) for word in words)
        except ValueError:
            raise RefuseError(
                f"The batching rule of operator {self.op} does not understand {name}={text!r}."
            ) from None

    def integers(self, name: str) -> Tuple[int, ...]:
        """Read a tuple of integers."""
        return tuple(value for value in self.slots(name) if value is not None)

    def positive(self, axis: int, ndim: Optional[int] = None) -> int:
        """Count an axis, of the first input unless `ndim` is given, from the front."""
        ndim = len(self.inputs[0]) if ndim is None else ndim
        require(
            -ndim <= axis < ndim, f"Axis {axis} of operator {self.op} is outside {ndim} dimensions."
        )
        return axis % ndim

    def axis(self, name: str, default: int) -> int:
        """Read an axis of the first input that must be given or have a default."""
        axis = self.integer(name, default)
        if axis is None:
            raise RefuseError(f"Operator {self.op} has {name}=None, which mixes all its elements.")
        return self.positive(axis)

    def axes(self, name: str, ndim: Optional[int] = None) -> Tuple[int, ...]:
        """Read a tuple of axes, counted from the front."""
        return tuple(self.positive(axis, ndim) for axis in self.integers(name))

    def keep_rows(self, condition: bool) -> None:
        """Refuse the rows layout unless `condition` holds; the stack layout may still do."""
        require(condition, f"Operator {self.op} works along axis 0, so the rows see each other.")


def padded(shape: Shape, ndim: int) -> Shape:
    """Put ones in front of `shape` until it has `ndim` dimensions."""
    return (1,) * (ndim - len(shape)) + shape


def public_attrs(attrs: Mapping[str, str]) -> Dict[str, str]:
    """Drop what `mxnet.AttrScope` put there (``__ctx_group__``): it is no operator parameter."""
    return {k: v for k, v in attrs.items() if not (k.startswith("__") and k.endswith("__"))}
