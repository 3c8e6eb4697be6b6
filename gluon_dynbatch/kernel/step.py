"""Steps: what a kernel does with the rows of a launch, one after another.

Inert and printable.  All steps of a kernel work row by row, so that a launch can be run a block of
rows at a time.  What adds up over rows, the gradients of weights, is left to the end of the flush.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from ..native import executing
from .layout import Dot, Maps, Order, Place, Slot, Weight

#: Numbers of kinds of steps, and of ways to load and to store registers: see `native/c/steps.h`.
LOOP, PRODUCT, CHOSEN, DOTS, CONVOLVED = range(5)
HOWS = ("row", "spread", "moved", "ramp", "total", "top")


class Slots(Dict[Any, int]):
    """Slots, and weights that are packed, by the numbers that a native kernel has for them."""

    def __missing__(self, slot: Any) -> int:
        return self.setdefault(slot, len(self))

    def at(self, place: Optional[Place]) -> Tuple[int, int]:
        """Return a place as numbers."""
        return (-1, 0) if place is None else (self[place.slot], place.column)


def _step(kind: int, dtype: str, *members: int) -> List[int]:
    return [kind, 3 + len(members), executing.DTYPES[dtype], *members]


def _bits(*values: float) -> array[int]:
    return array("q", array("d", values).tobytes())


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

    def words(self, slots: Slots, few: bool) -> List[int]:
        """Return the step as native code reads it."""
        weight = self.weight
        # To pack a matrix for few rows takes too long.
        unpacked = few and weight.transposed
        matrix = slots.at(weight.place) if weight.chosen or unpacked else (slots[weight], 0)
        return _step(
            CHOSEN if weight.chosen else PRODUCT, self.dtype,
            *slots.at(self.left), *matrix, *slots.at(self.result), *slots.at(self.bias),
            weight.rows, weight.inputs, weight.units, self.parts, self.adds, unpacked,
        )  # fmt: skip

    def __str__(self) -> str:
        weight, left, bias = self.weight, self.left, f" + {self.bias}" if self.bias else ""
        product = f"{weight}[{left}]" if weight.chosen else f"{left} x {weight}"
        return f"{self.result} {'+=' if self.adds else '='} {product}{bias}"


class Dots(NamedTuple):
    """Products of matrices that each row has its own of."""

    left: Place
    right: Place
    result: Place
    how: Dot
    dtype: str

    def words(self, slots: Slots, few: bool) -> List[int]:
        """Return the step as native code reads it."""
        *sizes, turned, gradient = self.how
        places = map(slots.at, (self.left, self.right, self.result))
        return _step(DOTS, self.dtype, *chain(*places), *sizes, *turned, gradient)

    def __str__(self) -> str:
        left, right = (f"{p}{'.T' * t}" for p, t in zip((self.left, self.right), self.how.turned))
        return f"{self.result} = {left} . {right}"


class Convolved(NamedTuple):
    """Convolutions of maps, or gradients of these."""

    left: Place
    right: Place
    result: Place
    bias: Optional[Place]
    how: Maps
    dtype: str

    def words(self, slots: Slots, few: bool) -> List[int]:
        """Return the step as native code reads it."""
        places = map(slots.at, (self.left, self.right, self.result, self.bias))
        of, images, groups, channels, filters, *sizes = self.how
        counts = of, images, groups, channels, filters
        return _step(CONVOLVED, self.dtype, *chain(*places), *counts, *chain(*sizes))

    def __str__(self) -> str:
        of = ("result", "data", "kernel")[self.how.of]
        bias = f" + {self.bias}" if self.bias else ""
        return f"{self.result} = {of} of {self.left} * {self.right}{bias}"


#: "row", "spread" (one column in all columns), columns by number, or "ramp" (one column plus the
#: number of each); of what is written "row", "total" or "top".
How = Union[str, Order]


class Access(NamedTuple):
    """A register that is loaded, from memory or with numbers that are known, or stored."""

    register: int
    place: Optional[Place]
    how: How
    #: What each row has where there is no place.
    value: float = 0.0

    def __str__(self) -> str:
        if self.place is None:
            return str(self.how)
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

    def words(self, slots: Slots, few: bool) -> List[int]:
        """Return the step as native code reads it."""
        accesses, orders = (*self.loads, *self.stores), array("i")
        found = [self.width, self.registers]
        found += map(len, (self.loads, self.stores, self.instructions))
        behind = 3 + len(found) + 6 * len(accesses) + 7 * len(self.instructions)
        for register, place, how, value in accesses:
            name, order = (how, ()) if isinstance(how, str) else ("moved", how)
            found += register, *slots.at(place), HOWS.index(name)
            found += behind + len(orders) // 2, *_bits(value)
            orders.extend((*order, *(0,) * (len(order) % 2)))
        for name, target, arguments, values in self.instructions:
            found += executing.CODES[name][0], target, *(*arguments, 0, 0, 0)[:3]
            found += _bits(*(*values, 0, 0)[:2])
        return _step(LOOP, self.dtype, *found, *array("q", orders.tobytes()))

    def __str__(self) -> str:
        loads = [load for load in self.loads if load.place or load.how == "ramp"]
        written, read = (", ".join(map(str, some)) for some in (self.stores, loads))
        names = " ".join(i.name for i in self.instructions)
        return f"{written} = {names or 'copy'}({read})"


Step = Union[Product, Dots, Convolved, Pointwise]


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
    #: If a row is a matrix whose columns are multiplied, how many it has.
    columns: int = 0


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
            slots = Slots()
            steps = array("q", chain(*(step.words(slots, few) for step in self.steps)))
            self._native[few] = executing.Kernel(steps, tuple(slots), self.arrays)
        return self._native[few]

    @cached_property
    def summed(self) -> FrozenSet[Slot]:
        """What sums read."""
        found = (place.slot for s in self.sums for place in (s.gradient, s.rows) if place)
        return frozenset(found)

    @cached_property
    def row_bytes(self) -> Dict[Slot, int]:
        """Bytes that each row of a launch adds to an array."""
        return {s: 0 if array.every else array.row_bytes for s, array in self.arrays.items()}

    @cached_property
    def read(self) -> FrozenSet[Slot]:
        """What sums read, and steps read or write."""
        return self.summed.union(self.native().slots)
