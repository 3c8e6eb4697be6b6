"""The program of a plan."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from ..kernel.expression import Slot
from ..kernel.kernels import SegmentKernels
from ..kernel.step import Kernel, Packed
from ..lower.segment import Segment
from ..native import executing, resolving
from ..plan.plan import Launch, Plan, Whole
from .assemble import KEPT, SAVED, TEMPORARY, Assembler, Run, Spot, copies

#: Rows for which it takes longer to pack a matrix than to multiply with it as it is.
FEW = 8


class Recipe(NamedTuple):
    """What all runs of a segment have in common that go backward alike."""

    forward: Kernel
    backward: Optional[Kernel]
    native: executing.Kernel
    #: Where parameters are, as they are and packed.
    fixed: Dict[Any, Spot]
    #: What steps leave for the backward pass, and bytes per row.
    saved: Tuple[Tuple[Slot, int], ...]
    #: Of operands that all rows share: those that are packed, with the memory for that; and those
    #: that the backward pass reads as they are.
    packs: Tuple[Tuple[Packed, str], ...]
    kept: Tuple[Slot, ...]


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
        self._counts: Dict[str, int] = {}
        for launch in plan.launches:
            family = launch.segment.family
            self._counts[family] = self._counts.get(family, 0) + sum(
                part.rows for part in launch.parts
            )
        self._recipes: Dict[Any, Recipe] = {}
        self._ports: Dict[Any, List[Tuple[Slot, str, str]]] = {}
        #: Copies of parameters, and packed ones.
        self._copies: Dict[Any, Spot] = {}

    def is_native(self, launch: Launch) -> bool:
        """Whether native code runs a launch."""
        return self.kernels[launch.segment] is not None

    def launch(self, launch: Launch) -> None:
        """Add a launch that native code runs."""
        segment, backward = launch.segment, self.trained.get(launch.number, ())
        spots: Dict[Any, Spot] = {}
        for (slot, dtype, use), operand in zip(self._inputs(segment, backward), launch.operands):
            assert operand is not None
            spots[slot] = self.operand(operand, dtype, use)
        for k, region in enumerate(launch.outputs):
            assert region is not None
            spots[Slot("out", k)] = self.region(region)
        runs: List[Run] = []
        recipes: List[Recipe] = []
        copies: Dict[Any, Spot] = {}
        for number, part in enumerate(launch.parts):
            recipe = self._recipe(part.segment, backward[number] if backward else None)
            run = Run(part.rows, recipe.forward, recipe.backward, {**recipe.fixed, **spots})
            for slot, size in recipe.saved:
                run.spots[slot] = self.reserve(SAVED, part.rows * size)
            for packed, use in recipe.packs:
                self._pack(packed, run.spots, use, copies)
            recipes.append(recipe)
            runs.append(run)
            if len(launch.parts) > 1:
                self.advance(spots, run)
        self.launches[launch.number] = runs
        self.run(runs, [recipe.native for recipe in recipes])
        for run, recipe in zip(runs, recipes):
            for slot in recipe.kept:
                if isinstance(launch.operands[slot.number], Whole):
                    self._copy(recipe, slot, run.spots)

    def _inputs(
        self, segment: Segment, backward: Tuple[Kernel, ...]
    ) -> List[Tuple[Slot, str, str]]:
        """Return for each operand its slot and type, and the memory for rows put together."""
        key = self.kernels[segment], backward
        if key not in self._ports:
            kept: FrozenSet[Slot] = frozenset().union(*(kernel.read for kernel in backward))
            slots = [Slot("in", p) for p in range(len(segment.inputs))]
            self._ports[key] = [
                (slot, port.dtype, SAVED if slot in kept else TEMPORARY)
                for slot, port in zip(slots, segment.inputs)
            ]
        return self._ports[key]

    def _recipe(self, segment: Segment, backward: Optional[Kernel]) -> Recipe:
        found = self._recipes.get((segment, backward))
        if found is None:
            found = self._recipes[segment, backward] = self._make_recipe(segment, backward)
        return found

    def _make_recipe(self, segment: Segment, backward: Optional[Kernel]) -> Recipe:
        """Say what is to be packed and kept of parameters, and do so."""
        kernels = self.kernels[segment]
        assert kernels is not None
        forward, few = kernels.forward, self._counts[segment.family] <= FEW
        native = forward.native(few)
        fixed: Dict[Any, Spot] = {
            Slot("param", number): self.parameter("parameter", segment, number)
            for number in range(len(segment.parameters))
        }
        packs = [(packed, SAVED if backward else KEPT) for packed in native.packs]
        saved, kept = [], []
        if backward is not None:
            saved = [(s, forward.row_bytes[s]) for s in forward.works if s in backward.read]
            own = backward.native()
            packs += [(packed, SAVED) for packed in own.packs]
            kept = [s for s in own.slots if isinstance(s, Slot) and backward.arrays[s].every]
        recipe = Recipe(
            forward, backward, native, fixed, tuple(saved),
            tuple(pair for pair in packs if pair[0].weight.place.slot not in fixed),
            tuple(slot for slot in kept if slot.kind == "in"),
        )  # fmt: skip
        for packed, use in packs:
            if packed.weight.place.slot in fixed:
                self._pack(packed, fixed, use, self._copies)
        for slot in kept:
            if slot.kind == "param":
                self._copy(recipe, slot, fixed)
        return recipe

    def _pack(self, packed: Packed, spots: Dict[Any, Spot], use: str, known: Any) -> None:
        weight = packed.weight
        (slot, column), size = weight.place, (weight.rows, weight.columns)
        key = spots[slot], column, packed.transposed, size, use
        if key not in known:
            known[key] = self.pack(packed, spots[slot], use)
        spots[packed] = known[key]

    def _copy(self, recipe: Recipe, slot: Slot, spots: Dict[Any, Spot]) -> None:
        """Copy what the backward pass reads, and the user may have written to by then."""
        assert recipe.backward is not None
        source, own = spots[slot], recipe.backward.arrays[slot]
        if source not in self._copies:
            target = self.reserve(SAVED, own.row_bytes)
            head = copies(own.dtype, 1, target)
            self.code.extend([*head, resolving.COPY, 0, *source, own.width])
            self._copies[source] = target
        spots[slot] = self._copies[source]
