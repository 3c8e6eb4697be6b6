"""From plans to programs: integers that native code runs.

A program knows arrays by number; `bases` says what each number stands for, and who runs the program
gives their addresses.  Launches that have no kernel stand between stretches of native code.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import (
    Any,
    Dict,
    FrozenSet,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from ..kernel.expression import Slot, Weight
from ..kernel.kernels import Wanted
from ..kernel.step import Array, Kernel, MatrixSum, Place, RowSum
from ..lower.segment import ParameterRows
from ..native import executing, resolving
from ..plan.plan import Launch, Operand, Plan, Region, Rows, Shared, Slice, Whole
from .kernels import DTYPES, Loaded, Native

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


class Trained(NamedTuple):
    """What the backward pass needs of a launch forward."""

    wanted: Wanted
    kernel: Kernel


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


#: Types of which native code adds up rows; others it only copies.
SUMMED = ("float32", "float64", "int32", "int64")


def is_native(plan: Plan, operand: Rows, dtype: str, context: Any) -> bool:
    """Whether native code puts rows together; else MXNet's operators do."""
    if context.device_type != "cpu":
        return False
    pieces = plan.pieces[operand.first : operand.first + operand.pieces, 0]
    return dtype in SUMMED or not (pieces == resolving.ADD).any()


@lru_cache(maxsize=None)
def itemsize(dtype: str) -> int:
    """Return the bytes of a number."""
    return int(np.dtype(dtype).itemsize)


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
        self._arena_bases = np.array([base for base, _, _ in self._arenas], dtype=np.int64)
        self._parameters: Dict[Tuple[str, Any], Dict[Slot, Spot]] = {}
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

    def parameters(self, kind: str, segment: Any) -> Dict[Slot, Spot]:
        """Return where the parameters of a segment are, or gradients of them."""
        found = self._parameters.get((kind, segment))
        if found is None:
            found = self._parameters[kind, segment] = {}
            for number, parameter in enumerate(segment.parameters):
                before = 0
                if isinstance(parameter, ParameterRows):
                    first, parameter = parameter.start, parameter.parameter
                    size = itemsize(np.dtype(parameter.dtype).name)
                    before = first * int(np.prod(parameter.shape[1:])) * size
                base = self.base(kind, parameter, segment.context)
                found[Slot("param", number)] = base, before
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

    def rows(self, operand: Rows, dtype: str, target: Spot) -> None:
        """Put rows together."""
        size = itemsize(dtype)
        pieces = self.plan.pieces[operand.first : operand.first + operand.pieces]
        found = np.empty((len(pieces), 6), dtype=np.int64)
        found[:, 0], found[:, 5] = pieces[:, 0], pieces[:, 4]
        found[:, 1], found[:, 2] = target[0], target[1] + pieces[:, 1] * size
        found[:, 3], found[:, 4] = self._arena_bases[pieces[:, 2]], pieces[:, 3] * size
        kind = SUMMED.index(dtype) if dtype in SUMMED else len(SUMMED)
        self.add(executing.ROWS, kind, size, len(pieces))
        self.code.frombytes(found.tobytes())

    def copied(self, operand: Rows, dtype: str, where: Any, *key: Any) -> None:
        """Put rows together in an array of their own, if native code does so there."""
        base = self.base(*key)
        if is_native(self.plan, operand, dtype, where.context):
            self.rows(operand, dtype, (base, 0))

    def copy(self, source: Spot, target: Spot, dtype: str, count: int) -> None:
        """Copy numbers."""
        self.add(executing.ROWS, 0, itemsize(dtype), 1, 0, *target, *source, count)

    def pack(self, weight: Weight, transposed: bool, dtype: str, source: Spot, use: str) -> Spot:
        """Pack a matrix for products with it, or with its transpose."""
        kind, inputs, units = DTYPES[dtype], weight.rows, weight.columns
        strides = weight.columns, 1
        if transposed:
            inputs, units, strides = units, inputs, (1, weight.columns)
        target = self.reserve(use, executing.packed_bytes(kind, inputs, units))
        self.add(executing.PACK, kind, *source, *strides, inputs, units, *target)
        return target

    def launch(self, loaded: Loaded, rows: int, spots: Dict[Any, Spot]) -> None:
        """Run a kernel; what has no spot stands in scratch."""
        self.kernels[loaded.kernel.address] = loaded.kernel
        self.add(executing.LAUNCH, loaded.kernel.address, rows)
        for slot in loaded.slots:
            self.code.extend(spots.get(slot, (-1, 0)))

    def end(self, launch: Optional[int] = None) -> None:
        """End a stretch of code; who reads it ends later."""
        if len(self.code) > self._low:
            self.items.append(Stretch(self._low, len(self.code), launch))
            self._low = len(self.code)
        self.areas[TEMPORARY].used = 0

    def other(self, position: int, launch: Launch) -> None:
        """Leave a launch to MXNet."""
        self.items.append(Other(position, launch.number))

    def assembled(self) -> Assembled:
        """Return the program."""
        program = executing.Program(
            np.frombuffer(self.code, dtype=np.int64), list(self.kernels.values()), self.scratch
        )
        sizes = {use: area.size for use, area in self.areas.items()}
        sizes[SCRATCH] = program.scratch
        return Assembled(tuple(self.items), program, tuple(self.bases), sizes)


