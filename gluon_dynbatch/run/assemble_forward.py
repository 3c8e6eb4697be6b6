"""The program of a plan."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, Optional, Sequence

from ..kernel.expression import Slot
from ..plan.plan import Launch, Plan, Rows, Whole
from .assemble import KEPT, SAVED, TEMPORARY, Assembled, Assembler, Base, Spot, Trained
from .kernels import Loaded, Native, itemsize

#: Rows for which it takes longer to pack a matrix than to multiply with it as it is.
FEW = 8


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
        self._rows: Dict[int, int] = {}
        for launch in plan.launches:
            self._rows[id(launch.segment)] = self._rows.get(id(launch.segment), 0) + launch.rows
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
        kept: FrozenSet[Slot] = trained.loaded.read if trained else frozenset()
        spots: Dict[Any, Spot] = dict(make.parameters("parameter", native))
        for p, (operand, port) in enumerate(zip(launch.operands, segment.inputs)):
            slot = Slot("in", p)
            spots[slot] = make.operand(operand, port.dtype, SAVED if slot in kept else TEMPORARY)
        for k, region in enumerate(launch.outputs):
            assert region is not None
            spots[Slot("out", k)] = make.region(region)
        few = self._rows[id(segment)] <= FEW
        loaded = native.loaded(native.kernels.forward, few) if few else native.forward
        for slot, count in loaded.works:
            if slot in kept:
                spots[slot] = make.reserve(SAVED, launch.rows * count)
        self._pack(loaded, spots, SAVED if trained else KEPT)
        make.launch(loaded, launch.rows, spots)
        if trained:
            self._keep(launch, trained.loaded, spots)
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

    def _keep(self, launch: Launch, loaded: Loaded, spots: Dict[Any, Spot]) -> None:
        """Copy what the backward pass reads, and the user may have written to by then."""
        self._pack(loaded, spots, SAVED)
        for slot in loaded.every:
            whole = slot.kind == "in" and isinstance(launch.operands[slot.number], Whole)
            if slot.kind == "param" or whole:
                source, own = spots[slot], loaded.arrays[slot]
                if source not in self._vectors:
                    target = self._make.reserve(SAVED, own.width * itemsize(own.dtype))
                    self._make.copy(source, target, own.dtype, own.width)
                    self._vectors[source] = target
                spots[slot] = self._vectors[source]
