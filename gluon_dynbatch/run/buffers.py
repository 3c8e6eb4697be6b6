"""Arrays put together of pieces of others, copied out of arenas, and passed to native code."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray

from ..native import executing, recording, resolving
from ..native.assembling import itemsize
from ..native.recording import part
from ..plan.plan import pieces_of
from ..record.types import name_of
from .assemble import code_of
from .pool import allocate

#: Addresses of functions of MXNet.
PUSH, DETACH, FREE, GET_DATA = (
    ctypes.cast(getattr(_LIB, name), ctypes.c_void_p).value
    for name in ("MXEnginePushSyncND", "MXNDArrayDetach", "MXNDArrayFree", "MXNDArrayGetData")
)
#: This one has no name in C, and is there only if MXNet has oneDNN.
_REORDER = getattr(_LIB, "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv", None)
REORDER = ctypes.cast(_REORDER, ctypes.c_void_p).value if _REORDER else 0
executing.connect(PUSH, DETACH, FREE, GET_DATA, REORDER)

#: Bytes of memory that copies share at most: as long as one of them is held, all of it is.
SHARED = 1 << 18


def address_of(array: NDArray) -> int:
    """Return where the elements of an array are that has its memory."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0


def put_together(
    target: NDArray, arrays: Sequence[NDArray], pieces: np.ndarray, use: bytes = b"R"
) -> None:
    """Make an array of pieces of others, which are those of a `Plan` with arrays for arenas.

    What is done with the others is a letter of `recording.places`.
    """
    code = code_of(target.context, name_of(target.dtype), pieces)
    if code is None:
        _put_by_operators(target, arrays, pieces)
        return
    given = bases_of([target, *arrays], b"w" + use * len(arrays))
    check_call(executing.Program(code).push(given, b"gluon_dynbatch fill"))


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


def take_out(source: NDArray, shape: Tuple[int, ...], starts: List[int]) -> List[NDArray]:
    """Return copies of the arrays of one shape that start at some elements of an arena."""
    size = prod(shape)
    most = max(SHARED // max(size * itemsize(name_of(source.dtype)), 1), 1)
    made: List[NDArray] = []
    for low in range(0, len(starts), most):
        some = starts[low : low + most]
        rows = allocate((len(some), *shape), source.dtype, source.context)
        targets = size * np.arange(len(some))
        put_together(rows, [source], pieces_of(resolving.COPY, targets, 0, some, size))
        made += recording.rows_of(rows)
    return made


def bases_of(arrays: List[Any], uses: bytes) -> executing.Bases:
    """Return arrays as a program takes them, each with a letter that says what is done with it."""
    return executing.Bases(arrays, *recording.places(arrays, uses), uses)


def add_to(total: NDArray, array: NDArray) -> None:
    """Add in place: twice as fast as ``+=``, which makes copies."""
    mx.nd.add_n(total, array, out=total)


def zero(array: NDArray) -> None:
    """Fill `array` with zeros."""
    mx.nd._internal._zeros(shape=array.shape, ctx=array.context, dtype=array.dtype, out=array)
