"""From plans to programs: integers that native code runs.

A program knows arrays by number; `bases` says what each number stands for, and who runs the program
gives their addresses.  Launches that have no kernel stand between stretches of native code.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from math import prod
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..kernel.express import dtype_of, shape_of
from ..kernel.expression import Slot
from ..kernel.kernels import SegmentKernels
from ..kernel.step import Kernel, Packed
from ..lower.segment import Segment
from ..native import executing, resolving
from ..plan.plan import Launch, Operand, Plan, Region, Rows, Slice, Whole

#: Operations of native code that the engine gets in one piece: other work of its waits for a piece,
#: not for all.
AT_A_TIME = 400_000_000

#: Memory of one flush, by use: of a launch, of the pass, of both passes.
TEMPORARY, KEPT, SAVED = "temporary", "kept", "saved"
ALIGNMENT = 64

#: What native code does with arrays, by kind of base: see `recording.places`.  MXNet may not have
#: given parameters and gradients memory yet.  All else it writes.
USES = {"parameter": b"R", "external": b"a", "gradient": b"W", "external gradient": b"W"}

#: What is at a base: one of the above, or a kind of array and all that tells which.
Base = Tuple[Any, ...]
#: A base number, and an offset in bytes.
Spot = Tuple[int, int]


class Item(NamedTuple):
    """A launch, or what comes before or after all of them."""

    #: Where its code ends; it begins where that of the item before ends.
    stop: int
    #: Position of the launch in the plan.
    launch: Optional[int] = None
    #: Whether MXNet's operators run it, after the code.
    by_operators: bool = False
    #: Whether the engine gets all code up to here in one piece, unless launches are looked at.
    ends_piece: bool = True


class Assembled(NamedTuple):
    """A pass as native code, with what it needs."""

    program: executing.Program
    #: In order; the first one copies arrays from outside side by side, into arenas.
    items: Tuple[Item, ...]
    #: Numbers of these arrays; their bases come after all others.
    externals: Tuple[int, ...]
    bases: Tuple[Base, ...]
    #: Letters of what is done with them.
    uses: bytes
    #: Bytes of memory by use.
    sizes: Dict[str, int]


#: A block of scratch.
NOWHERE: Spot = (-1, 0)


@lru_cache(maxsize=None)
def itemsize(dtype: str) -> int:
    """Return the bytes of a number."""
    return int(np.dtype(dtype).itemsize)


def is_native(context: Any, dtype: str, what: Any) -> bool:
    """Whether native code puts an array together, given what is done with each piece."""
    return context.device_type == "cpu" and (dtype in executing.DTYPES or resolving.ADD not in what)


def copies(dtype: str, count: int, target: Spot) -> List[int]:
    """Return the beginning of a record that puts so many pieces together."""
    kind = executing.DTYPES.get(dtype, len(executing.DTYPES))
    return [executing.ROWS, kind, itemsize(dtype), count, *target]


def code_of(context: Any, dtype: str, pieces: np.ndarray) -> Optional[np.ndarray]:
    """Return code that puts pieces of bases 1, 2, ... together in base 0; None if it cannot."""
    if not is_native(context, dtype, pieces[:, 0]):
        return None
    found = pieces + [0, 0, 1, 0, 0]
    found[:, 3] *= itemsize(dtype)
    return np.append(np.array(copies(dtype, len(pieces), (0, 0)), dtype=np.int64), found)


def bytes_of(parameter: Any) -> int:
    """Return the bytes of a parameter."""
    return prod(shape_of(parameter)) * itemsize(dtype_of(parameter))


class Run(NamedTuple):
    """A part of a launch that native code runs."""

    rows: int
    forward: Kernel
    #: What runs it backward, if anything does.
    backward: Optional[Kernel]
    #: Where its arrays are, as far as they stay.
    spots: Dict[Any, Spot]

    def bytes(self, slot: Slot) -> int:
        """Return the bytes of all its rows."""
        return self.rows * (self.backward or self.forward).row_bytes[slot]


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
    first : int
        Number of its first array: places of the forward program are places of the backward one.
    """

    #: What of a segment the operands of a launch are, or are gradients of.
    read = "inputs"

    def __init__(
        self,
        plan: Plan,
        kernels: Dict[Segment, Optional[SegmentKernels]],
        trained: Dict[int, Tuple[Kernel, ...]],
        first: int = 0,
    ):
        self.plan, self.kernels, self.trained = plan, kernels, trained
        self.code = array("q")
        self._kernels: Dict[int, executing.Kernel] = {}
        self.bases: Dict[Base, int] = {}
        self._first = first
        #: Per arena: its base, and the bytes of an element and of a row.
        self._arenas = [
            (
                self.base("arena", i),
                itemsize(arena.dtype),
                itemsize(arena.dtype) * arena.row_size,
            )
            for i, arena in enumerate(plan.arenas)
        ]
        self._pieces = self._read_pieces()
        #: Bytes of memory by use: those reserved now, and the most that ever were.
        self._used, self._sizes = ({TEMPORARY: 0, KEPT: 0, SAVED: 0} for _ in range(2))
        self.scratch = 0
        #: Operations of the piece at hand.
        self._work = 0

    @property
    def stop(self) -> int:
        """The number behind those of all arrays."""
        return self._first + len(self.bases)

    def assemble(self) -> Assembled:
        """Go through all launches."""
        items = []
        for position, launch in enumerate(self.plan.launches):
            native = self.is_native(launch)
            if native:
                self.launch(launch)
            else:
                for operand, port in zip(launch.operands, getattr(launch.segment, self.read)):
                    self.apart(operand, port.dtype, launch.segment.context)
            ends = not native or self._work > AT_A_TIME
            self._work = 0 if ends else self._work
            items.append(Item(len(self.code), position, not native, ends))
            self._used[TEMPORARY] = 0
        self.finish()
        items.append(Item(len(self.code)))
        fills, externals = _assemble_fills(self.plan, self.stop, self._arenas)
        code = np.frombuffer(fills + self.code, dtype=np.int64)
        items = [Item(0, ends_piece=False), *items]
        items = [item._replace(stop=item.stop + len(fills)) for item in items]
        return Assembled(
            executing.Program(code, self._kernels.values(), self.scratch),
            tuple(items),
            tuple(externals),
            tuple(self.bases),
            b"".join([USES.get(base[0], b"w") for base in self.bases]),
            self._sizes,
        )

    def is_native(self, launch: Launch) -> bool:
        """Whether native code runs a launch."""
        raise NotImplementedError

    def launch(self, launch: Launch) -> None:
        """Add a launch that native code runs."""
        raise NotImplementedError

    def finish(self) -> None:
        """Add what comes after all launches."""

    def base(self, *key: Any) -> int:
        """Return the number of an array."""
        return self.bases.setdefault(key, self.stop)

    def reserve(self, use: str, count: int) -> Spot:
        """Reserve bytes."""
        at = self._used[use]
        self._used[use] = stop = (at + count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self._sizes[use] = max(self._sizes[use], stop)
        return self.base(use), at

    def region(self, region: Region) -> Spot:
        """Return where rows of an arena are."""
        base, _, row = self._arenas[region.arena]
        return base, region.start * row

    def parameter(self, kind: str, segment: Segment, number: int) -> Spot:
        """Return where a parameter of a segment is, or the gradient of one."""
        return self.base(kind, segment.parameters[number], segment.context), 0

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

    def apart(self, operand: Optional[Operand], dtype: str, context: Any) -> None:
        """Put rows together in an array of their own, if native code does so there."""
        if isinstance(operand, Rows):
            base = self.base("rows", operand, dtype, context)
            pieces = self.plan.pieces[operand.first :][: operand.pieces]
            if is_native(context, dtype, pieces[:, 0]):
                self._rows(operand, dtype, (base, 0))

    def zero(self, target: Spot, count: int) -> None:
        """Set bytes to zero."""
        self.code.extend([*copies("uint8", 1, target), resolving.ZERO, 0, 0, 0, count])

    def pack(self, packed: Packed, source: Spot, use: str) -> Spot:
        """Pack a matrix for products with it, or with its transpose."""
        weight, kind = packed.weight, executing.DTYPES[packed.dtype]
        source = source[0], source[1] + weight.place.column * itemsize(packed.dtype)
        inputs, units, strides = weight.rows, weight.columns, (weight.columns, 1)
        if packed.transposed:
            inputs, units, strides = units, inputs, (1, weight.columns)
        target = self.reserve(use, executing.packed_bytes(kind, inputs, units))
        self.code.extend((executing.PACK, kind, *source, *strides, inputs, units, *target))
        return target

    def run(self, runs: Sequence[Run], kernels: Sequence[executing.Kernel]) -> None:
        """Run a kernel for each part; what has no spot stands in scratch."""
        code = [executing.LAUNCH, len(runs)]
        for run, kernel in zip(runs, kernels):
            address, find = kernel.address, run.spots.get
            self._kernels[address] = kernel
            code += address, run.rows
            self._work += run.rows * kernel.work
            for slot in kernel.slots:
                code += find(slot, NOWHERE)
        self.code.extend(code)

    def advance(self, spots: Dict[Slot, Spot], run: Run) -> None:
        """Go to what stands behind this part."""
        for slot, (base, offset) in spots.items():
            spots[slot] = base, offset + run.bytes(slot)


def _assemble_fills(
    plan: Plan, first: int, arenas: Sequence[Tuple[int, int, int]]
) -> Tuple[array[int], List[int]]:
    """Return code that fills arenas, and the numbers of the arrays at bases from `first` on."""
    code, externals = array("q"), []
    for fill in plan.fills:
        (number, start, _), arena = fill.region, plan.arenas[fill.region.arena]
        if arena.context.device_type == "cpu":
            base, _, row = arenas[number]
            count, source = len(fill.externals), first + len(externals)
            code.extend(copies(arena.dtype, count, (base, start * row)))
            code.frombytes(fill.pieces(np.arange(source, source + count)).tobytes())
            externals += fill.externals.tolist()
    return code, externals
