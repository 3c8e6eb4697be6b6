"""Arenas in memory: filled with arrays from outside, read in place, and copied out of."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, NDArrayHandle, OpHandle, c_str, c_str_array, check_call
from mxnet.ndarray import NDArray

from ..errors import LaunchError
from ..native import executing, recording, resolving
from ..plan.plan import Arena, Fill, Plan, Region, Rows, Slice
from .assemble import Fills, copies, itemsize

#: Addresses of functions of MXNet.
PUSH, DETACH, FREE, GET_DATA, WAIT = (
    ctypes.cast(getattr(_LIB, name), ctypes.c_void_p).value
    for name in (
        *("MXEnginePushSyncND", "MXNDArrayDetach", "MXNDArrayFree"),
        *("MXNDArrayGetData", "MXNDArrayWaitToRead"),
    )
)
executing.connect(PUSH, DETACH, FREE, GET_DATA)

#: Taking out this many arrays of one shape pays for splitting one array.
MANY = 8
#: Outputs of one split.
SPLIT = 512


def allocate(shape: Tuple[int, ...], dtype: str, context: mx.Context) -> NDArray:
    """Return memory, or say what needs how much."""
    try:
        return mx.nd.empty(shape, ctx=context, dtype=dtype)
    except Exception as error:  # MXNet raises just this for arrays beyond 2^31 elements
        raise LaunchError(
            f"no memory for an array of shape {shape} and type {dtype} on {context}: {error}",
            advice="record less in one scope, for instance smaller minibatches",
        ) from error


def address_of(array: NDArray) -> int:
    """Return where the elements of an array are that has its memory."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0


class Buffers:
    """Arenas in memory, and how to read rows out of them.

    Parameters
    ----------
    arenas : sequence of Arena
        What each buffer holds.
    sizes : sequence of int
        Rows of each.
    """

    def __init__(self, arenas: Sequence[Arena], sizes: Sequence[int]):
        self.arrays = [
            allocate((rows, arena.row_size), arena.dtype, arena.context)
            for arena, rows in zip(arenas, sizes)
        ]
        self._row_sizes = [arena.row_size for arena in arenas]
        self._views: Dict[Tuple[int, int], NDArray] = {}

    def _view(self, arena: int, row_size: int) -> NDArray:
        """Return the arena with rows of another length; a last, incomplete row is left out."""
        array = self.arrays[arena]
        if row_size == self._row_sizes[arena]:
            return array
        found = self._views.get((arena, row_size))
        if found is None:
            rows = array.size // row_size
            found = array.reshape((-1,))._slice(0, rows * row_size).reshape((rows, row_size))
            self._views[arena, row_size] = found
        return found

    def region(self, region: Region) -> NDArray:
        """Return the rows of `region`, in place."""
        return part(self.arrays[region.arena], region.start, region.start + region.rows)

    def fill(
        self,
        plan: Plan,
        fills: Fills,
        arrays: Union[Sequence[NDArray], Dict[int, NDArray]],
        wait: bool,
    ) -> None:
        """Copy those of some arrays that fills name side by side.

        Arrays that are not waited for must not be in a layout of oneDNN's own once they are
        computed.
        """
        if fills.externals:
            addresses, read = recording.places(
                arrays, fills.externals, GET_DATA, WAIT if wait else 0
            )
            bases = [0, *map(address_of, self.arrays)]
            late = [] if wait else list(enumerate(read, len(bases)))
            written = [self.arrays[number].handle.value for number in fills.arenas]
            _push_fill(fills.program, [*bases, *addresses], read, written, late)
        for fill in plan.fills:
            region = self.region(fill.region)
            if region.context.device_type != "cpu":
                flat = (arrays[number].reshape((-1,)) for number in fill.externals)
                mx.nd.concat(*flat, dim=0, out=region.reshape((-1,)))

    def add_up(self, fill: Fill, pieces: List[List[Any]]) -> None:
        """Let what a fill names be sums of parts of arrays: those of each `Piece`."""
        starts = np.cumsum(fill.counts) - fill.counts
        flat = self.region(fill.region).reshape((-1,))
        kind = np.dtype(flat.dtype).name
        parts = [(at, piece) for at, own in zip(starts.tolist(), pieces) for piece in own]
        if flat.context.device_type != "cpu" or kind not in executing.DTYPES:
            zero(flat)
            for start, (_, offset, array, first, count) in parts:
                to = start + offset
                add_to(part(flat, to, to + count), part(array.reshape((-1,)), first, first + count))
            return
        code = copies(kind, 1 + len(parts), (1, 0)) + [resolving.ZERO, 0, 0, 0, flat.size]
        for number, (start, (_, offset, _, first, count)) in enumerate(parts, 2):
            code += [resolving.ADD, start + offset, number, first * itemsize(kind), count]
        arrays = [piece.array for _, piece in parts]
        _push_fill(
            executing.Program(np.array(code, dtype=np.int64)),
            [0, address_of(flat), *(0 for _ in arrays)],
            [array.handle.value for array in arrays],
            [flat.handle.value],
            [(number, array.handle.value) for number, array in enumerate(arrays, 2)],
        )

    def elements(self, arena: int, element: int, shape: Tuple[int, ...]) -> NDArray:
        """Return elements from `element` on, in place, as an array of `shape`."""
        count = int(np.prod(shape))
        return part(self._view(arena, 1).reshape((-1,)), element, element + count).reshape(shape)

    def rows(self, arena: int, elements: np.ndarray, row_size: int) -> NDArray:
        """Return a copy of the rows of `row_size` elements that start at `elements`."""
        grain = int(np.gcd.reduce(np.append(elements, (row_size, self._row_sizes[arena]))))
        index = (elements[:, None] + np.arange(0, row_size, grain)).reshape(-1) // grain
        source = self._view(arena, grain)
        taken = mx.nd.take(source, upload(index.astype(np.int32), source.context))
        return taken.reshape((len(elements), row_size))

    def operand(self, operand: Slice) -> NDArray:
        """Return an operand that is read in place."""
        arena, element, rows, row_size = operand
        if element % row_size:
            return self.elements(arena, element, (rows, row_size))
        start = element // row_size
        return part(self._view(arena, row_size), start, start + rows)

    def together(self, operand: Rows, pieces: np.ndarray, target: NDArray) -> None:
        """Put the rows of an operand together by MXNet's operators."""
        flat = target.reshape((-1,))
        for what, start, arena, element, count in pieces.tolist():
            own = part(flat, start, start + count)
            if what == resolving.ZERO:
                zero(own)
            elif what == resolving.ADD:
                add_to(own, self.elements(arena, element, (count,)))
            else:
                self.elements(arena, element, (count,)).copyto(own)


