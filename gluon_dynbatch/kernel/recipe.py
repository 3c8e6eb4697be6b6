"""What programs need to know of a kernel to run it: all that it works on, by number."""

from __future__ import annotations

from typing import FrozenSet, List, Optional

from ..native import executing
from .expression import Slot
from .step import Kernel

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
        #: Per input its type, and the memory for rows that are put together.
        self.inputs = [
            (array.dtype, SAVED if slot in read else TEMPORARY)
            for slot, array in arrays.items()
            if slot.kind == "in"
        ]
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
