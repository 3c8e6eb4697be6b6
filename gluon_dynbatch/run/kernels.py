"""Kernels as native code runs them: slots and registers by number."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from ..kernel.expression import Slot, Weight
from ..kernel.kernels import SegmentKernels, Wanted, kernels_of
from ..kernel.step import Access, Dots, Kernel, Place, Pointwise, Product
from ..lower.segment import Segment
from ..native import executing, pointwise

#: Native code computes with the first two, and reads all.
DTYPES = {"float32": 0, "float64": 1, "int32": 2, "int64": 3}
_HOW = {"row": 0, "spread": 1, "total": 2, "top": 3}


class Packed(NamedTuple):
    """A matrix, packed for products with it or with its transpose."""

    weight: Weight
    transposed: bool
    dtype: str


class Loaded(NamedTuple):
    """A kernel in native code, and what its slots are."""

    kernel: Any
    slots: Tuple[Union[Slot, Packed], ...]
    packs: Tuple[Packed, ...]
    #: What steps leave for others, with the bytes of a row.
    works: Tuple[Tuple[Slot, int], ...]
    #: What all rows share, but for matrices.
    every: Tuple[Slot, ...]
    #: What sums over rows read as gradients.
    summed: FrozenSet[Slot]


class Native:
    """What runs a segment natively, forward and backward."""

    def __init__(self, kernels: SegmentKernels):
        self.kernels = kernels
        self._loaded: Dict[int, Loaded] = {}
        self.forward = self.loaded(kernels.forward)

    def loaded(self, kernel: Kernel) -> Loaded:
        """Return a kernel of the segment in native code."""
        found = self._loaded.get(id(kernel))
        if found is None:
            found = self._loaded[id(kernel)] = _Loader(kernel).loaded()
        return found

    def backward(self, wanted: Wanted) -> Kernel:
        """Return the kernel that goes backward."""
        return self.kernels.backward(wanted)


def native(segment: Segment) -> Optional[Native]:
    """Return the kernels of a segment; None if MXNet's operators have to run it."""
    found = kernels_of(segment)
    return None if isinstance(found, str) else Native(found)


class _Loader:
    def __init__(self, kernel: Kernel):
        self._kernel = kernel
        self._numbers: Dict[Union[Slot, Packed], int] = {}

    def loaded(self) -> Loaded:
        ways = {Product: self._product, Dots: self._dots, Pointwise: self._pointwise}
        steps: List[Any] = [ways[type(step)](step) for step in self._kernel.steps]
        slots, widths = [], []
        for slot in self._numbers:
            if isinstance(slot, Packed):
                slots.append((0, DTYPES[slot.dtype]))
                widths.append(0)
            else:
                array = self._kernel.arrays[slot]
                slots.append((0 if array.every else array.width, DTYPES[array.dtype]))
                widths.append(array.width if slot.kind == "work" else 0)
        kernel, own = self._kernel, [s for s in self._numbers if isinstance(s, Slot)]
        return Loaded(
            executing.Kernel(slots, widths, steps),
            tuple(self._numbers),
            tuple(s for s in self._numbers if isinstance(s, Packed)),
            tuple(
                (slot, array.width * np.dtype(array.dtype).itemsize)
                for slot, array in kernel.arrays.items()
                if slot.kind == "work"
            ),
            tuple(slot for slot in own if kernel.arrays[slot].every),
            frozenset(found.gradient.slot for found in (*kernel.matrices, *kernel.every)),
        )

    def _number(self, slot: Union[Slot, Packed]) -> int:
        return self._numbers.setdefault(slot, len(self._numbers))

    def _product(self, step: Product) -> Tuple[Any, ...]:
        weight = step.weight
        matrix: Union[Slot, Packed] = weight.slot
        if not weight.chosen:
            matrix = Packed(weight._replace(transposed=False), weight.transposed, step.dtype)
        return (
            "product",
            DTYPES[step.dtype],
            self._number(step.rows.slot),
            step.rows.column,
            self._number(matrix),
            weight.rows if weight.chosen else 0,
            weight.inputs,
            weight.units,
            self._number(step.result.slot),
            step.result.column,
            -1 if step.bias is None else self._number(step.bias),
            int(step.adds),
            step.parts,
        )

    def _dots(self, step: Dots) -> Tuple[Any, ...]:
        places = step.left, step.right, step.result
        numbers = [n for place in places for n in (self._number(place.slot), place.column)]
        count, m, k, n, (left, right), gradient = step.how
        return ("dots", DTYPES[step.dtype], *numbers, count, m, k, n, left, right, gradient)

    def _access(self, access: Access) -> Tuple[int, int, int, int]:
        place: Place = access.place
        return access.register, self._number(place.slot), place.column, _HOW[access.how]

    def _pointwise(self, step: Any) -> Tuple[Any, ...]:
        instructions = []
        for name, target, arguments, values in step.instructions:
            a, b, c = (*arguments, 0, 0, 0)[:3]
            value, value2 = (*values, 0.0, 0.0)[:2]
            instructions.append((pointwise.CODES[name][0], target, a, b, c, value, value2))
        return (
            "pointwise",
            DTYPES[step.dtype],
            step.width,
            step.registers,
            [self._access(load) for load in step.loads],
            instructions,
            [self._access(store) for store in step.stores],
        )