def _push_fill(
    program: executing.Program,
    bases: List[int],
    read: Sequence[int],
    written: List[int],
    late: List[Tuple[int, int]],
) -> None:
    given = words(bases, read, written, late)
    check_call(program.push(*given, b"gluon_dynbatch fill"))


def words(
    bases: List[int], read: Sequence[int], written: List[int], late: List[Tuple[int, int]]
) -> List[np.ndarray]:
    """Return what a push takes, as arrays."""
    given = [np.array(numbers, dtype=np.uintp) for numbers in (bases, read, written)]
    return [*given, np.array(late, dtype=np.uintp).reshape((-1, 2))]


def part(array: NDArray, start: int, stop: int) -> NDArray:
    """Return rows of an array in place: ``array[start:stop]`` without what makes that slow."""
    handle = NDArrayHandle()
    check_call(
        _LIB.MXNDArraySlice(
            array.handle, ctypes.c_uint32(start), ctypes.c_uint32(stop), ctypes.byref(handle)
        )
    )
    return NDArray(handle)


_ADD_N = OpHandle()
check_call(_LIB.NNGetOpHandle(c_str("add_n"), ctypes.byref(_ADD_N)))
_TWO = (ctypes.c_int(1), c_str_array(["num_args"]), c_str_array(["2"]))


def add_to(total: NDArray, array: NDArray) -> None:
    """Add in place: ``add_n(total, array, out=total)`` without what makes that slow."""
    outputs = ctypes.pointer(total.handle)
    check_call(
        _LIB.MXImperativeInvokeEx(
            _ADD_N,
            ctypes.c_int(2),
            (NDArrayHandle * 2)(total.handle, array.handle),
            ctypes.byref(ctypes.c_int(1)),
            ctypes.byref(outputs),
            *_TWO,
            ctypes.byref(ctypes.POINTER(ctypes.c_int)()),
        )
    )


def take_out(
    buffers: Buffers, arena: int, shape: Tuple[int, ...], starts: List[int]
) -> List[NDArray]:
    """Return copies of the arrays of one shape that start at some elements of an arena."""
    if len(starts) < MANY:
        return [buffers.elements(arena, start, shape).copy() for start in starts]
    unit = int(np.prod(shape))
    elements = np.array(starts, dtype=np.int64)
    rows = buffers.rows(arena, elements, unit).reshape((len(starts),) + shape)
    made: List[NDArray] = []
    for low in range(0, len(starts), SPLIT):
        part = rows[low : low + SPLIT]
        if len(part) == 1:
            made.append(part[0].copy())
        else:
            made += mx.nd.SliceChannel(part, num_outputs=len(part), axis=0, squeeze_axis=True)
    return made


def upload(index: np.ndarray, context: mx.Context) -> NDArray:
    """Return an index vector as an array, without waiting for the engine as ``nd.array`` does."""
    return mx.nd.from_numpy(index, zero_copy=True).as_in_context(context)


def zero(array: NDArray) -> None:
    """Fill `array` with zeros."""
    mx.nd._internal._zeros(shape=array.shape, ctx=array.context, dtype=array.dtype, out=array)
