"""From plans to programs: integers that native code runs.

A program knows arrays by number; `bases` says what each number stands for, and who runs the program
gives their addresses.  Launches that have no kernel stand between stretches of native code.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ..kernel.express import dtype_of, shape_of
from ..kernel.expression import Slot
from ..kernel.kernels import SegmentKernels
from ..kernel.step import Kernel, Packed
from ..lower.segment import ParameterRows, Port, Segment, whole_of
from ..native import executing, resolving
from ..plan.plan import Launch, Operand, Part, Plan, Region, Rows, Slice, Whole

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
    #: Position in the plan of the launch that it runs; None if it is none or several.
    launch: Optional[int] = None


class Other(NamedTuple):
    """A launch that MXNet's operators run: its position in the plan."""

    launch: int


Item = Union[Stretch, Other]


class Fills(NamedTuple):
    """What copies arrays from outside side by side, into arenas."""

    #: Its bases are scratch, the arenas, and the arrays.
    program: executing.Program
    #: Numbers of the arrays.
    externals: Tuple[int, ...]
    #: Which arenas are written to.
    arenas: Tuple[int, ...]


class Assembled(NamedTuple):
    """A pass as native code, with what it needs."""

    items: Tuple[Item, ...]
    program: executing.Program
    bases: Tuple[Base, ...]
    #: Bytes of memory by use.
    sizes: Dict[str, int]
    fills: Fills

    def in_order(self, one_by_one: bool) -> List[Item]:
        """Return what is to be run; stretches of code are joined, or not."""
        if one_by_one:
            return list(self.items)
        found: List[Item] = []
        for item in self.items:
            last = found[-1] if found else None
            if isinstance(item, Stretch) and isinstance(last, Stretch) and last.high == item.low:
                found[-1] = Stretch(last.low, item.high)
            else:
                found.append(item)
        return found


#: A block of scratch.
NOWHERE: Spot = (-1, 0)


@lru_cache(maxsize=None)
def itemsize(dtype: str) -> int:
    """Return the bytes of a number."""
    return int(np.dtype(dtype).itemsize)


def is_native(plan: Plan, operand: Rows, dtype: str, context: Any) -> bool:
    """Whether native code puts rows together; else MXNet's operators do."""
    if context.device_type != "cpu":
        return False
    pieces = plan.pieces[operand.first : operand.first + operand.pieces, 0]
    return dtype in executing.DTYPES or not (pieces == resolving.ADD).any()


def copies(dtype: str, count: int, target: Spot) -> List[int]:
    """Return the beginning of a record that puts so many pieces together."""
    kind = executing.DTYPES.get(dtype, len(executing.DTYPES))
    return [executing.ROWS, kind, itemsize(dtype), count, *target]


def bytes_of(parameter: Any) -> int:
    """Return the bytes of a parameter."""
    return prod(shape_of(parameter)) * itemsize(dtype_of(parameter))


class Alike(NamedTuple):
    """Consecutive parts of a launch whose kernels have the same slots: one record runs them."""

    parts: Tuple[Part, ...]
    #: Per part: what runs it forward, and backward, if anything does.
    forward: Tuple[Kernel, ...]
    backward: Tuple[Kernel, ...]
    #: Whether kernels are those for few rows, forward.
    few: bool
    #: Where the first part has its arrays, as far as they stay.
    spots: Dict[Any, Spot]

    @classmethod
    def of(
        cls, parts: Sequence[Part], forward: List[Kernel], backward: Sequence[Kernel], few: bool
    ) -> Iterator[Alike]:
        """Yield those of a launch, still without spots."""

        def slots(number: int) -> List[Any]:
            own = [(forward[number].native(few).slots, forward[number].read)]
            return own + [(k.native().slots, k.read) for k in backward[number : number + 1]]

        for _, numbers in groupby(range(len(parts)), slots):
            low, *others = numbers
            own = slice(low, low + 1 + len(others))
            yield cls(tuple(parts[own]), tuple(forward[own]), tuple(backward[own]), few, {})

    def starts(self, slot: Slot) -> List[int]:
        """Return where each part has its rows, in bytes behind those of the first, and the end."""
        found = [0]
        for part, kernel in zip(self.parts, self.backward or self.forward):
            array = kernel.arrays[slot]
            found.append(found[-1] + (0 if array.every else part.rows * array.row_bytes))
        return found


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


