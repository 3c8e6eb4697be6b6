"""Runs steps and records of programs on NumPy arrays, without MXNet."""

import numpy as np

from gluon_dynbatch.kernel.layout import Slot, Weight
from gluon_dynbatch.kernel.step import Kernel, SlotArray
from gluon_dynbatch.native import executing


class Code:
    """A program under construction, and the arrays that it uses."""

    def __init__(self):
        self.code = []
        self.arrays = []

    def base(self, array):
        self.arrays.append(array)
        return len(self.arrays) - 1

    def run(self, kernels=(), scratch=0):
        program = executing.Program(np.array(self.code, dtype=np.int64), kernels, scratch)
        addresses = [array.ctypes.data for array in self.arrays]
        program.run(np.array(addresses, dtype=np.uintp))


def pitch(array):
    """Return the distance between rows, in elements."""
    return array.strides[0] // array.itemsize


def launch(steps, arrays, rows, few=False, keys=(), equal=(executing.PICK, executing.REPEAT)):
    """Run steps on matrices, which have one row per member, and vectors, which all members share.

    `keys` are pairs of a table and row numbers in it, which identify rows of the first input.
    Then `equal` has the records that handle its equal rows, and those of the first result.
    """
    arrays = {slot: array for slot, array in arrays.items() if array is not None}
    shared = {slot: array.ndim == 1 for slot, array in arrays.items()}
    operands = {
        slot: SlotArray(len(array) if every else pitch(array), array.dtype.name, every)
        for (slot, array), every in zip(arrays.items(), shared.values())
    }
    native, program = Kernel(tuple(steps), operands).native(few), Code()
    places = []
    for slot in native.slots:
        if isinstance(slot, Weight):
            places += (pack(program, slot, arrays[slot.place.slot]), 0)
        else:
            places += (program.base(arrays[slot]), 0)
    if keys:
        pieces = [
            (table, program.base(numbers), 0, len(numbers), numbers.itemsize)
            for table, numbers in keys
        ]
        table = program.base(np.empty(2 + 2 * rows, np.int32))
        program.code += [executing.DISTINCT, table, 0, rows, len(keys), 2]
        program.code += np.ravel(pieces).tolist()
        for record, slot in zip(equal, (Slot("in", 0), Slot("out", 0))):
            array, index = arrays[slot], 2 * native.slots.index(slot)
            source = places[index]
            if slot.kind == "in":
                places[index] = program.base(np.empty_like(array))
            dtype = executing.DTYPES[array.dtype.name]
            program.code += [record, dtype, pitch(array), places[index], 0, source, 0, 0, 0]
    program.code += [executing.LAUNCH, 1, native.address, rows, *places]
    program.run([native])


def pack(program, weight, matrix):
    """Append a record that packs a matrix; return the base of the result."""
    dtype = executing.DTYPES[matrix.dtype.name]
    size, strides = (weight.rows, weight.columns), (weight.columns, 1)
    if weight.transposed:
        size, strides = size[::-1], strides[::-1]
    target = program.base(np.empty(executing.packed_bytes(dtype, *size), np.uint8))
    program.code += [executing.PACK, dtype, program.base(matrix), 0, *strides, *size, target, 0]
    return target


def add_up(record, total, gradients, rows, second=False, columns=0):
    """Run a record that adds sums over rows to `total`; rows may be matrices of `columns`."""
    program, dtype = Code(), executing.DTYPES[total.dtype.name]
    size = total.shape if total.ndim == 2 else (1, len(total))
    program.code += [record, dtype, *size, program.base(total), 0]
    program.code += [second + 2 * columns, len(gradients)]
    for dy, x in zip(gradients, rows):
        program.code += [len(dy), -1, 0, program.base(dy), 0, pitch(dy)]
        program.code += [program.base(x), 0, pitch(x)]
    program.run(scratch=executing.sum_scratch(dtype, *size, len(gradients)))
