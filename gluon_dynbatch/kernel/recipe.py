"""What programs need to know of a kernel to run it: all that it works on, by number."""

from __future__ import annotations

from typing import FrozenSet, List, Optional

from ..native import executing
from .layout import Place, Slot
from .step import Kernel, Product

#: Operations of products for each byte that is copied, from which on rows are worth comparing.
WORTH = 16
#: Memory of one flush, by use: of a launch, of the pass, of both passes.
TEMPORARY, KEPT, SAVED = "temporary", "kept", "saved"


class Recipe:
    """Numbers of the arrays of a kernel, and of the matrices that are packed for it.

    Parameters
    ----------
    forward : Kernel
        What is run.
    backward : Kernel, optional
        What runs it backward, if anything does.
    few : bool
        Whether there are so few rows that matrices are not packed.
    """

    def __init__(self, forward: Kernel, backward: Optional[Kernel], few: bool):
        self.forward, self.backward = forward, backward
        natives: List[executing.Kernel] = [forward.native(few)]
        packs = dict.fromkeys(natives[0].packs, KEPT if backward is None else SAVED)
        read: FrozenSet[Slot] = frozenset()
        if backward is not None:
            natives.append(backward.native())
            packs.update(dict.fromkeys(natives[1].packs, SAVED))
            read = backward.read
        last = backward or forward
        arrays = last.arrays
        # Works come last: the parts of a launch may differ in them.
        slots = sorted(arrays, key=lambda slot: slot.kind == "work")
        self.numbers = {key: number for number, key in enumerate((*slots, *packs))}
        #: Bytes that each row adds to an array.
        self.bytes = [*(last.row_bytes[slot] for slot in slots), *[0] * len(packs)]
        #: Forward and backward: native code, and the numbers of what it works on.
        self.natives = [(one, [self.numbers[slot] for slot in one.slots]) for one in natives]
        #: Whether rows of a table, chosen by the first input, are all there is.
        self.chooses = _chooses(forward)
        #: Per input its type, and the memory for rows that are put together.
        self.inputs = [
            (array.dtype, SAVED if slot in read else KEPT if self.chooses else TEMPORARY)
            for slot, array in arrays.items()
            if slot.kind == "in"
        ]
        #: The only input that differs from row to row, if it is worth finding rows that are equal.
        self.single = _find_single(forward, natives[0])
        self.parameters = [slot for slot in arrays if slot.kind == "param"]
        self.outputs = [self.numbers[slot] for slot in forward.arrays if slot.kind == "out"]
        #: What steps leave for the backward pass.
        self.saved = [self.numbers[slot] for slot in forward.works if slot in read]
        #: Matrices of parameters that are packed, and operands that are; with the memory for that.
        self.packs = [pair for pair in packs.items() if pair[0].weight.place.slot.kind == "param"]
        self.operand_packs = [pair for pair in packs.items() if pair not in self.packs]
        #: What all rows share and the backward pass reads as it is.
        self.copied = [
            slot
            for one in natives[1:]
            for slot in one.slots
            if isinstance(slot, Slot) and arrays[slot].every
        ]


def _find_single(kernel: Kernel, native: executing.Kernel) -> Optional[int]:
    inputs = [
        slot for slot, array in kernel.arrays.items() if slot.kind == "in" and not array.every
    ]
    copied = sum(kernel.row_bytes.values())
    if len(inputs) != 1 or inputs[0] not in native.slots or native.work < WORTH * copied:
        return None
    return inputs[0].number


def _chooses(kernel: Kernel) -> bool:
    step, given, made = kernel.steps[0], Slot("in", 0), Slot("out", 0)
    return (
        len(kernel.steps) == 1
        and isinstance(step, Product)
        and step.weight.chosen
        and step.weight.place.slot.kind == "param"
        and (step.left, step.result, step.parts) == (Place(given), Place(made), 1)
        and not step.adds
        and (kernel.arrays[given].width, kernel.arrays[given].every) == (1, False)
        and kernel.arrays[made].width == step.weight.columns
    )
