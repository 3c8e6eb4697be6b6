"""From plans to programs: integers that native code runs.

A program knows arrays by number; `bases` says what each number stands for, and who runs the program
gives their addresses.  Launches that have no kernel stand between stretches of native code.
"""

from __future__ import annotations

from array import array
from itertools import groupby
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ..kernel.expression import Slot, Weight
from ..kernel.kernels import Wanted
from ..native import executing, resolving
from ..plan.plan import Launch, Operand, Part, Plan, Region, Rows, Shared, Slice, Whole
from .kernels import DTYPES, Loaded, Native, itemsize

#: Memory of one flush, by use: of a launch, of a stretch of code, of the pass, of both passes.
SCRATCH, TEMPORARY, KEPT, SAVED = "scratch", "temporary", "kept", "saved"
ALIGNMENT = 64

#: What is at a base: one of the above, or a kind of array and which.
Base = Tuple[Any, ...]
#: A base number, and an offset in bytes.
Spot = Tuple[int, int]


class Stretch(NamedTuple):
    """Consecutive native code, from the first to behind the last number."""

    low: int
    high: int
    #: A launch that it runs, by number; None if it is none or several.
    launch: Optional[int] = None


class Other(NamedTuple):
    """A launch that MXNet's operators run: its position in the plan, and its number."""

    position: int
    launch: int


Item = Union[Stretch, Other]


class Assembled(NamedTuple):
    """A pass as native code, with what it needs."""

    items: Tuple[Item, ...]
    program: executing.Program
    bases: Tuple[Base, ...]
    #: Bytes of memory by use.
    sizes: Dict[str, int]


class Alike(NamedTuple):
    """Consecutive parts of a launch whose kernels have the same slots: one record runs them."""

    parts: Tuple[Part, ...]
    #: Per part: what runs it forward, and backward, if anything does.
    forward: Tuple[Loaded, ...]
    backward: Tuple[Loaded, ...]
    #: Where the first part has its arrays, as far as they stay.
    spots: Dict[Any, Spot]

    @classmethod
    def of(
        cls, parts: Sequence[Part], forward: Sequence[Loaded], backward: Sequence[Loaded]
    ) -> Iterator[Alike]:
        """Yield those of a launch, still without spots."""
        kernels = [forward, backward] if backward else [forward]
        together = zip(parts, zip(*kernels))
        for _, own in groupby(together, lambda one: [(k.slots, k.read) for k in one[1]]):
            found, both = zip(*own)
            yield cls(found, *zip(*both), *([()] * (2 - len(kernels))), {})

    def starts(self, slot: Slot) -> List[int]:
        """Return where each part has its rows, in bytes behind those of the first, and the end."""
        found = [0]
        for part, loaded in zip(self.parts, self.backward or self.forward):
            array = loaded.arrays[slot]
            size = 0 if array.every else part.rows * array.width * itemsize(array.dtype)
            found.append(found[-1] + size)
        return found


class Trained(NamedTuple):
    """What the backward pass needs of a launch forward."""

    wanted: Wanted
    #: Per part.
    loaded: Tuple[Loaded, ...]


