"""The program of a transposed plan."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, Iterable, List, Optional

from ..kernel.expression import Slot
from ..lower.segment import Segment
from ..native import executing
from ..plan.plan import Launch, Plan, Rows, Whole
from .assemble import KEPT, TEMPORARY, Alike, Assembled, Assembler, Spot, Trained
from .assemble_forward import Forward
from .kernels import Native, itemsize


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
        natives: Dict[Segment, Optional[Native]],
        trained: Dict[int, Trained],
        forward: Forward,
    ):
        self._plan, self._natives, self._trained = plan, natives, trained
        self._forward_plan, self._forward = forward_plan, forward
        # Both programs number arrays alike, so that places of the one are places of the other.
        self._make = Assembler(plan, "gradient arena", forward.bases)
        self._sums: Dict[Any, List[int]] = {}
        #: Bytes of the gradients that add up, by base.
        self._zeros: Dict[int, int] = {}

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
        self._add_up(self._sums)
        make.end()
        zeros = ((executing.ZERO, base, 0, count) for base, count in self._zeros.items())
        return make.assembled([number for record in zeros for number in record])

    def _other(self, position: int, launch: Launch) -> None:
        for k, (operand, port) in enumerate(zip(launch.operands, launch.segment.outputs)):
            if isinstance(operand, Rows):
                self._make.copied(operand, port.dtype, launch.segment, "gathered", position, k)
        self._make.end()
        self._make.other(position, launch)

    def _launch(self, launch: Launch) -> None:
        make, trained = self._make, self._trained[launch.number]
        summed: FrozenSet[Slot] = frozenset().union(*(loaded.summed for loaded in trained.loaded))
        spots: Dict[Slot, Spot] = {}
        for k, (operand, port) in enumerate(zip(launch.operands, launch.segment.outputs)):
            slot = Slot("head", k)
            if operand is not None:
                use = KEPT if slot in summed else TEMPORARY
                spots[slot] = make.operand(operand, port.dtype, use)
        for p, region in enumerate(launch.outputs):
            if region is not None:
                spots[Slot("grad", p)] = make.region(region)
        targets = self._targets(launch)
        launches = self._forward.launches[launch.number]
        for alike in launches:
            alike.spots.update(spots)
            self._run(alike, targets)
            if len(launches) > 1:
                make.advance(spots, alike)
        self._add_up_shared(launch)

    def _run(self, alike: Alike, targets: Dict[Slot, Spot]) -> None:
        make, spots, first = self._make, alike.spots, alike.backward[0]
        for slot, _ in first.works:
            if slot in first.summed and slot not in spots:
                spots[slot] = make.reserve(KEPT, alike.starts(slot)[-1])
        make.launch(alike.parts, alike.backward, spots)
        starts = {slot: alike.starts(slot) for found in first.sums for slot, _, _ in found.read}
        for number, (part, loaded) in enumerate(zip(alike.parts, alike.backward)):
            for found in loaded.sums:
                chunk = [part.rows * found.parts]
                for slot, column, pitch in found.read:
                    base, offset = spots[slot]
                    chunk += (base, offset + starts[slot][number] + column, pitch)
                key = (found.head, targets[found.slot], found.tail)
                self._sums.setdefault(key, []).extend(chunk)

    def _targets(self, launch: Launch) -> Dict[Slot, Spot]:
        """Return where gradients add up; all that is trained gets one, also if none flows there."""
        make, native = self._make, self._natives[launch.segment]
        wanted, found = self._trained[launch.number].wanted, {}
        assert native is not None
        if wanted.parameters:
            found.update(make.parameters("gradient", native))
            for p in native.parameters:
                self._zeros[found[p.slot][0]] = p.bytes
        for p in wanted.inputs:
            region = launch.outputs[p]
            operand = self._forward_plan.launches[launch.number].operands[p]
            if region is not None:
                found[Slot("in", p)] = make.region(region)
            elif isinstance(operand, Whole):
                base = make.base("external gradient", operand.external)
                port = launch.segment.inputs[p]
                self._zeros[base] = port.row_size * itemsize(port.dtype)
                found[Slot("in", p)] = base, 0
        return found

    def _add_up(self, sums: Iterable[Any]) -> None:
        make = self._make
        for key in sums:
            (head, target, tail), chunks = key, self._sums[key]
            count = len(chunks) // 7
            make.add(*head, *target, *tail, count)
            make.code.extend(chunks)
            make.scratch = max(make.scratch, executing.sum_scratch(*head[1:], count))

    def _add_up_shared(self, launch: Launch) -> None:
        """Add up the gradients of operands that all rows share: launches to come read them."""
        make = self._make
        for p, region in enumerate(launch.outputs):
            if region is not None and launch.segment.inputs[p].shared:
                spot, arena = make.region(region), self._plan.arenas[region.arena]
                make.add(
                    executing.ZERO, *spot, region.rows * arena.row_size * itemsize(arena.dtype)
                )
                own = [key for key in self._sums if key[1] == spot]
                self._add_up(own)
                for key in own:
                    del self._sums[key]
