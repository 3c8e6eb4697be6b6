"""The program of a plan."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Tuple

from ..kernel.expression import Slot
from ..kernel.kernels import SegmentKernels
from ..kernel.step import Kernel, Packed
from ..lower.segment import Segment
from ..native import executing
from ..plan.plan import Launch, Plan, Whole
from .assemble import KEPT, SAVED, TEMPORARY, Assembler, Run, Spot

#: Rows for which it takes longer to pack a matrix than to multiply with it as it is.
FEW = 8


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
            self._counts[family] = self._counts.get(family, 0) + launch.rows
        #: Matrices that are packed: parameters, and what all rows of a launch share.
        self._packed: Dict[Any, Spot] = {}
        self._packed_operands: Dict[Any, Spot] = {}
        self._vectors: Dict[Any, Spot] = {}

    def is_native(self, launch: Launch) -> bool:
        """Whether native code runs a launch."""
        return self.kernels[launch.segment] is not None

    def launch(self, launch: Launch) -> None:
        """Add a launch that native code runs."""
        segment, backward = launch.segment, self.trained.get(launch.number, ())
        kept: FrozenSet[Slot] = frozenset().union(*(kernel.read for kernel in backward))
        spots: Dict[Slot, Spot] = {}
        for p, (operand, port) in enumerate(zip(launch.operands, segment.inputs)):
            slot = Slot("in", p)
            assert operand is not None
            spots[slot] = self.operand(operand, port.dtype, SAVED if slot in kept else TEMPORARY)
        for k, region in enumerate(launch.outputs):
            assert region is not None
            spots[Slot("out", k)] = self.region(region)
        few = self._counts[segment.family] <= FEW
        self._packed_operands = {}
        runs: List[Run] = []
        for number, part in enumerate(launch.parts):
            kernels = self.kernels[part.segment]
            assert kernels is not None
            run = Run(part.rows, kernels.forward, backward[number] if backward else None, {})
            run.spots.update({**spots, **self.parameters("parameter", segment)})
            for slot in run.forward.works if run.backward else ():
                if slot in run.backward.read:
                    run.spots[slot] = self.reserve(SAVED, run.bytes(slot))
            self._pack(run.forward.native(few), run.spots, SAVED if backward else KEPT)
            runs.append(run)
            if len(launch.parts) > 1:
                self.advance(spots, run)
        self.launches[launch.number] = runs
        self.run(runs, [run.forward.native(few) for run in runs])
        for run in runs:
            if run.backward:
                self._keep(launch, run.backward, run.spots)

    def _pack(self, native: executing.Kernel, spots: Dict[Any, Spot], use: str) -> None:
        for packed in native.packs:
            slot = packed.weight.slot
            known = self._packed if slot.kind == "param" else self._packed_operands
            key = spots[slot], packed.transposed, packed.weight.rows, packed.weight.columns, use
            if key not in known:
                known[key] = self.pack(packed, spots[slot], use)
            spots[packed] = known[key]

    def _keep(self, launch: Launch, kernel: Kernel, spots: Dict[Any, Spot]) -> None:
        """Copy what the backward pass reads, and the user may have written to by then."""
        native = kernel.native()
        self._pack(native, spots, SAVED)
        for slot in native.slots:
            if isinstance(slot, Packed) or not kernel.arrays[slot].every:
                continue
            whole = slot.kind == "in" and isinstance(launch.operands[slot.number], Whole)
            if slot.kind == "param" or whole:
                source, own = spots[slot], kernel.arrays[slot]
                if source not in self._vectors:
                    target = self.reserve(SAVED, own.row_bytes)
                    self.copy(source, target, own.dtype, own.width)
                    self._vectors[source] = target
                spots[slot] = self._vectors[source]