class Forward:
    """The program of a plan, and where it leaves what the backward pass reads.

    Parameters
    ----------
    plan : Plan
        What is run.
    natives : list of Native or None
        Per launch its kernels, None for launches of MXNet's operators.
    trained : dict of int to Trained
        Per launch that is native backward, what that takes.
    """

    def __init__(
        self, plan: Plan, natives: Sequence[Optional[Native]], trained: Dict[int, Trained]
    ):
        self._plan, self._natives, self._trained = plan, natives, trained
        self.bases: Dict[Base, int] = {}
        self._make = Assembler(plan, "arena", self.bases)
        #: Per launch where its arrays are, as far as they stay.
        self.spots: Dict[int, Dict[Any, Spot]] = {}
        self._packed: Dict[Any, Spot] = {}
        self._vectors: Dict[Any, Spot] = {}

    def assemble(self) -> Assembled:
        """Go through all launches."""
        make = self._make
        for position, (launch, native) in enumerate(zip(self._plan.launches, self._natives)):
            if native is None:
                self._other(position, launch)
            else:
                self._launch(launch, native, self._trained.get(launch.number))
                make.end(launch.number)
        make.end()
        return make.assembled()

    def _other(self, position: int, launch: Launch) -> None:
        for p, (operand, port) in enumerate(zip(launch.operands, launch.segment.inputs)):
            if isinstance(operand, Rows):
                self._make.copied(operand, port.dtype, launch.segment, "copied", position, p)
        self._make.end()
        self._make.other(position, launch)

    def _launch(self, launch: Launch, native: Native, trained: Optional[Trained]) -> None:
        make, segment = self._make, launch.segment
        kept: FrozenSet[Slot] = trained.kernel.read if trained else frozenset()
        spots: Dict[Any, Spot] = dict(make.parameters("parameter", segment))
        for p, (operand, port) in enumerate(zip(launch.operands, segment.inputs)):
            slot = Slot("in", p)
            spots[slot] = make.operand(operand, port.dtype, SAVED if slot in kept else TEMPORARY)
        for k, region in enumerate(launch.outputs):
            assert region is not None
            spots[Slot("out", k)] = make.region(region)
        for slot, count in native.forward.works:
            if slot in kept:
                spots[slot] = make.reserve(SAVED, launch.rows * count)
        self._pack(native.forward, spots, SAVED if trained else KEPT)
        make.launch(native.forward, launch.rows, spots)
        if trained:
            self._keep(launch, native.loaded(trained.kernel), trained.kernel, spots)
        self.spots[launch.number] = spots

    def _pack(self, loaded: Loaded, spots: Dict[Any, Spot], use: str) -> None:
        for packed in loaded.packs:
            weight, source = packed.weight, spots[packed.weight.slot]
            key = source, packed.transposed, weight.rows, weight.columns, use
            if key not in self._packed or weight.slot.kind == "in":
                self._packed[key] = self._make.pack(
                    weight, packed.transposed, packed.dtype, source, use
                )
            spots[packed] = self._packed[key]

    def _keep(self, launch: Launch, loaded: Loaded, kernel: Kernel, spots: Dict[Any, Spot]) -> None:
        """Copy what the backward pass reads, and the user may have written to by then."""
        self._pack(loaded, spots, SAVED)
        for slot in loaded.every:
            whole = slot.kind == "in" and isinstance(launch.operands[slot.number], Whole)
            if slot.kind == "param" or whole:
                source, own = spots[slot], kernel.arrays[slot]
                if source not in self._vectors:
                    target = self._make.reserve(SAVED, own.width * itemsize(own.dtype))
                    self._make.copy(source, target, own.dtype, own.width)
                    self._vectors[source] = target
                spots[slot] = self._vectors[source]


