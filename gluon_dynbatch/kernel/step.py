"""Steps: what a kernel does with the rows of a launch, one after another.

Inert and printable.  All steps of a kernel work row by row, so that a launch can be run a block of
rows at a time.  What adds up over rows, the gradients of weights, is left to the end of the flush.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, NamedTuple, Optional, Tuple, Union

from .expression import Dot, Slot, Weight


class Place(NamedTuple):
    """Columns of an array, from `column` on."""

    slot: Slot
    column: int = 0

    def __str__(self) -> str:
        return f"{self.slot}[{self.column}:]" if self.column else str(self.slot)


class Product(NamedTuple):
    """Rows times a matrix."""

    rows: Place
    weight: Weight
    result: Place
    bias: Optional[Slot]
    #: Whether the product is added to what is there.
    adds: bool
    #: How many rows of the product one row of the launch has.
    parts: int
    dtype: str

    def __str__(self) -> str:
        if self.weight.chosen:
            return f"{self.result} {'+=' if self.adds else '='} {self.weight}[{self.rows}]"
        bias = f" + {self.bias}" if self.bias else ""
        return f"{self.result} {'+=' if self.adds else '='} {self.rows} x {self.weight}{bias}"


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


class Access(NamedTuple):
    """A register that is read from memory or written to it."""

    register: int
    place: Place
    #: "row", "spread" (one column in all columns); of what is written "row", "total" or "top".
    how: str

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


class MatrixSum(NamedTuple):
    """Adds up, over rows of all launches, to the gradient of a matrix."""

    weight: Weight
    gradient: Place
    rows: Place
    parts: int


class RowSum(NamedTuple):
    """Adds up, over rows of all launches, to the gradient of one row."""

    slot: Slot
    gradient: Place
    parts: int


class Kernel(NamedTuple):
    """The steps of a launch, in one direction."""

    steps: Tuple[Step, ...]
    arrays: Dict[Slot, Array]
    #: Backward only.
    matrices: Tuple[MatrixSum, ...] = ()
    every: Tuple[RowSum, ...] = ()

    @property
    def read(self) -> FrozenSet[Slot]:
        """What steps and sums read."""
        found = set()
        for step in self.steps:
            if isinstance(step, Product):
                found |= {step.rows.slot, step.weight.slot}
                found |= {step.bias} if step.bias else set()
            elif isinstance(step, Dots):
                found |= {step.left.slot, step.right.slot}
            else:
                found |= {load.place.slot for load in step.loads}
        found |= {slot for m in self.matrices for slot in (m.gradient.slot, m.rows.slot)}
        return frozenset(found | {row.gradient.slot for row in self.every})

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.steps, *self.matrices, *self.every)))
