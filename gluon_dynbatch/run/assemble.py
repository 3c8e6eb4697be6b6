"""From plans to programs: integers that native code runs.

A program knows arrays by number; `bases` says what each number stands for, and who runs the program
gives their addresses.  Launches that have no kernel stand between stretches of native code.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..kernel.kernels import SegmentKernels
from ..kernel.layout import Slot
from ..kernel.recipe import KEPT, SAVED, TEMPORARY, Recipe
from ..kernel.step import Kernel, Packed
from ..lower.segment import Segment
from ..native import executing, resolving
from ..plan.plan import Launch, Operand, Plan, Region, Rows, Slice, Whole
from .equal import EqualRows
from .records import Assembled, Base, Item, Spot, copies, is_native, itemsize

#: Operations of native code that the engine gets in one piece: other work of its waits for a piece,
#: not for all.
AT_A_TIME = 400_000_000

ALIGNMENT = 64

#: What native code does with arrays, by kind of base: see `recording.places`.  MXNet may not have
#: given parameters and gradients memory yet.  All else it writes.
USES = {"parameter": b"R", "external": b"a", "gradient": b"W", "external gradient": b"W"}

#: Rows for which it takes longer to pack a matrix than to multiply with it as it is.
FEW = 8

#: A block of scratch.
NOWHERE: Spot = (-1, 0)

#: What tells rows apart when that is known already.
NO_KEYS = np.zeros((0, 5), dtype=np.int64)


#: Where things are, by their numbers in a recipe.
Given = List[Tuple[int, Spot]]


class Run(NamedTuple):
    """A part of a launch that native code runs."""

    rows: int
    recipe: Recipe
    #: Where everything is, as far as it stays, by its number in the recipe.
    spots: List[Spot]

    def place(self, given: Given) -> None:
        """Take note of where things are."""
        for number, spot in given:
            self.spots[number] = spot

    def behind(self, given: Given) -> Given:
        """Return where those of the next part are, given those of this one."""
        size, rows = self.recipe.bytes, self.rows
        return [(n, (base, offset + rows * size[n])) for n, (base, offset) in given]


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
        ends = []
        for position, launch in enumerate(self.plan.launches):
            native = self.is_native(launch)
            if native:
                self.launch(launch)
            else:
                for operand, port in zip(launch.operands, getattr(launch.segment, self.read)):
                    self.apart(operand, port.dtype, launch.segment.context)
            ends_piece = not native or self._work > AT_A_TIME
            self._work = 0 if ends_piece else self._work
            ends.append((len(self.code), position, not native, ends_piece))
            self._used[TEMPORARY] = 0
        self.finish()
        ends.append((len(self.code), None, False, True))
        fills, externals = self._fills()
        items = [Item(len(fills) + end, *rest) for end, *rest in ends]
        return Assembled(
            executing.Program(fills + self.code, self._kernels.values(), self.scratch),
            (Item(len(fills), ends_piece=False), *items),
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
        return self.bases.setdefault(key, self._first + len(self.bases))

    def reserve(self, use: str, count: int) -> Spot:
        """Reserve bytes."""
        at = self._used[use]
        self._used[use] = stop = (at + count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        if stop > self._sizes[use]:
            self._sizes[use] = stop
        return self.base(use), at

    def region(self, region: Region) -> Spot:
        """Return where rows of an arena are."""
        base, _, row = self._arenas[region.arena]
        return base, region.start * row

    def operand(self, operand: Operand, dtype: str, use: str) -> Spot:
        """Return where an operand is; rows that are put together take memory of some use."""
        if type(operand) is Slice:
            base, size, _ = self._arenas[operand.arena]
            return base, operand.element * size
        if type(operand) is Whole:
            return self.base("external", operand.external), 0
        assert type(operand) is Rows
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

    def tell_apart(
        self, run: Run, kept: Spot, arrays: Sequence[Any], keys: np.ndarray = NO_KEYS
    ) -> None:
        """Let the launch that follows run on rows that differ, by keys or as it was kept.

        Arrays are what is done with their rows, slots, and where rows come from.
        """
        self.code.extend((executing.DISTINCT, *kept, run.rows, len(keys), len(arrays)))
        self.code.frombytes(keys.tobytes())
        for what, slot, source in arrays:
            own = (run.recipe.backward or run.recipe.forward).arrays[slot]
            target = run.spots[run.recipe.numbers[slot]]
            self.code.extend((what, executing.DTYPES[own.dtype], own.width, *target, *source))

    def run(self, runs: Sequence[Run], backward: bool = False) -> None:
        """Run a kernel for each part; what has no spot stands in scratch."""
        code = [executing.LAUNCH, len(runs)]
        for rows, recipe, spots in runs:
            native, order = recipe.natives[backward]
            address = native.address
            self._kernels[address] = native
            code += address, rows
            self._work += rows * native.work
            for number in order:
                code += spots[number]
        self.code.extend(code)

    def _fills(self) -> Tuple[array[int], List[int]]:
        """Return code that fills arenas, and the numbers of the arrays whose bases come last."""
        code, externals = array("q"), []
        for fill in self.plan.fills:
            arena = self.plan.arenas[fill.region.arena]
            if arena.context.device_type == "cpu":
                count, source = len(fill.externals), self.stop + len(externals)
                code.extend(copies(arena.dtype, count, self.region(fill.region)))
                code.frombytes(fill.pieces(np.arange(source, source + count)).tobytes())
                externals += fill.externals.tolist()
        return code, externals


class Forward(Assembler):
    """The program of a plan, and where it leaves what the backward pass reads."""

    def __init__(
        self,
        plan: Plan,
        kernels: Dict[Segment, Optional[SegmentKernels]],
        trained: Dict[int, Tuple[Kernel, ...]],
    ):
        super().__init__(plan, kernels, trained)
        #: What each launch consists of.
        self.launches: Dict[int, List[Run]] = {}
        #: Rows of all launches of a family of segments.
        self._rows_of: Counter[str] = Counter()
        for launch in plan.launches:
            for segment, rows in launch.parts:
                self._rows_of[segment.family] += rows
        #: Where everything is that does not differ from launch to launch.
        self._fixed: Dict[Any, List[Spot]] = {}
        self._equal = EqualRows(plan)
        #: Per launch that runs on rows that differ, where it is kept which are equal.
        self.distinct: Dict[int, Spot] = {}
        #: Copies of what all rows share, and packed matrices.
        self._copies: Dict[Any, Spot] = {}

    def is_native(self, launch: Launch) -> bool:
        """Whether native code runs a launch."""
        return self.kernels[launch.segment] is not None

    def launch(self, launch: Launch) -> None:
        """Add a launch that native code runs."""
        backward = self.trained.get(launch.number) or [None] * len(launch.parts)
        runs = [self._begin(*part, kernel) for part, kernel in zip(launch.parts, backward)]
        inputs = runs[0].recipe.inputs
        if len(runs) > 1:
            columns = zip(*(run.recipe.inputs for run in runs))
            inputs = [max(own, key=lambda pair: pair[1] is SAVED) for own in columns]
        spots = [
            self.operand(operand, dtype, use)  # type: ignore[arg-type]
            for operand, (dtype, use) in zip(launch.operands, inputs)
        ]
        given = [*enumerate(spots), *zip(runs[0].recipe.outputs, map(self.region, launch.outputs))]
        copies: Dict[Any, Spot] = {}
        for run in runs:
            run.place(given)
            given = run.behind(given) if len(runs) > 1 else given
            for number in run.recipe.saved:
                size = run.rows * run.recipe.bytes[number]
                run.spots[number] = self.reserve(SAVED, size)
            for packed, use in run.recipe.operand_packs:
                self._pack(packed, use, run.recipe, run.spots, copies)
        self.launches[launch.number] = runs
        keys = self._keys(launch, runs[0]) if len(runs) == 1 else None
        if keys is None:
            self.run(runs)
        else:
            self._run_distinct(launch, runs[0], keys)
        for run in runs:
            for slot in run.recipe.copied:
                if slot.kind == "in" and type(launch.operands[slot.number]) is Whole:
                    self._copy(slot, run.recipe, run.spots)

    def _keys(self, launch: Launch, run: Run) -> Optional[np.ndarray]:
        """Return what tells the rows of a launch apart, None if nothing is known to."""
        recipe = run.recipe
        if recipe.chooses:
            (region,), size = launch.regions, recipe.bytes[0]
            table = run.spots[recipe.numbers[recipe.parameters[0]]][0]
            self._equal.note(region, table, run.spots[0], size)
        if recipe.single is None:
            return None
        return self._equal.keys(launch.operands[recipe.single])

    def _run_distinct(self, launch: Launch, run: Run, keys: np.ndarray) -> None:
        """Run a kernel on rows that differ."""
        recipe = run.recipe
        assert recipe.single is not None
        use = TEMPORARY if recipe.backward is None else SAVED
        kept = self.distinct[launch.number] = self.reserve(use, 4 * (2 + 2 * run.rows))
        given = Slot("in", recipe.single)
        number = recipe.numbers[given]
        source = run.spots[number]
        run.spots[number] = self.reserve(TEMPORARY, run.rows * recipe.bytes[number])
        arrays = [(executing.PICK, given, source)]
        arrays += [
            (executing.REPEAT, slot, run.spots[recipe.numbers[slot]])
            for slot in recipe.forward.arrays
            if slot.kind in ("out", "work") and run.spots[recipe.numbers[slot]] is not NOWHERE
        ]
        self.tell_apart(run, kept, arrays, keys)
        self.run([run])
        run.spots[number] = source

    def _begin(self, segment: Segment, rows: int, backward: Optional[Kernel]) -> Run:
        """Return the run of a part of a launch, which knows where parameters are."""
        kernels, few = self.kernels[segment], self._rows_of[segment.family] <= FEW
        assert kernels is not None
        recipe = kernels.recipe(backward, few)
        fixed = self._fixed.get((segment, recipe))
        if fixed is None:
            fixed = self._fixed[segment, recipe] = self._place_parameters(segment, recipe)
        return Run(rows, recipe, fixed.copy())

    def _place_parameters(self, segment: Segment, recipe: Recipe) -> List[Spot]:
        """Pack parameters and copy those that the backward pass reads; return where all are."""
        spots = [NOWHERE] * len(recipe.numbers)
        for slot in recipe.parameters:
            base = self.base("parameter", segment.parameters[slot.number], segment.context)
            spots[recipe.numbers[slot]] = base, 0
        for packed, use in recipe.packs:
            self._pack(packed, use, recipe, spots, self._copies)
        for slot in recipe.copied:
            if slot.kind == "param":
                self._copy(slot, recipe, spots)
        return spots

    def _pack(
        self, packed: Packed, use: str, recipe: Recipe, spots: List[Spot], known: Dict[Any, Spot]
    ) -> None:
        """Pack a matrix for products with it, or with its transpose."""
        weight, kind = packed.weight, executing.DTYPES[packed.dtype]
        base, offset = spots[recipe.numbers[weight.place.slot]]
        offset += weight.place.column * itemsize(packed.dtype)
        inputs, units, strides = weight.rows, weight.columns, (weight.columns, 1)
        if packed.transposed:
            inputs, units, strides = units, inputs, (1, weight.columns)
        key = base, offset, inputs, units, strides, use
        if key not in known:
            known[key] = self.reserve(use, executing.packed_bytes(kind, inputs, units))
            record = executing.PACK, kind, base, offset, *strides, inputs, units, *known[key]
            self.code.extend(record)
        spots[recipe.numbers[packed]] = known[key]

    def _copy(self, slot: Slot, recipe: Recipe, spots: List[Spot]) -> None:
        """Copy what the backward pass reads, and the user may have written to by then."""
        assert recipe.backward is not None
        number, own = recipe.numbers[slot], recipe.backward.arrays[slot]
        source = spots[number]
        if source not in self._copies:
            target = self._copies[source] = self.reserve(SAVED, own.row_bytes)
            head = copies(own.dtype, 1, target)
            self.code.extend([*head, resolving.COPY, 0, *source, own.width])
        spots[number] = self._copies[source]
