"""Kernels: the steps that a launch runs on its rows, in order.

Steps are plain data that prints itself.  They work row by row, so that a launch can run one block
of rows at a time.  Sums over rows, such as gradients of weights, wait for the end of the flush.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from ..native import executing
from .layout import (
    CHECKED,
    CLIP,
    IDENTITY,
    KEY,
    STRICT,
    TRUNCATED,
    WRAP,
    Columns,
    Dot,
    Index,
    Maps,
    Order,
    Ranking,
    Slot,
    Weight,
)

#: Kinds of steps, modes of indices, and patterns of accesses, by the numbers that
#: `native/c/steps.h` gives them.
LOOP, PRODUCT, GATHER, DOTS, CONVOLVED, INDEXED, RANKED = range(7)
#: What matrices are when products begin, by the numbers of `native/c/steps.h`: packed before; as in
#: memory, for one product; as in memory, for few rows.
PACKED, PANELS, FEW = range(3)
MODES = (CLIP, WRAP, CHECKED, TRUNCATED, STRICT)
PATTERNS = ("row", "broadcast", "permuted", "iota", "sum", "max", "index", "uniform", "prod")


class Slots(Dict[Any, int]):
    """Numbers that a native kernel gives to its slots and packed weights, on first use."""

    def __missing__(self, slot: Any) -> int:
        return self.setdefault(slot, len(self))

    def encode(self, place: Optional[Columns]) -> Tuple[int, int]:
        """Return the number of the slot, and the column."""
        return (-1, 0) if place is None else (self[place.slot], place.column)


def _step(kind: int, dtype: str, *members: int) -> List[int]:
    return [kind, 3 + len(members), executing.DTYPES[dtype], *members]


def _bits(*values: float) -> array[int]:
    return array("q", array("d", values).tobytes())


class Product(NamedTuple):
    """A product of rows with a matrix, plus an optional bias."""

    left: Columns
    weight: Weight
    result: Columns
    bias: Optional[Columns]
    #: Whether it is added to the result, instead of overwriting it.
    adds: bool
    #: Rows of the product per row of the launch.
    parts: int
    dtype: str

    def words(self, slots: Slots, matrices: int) -> List[int]:
        """Encode the step for native code."""
        weight = self.weight
        if matrices == FEW and not (weight.transposed and self.parts == 1):
            matrices = PANELS
        as_it_is = weight.gathered or matrices != PACKED
        matrix = slots.encode(weight.place) if as_it_is else (slots[weight], 0)
        return _step(
            GATHER if weight.gathered else PRODUCT, self.dtype,
            *slots.encode(self.left), *matrix, *slots.encode(self.result), *slots.encode(self.bias),
            weight.rows, weight.inputs, weight.units, self.parts, self.adds, matrices,
            weight.transposed, MODES.index(weight.gathered or CLIP),
        )  # fmt: skip

    def __str__(self) -> str:
        weight, left, bias = self.weight, self.left, f" + {self.bias}" if self.bias else ""
        product = f"{weight}[{left}]" if weight.gathered else f"{left} x {weight}"
        return f"{self.result} {'+=' if self.adds else '='} {product}{bias}"


class Dots(NamedTuple):
    """Products of matrices that differ from row to row."""

    left: Columns
    right: Columns
    result: Columns
    dot: Dot
    dtype: str

    def words(self, slots: Slots, matrices: int) -> List[int]:
        """Encode the step for native code."""
        d = self.dot
        places = map(slots.encode, (self.left, self.right, self.result))
        sizes = d.matrices, d.m, d.k, d.n
        return _step(DOTS, self.dtype, *chain(*places), *sizes, *d.transposed, d.gradient)

    def __str__(self) -> str:
        factors = zip((self.left, self.right), self.dot.transposed)
        left, right = (f"{place}{'.T' * transposed}" for place, transposed in factors)
        return f"{self.result} = {left} . {right}"


#: What is done last with each element of a result, by the numbers that `native/c/kernels.h` gives
#: them: nothing, `relu`, or the same but zero for what is not a number.
AS_IT_IS, RELU, RECTIFIED = range(3)


class Convolved(NamedTuple):
    """A convolution, or one of its gradients."""

    left: Columns
    right: Columns
    result: Columns
    bias: Optional[Columns]
    maps: Maps
    dtype: str
    #: What is added to the result, and what is done with the sum.
    added: Optional[Columns] = None
    function: int = AS_IT_IS
    #: Whether the next step, a convolution, reads the result, and nothing else does.
    passes_on: bool = False

    def words(self, slots: Slots, matrices: int) -> List[int]:
        """Encode the step for native code."""
        places = self.left, self.right, self.result, self.bias, self.added
        m = self.maps
        counts = m.of, m.images, m.groups, m.channels, m.filters
        sizes = chain(m.data, m.result, m.kernel, m.stride, m.dilate, m.pad)
        numbers = chain(*map(slots.encode, places))
        ending = self.function, self.passes_on, 0
        return _step(CONVOLVED, self.dtype, *numbers, *ending, *counts, *sizes)

    def __str__(self) -> str:
        of = ("result", "data", "kernel")[self.maps.of]
        bias = f" + {self.bias}" if self.bias else ""
        added = f" + {self.added}" if self.added else ""
        ends = ("", ", relu", ", rectified")[self.function]
        return f"{self.result} = {of} of {self.left} * {self.right}{bias}{added}{ends}"


class Indexed(NamedTuple):
    """A gather by index inside each row, or a sum or writes by index."""

    source: Columns
    chosen: Columns
    result: Columns
    positions: Index
    #: 0 for a gather, 1 for a sum, 2 for writes.
    operation: int
    dtype: str

    def words(self, slots: Slots, matrices: int) -> List[int]:
        """Encode the step for native code."""
        places = map(slots.encode, (self.source, self.chosen, self.result))
        outer, sizes, number, inner, mode, each, lenient = self.positions
        members = self.operation, MODES.index(mode), outer, number, inner, each, lenient
        return _step(INDEXED, self.dtype, *chain(*places), *members, len(sizes), *sizes)

    def __str__(self) -> str:
        if not self.operation:
            return f"{self.result} = {self.source}[{self.chosen}]"
        return f"{self.result}[{self.chosen}] {'+=' if self.operation == 1 else '='} {self.source}"


class Ranked(NamedTuple):
    """Positions of elements by value."""

    source: Columns
    result: Columns
    ranking: Ranking
    dtype: str

    def words(self, slots: Slots, matrices: int) -> List[int]:
        """Encode the step for native code."""
        places = map(slots.encode, (self.source, self.result))
        outer, size, inner, number, order = self.ranking
        return _step(RANKED, self.dtype, *chain(*places), order, outer, size, inner, number)

    def __str__(self) -> str:
        return f"{self.result} = positions of {self.source} by value"


#: Loads: "row" (adjacent columns), "index" (the same, as integers of 32 bits), "broadcast" (one
#: column, repeated), "iota" (one column, plus the number of each column), "uniform" (random numbers
#: from a column on; `value` is the number of the draw), or an order of columns.
#: Stores: "row", or the "sum", "max" or "prod" of a part of a row.
Pattern = Union[str, Order]


class Access(NamedTuple):
    """A load or a store of a register."""

    register: int
    #: None to load `value`.
    place: Optional[Columns]
    pattern: Pattern
    value: float = 0.0
    #: Columns from one part of a row to the next.
    step: int = 0

    def __str__(self) -> str:
        if self.place is None or self.pattern == "uniform":
            return str(self.pattern)
        return str(self.place) if self.pattern == "row" else f"{self.pattern} {self.place}"


class Instruction(NamedTuple):
    """A function that is applied to registers."""

    name: str
    target: int
    arguments: Tuple[int, ...]
    values: Tuple[float, ...]


class Pointwise(NamedTuple):
    """A loop over elements: loads, then functions of registers, then stores.

    It runs over equal parts of each row of the launch, such as the rows of a matrix.
    """

    #: Columns of a part.
    width: int
    dtype: str
    registers: int
    loads: Tuple[Access, ...]
    instructions: Tuple[Instruction, ...]
    stores: Tuple[Access, ...]
    parts: int = 1

    def words(self, slots: Slots, matrices: int) -> List[int]:
        """Encode the step for native code."""
        accesses, orders = (*self.loads, *self.stores), array("i")
        words = [self.width, self.parts, self.registers]
        words += map(len, (self.loads, self.stores, self.instructions))
        # Orders come last, two of their numbers in a word.
        end = 3 + len(words) + 7 * len(accesses) + 7 * len(self.instructions)
        for register, place, pattern, value, step in accesses:
            name, order = (pattern, ()) if isinstance(pattern, str) else ("permuted", pattern)
            words.extend((register, *slots.encode(place), PATTERNS.index(name)))
            where = slots[KEY] if name == "uniform" else end + len(orders) // 2
            words.extend((where, step, *_bits(value)))
            orders.extend((*order, *(0,) * (len(order) % 2)))
        for name, target, arguments, values in self.instructions:
            words.extend((executing.CODES[name][0], target, *(*arguments, 0, 0, 0)[:3]))
            words += _bits(*(*values, 0, 0)[:2])
        return _step(LOOP, self.dtype, *words, *array("q", orders.tobytes()))

    def __str__(self) -> str:
        loads = [load for load in self.loads if load.place or load.pattern == "iota"]
        written, read = (", ".join(map(str, accesses)) for accesses in (self.stores, loads))
        names = " ".join(i.name for i in self.instructions)
        parts = f" in {self.parts} parts" * (self.parts > 1)
        return f"{written} = {names or 'copy'}({read}){parts}"


Step = Union[Product, Dots, Convolved, Indexed, Ranked, Pointwise]


class SlotArray(NamedTuple):
    """The array in a slot: columns and dtype; `every` if all rows of the launch share one row."""

    width: int
    dtype: str
    every: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * np.dtype(self.dtype).itemsize


#: The arrays that a kernel reads to draw random numbers.
OF_DRAWS = {KEY: SlotArray(2, "int32", every=True), IDENTITY: SlotArray(2, "int32")}


class Sum(NamedTuple):
    """A sum over the rows of all launches that is added to the gradient of a matrix.

    Its terms are outer products of gradients with the rows that were multiplied.  For any other
    shared array, which counts as a matrix with one row, the terms are the gradients themselves.
    """

    weight: Weight
    #: Nodes, or in a kernel their places; `rows` is None if the gradients themselves are added.
    gradient: Any
    rows: Any
    #: Rows of the product per row of the launch.
    parts: int
    #: If each row is a matrix whose columns were multiplied: how many columns it has; else 0.
    columns: int = 0


class Wanted(NamedTuple):
    """The results that have a gradient, and the operands and parameters that need one."""

    heads: Tuple[int, ...]
    inputs: Tuple[int, ...]
    parameters: Tuple[int, ...]


@dataclass(eq=False)
class Kernel:
    """The steps of a launch in one direction; in the backward pass also sums over rows."""

    steps: Tuple[Step, ...]
    arrays: Dict[Slot, SlotArray]
    sums: Tuple[Sum, ...] = ()
    wanted: Optional[Wanted] = None
    _native: Dict[int, executing.NativeKernel] = field(default_factory=dict)

    def native(self, matrices: int = PACKED) -> executing.NativeKernel:
        """Return the native kernel, given what `matrices` are when it begins."""
        if matrices not in self._native:
            slots = Slots()
            steps = array("q", chain(*(step.words(slots, matrices) for step in self.steps)))
            self._native[matrices] = executing.NativeKernel(steps, tuple(slots), self.arrays)
        return self._native[matrices]

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return KEY in self.arrays

    @cached_property
    def summed(self) -> FrozenSet[Slot]:
        """The slots that sums read."""
        return frozenset(place.slot for s in self.sums for place in (s.gradient, s.rows) if place)

    @cached_property
    def row_bytes(self) -> Dict[Slot, int]:
        """Bytes that each row of a launch adds to an array."""
        return {slot: 0 if a.every else a.row_bytes for slot, a in self.arrays.items()}

    @cached_property
    def used(self) -> FrozenSet[Slot]:
        """The slots that sums read, and that steps read or write."""
        return self.summed.union(self.native().slots)
