"""The program of a transposed plan."""

from __future__ import annotations

from math import prod
from typing import Any, Dict, Iterable, List, NamedTuple, Set, Tuple

from ..kernel.express import dtype_of, shape_of
from ..kernel.layout import Slot
from ..kernel.recipe import KEPT, TEMPORARY, Recipe
from ..kernel.step import Kernel, Place, Sum
from ..lower.segment import Segment
from ..native import executing
from ..plan.plan import Launch, Plan, Rows, Whole
from .assemble import NOWHERE, Assembler, Forward, Run
from .records import Spot, itemsize


class Record(NamedTuple):
    """What adds up over rows to a gradient, as records of programs have it."""

    #: An array, and where in it, in bytes.
    slot: Slot
    first: int
    #: Which record, type, rows and columns of the gradient.
    head: Tuple[int, int, int, int]
    #: Whether what is read second is the gradient; of rows that are chosen, the type of places.
    extra: int
    parts: int
    #: Two arrays: number in the recipe, first byte, elements from row to row.
    read: Tuple[Tuple[int, int, int], ...]


class Backward(Assembler):
    """The program of a transposed plan.

    Parameters
    ----------
    plan : Plan
        What is run.
    forward : Forward
        Where the forward pass has left what is read.
    """

    read = "outputs"

    def __init__(self, plan: Plan, forward: Forward):
        super().__init__(plan, forward.kernels, forward.trained, forward.stop)
        self._forward = forward
        self._records: Dict[Recipe, List[Record]] = {}
        self._sums: Dict[Any, List[int]] = {}
        #: Per segment where gradients of parameters add up.
        self._gradients: Dict[Segment, Dict[Slot, Spot]] = {}
        self._zeroed: Set[int] = set()
        for launch in plan.launches:
            if self.is_native(launch):
                self._zero_targets(launch)

    def is_native(self, launch: Launch) -> bool:
        """Whether native code runs a launch."""
        return launch.number in self.trained

    def launch(self, launch: Launch) -> None:
        """Add a launch that native code runs."""
        runs = self._forward.launches[launch.number]
        numbers, given = runs[0].recipe.numbers, []
        for k, (operand, port) in enumerate(zip(launch.operands, launch.segment.outputs)):
            if operand is not None:
                slot = Slot("head", k)
                summed = any(slot in kernel.summed for kernel in self.trained[launch.number])
                use = KEPT if summed else TEMPORARY
                given.append((numbers[slot], self.operand(operand, port.dtype, use)))
        for p, region in enumerate(launch.outputs):
            number = numbers.get(Slot("grad", p))
            if region is not None and number is not None:
                given.append((number, self.region(region)))
        kept = self._forward.distinct.get(launch.number)
        for run in runs:
            run.place(given)
            given = run.behind(given) if len(runs) > 1 else given
            if kept is not None:
                self._run_distinct(launch, run, kept)
            self._note_sums(run, launch, kept or (-1, 0))
        self.run(runs, backward=True)
        self._add_up_shared(launch)

    def _run_distinct(self, launch: Launch, run: Run, kept: Spot) -> None:
        """Let a launch go backward for rows that differ, given the totals of their gradients.

        What is gained goes to the first of equal rows: all of them were chosen from one row.
        """
        recipe = run.recipe
        kernel = recipe.backward
        assert kernel is not None
        used = frozenset(place.slot for s in kernel.sums for place in (s.gradient, s.rows) if place)
        arrays = []
        for slot, array in kernel.arrays.items():
            number = recipe.numbers[slot]
            source = run.spots[number]
            if array.every or slot not in kernel.read or source is NOWHERE:
                continue
            if slot.kind == "grad":
                arrays.append((executing.SINGLE, slot, source))
                continue
            head = slot.kind == "head"
            if not (head and type(launch.operands[slot.number]) is Rows):
                use = KEPT if slot in used else TEMPORARY
                run.spots[number] = self.reserve(use, run.rows * recipe.bytes[number])
            arrays.append((executing.TOTAL if head else executing.PICK, slot, source))
        self.tell_apart(run, kept, arrays)

    def _note_sums(self, run: Run, launch: Launch, kept: Spot) -> None:
        """Take note of what adds up to gradients, which has to stay until that is done."""
        recipe = run.recipe
        kernel = recipe.backward
        assert kernel is not None
        if recipe not in self._records:
            self._records[recipe] = [_record(recipe, kernel, found) for found in kernel.sums]
        for slot in kernel.works:
            number = recipe.numbers[slot]
            if slot in kernel.summed and run.spots[number] is NOWHERE:
                run.spots[number] = self.reserve(KEPT, run.rows * recipe.bytes[number])
        for record in self._records[recipe]:
            chunk = [run.rows * record.parts, *kept]
            for number, column, pitch in record.read:
                base, offset = run.spots[number]
                chunk += (base, offset + column, pitch)
            base, offset = self._target(launch, record.slot)
            key = record.head, (base, offset + record.first), record.extra
            self._sums.setdefault(key, []).extend(chunk)

    def finish(self) -> None:
        """Copy gradients of fills out that lie apart, and add up those of parameters."""
        plan = self._forward.plan
        for result, fill in zip(self.plan.results, plan.fills):
            arena = plan.arenas[fill.region.arena]
            self.apart(result, arena.dtype, arena.context)
        self._add_up(self._sums)

    def _zero_targets(self, launch: Launch) -> None:
        """Set what adds up to zero: all that is trained, also if no gradient flows there."""
        wanted, segment = self.trained[launch.number][0].wanted, launch.segment
        assert wanted is not None
        if segment not in self._gradients:
            found = self._gradients[segment] = {}
            for number in wanted.parameters:
                parameter = segment.parameters[number]
                base = self.base("gradient", parameter, segment.context)
                found[Slot("param", number)] = base, 0
                self._zero(base, prod(shape_of(parameter)) * itemsize(dtype_of(parameter)))
        for p in wanted.inputs:
            if launch.outputs[p] is None:
                port, (base, _) = segment.inputs[p], self._target(launch, Slot("in", p))
                self._zero(base, port.row_size * itemsize(port.dtype))

    def _target(self, launch: Launch, slot: Slot) -> Spot:
        """Return where the gradient of a parameter, or of an array that rows share, adds up."""
        if slot.kind == "param":
            return self._gradients[launch.segment][slot]
        region = launch.outputs[slot.number]
        if region is not None:
            return self.region(region)
        operand = self._forward.plan.launches[launch.number].operands[slot.number]
        assert isinstance(operand, Whole)
        return self.base("external gradient", operand.external), 0

    def _zero(self, base: int, count: int) -> None:
        if base not in self._zeroed:
            self._zeroed.add(base)
            self.zero((base, 0), count)

    def _add_up(self, sums: Iterable[Any]) -> None:
        for key in sums:
            (head, target, extra), chunks = key, self._sums[key]
            count = len(chunks) // 9
            self.code.extend([*head, *target, extra, count, *chunks])
            self.scratch = max(self.scratch, executing.sum_scratch(*head[1:], count))

    def _add_up_shared(self, launch: Launch) -> None:
        """Add up the gradients of operands that all rows share: launches to come read them."""
        for p, region in enumerate(launch.outputs):
            if region is not None and launch.segment.inputs[p].shared:
                spot, arena = self.region(region), self.plan.arenas[region.arena]
                count = region.rows * arena.row_size * itemsize(arena.dtype)
                self.zero(spot, count)
                end = spot[0], spot[1] + count
                own = [key for key in self._sums if spot <= key[1] < end]
                self._add_up(own)
                for key in own:
                    del self._sums[key]


def _record(recipe: Recipe, kernel: Kernel, found: Sum) -> Record:
    weight, parts = found.weight, found.parts

    def rows(place: Place, width: int) -> Tuple[int, int, int]:
        own = kernel.arrays[place.slot]
        first = place.column * itemsize(own.dtype)
        return recipe.numbers[place.slot], first, width if parts > 1 else own.width

    def kind(place: Place) -> int:
        return int(executing.DTYPES[kernel.arrays[place.slot].dtype])

    slot, first = (
        weight.place.slot,
        itemsize(kernel.arrays[found.gradient.slot].dtype) * weight.place.column,
    )
    head = kind(found.gradient), weight.rows, weight.columns
    gradient = rows(found.gradient, weight.units)
    if found.rows is None:
        # All that is added is the gradient.
        read = gradient, (gradient[0], 0, 0)
        return Record(slot, first, (executing.ROW, *head), 0, parts, read)
    both = gradient, rows(found.rows, weight.inputs)
    if weight.chosen:
        return Record(slot, first, (executing.CHOSEN, *head), kind(found.rows), parts, both)
    flipped = not weight.transposed
    both = both[::-1] if flipped else both
    return Record(slot, first, (executing.MATRIX, *head), int(flipped), parts, both)
