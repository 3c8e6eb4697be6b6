"""Steps: what a kernel does with the rows of a launch, one after another.

Inert and printable.  All steps of a kernel work row by row, so that a launch can be run a block of
rows at a time.  What adds up over rows, the gradients of weights, is left to the end of the flush.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Dict, FrozenSet, NamedTuple, Optional, Tuple, Union

import numpy as np

from ..native import executing
from .expression import Dot, Order, Place, Slot, Weight


class Packed(NamedTuple):
    """A matrix, packed for products with it or with its transpose."""

    weight: Weight
    transposed: bool
    dtype: str


class Product(NamedTuple):
    """Rows times a matrix."""

    left: Place
    weight: Weight
    result: Place
    bias: Optional[Place]
    #: Whether the product is added to what is there.
    adds: bool
    #: How many rows of the product one row of the launch has.
    parts: int
    dtype: str

    def matrix(self, few: bool) -> Union[Slot, Packed]:
        """Return what is read of the weight: to pack it for few rows takes too long."""
        weight = self.weight
        if weight.chosen or (few and weight.transposed):
            return weight.place.slot
        return Packed(weight._replace(transposed=False), weight.transposed, self.dtype)

    def __str__(self) -> str:
        if self.weight.chosen:
            return f"{self.result} {'+=' if self.adds else '='} {self.weight}[{self.left}]"
        bias = f" + {self.bias}" if self.bias else ""
        return f"{self.result} {'+=' if self.adds else '='} {self.left} x {self.weight}{bias}"


class Dots(NamedTuple):
    """Products of matrices that each row has its own of."""

    left: Place
    right: Place
    result: Place
    how: Dot
    dtype: str

    def __str__(self) -> str:
        left, right = (f"{p}{'.T' * t}" for p, t in zip((self.left, self.right), self.how.turned))
        return f"{self.result} = {left} . {right}"


#: "row", "spread" (one column in all columns) or columns by number; of what is written "row",
#: "total" or "top".
How = Union[str, Order]


class Access(NamedTuple):
    """A register that is read from memory or written to it."""

    register: int
    place: Place
    how: How

    def __str__(self) -> str:
        return str(self.place) if self.how == "row" else f"{self.how} {self.place}"


class Instruction(NamedTuple):
    """A function of registers."""

    name: str
    target: int
    arguments: Tuple[int, ...]
    values: Tuple[float, ...]


class Pointwise(NamedTuple):
    """Functions of one element, a program over registers."""

    width: int
    dtype: str
    registers: int
    loads: Tuple[Access, ...]
    instructions: Tuple[Instruction, ...]
    stores: Tuple[Access, ...]

    def __str__(self) -> str:
        written, read = (", ".join(map(str, some)) for some in (self.stores, self.loads))
        names = " ".join(i.name for i in self.instructions if i.name != "const")
        return f"{written} = {names or 'copy'}({read})"


Step = Union[Product, Dots, Pointwise]


class Array(NamedTuple):
    """What a slot holds: numbers per row, and their type; `every` if there is one row for all."""

    width: int
    dtype: str
    every: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * np.dtype(self.dtype).itemsize


class Sum(NamedTuple):
    """Adds up, over rows of all launches, to the gradient of a matrix.

    These are outer products of gradients with the rows that were multiplied.  An array that all
    rows share is a matrix of one row, with which nothing was multiplied.
    """

    weight: Weight
    #: Expressions, and in a kernel their places.
    gradient: Any
    rows: Any
    #: How many rows one row of a launch has.
    parts: int

    def __str__(self) -> str:
        turned = "" if self.rows is None else f".T x {self.rows}"
        return f"gradient of {self.weight.place} += {self.gradient}{turned}"


class Wanted(NamedTuple):
    """Which gradients there are, and which are asked for, by number."""

    heads: Tuple[int, ...]
    inputs: Tuple[int, ...]
    parameters: Tuple[int, ...]


@dataclass(eq=False)
class Kernel:
    """The steps of a launch, in one direction, and backward what adds up to gradients."""

    steps: Tuple[Step, ...]
    #: What they work on.
    arrays: Dict[Slot, Array]
    #: Backward, what adds up, and what for.
    sums: Tuple[Sum, ...] = ()
    wanted: Optional[Wanted] = None
    _native: Dict[bool, executing.Kernel] = field(default_factory=dict)

    def native(self, few: bool = False) -> executing.Kernel:
        """Return the kernel in native code, perhaps one for few rows."""
        if few not in self._native:
            self._native[few] = executing.Kernel(self, few)
        return self._native[few]

    @cached_property
    def summed(self) -> FrozenSet[Slot]:
        """What adds up to gradients."""
        return frozenset(found.gradient.slot for found in self.sums)

    @cached_property
    def row_bytes(self) -> Dict[Slot, int]:
        """Bytes that each row of a launch adds to an array."""
        return {s: 0 if array.every else array.row_bytes for s, array in self.arrays.items()}

    @cached_property
    def works(self) -> Tuple[Slot, ...]:
        """What steps leave for others."""
        return tuple(slot for slot in self.arrays if slot.kind == "work")

    @cached_property
    def read(self) -> FrozenSet[Slot]:
        """What sums read, and steps read or write."""
        found = (place.slot for s in self.sums for place in (s.gradient, s.rows) if place)
        return frozenset(found).union(self.native().slots)

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.steps, *self.sums)))