class Area:
    """Memory that is given out piece by piece."""

    def __init__(self) -> None:
        self.used = self.size = 0

    def reserve(self, count: int) -> int:
        """Return the offset of so many bytes."""
        at = self.used
        self.used = (at + count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.size = max(self.size, self.used)
        return at


#: A block of scratch.
NOWHERE: Spot = (-1, 0)

#: Types of which native code adds up rows; others it only copies.
SUMMED = ("float32", "float64", "int32", "int64")


def is_native(plan: Plan, operand: Rows, dtype: str, context: Any) -> bool:
    """Whether native code puts rows together; else MXNet's operators do."""
    if context.device_type != "cpu":
        return False
    pieces = plan.pieces[operand.first : operand.first + operand.pieces, 0]
    return dtype in SUMMED or not (pieces == resolving.ADD).any()


class Assembler:
    """A program in the making."""

    def __init__(self, plan: Plan, arenas: str, bases: Dict[Base, int]):
        self.plan = plan
        self.code = array("q")
        self.kernels: Dict[int, Any] = {}
        self.bases = bases
        self.base(SCRATCH)
        #: Per arena: its base, and the bytes of an element and of a row.
        self._arenas = [
            (self.base(arenas, i), itemsize(arena.dtype), itemsize(arena.dtype) * arena.row_size)
            for i, arena in enumerate(plan.arenas)
        ]
        self._pieces = self._read_pieces()
        self._parameters: Dict[Tuple[str, int], Dict[Slot, Spot]] = {}
        self.areas = {use: Area() for use in (TEMPORARY, KEPT, SAVED)}
        self.items: List[Item] = []
        self._low = 0
        self.scratch = 0

    def add(self, *numbers: int) -> None:
        """Add a record, or a part of one."""
        self.code.extend(numbers)

    def base(self, *key: Any) -> int:
        """Return the number of an array."""
        return self.bases.setdefault(key, len(self.bases))

    def reserve(self, use: str, count: int) -> Spot:
        """Reserve bytes."""
        return self.base(use), self.areas[use].reserve(count)

    def region(self, region: Region) -> Spot:
        """Return where rows of an arena are."""
        base, _, row = self._arenas[region.arena]
        return base, region.start * row

    def parameters(self, kind: str, native: Native) -> Dict[Slot, Spot]:
        """Return where the parameters of a segment are, or gradients of them."""
        found = self._parameters.get((kind, id(native)))
        if found is None:
            found = self._parameters[kind, id(native)] = {
                p.slot: (self.base(kind, p.parameter, native.context), p.offset)
                for p in native.parameters
            }
        return found

    def operand(self, operand: Operand, dtype: str, use: str) -> Spot:
        """Return where an operand is; rows that are put together take memory of some use."""
        if isinstance(operand, Whole):
            return self.base("external", operand.external), 0
        if isinstance(operand, (Slice, Shared)):
            base, size, _ = self._arenas[operand.arena]
            return base, operand.element * size
        target = self.reserve(use, operand.rows * operand.row_size * itemsize(dtype))
        self.rows(operand, dtype, target)
        return target

    def _read_pieces(self) -> memoryview:
        """Return the plan's pieces with bases and offsets in bytes for what they read."""
        found = self.plan.pieces.astype(np.int64)
        arenas = np.array(self._arenas, dtype=np.int64).reshape(-1, 3)[found[:, 2]]
        found[:, 2] = arenas[:, 0]
        found[:, 3] *= arenas[:, 1]
        return memoryview(found).cast("B") if found.size else memoryview(b"")

    def rows(self, operand: Rows, dtype: str, target: Spot) -> None:
        """Put rows together."""
        kind = SUMMED.index(dtype) if dtype in SUMMED else len(SUMMED)
        self.add(executing.ROWS, kind, itemsize(dtype), operand.pieces, *target)
        first, size = operand.first, 8 * self.plan.pieces.shape[1]
        self.code.frombytes(self._pieces[first * size : (first + operand.pieces) * size])

    def copied(self, operand: Rows, dtype: str, where: Any, *key: Any) -> None:
        """Put rows together in an array of their own, if native code does so there."""
        base = self.base(*key)
        if is_native(self.plan, operand, dtype, where.context):
            self.rows(operand, dtype, (base, 0))

    def copy(self, source: Spot, target: Spot, dtype: str, count: int) -> None:
        """Copy numbers."""
        self.add(executing.ROWS, 0, itemsize(dtype), 1, *target, resolving.COPY, 0, *source, count)

    def pack(self, weight: Weight, transposed: bool, dtype: str, source: Spot, use: str) -> Spot:
        """Pack a matrix for products with it, or with its transpose."""
        kind, inputs, units = DTYPES[dtype], weight.rows, weight.columns
        strides = weight.columns, 1
        if transposed:
            inputs, units, strides = units, inputs, (1, weight.columns)
        target = self.reserve(use, executing.packed_bytes(kind, inputs, units))
        self.add(executing.PACK, kind, *source, *strides, inputs, units, *target)
        return target

    def launch(
        self, parts: Sequence[Part], kernels: Sequence[Loaded], spots: Dict[Any, Spot]
    ) -> None:
        """Run a kernel for each part; what has no spot stands in scratch."""
        code = [executing.LAUNCH, len(parts)]
        for part, loaded in zip(parts, kernels):
            address = loaded.kernel.address
            self.kernels[address] = loaded.kernel
            code += address, part.rows
        for slot in kernels[0].slots:
            code += spots.get(slot, NOWHERE)
        self.code.extend(code)

    def advance(self, spots: Dict[Slot, Spot], alike: Alike) -> None:
        """Go to what stands behind these parts."""
        for slot, (base, offset) in spots.items():
            spots[slot] = base, offset + alike.starts(slot)[-1]

    def end(self, launch: Optional[int] = None) -> None:
        """End a stretch of code; who reads it ends later."""
        if len(self.code) > self._low:
            self.items.append(Stretch(self._low, len(self.code), launch))
            self._low = len(self.code)
        self.areas[TEMPORARY].used = 0

    def other(self, position: int, launch: Launch) -> None:
        """Leave a launch to MXNet."""
        self.items.append(Other(position, launch.number))

    def assembled(self, first: Sequence[int] = ()) -> Assembled:
        """Return the program; some records are put before all others."""
        code, items = self.code, self.items
        if first:
            n = len(first)
            code = array("q", first) + code
            items = [Stretch(0, n)] + [
                Stretch(i.low + n, i.high + n, i.launch) if isinstance(i, Stretch) else i
                for i in items
            ]
        numbers = np.frombuffer(code, dtype=np.int64)
        program = executing.Program(numbers, list(self.kernels.values()), self.scratch)
        sizes = {use: area.size for use, area in self.areas.items()}
        sizes[SCRATCH] = program.scratch
        return Assembled(tuple(items), program, tuple(self.bases), sizes)
