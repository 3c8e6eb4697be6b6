"""Let convolutions add to their results, rectify and pass on results that are in the cache."""

from __future__ import annotations

from typing import AbstractSet, Dict, Iterator, List, Optional, Tuple

from .layout import OF_RESULT, Columns, Slot
from .step import (
    AS_IT_IS,
    RECTIFIED,
    RELU,
    Access,
    Convolved,
    Instruction,
    Kernel,
    Pointwise,
    SlotArray,
    Step,
)


def with_endings(kernel: Kernel, used: AbstractSet[Slot]) -> Kernel:
    """Return a forward kernel, of which others read the `used` slots, with fewer loops.

    Convolutions whose results only the next one reads say so.
    """
    steps: List[Step] = []
    for number, step in enumerate(kernel.steps):
        before = steps[-1] if steps else None
        if isinstance(before, Convolved) and isinstance(step, Pointwise):
            ended = _ended(before, step, kernel.arrays)
            readers = (*kernel.steps[: number - 1], *kernel.steps[number + 1 :])
            slot = before.result.slot
            if ended and not (slot in used or any(slot in _slots_of(s) for s in readers)):
                steps[-1] = ended
                continue
        steps.append(step)
    for number in range(len(steps) - 1):
        _pass_on(number, steps, used, kernel.arrays)
    return Kernel(tuple(steps), kernel.arrays)


def _pass_on(
    number: int, steps: List[Step], used: AbstractSet[Slot], arrays: Dict[Slot, SlotArray]
) -> None:
    """Let a convolution pass its result on, if it is whole and only the next one reads it."""
    step, after = steps[number : number + 2]
    if not (isinstance(step, Convolved) and isinstance(after, Convolved)):
        return
    slot = step.result.slot
    found = [n for n, each in enumerate(steps) for other in _slots_of(each) if other == slot]
    is_read_once = found == [number, number + 1] and after.left == step.result
    if is_read_once and slot not in used and step.added is None and _is_own(step, arrays):
        steps[number] = step._replace(passes_on=True)


def _is_own(step: Convolved, arrays: Dict[Slot, SlotArray]) -> bool:
    """Return whether a result is all of a work array."""
    slot = step.result.slot
    return slot.kind == "work" and arrays[slot].width == step.maps.width


def _slots_of(step: Step) -> Iterator[Slot]:
    """Yield the slots of rows that a step reads or writes."""
    members = step.loads + step.stores if isinstance(step, Pointwise) else (step,)
    for member in members:
        yield from (place.slot for place in member if isinstance(place, Columns))


def _ended(step: Convolved, loop: Pointwise, arrays: Dict[Slot, SlotArray]) -> Optional[Convolved]:
    """Return a convolution that does what the loop after it does, or None if it cannot."""

    def is_row(access: Access) -> bool:
        place = access.place
        if place is None or access.pattern != "row":
            return False
        array = arrays[place.slot]
        return array.dtype == step.dtype and not array.every and access.step in (0, width)

    width = step.maps.width
    if not _is_own(step, arrays) or step.maps.of != OF_RESULT:
        return None
    if (loop.width, loop.parts) != (width, 1):
        return None
    (stored, *others), zero = loop.stores, Access(0, None, "broadcast", 0.0)
    rows = [load for load in loop.loads if is_row(load)]
    zeros = [a.register for a in loop.loads if a._replace(register=0) == zero]
    own = [load.register for load in rows if load.place == step.result]
    added = [load for load in rows if load.place != step.result]
    if others or not is_row(stored) or len(own) != 1 or len(rows) + len(zeros) != len(loop.loads):
        return None
    if len(added) > 1 or len(zeros) > 1 or stored.place is None:
        return None
    found = _function(loop.instructions, own[0], [a.register for a in added], zeros)
    if found is None or found[1] != stored.register or step.dtype != loop.dtype:
        return None
    place = added[0].place if added else None
    return step._replace(result=stored.place, added=place, function=found[0])


def _function(
    instructions: Tuple[Instruction, ...], own: int, added: List[int], zeros: List[int]
) -> Optional[Tuple[int, int]]:
    """Return what instructions do with the sum of registers, and where they leave it, or None."""
    left = list(instructions)
    if added:
        if not left or left[0].name != "add" or {*left[0].arguments} != {own, *added}:
            return None
        own = left.pop(0).target
    names = tuple(i.name for i in left)
    if not names and added:
        return AS_IT_IS, own
    if names == ("relu",) and left[0].arguments == (own,):
        return RELU, left[0].target
    if names == ("greater", "select") and zeros:
        is_above, chosen = left[0], left[1].arguments
        if is_above.arguments == (own, *zeros) and chosen == (is_above.target, own, *zeros):
            return RECTIFIED, left[1].target
    return None
