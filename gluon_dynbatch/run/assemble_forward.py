"""The program of a plan."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

from ..kernel.expression import Slot
from ..kernel.kernels import SegmentKernels
from ..kernel.step import Kernel, Packed
from ..lower.segment import Port, Segment
from ..native import executing
from ..plan.plan import Launch, Plan, Whole
from .assemble import KEPT, SAVED, TEMPORARY, Alike, Assembler, Spot

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
        self.launches: Dict[int, List[Alike]] = {}
        self._counts: Dict[str, int] = {}
        for launch in plan.launches:
            family = launch.segment.family
            self._counts[family] = self._counts.get(family, 0) + launch.rows
        self._packed: Dict[Any, Spot] = {}
        self._vectors: Dict[Any, Spot] = {}

    def is_native(self, launch: Launch) -> bool:
        """Whether native code runs a launch."""
        return self.kernels[launch.segment] is not None

    def ports(self, launch: Launch) -> Sequence[Port]:
        """Return what the operands of a launch are."""
        return launch.segment.inputs

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
        forward = [self._forward(part.segment) for part in launch.parts]
        self.launches[launch.number] = found = list(Alike.of(launch.parts, forward, backward, few))
        for alike in found:
            self._run(launch, alike, spots)
            if len(found) > 1:
                self.advance(spots, alike)

    def _forward(self, segment: Segment) -> Kernel:
        kernels = self.kernels[segment]
        assert kernels is not None
        return kernels.forward

    def _run(self, launch: Launch, alike: Alike, begin: Dict[Slot, Spot]) -> None:
        spots, natives = alike.spots, [kernel.native(alike.few) for kernel in alike.forward]
        spots.update(begin)
        spots.update(self.parameters("parameter", launch.segment))
        if alike.backward:
            read = alike.backward[0].read
            for slot in alike.forward[0].works:
                if slot in read:
                    spots[slot] = self.reserve(SAVED, alike.starts(slot)[-1])
        self._pack(natives[0], spots, SAVED if alike.backward else KEPT)
        self.run(alike.parts, natives, spots)
        if alike.backward:
            self._keep(launch, alike.backward[0], spots)

    def _pack(self, native: executing.Kernel, spots: Dict[Any, Spot], use: str) -> None:
        for packed in native.packs:
            slot = packed.weight.slot
            key = spots[slot], packed.transposed, packed.weight.rows, packed.weight.columns, use
            if key not in self._packed or slot.kind == "in":
                self._packed[key] = self.pack(packed, spots[slot], use)
            spots[packed] = self._packed[key]

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
