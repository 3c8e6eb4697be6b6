"""Runs steps and records of programs on arrays of NumPy's, without MXNet."""

import numpy as np

from gluon_dynbatch.kernel.layout import Slot, Weight
from gluon_dynbatch.kernel.step import Array, Kernel
from gluon_dynbatch.native import executing


class Code:
    """A program in the making, and the arrays that it works on."""

    def __init__(self):
        self.code = []
        self._arrays = []

    def base(self, array):
        self._arrays.append(array)
        return len(self._arrays) - 1

    def run(self, kernels=(), scratch=0):
        program = executing.Program(np.array(self.code, dtype=np.int64), kernels, scratch)
        addresses = [array.ctypes.data for array in self._arrays]
        program.run(np.array(addresses, dtype=np.uintp))


def pitch(array):
    """Return how many elements rows are apart."""
    return array.strides[0] // array.itemsize


def launch(steps, arrays, rows, few=False, keys=(), equal=(executing.PICK, executing.REPEAT)):
    """Run steps on matrices, of which each row has its own, and vectors, which all rows share.

    Keys tell rows of the first input apart: tables and numbers.  Then `equal` says what is done
    with equal rows of it, and of the first result.
    """
    arrays = {slot: array for slot, array in arrays.items() if array is not None}
    every = {slot: array.ndim == 1 for slot, array in arrays.items()}
    described = {
        slot: Array(len(array) if every[slot] else pitch(array), array.dtype.name, every[slot])
        for slot, array in arrays.items()
    }
    native, made = Kernel(tuple(steps), described).native(few), Code()
    places = []
    for slot in native.slots:
        if isinstance(slot, Weight):
            places += (pack(made, slot, arrays[slot.place.slot]), 0)
        else:
            places += (made.base(arrays[slot]), 0)
    if keys:
        pieces = [
            (table, made.base(numbers), 0, len(numbers), numbers.itemsize)
            for table, numbers in keys
        ]
        kept = made.base(np.empty(2 + 2 * rows, np.int32))
        made.code += [executing.DISTINCT, kept, 0, rows, len(keys), 2, *np.ravel(pieces).tolist()]
        for what, slot in zip(equal, (Slot("in", 0), Slot("out", 0))):
            array, place = arrays[slot], 2 * native.slots.index(slot)
            source = places[place]
            if slot.kind == "in":
                places[place] = made.base(np.empty_like(array))
            kind = executing.DTYPES[array.dtype.name]
            made.code += [what, kind, pitch(array), places[place], 0, source, 0]
    made.code += [executing.LAUNCH, 1, native.address, rows, *places]
    made.run([native])


def pack(made, weight, matrix):
    """Add the packing of a matrix; return where it is."""
    kind = executing.DTYPES[matrix.dtype.name]
    size, strides = (weight.rows, weight.columns), (weight.columns, 1)
    if weight.transposed:
        size, strides = size[::-1], strides[::-1]
    target = made.base(np.empty(executing.packed_bytes(kind, *size), np.uint8))
    made.code += [executing.PACK, kind, made.base(matrix), 0, *strides, *size, target, 0]
    return target


def add_up(record, total, gradients, rows, second=False, columns=0):
    """Add up sums; of matrices in rows, their columns are multiplied."""
    made, kind = Code(), executing.DTYPES[total.dtype.name]
    size = total.shape if total.ndim == 2 else (1, len(total))
    made.code += [record, kind, *size, made.base(total), 0]
    made.code += [second + 2 * columns, len(gradients)]
    for dy, x in zip(gradients, rows):
        made.code += [len(dy), -1, 0, made.base(dy), 0, pitch(dy), made.base(x), 0, pitch(x)]
    made.run(scratch=executing.sum_scratch(kind, *size, len(gradients)))