class _Sum(NamedTuple):
    """What is added up to one gradient."""

    head: List[int]
    chunks: List[int]


class Backward:
    """The program of a transposed plan.

    Parameters
    ----------
    plan, forward_plan : Plan
        What is run, and what was run forward.
    natives, trained
        As given to `Forward`.
    forward : Forward
        Where that has left what is read.
    """

    def __init__(
        self,
        plan: Plan,
        forward_plan: Plan,
        natives: Sequence[Optional[Native]],
        trained: Dict[int, Trained],
        forward: Forward,
    ):
        self._plan, self._natives, self._trained = plan, natives, trained
        self._forward_plan, self._forward = forward_plan, forward
        # Both programs number arrays alike, so that places of the one are places of the other.
        self._make = Assembler(plan, "gradient arena", forward.bases)
        self._sums: Dict[Any, _Sum] = {}

    def assemble(self) -> Assembled:
        """Go through all launches, then add up the gradients of parameters."""
        make = self._make
        for position, launch in enumerate(self._plan.launches):
            if launch.number in self._trained:
                self._launch(launch)
                make.end(launch.number)
            else:
                self._other(position, launch)
        for number, (result, fill) in enumerate(zip(self._plan.results, self._forward_plan.fills)):
            if isinstance(result, Rows):
                arena = self._forward_plan.arenas[fill.region.arena]
                make.copied(result, arena.dtype, arena, "result", number)
        self._add_up(self._sums.values())
        make.end()
        return make.assembled()

    def _other(self, position: int, launch: Launch) -> None:
        for k, (operand, port) in enumerate(zip(launch.operands, launch.segment.outputs)):
            if isinstance(operand, Rows):
                self._make.copied(operand, port.dtype, launch.segment, "gathered", position, k)
        self._make.end()
        self._make.other(position, launch)

    def _launch(self, launch: Launch) -> None:
        make, kernel = self._make, self._trained[launch.number].kernel
        native = self._natives[launch.number]
        assert native is not None
        loaded = native.loaded(kernel)
        spots = self._forward.spots[launch.number]
        for k, (operand, port) in enumerate(zip(launch.operands, launch.segment.outputs)):
            slot = Slot("head", k)
            if operand is not None:
                use = KEPT if slot in loaded.summed else TEMPORARY
                spots[slot] = make.operand(operand, port.dtype, use)
        for p, region in enumerate(launch.outputs):
            if region is not None:
                spots[Slot("grad", p)] = make.region(region)
        for slot, count in loaded.works:
            if slot in loaded.summed and slot not in spots:
                spots[slot] = make.reserve(KEPT, launch.rows * count)
        make.launch(loaded, launch.rows, spots)
        self._train_all(launch)
        for matrix in kernel.matrices:
            self._matrix(launch, kernel, matrix, spots)
        for row in kernel.every:
            self._row(launch, kernel, row, spots)
        self._add_up_shared(launch, kernel)

    def _train_all(self, launch: Launch) -> None:
        """Give everything that is trained a gradient, also that which none flows into."""
        wanted = self._trained[launch.number].wanted
        if wanted.parameters:
            self._make.parameters("gradient", launch.segment)
        for p in wanted.inputs:
            operand = self._forward_plan.launches[launch.number].operands[p]
            if isinstance(operand, Whole):
                self._make.base("external gradient", operand.external)

    def _sum(self, launch: Launch, slot: Slot) -> Spot:
        """Return where something adds up."""
        if slot.kind == "param":
            return self._make.parameters("gradient", launch.segment)[slot]
        region = launch.outputs[slot.number]
        if region is None:
            operand = self._forward_plan.launches[launch.number].operands[slot.number]
            assert isinstance(operand, Whole)
            return self._make.base("external gradient", operand.external), 0
        return self._make.region(region)

    def _chunk(
        self, place: Place, own: Array, parts: int, width: int, spots: Dict[Any, Spot]
    ) -> List[int]:
        base, offset = spots[place.slot]
        pitch = width if parts > 1 else own.width
        return [base, offset + place.column * itemsize(own.dtype), pitch]

    def _matrix(
        self, launch: Launch, kernel: Kernel, found: MatrixSum, spots: Dict[Any, Spot]
    ) -> None:
        weight, arrays = found.weight, kernel.arrays
        gradient, rows = arrays[found.gradient.slot], arrays[found.rows.slot]
        target = self._sum(launch, weight.slot)
        kind, last = executing.MATRIX, 0 if weight.transposed else 1
        if weight.chosen:
            kind, last = executing.CHOSEN, DTYPES[rows.dtype]
        first = self._chunk(found.gradient, gradient, found.parts, weight.units, spots)
        second = self._chunk(found.rows, rows, found.parts, weight.inputs, spots)
        if kind == executing.MATRIX and last:
            first, second = second, first
        head = [kind, DTYPES[gradient.dtype], weight.rows, weight.columns]
        self._collect(
            (kind, target, weight.rows, last),
            [*head, *target, weight.columns, last],
            [launch.rows * found.parts, *first, *second],
        )

    def _row(self, launch: Launch, kernel: Kernel, found: RowSum, spots: Dict[Any, Spot]) -> None:
        gradient = kernel.arrays[found.gradient.slot]
        width = kernel.arrays[found.slot].width
        target = self._sum(launch, found.slot)
        base, offset = spots[found.gradient.slot]
        parts = found.parts
        pitch = width if parts > 1 else gradient.width
        offset += found.gradient.column * itemsize(gradient.dtype)
        head = [executing.ROW, DTYPES[gradient.dtype], width, 1, *target, width, 0]
        chunk = [launch.rows * parts, base, offset, pitch, 0, 0, 0]
        self._collect((executing.ROW, target, width), head, chunk)

    def _collect(self, key: Any, head: List[int], chunk: List[int]) -> None:
        self._sums.setdefault(key, _Sum(head, [])).chunks.extend(chunk)

    def _add_up(self, sums: Iterable[_Sum]) -> None:
        make = self._make
        for head, chunks in sums:
            count = len(chunks) // 7
            make.add(*head, count, *chunks)
            kind, units, inputs = head[1:4]
            make.scratch = max(make.scratch, executing.sum_scratch(kind, units, inputs, count))

    def _add_up_shared(self, launch: Launch, kernel: Kernel) -> None:
        """Add up the gradients of operands that all rows share: launches to come read them."""
        own = {}
        for p, region in enumerate(launch.outputs):
            if region is not None and kernel.arrays[Slot("in", p)].every:
                spot = self._make.region(region)
                size = region.rows * self._plan.arenas[region.arena].row_size
                count = size * itemsize(self._plan.arenas[region.arena].dtype)
                self._make.add(executing.ZERO, *spot, count)
                own.update({key: s for key, s in self._sums.items() if key[1] == spot})
        for key in own:
            del self._sums[key]
        self._add_up(own.values())