class Assembler:
    """A program in the making.

    Parameters
    ----------
    plan : Plan
        What is run.
    kernels : dict of Segment to SegmentKernels or None
        The kernels of each segment, None for what MXNet's operators run.
    trained : dict of int to tuple of Kernel
        Per launch that is native backward, what does that, part by part.
    prefix : str
        What tells bases of this plan from those of the other one.
    bases : dict
        Numbers of arrays; both programs number them alike, so that places of the one are places
        of the other.
    """

    def __init__(
        self,
        plan: Plan,
        kernels: Dict[Segment, Optional[SegmentKernels]],
        trained: Dict[int, Tuple[Kernel, ...]],
        prefix: str,
        bases: Dict[Base, int],
    ):
        self.plan, self.kernels, self.trained = plan, kernels, trained
        self.code = array("q")
        self._kernels: Dict[int, executing.Kernel] = {}
        self.bases, self._prefix = bases, prefix
        self.base(SCRATCH)
        #: Per arena: its base, and the bytes of an element and of a row.
        self._arenas = [
            (
                self.base(f"{prefix}arena", i),
                itemsize(arena.dtype),
                itemsize(arena.dtype) * arena.row_size,
            )
            for i, arena in enumerate(plan.arenas)
        ]
        self._pieces = self._read_pieces()
        self._parameters: Dict[Tuple[str, int], Dict[Slot, Spot]] = {}
        self.areas = {use: Area() for use in (TEMPORARY, KEPT, SAVED)}
        self._items: List[Item] = []
        self._low = 0
        self.scratch = 0

    def assemble(self) -> Assembled:
        """Go through all launches."""
        self.begin()
        for position, launch in enumerate(self.plan.launches):
            if self.is_native(launch):
                self.launch(launch)
                self._end(position)
            else:
                for k, (operand, port) in enumerate(zip(launch.operands, self.ports(launch))):
                    where = port.dtype, launch.segment.context
                    self.rows_apart(operand, *where, f"{self._prefix}rows", position, k)
                self._end()
                self._items.append(Other(position))
        self.finish()
        self._end()
        program = executing.Program(
            np.frombuffer(self.code, dtype=np.int64), self._kernels.values(), self.scratch
        )
        sizes = {use: area.size for use, area in self.areas.items()}
        sizes[SCRATCH] = program.scratch
        return Assembled(
            tuple(self._items), program, tuple(self.bases), sizes, _assemble_fills(self.plan)
        )

    def is_native(self, launch: Launch) -> bool:
        """Whether native code runs a launch."""
        raise NotImplementedError

    def launch(self, launch: Launch) -> None:
        """Add a launch that native code runs."""
        raise NotImplementedError

    def ports(self, launch: Launch) -> Sequence[Port]:
        """Return what the operands of a launch are."""
        raise NotImplementedError

    def begin(self) -> None:
        """Add what comes before all launches."""

    def finish(self) -> None:
        """Add what comes after all launches."""

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

    def parameters(self, kind: str, segment: Segment) -> Dict[Slot, Spot]:
        """Return where the parameters of a segment are, or gradients of them."""
        found = self._parameters.get((kind, id(segment)))
        if found is None:
            found = self._parameters[kind, id(segment)] = {}
            for number, p in enumerate(segment.parameters):
                offset = 0
                if isinstance(p, ParameterRows):
                    offset = bytes_of(p) // (p.stop - p.start) * p.start
                base = self.base(kind, whole_of(p), segment.context)
                found[Slot("param", number)] = base, offset
        return found

    def operand(self, operand: Operand, dtype: str, use: str) -> Spot:
        """Return where an operand is; rows that are put together take memory of some use."""
        if isinstance(operand, Whole):
            return self.base("external", operand.external), 0
        if isinstance(operand, Slice):
            base, size, _ = self._arenas[operand.arena]
            return base, operand.element * size
        target = self.reserve(use, operand.rows * operand.row_size * itemsize(dtype))
        self._rows(operand, dtype, target)
        return target

    def _read_pieces(self) -> memoryview:
        """Return the plan's pieces with bases and offsets in bytes for what they read."""
        found = self.plan.pieces.astype(np.int64)
        arenas = np.array(self._arenas, dtype=np.int64).reshape(-1, 3)[found[:, 2]]
        found[:, 2] = arenas[:, 0]
        found[:, 3] *= arenas[:, 1]
        return memoryview(found).cast("B") if found.size else memoryview(b"")

    def _rows(self, operand: Rows, dtype: str, target: Spot) -> None:
        """Put rows together."""
        self.code.extend(copies(dtype, operand.pieces, target))
        first, size = operand.first, 8 * self.plan.pieces.shape[1]
        self.code.frombytes(self._pieces[first * size : (first + operand.pieces) * size])

    def rows_apart(self, operand: Any, dtype: str, context: Any, *key: Any) -> None:
        """Put rows together in an array of their own, if native code does so there."""
        if isinstance(operand, Rows):
            base = self.base(*key)
            if is_native(self.plan, operand, dtype, context):
                self._rows(operand, dtype, (base, 0))

    def copy(self, source: Spot, target: Spot, dtype: str, count: int) -> None:
        """Copy numbers."""
        self.code.extend([*copies(dtype, 1, target), resolving.COPY, 0, *source, count])

    def pack(self, packed: Packed, source: Spot, use: str) -> Spot:
        """Pack a matrix for products with it, or with its transpose."""
        weight, kind = packed.weight, executing.DTYPES[packed.dtype]
        inputs, units, strides = weight.rows, weight.columns, (weight.columns, 1)
        if packed.transposed:
            inputs, units, strides = units, inputs, (1, weight.columns)
        target = self.reserve(use, executing.packed_bytes(kind, inputs, units))
        self.code.extend((executing.PACK, kind, *source, *strides, inputs, units, *target))
        return target

    def run(
        self, parts: Sequence[Part], kernels: List[executing.Kernel], spots: Dict[Any, Spot]
    ) -> None:
        """Run a kernel for each part; what has no spot stands in scratch."""
        code = [executing.LAUNCH, len(parts)]
        for part, kernel in zip(parts, kernels):
            self._kernels[kernel.address] = kernel
            code += kernel.address, part.rows
        for slot in kernels[0].slots:
            code += spots.get(slot, NOWHERE)
        self.code.extend(code)

    def advance(self, spots: Dict[Slot, Spot], alike: Alike) -> None:
        """Go to what stands behind these parts."""
        for slot, (base, offset) in spots.items():
            spots[slot] = base, offset + alike.starts(slot)[-1]

    def _end(self, launch: Optional[int] = None) -> None:
        """End a stretch of code."""
        if len(self.code) > self._low:
            self._items.append(Stretch(self._low, len(self.code), launch))
            self._low = len(self.code)
        self.areas[TEMPORARY].used = 0


def _assemble_fills(plan: Plan) -> Fills:
    code, externals, arenas = array("q"), [], []
    for fill in plan.fills:
        (number, start, _), arena = fill.region, plan.arenas[fill.region.arena]
        if arena.context.device_type == "cpu":
            count, first = len(fill.externals), 1 + len(plan.arenas) + len(externals)
            target = 1 + number, start * arena.row_size * itemsize(arena.dtype)
            code.extend(copies(arena.dtype, count, target))
            pieces = np.empty((count, 5), dtype=np.int64)
            pieces[:, 0], pieces[:, 3], pieces[:, 4] = resolving.COPY, 0, fill.counts
            pieces[:, 1] = np.cumsum(fill.counts) - fill.counts
            pieces[:, 2] = np.arange(first, first + count)
            code.frombytes(pieces.tobytes())
            externals += fill.externals
            arenas.append(number)
    program = executing.Program(np.frombuffer(code, dtype=np.int64))
    return Fills(program, tuple(externals), tuple(arenas))
