"""An operator of a segment, as its handler sees it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Callable, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..rules.site import Site
from . import columns
from .columns import Shape, require
from .expression import Expressions, Node, Slot

#: Element types that kernels know, and those that they read numbers of places from.
DTYPES = ("float32", "float64")
NUMBERS = (*DTYPES, "int32", "int64")


class Value(NamedTuple):
    """A value within a segment."""

    #: What it is; None for a variable, which is read only if some function does so.
    node: Optional[Node]
    #: The variable whose elements these are, as they are.
    slot: Optional[Slot]
    dtype: str
    #: Axis 0 is counted per row of the launch.
    shape: Shape
    #: Whether each row of a launch has its own; else all rows share it.
    rows: bool
    #: Whether there is only one reader.
    once: bool


@dataclass(frozen=True)
class Call:
    """One operator of a segment."""

    site: Site
    build: Expressions
    values: Tuple[Value, ...]
    training: bool

    @property
    def out(self) -> Shape:
        """Shape of the first result."""
        return self.site.outputs[0]

    def node(self, number: int = 0, dtypes: Sequence[str] = DTYPES) -> Node:
        """Return an input, as it is."""
        value = self.values[number]
        require(value.dtype in dtypes, f"{value.dtype} has no kernels")
        if value.node is not None:
            return value.node
        assert value.slot is not None
        width = prod(value.shape)
        return self.build.read(value.slot, width, value.dtype, every=not value.rows)

    def wide(self, number: int = 0) -> Node:
        """Return an input, broadcast to the shape of the first result."""
        return columns.broadcast(self.node(number), self.values[number].shape, self.out)

    def matrix(self, number: int, like: int = 0) -> Slot:
        """Return a variable that all rows share, of the type of some input."""
        value = self.values[number]
        require(value.slot is not None and not value.rows, "a factor is computed")
        require(value.dtype == self.values[like].dtype, "dtypes differ")
        assert value.slot is not None
        return value.slot

    def number(self, name: str, default: float = 1, single: bool = True) -> float:
        """Read a number, which MXNet keeps in single precision."""
        text = self.site.attrs.get(name, "None")
        value = default if text == "None" else float(text)
        return float(np.float32(value)) if single else value

    def const(self, value: float) -> Node:
        """Return the same number in all elements of the first result."""
        return self.build.const(value, prod(self.out), self.values[0].dtype)


#: Returns results; None if the result has the elements of the first input.
Handler = Callable[[Call], Optional[Sequence[Node]]]
