"""Arenas in memory: filled with arrays from outside, read in place, and copied out of."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from math import prod
from typing import Any, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, MXNetError, NDArrayHandle, OpHandle, c_str, c_str_array, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import _DTYPE_NP_TO_MX

from ..errors import LaunchError
from ..native import executing, recording, resolving
from ..plan.plan import Arena, Region, Slice, pieces_of
from ..record.views import part, row
from .assemble import copies, is_native, itemsize
from .pool import Pool

#: Addresses of functions of MXNet.
PUSH, DETACH, FREE, GET_DATA, WAIT = (
    ctypes.cast(getattr(_LIB, name), ctypes.c_void_p).value
    for name in (
        *("MXEnginePushSyncND", "MXNDArrayDetach", "MXNDArrayFree"),
        *("MXNDArrayGetData", "MXNDArrayWaitToRead"),
    )
)
executing.connect(PUSH, DETACH, FREE, GET_DATA)

#: Bytes of memory that copies share at most: as long as one of them is held, all of it is.
SHARED = 1 << 18


def allocate(shape: Tuple[int, ...], dtype: Any, context: mx.Context) -> NDArray:
    """Return memory, or say what needs how much: ``mx.nd.empty`` in a third of the time."""
    handle = NDArrayHandle()
    try:
        check_call(
            _LIB.MXNDArrayCreateEx64(
                (ctypes.c_int64 * len(shape))(*shape),
                *(len(shape), context.device_typeid, context.device_id, 0, _number(dtype)),
                ctypes.byref(handle),
            )
        )
    except MXNetError as error:  # for arrays beyond 2^31 elements, too
        raise LaunchError(
            f"no memory for an array of shape {shape} and type {dtype} on {context}: {error}",
            advice="record less in one scope, for example with smaller minibatches",
        ) from error
    return NDArray(handle)


#: What arenas, and other buffers that only a flush uses, are in.
POOL = Pool(allocate)
#: What backward passes take while they run.  Were it taken from the other pool, the last to use it
#: could be a later flush, which waits for the parameters that this backward pass trains.
BACKWARD_POOL = Pool(allocate)


@lru_cache(maxsize=None)
def _number(dtype: str) -> int:
    return int(_DTYPE_NP_TO_MX[np.dtype(dtype).type])


def address_of(array: NDArray) -> int:
    """Return where the elements of an array are that has its memory."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0


class Buffers:
    """Arenas in memory.

    Parameters
    ----------
    arenas : sequence of Arena
        What each buffer holds.
    sizes : sequence of int
        Rows of each.
    """

    def __init__(self, arenas: Sequence[Arena], sizes: Sequence[int]):
        self.arrays = [
            POOL.take((rows, arena.row_size), arena.dtype, arena.context)
            for arena, rows in zip(arenas, sizes)
        ]
        self.arenas = arenas

    def region(self, region: Region) -> NDArray:
        """Return the rows of `region`, in place."""
        return part(self.arrays[region.arena], region.start, region.start + region.rows)

    def elements(self, arena: int, element: int, shape: Tuple[int, ...]) -> NDArray:
        """Return elements from `element` on, in place, as an array of `shape`."""
        flat = self.arrays[arena].reshape((-1,))
        return part(flat, element, element + prod(shape)).reshape(shape)

    def operand(self, operand: Slice) -> NDArray:
        """Return an operand that is read in place."""
        arena, element, rows, row_size = operand
        if row_size != self.arenas[arena].row_size or element % row_size:
            return self.elements(arena, element, (rows, row_size))
        start = element // row_size
        return part(self.arrays[arena], start, start + rows)


def put_together(target: NDArray, arrays: Sequence[NDArray], pieces: np.ndarray) -> None:
    """Make an array of pieces of others, which are those of a `Plan` with arrays for arenas."""
    kind = np.dtype(target.dtype).name
    if not is_native(target.context, kind, pieces[:, 0]):
        _put_by_operators(target, arrays, pieces)
        return
    code = np.array(copies(kind, len(pieces), (0, 0)), dtype=np.int64)
    found = pieces + [0, 0, 1, 0, 0]
    found[:, 3] *= itemsize(kind)
    given = bases_of([target, *arrays], b"w" + b"R" * len(arrays))
    program = executing.Program(np.append(code, found))
    check_call(program.push(given, b"gluon_dynbatch fill"))


def _put_by_operators(target: NDArray, arrays: Sequence[NDArray], pieces: np.ndarray) -> None:
    flat = target.reshape((-1,))
    for what, start, number, first, count in pieces.tolist():
        own = part(flat, start, start + count)
        if what == resolving.ZERO:
            zero(own)
            continue
        source = part(arrays[number].reshape((-1,)), first, first + count)
        if what == resolving.ADD:
            add_to(own, source)
        else:
            source.copyto(own)


def take_out(
    buffers: Buffers, arena: int, shape: Tuple[int, ...], starts: List[int]
) -> List[NDArray]:
    """Return copies of the arrays of one shape that start at some elements of an arena."""
    source, size = buffers.arrays[arena], prod(shape)
    most = max(SHARED // max(size * itemsize(np.dtype(source.dtype).name), 1), 1)
    made: List[NDArray] = []
    for low in range(0, len(starts), most):
        some = starts[low : low + most]
        rows = allocate((len(some), *shape), source.dtype, source.context)
        targets = size * np.arange(len(some))
        put_together(rows, [source], pieces_of(resolving.COPY, targets, 0, some, size))
        made += [row(rows, number) for number in range(len(some))]
    return made


def bases_of(arrays: List[Any], uses: bytes) -> executing.Bases:
    """Return arrays as a program takes them, each with a letter that says what is done with it."""
    return executing.Bases(arrays, *recording.places(arrays, uses, GET_DATA, WAIT), uses)


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


def zero(array: NDArray) -> None:
    """Fill `array` with zeros."""
    mx.nd._internal._zeros(shape=array.shape, ctx=array.context, dtype=array.dtype, out=array)
