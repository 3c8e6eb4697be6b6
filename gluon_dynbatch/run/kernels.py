"""Kernels as native code runs them: slots and registers by number."""

from __future__ import annotations

from functools import lru_cache
from itertools import starmap
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from ..kernel.express import dtype_of, shape_of
from ..kernel.expression import Slot, Weight
from ..kernel.kernels import SegmentKernels, Wanted, kernels_of
from ..kernel.step import (
    Access,
    Array,
    Dots,
    Kernel,
    MatrixSum,
    Place,
    Pointwise,
    Product,
    RowSum,
)
from ..lower.segment import ParameterRows, Segment
from ..native import executing, launching, pointwise

#: Native code computes with the first two, and reads all.
DTYPES = {"float32": 0, "float64": 1, "int32": 2, "int64": 3}
_HOW = {"row": 0, "spread": 1, "total": 2, "top": 3}


@lru_cache(maxsize=None)
def itemsize(dtype: str) -> int:
    """Return the bytes of a number."""
    return int(np.dtype(dtype).itemsize)


class Packed(NamedTuple):
    """A matrix, packed for products with it or with its transpose."""

    weight: Weight
    transposed: bool
    dtype: str


class Sum(NamedTuple):
    """What adds up over rows to a gradient, as records of programs have it."""

    #: Of what it is the gradient.
    slot: Slot
    #: Record, type, rows and columns of the gradient.
    head: Tuple[int, int, int, int]
    #: Elements from row to row of the gradient, and whether what is read second is a gradient; of
    #: rows that are chosen, the type of their places.
    tail: Tuple[int, int]
    #: How many rows one row of a launch has.
    parts: int
    #: Two arrays: slot, first byte, elements from row to row.
    read: Tuple[Tuple[Slot, int, int], ...]


class Loaded(NamedTuple):
    """A kernel in native code, and what its slots are."""

    kernel: Any
    arrays: Dict[Slot, Array]
    slots: Tuple[Union[Slot, Packed], ...]
    packs: Tuple[Packed, ...]
    #: What steps leave for others, with the bytes of a row.
    works: Tuple[Tuple[Slot, int], ...]
    #: What all rows share, but for matrices.
    every: Tuple[Slot, ...]
    #: What steps and sums read, and what adds up over rows, with what it reads as gradients.
    read: FrozenSet[Slot]
    sums: Tuple[Sum, ...]
    summed: FrozenSet[Slot]


class Trainable(NamedTuple):
    """A parameter of a segment, or rows of one: from which byte on, and bytes of the whole."""

    slot: Slot
    parameter: Any
    offset: int
    bytes: int


class Native:
    """What runs a segment natively, forward and backward."""

    def __init__(self, kernels: SegmentKernels, segment: Segment):
        self.kernels = kernels
        self.context = segment.context
        self.parameters = tuple(starmap(_trainable, enumerate(segment.parameters)))
        self.forward = self.loaded(kernels.forward)

    def loaded(self, kernel: Kernel, few: bool = False) -> Loaded:
        """Return a kernel of the segment in native code, perhaps one for few rows."""
        known: Dict[Tuple[int, bool], Loaded] = self.kernels.loaded
        if (id(kernel), few) not in known:
            known[id(kernel), few] = _Loader(kernel, few).loaded()
        return known[id(kernel), few]

    def backward(self, wanted: Wanted) -> Loaded:
        """Return the kernel that goes backward."""
        return self.loaded(self.kernels.backward(wanted))


def native(segment: Segment) -> Optional[Native]:
    """Return the kernels of a segment; None if MXNet's operators have to run it."""
    found = kernels_of(segment)
    return None if isinstance(found, str) else Native(found, segment)


def _trainable(number: int, parameter: Any) -> Trainable:
    first, slot = 0, Slot("param", number)
    if isinstance(parameter, ParameterRows):
        first, parameter = parameter.start, parameter.parameter
    shape = shape_of(parameter)
    row = itemsize(dtype_of(parameter)) * int(np.prod(shape[1:]))
    return Trainable(slot, parameter, first * row, shape[0] * row)


class _Loader:
    def __init__(self, kernel: Kernel, few: bool):
        self._kernel, self._few = kernel, few
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
            launching.Kernel(slots, widths, steps),
            kernel.arrays,
            tuple(self._numbers),
            tuple(s for s in self._numbers if isinstance(s, Packed)),
            tuple(
                (slot, array.width * itemsize(array.dtype))
                for slot, array in kernel.arrays.items()
                if slot.kind == "work"
            ),
            tuple(slot for slot in own if kernel.arrays[slot].every),
            kernel.read,
            (*map(self._matrix, kernel.matrices), *map(self._row, kernel.every)),
            frozenset(found.gradient.slot for found in (*kernel.matrices, *kernel.every)),
        )

    def _rows(self, place: Place, parts: int, width: int) -> Tuple[Slot, int, int]:
        own = self._kernel.arrays[place.slot]
        return place.slot, place.column * itemsize(own.dtype), width if parts > 1 else own.width

    def _matrix(self, found: MatrixSum) -> Sum:
        weight, parts = found.weight, found.parts
        read = (
            self._rows(found.gradient, parts, weight.units),
            self._rows(found.rows, parts, weight.inputs),
        )
        kind = DTYPES[self._kernel.arrays[found.gradient.slot].dtype]
        if weight.chosen:
            head = executing.CHOSEN, kind, weight.rows, weight.columns
            tail = weight.columns, DTYPES[self._kernel.arrays[found.rows.slot].dtype]
            return Sum(weight.slot, head, tail, parts, read)
        head = executing.MATRIX, kind, weight.rows, weight.columns
        flipped = not weight.transposed
        tail = weight.columns, int(flipped)
        return Sum(weight.slot, head, tail, parts, read[::-1] if flipped else read)

    def _row(self, found: RowSum) -> Sum:
        width = self._kernel.arrays[found.slot].width
        kind = DTYPES[self._kernel.arrays[found.gradient.slot].dtype]
        # No rows: all that is added is the gradient.
        read = self._rows(found.gradient, found.parts, width), (found.gradient.slot, 0, 0)
        head = executing.ROW, kind, width, 1
        return Sum(found.slot, head, (width, 0), found.parts, read)

    def _number(self, slot: Union[Slot, Packed]) -> int:
        return self._numbers.setdefault(slot, len(self._numbers))

    def _product(self, step: Product) -> Tuple[Any, ...]:
        weight = step.weight
        unpacked = self._few and weight.transposed
        matrix: Union[Slot, Packed] = weight.slot
        if not (weight.chosen or unpacked):
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
            int(unpacked),
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
