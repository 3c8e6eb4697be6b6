"""The program of a plan."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Sequence

from ..kernel.expression import Slot
from ..lower.segment import Segment
from ..plan.plan import Launch, Plan, Rows, Whole
from .assemble import KEPT, SAVED, TEMPORARY, Alike, Assembled, Assembler, Base, Spot, Trained
from .kernels import Loaded, Native, itemsize

#: Rows for which it takes longer to pack a matrix than to multiply with it as it is.
FEW = 8


class Forward:
    """The program of a plan, and where it leaves what the backward pass reads.

    Parameters
    ----------
    plan : Plan
        What is run.
    natives : dict of Segment to Native or None
        The kernels of each segment, None for what MXNet's operators run.
    trained : dict of int to Trained
        Per launch that is native backward, what that takes.
    """

    def __init__(
        self,
        plan: Plan,
        natives: Dict[Segment, Optional[Native]],
        trained: Dict[int, Trained],
    ):
        self._plan, self._natives, self._trained = plan, natives, trained
        self.bases: Dict[Base, int] = {}
        self._make = Assembler(plan, "arena", self.bases)
        #: What each launch consists of.
        self.launches: Dict[int, List[Alike]] = {}
        self._rows: Dict[str, int] = {}
        for launch in plan.launches:
            family = launch.segment.family
            self._rows[family] = self._rows.get(family, 0) + launch.rows
        self._packed: Dict[Any, Spot] = {}
        self._vectors: Dict[Any, Spot] = {}

    def assemble(self) -> Assembled:
        """Go through all launches."""
        make = self._make
        for position, launch in enumerate(self._plan.launches):
            if self._natives[launch.segment] is None:
                self._other(position, launch)
            else:
                self._launch(launch, self._trained.get(launch.number))
                make.end(launch.number)
        make.end()
        return make.assembled()

    def _other(self, position: int, launch: Launch) -> None:
        for p, (operand, port) in enumerate(zip(launch.operands, launch.segment.inputs)):
            if isinstance(operand, Rows):
                self._make.copied(operand, port.dtype, launch.segment, "copied", position, p)
        self._make.end()
        self._make.other(position, launch)

    def _launch(self, launch: Launch, trained: Optional[Trained]) -> None:
        make, segment = self._make, launch.segment
        backward: Sequence[Loaded] = trained.loaded if trained else ()
        kept: FrozenSet[Slot] = frozenset().union(*(loaded.read for loaded in backward))
        spots: Dict[Slot, Spot] = {}
        for p, (operand, port) in enumerate(zip(launch.operands, segment.inputs)):
            slot = Slot("in", p)
            spots[slot] = make.operand(operand, port.dtype, SAVED if slot in kept else TEMPORARY)
        for k, region in enumerate(launch.outputs):
            assert region is not None
            spots[Slot("out", k)] = make.region(region)
        few = self._rows[segment.family] <= FEW
        forward = [self._loaded(part.segment, few) for part in launch.parts]
        self.launches[launch.number] = found = list(Alike.of(launch.parts, forward, backward))
        for alike in found:
            self._run(launch, alike, spots)
            if len(found) > 1:
                make.advance(spots, alike)

    def _loaded(self, segment: Segment, few: bool) -> Loaded:
        native = self._natives[segment]
        assert native is not None
        return native.loaded(native.kernels.forward, few) if few else native.forward

    def _run(self, launch: Launch, alike: Alike, begin: Dict[Slot, Spot]) -> None:
        make, spots, loaded = self._make, alike.spots, alike.forward[0]
        native = self._natives[launch.segment]
        assert native is not None
        spots.update(begin)
        spots.update(make.parameters("parameter", native))
        if alike.backward:
            read = alike.backward[0].read
            for slot, _ in loaded.works:
                if slot in read:
                    spots[slot] = make.reserve(SAVED, alike.starts(slot)[-1])
        self._pack(loaded, spots, SAVED if alike.backward else KEPT)
        make.launch(alike.parts, alike.forward, spots)
        if alike.backward:
            self._keep(launch, alike.backward[0], spots)

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
