"""Runs steps and records of programs on NumPy arrays, without MXNet."""

import numpy as np

from gluon_dynbatch.kernel.layout import Slot, Weight
from gluon_dynbatch.kernel.step import PACKED, Kernel, SlotArray
from gluon_dynbatch.native import executing


class Code:
    """A program under construction, and the arrays that it uses."""

    def __init__(self):
        self.code = []
        self.arrays = []

    def base(self, array):
        self.arrays.append(array)
        return len(self.arrays) - 1

    def add(self, struct, **members):
        """Append a struct of records.h, by the names of its members; others are zero."""
        layout = executing.LAYOUTS[struct]
        words = [0] * max(offset + size for offset, size in layout.values())
        for name, value in members.items():
            first, size = layout[name]
            words[first : first + size] = value if size > 1 else [value]
        self.code += map(int, words)

    def add_chunk(self, left, left_pitch, right, right_pitch, rows):
        """Append rows to add up, none of which are equal."""
        self.add("sum_chunk", rows=rows, numbering=(-1, 0), left=left, left_pitch=left_pitch,
                 right=right, right_pitch=right_pitch)  # fmt: skip

    def add_launch(self, kernel, rows, places):
        """Append a LAUNCH of one part, with a base and an offset for each slot in a flat list."""
        self.add("launch_record", record=executing.LAUNCH, count=1)
        self.code += [kernel.address, rows, *places]

    def run(self, kernels=(), scratch=0):
        program = executing.Program(np.array(self.code, dtype=np.int64), kernels, scratch)
        addresses = [array.ctypes.data for array in self.arrays]
        program.run(np.array(addresses, dtype=np.uintp))


def pitch(array):
    """Return the distance between rows, in elements."""
    return array.strides[0] // array.itemsize


def launch(steps, arrays, rows, matrices=PACKED, keys=(), equal=(executing.PICK, executing.REPEAT)):
    """Run steps on matrices, which have one row per member, and vectors, which all members share.

    `matrices` are as for `Kernel.native`.  `keys` are pairs of a table and row numbers in it, which
    identify rows of the first input.  Then `equal` has the records that handle its equal rows, and
    those of the first result.
    """
    arrays = {slot: array for slot, array in arrays.items() if array is not None}
    shared = {slot: array.ndim == 1 for slot, array in arrays.items()}
    operands = {
        slot: SlotArray(len(array) if every else pitch(array), array.dtype.name, every)
        for (slot, array), every in zip(arrays.items(), shared.values())
    }
    native, program = Kernel(tuple(steps), operands).native(matrices), Code()
    places = []
    for slot in native.slots:
        if isinstance(slot, Weight):
            places += (pack(program, slot, arrays[slot.place.slot]), 0)
        else:
            places += (program.base(arrays[slot]), 0)
    if keys:
        kept = program.base(np.empty(2 + 2 * rows, np.int32)), 0
        program.add("distinct_record", record=executing.DISTINCT, numbering=kept, rows=rows,
                    keys=len(keys), moved=2)  # fmt: skip
        for table, numbers in keys:
            program.add("key", table=table, numbers=(program.base(numbers), 0), rows=len(numbers),
                        size=numbers.itemsize)  # fmt: skip
        for record, slot in zip(equal, (Slot("in", 0), Slot("out", 0))):
            array, index = arrays[slot], 2 * native.slots.index(slot)
            source = places[index]
            if slot.kind == "in":
                places[index] = program.base(np.empty_like(array))
            dtype = executing.DTYPES[array.dtype.name]
            program.add("moved", operation=record, dtype=dtype, width=pitch(array),
                        target=(places[index], 0), source=(source, 0))  # fmt: skip
    program.add_launch(native, rows, places)
    program.run([native])


def pack(program, weight, matrix):
    """Append a record that packs a matrix; return the base of the result."""
    dtype = executing.DTYPES[matrix.dtype.name]
    size, strides = (weight.rows, weight.columns), (weight.columns, 1)
    if weight.transposed:
        size, strides = size[::-1], strides[::-1]
    target = program.base(np.empty(executing.packed_bytes(dtype, *size), np.uint8))
    program.add("pack_record", record=executing.PACK, dtype=dtype, source=(program.base(matrix), 0),
                row_stride=strides[0], column_stride=strides[1], rows=size[0], columns=size[1],
                target=(target, 0))  # fmt: skip
    return target


def add_up(record, total, gradients, rows, second=False, columns=0):
    """Run a record that adds sums over rows to `total`; rows may be matrices of `columns`."""
    program, dtype = Code(), executing.DTYPES[total.dtype.name]
    size = total.shape if total.ndim == 2 else (1, len(total))
    program.add("sum_record", record=record, dtype=dtype, rows=size[0], columns=size[1],
                target=(program.base(total), 0), option=second + 2 * columns,
                count=len(gradients))  # fmt: skip
    for dy, x in zip(gradients, rows):
        program.add_chunk((program.base(dy), 0), pitch(dy), (program.base(x), 0), pitch(x), len(dy))
    program.run(scratch=executing.sum_scratch(dtype, *size, len(gradients)))
