"""Write pieces of arrays to others, copy arrays out of arenas, and pass arrays to native code."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, Iterator, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray

from ..native import executing, recording, resolving
from ..native.recording import part
from ..record.types import in_host_memory, name_of
from ..schedule.dependencies import Array
from .assemble import code_of_copies, code_of_pieces
from .pool import allocate_like
from .pushes import PUSHES

_FUNCTIONS = ("MXEnginePushSyncND", "MXNDArrayDetach", "MXNDArrayFree", "MXNDArrayGetData")
#: A C++ function, hence the mangled name; it exists only in builds of MXNet with oneDNN.
_REORDER = "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv"
#: ``std::__throw_out_of_range`` of GNU's C++ library, which MXNet is linked to on Linux.
_THROW = "_ZSt20__throw_out_of_rangePKc"


def _addresses(names: Sequence[str]) -> List[int]:
    """Return the addresses of symbols of MXNet's library, 0 if it does not have them."""
    symbols: Iterator[Any] = (getattr(_LIB, name, None) for name in names)
    return [ctypes.cast(symbol, ctypes.c_void_p).value or 0 for symbol in symbols]


executing.connect(*_addresses([*_FUNCTIONS, _REORDER, _THROW]))


@PUSHES.one_at_a_time
def push(
    program: executing.Program, bases: executing.Bases, name: str, low: int = 0, high: int = -1
) -> None:
    """Push records [low, high) of a program to the engine, under a name for the profiler."""
    check_call(program.push(bases, f"gluon_dynbatch{name}".encode(), low, high))


def address_of(array: NDArray) -> int:
    """Return the address of the elements of an array whose memory is allocated."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0


def write_pieces(
    target: NDArray, arrays: Sequence[NDArray], pieces: Array, use: bytes = b"R"
) -> None:
    """Copy and add pieces of arrays to a target.

    Pieces are as in `Plan`, with numbers of `arrays` in the place of arenas; `use` is the letter of
    `recording.addresses_and_handles` that says how `arrays` are read.
    """
    code = code_of_pieces(target.context, name_of(target.dtype), pieces)
    if code is None:
        _write_by_operators(target, arrays, pieces)
        return
    bases = bases_of([target, *arrays], b"w" + use * len(arrays))
    push(executing.Program(code), bases, " fill")


def _write_by_operators(target: NDArray, arrays: Sequence[NDArray], pieces: Array) -> None:
    flat = target.reshape((-1,))
    for action, start, number, first, count in pieces.tolist():
        written = part(flat, start, start + count)
        if action == resolving.ZERO:
            zero(written)
            continue
        source = part(arrays[number].reshape((-1,)), first, first + count)
        if action == resolving.ADD:
            add_to(written, source)
        else:
            source.copyto(written)


def copy_out(source: NDArray, shape: Tuple[int, ...], starts: List[int]) -> List[NDArray]:
    """Return copies of the arrays of one shape that start at given elements of an arena.

    Each has memory of its own.  MXNet queues operations by memory: if a backward pass in Python
    writes the gradient of one copy and reads another one, these must not be one memory.
    """
    copies, size = allocate_like(source, shape, len(starts)), prod(shape)
    if not in_host_memory(source.context):
        flat = source.reshape((-1,))
        for copy, first in zip(copies, starts):
            part(flat, first, first + size).reshape(shape).copyto(copy)
        return copies
    code = code_of_copies(name_of(source.dtype), np.array(starts), size)
    bases = bases_of([source, *copies], b"r" + b"w" * len(copies))
    push(executing.Program(code), bases, " copies")
    return copies


def bases_of(arrays: List[Any], uses: bytes) -> executing.Bases:
    """Return the bases of a program; for `uses`, see `recording.addresses_and_handles`."""
    return executing.Bases(arrays, *recording.addresses_and_handles(arrays, uses), uses)


def view(array: NDArray, first: int, shape: Tuple[int, ...]) -> NDArray:
    """Return the elements of an array from `first` on, as a view of `shape`."""
    return part(array.reshape((-1,)), first, first + prod(shape)).reshape(shape)


def shaped(array: NDArray, shape: Tuple[int, ...]) -> NDArray:
    """Return an array as a view of `shape`, or itself if it has this shape."""
    return array if array.shape == shape else array.reshape(shape)


def add_to(total: NDArray, array: NDArray) -> None:
    """Add in place; ``+=`` makes copies and takes twice as long."""
    mx.nd.add_n(total, array, out=total)


def zero(array: NDArray) -> None:
    """Fill `array` with zeros."""
    mx.nd._internal._zeros(shape=array.shape, ctx=array.context, dtype=array.dtype, out=array)
