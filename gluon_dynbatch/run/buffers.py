"""Arenas in memory: fill them, read them, copy arrays out, and pass arrays to native code."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray

from ..native import assembling, executing, planning, recording
from ..native.recording import part
from ..plan.launch import Operand, Region, Rows, Slice, pieces_in
from ..plan.plan import Plan
from ..record.types import in_host_memory, name_of
from ..schedule.dependencies import Array
from .engine import PUSHES
from .pool import POOL, Pool, allocate_like
from .team import use_threads

_FUNCTIONS = ("MXEnginePushSyncND", "MXNDArrayDetach", "MXNDArrayFree", "MXNDArrayGetData")
#: A C++ function, hence the mangled name; it exists only in builds of MXNet with oneDNN.
_REORDER = "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv"


def _addresses(names: Sequence[str]) -> List[int]:
    """Return the addresses of symbols of MXNet's library, 0 if it does not have them."""
    symbols: Iterator[Any] = (getattr(_LIB, name, None) for name in names)
    return [ctypes.cast(symbol, ctypes.c_void_p).value or 0 for symbol in symbols]


executing.connect(*_addresses([*_FUNCTIONS, _REORDER]))
use_threads()


@PUSHES.one_at_a_time
def push(
    program: executing.Program,
    bases: executing.Bases,
    name: str,
    low: int = 0,
    high: int = -1,
    records: bool = False,
) -> None:
    """Push records [low, high) of a program to the engine, under a name for the profiler.

    `records` says that the calling thread is the one that records calls.
    """
    check_call(program.push(bases, f"gluon_dynbatch{name}".encode(), low, high, records))


def write_pieces(
    target: NDArray, arrays: Sequence[NDArray], pieces: Array, use: bytes = b"R"
) -> None:
    """Copy and add pieces of arrays to a target.

    Pieces are as in `Plan`, with numbers of `arrays` in the place of arenas; `use` is the letter of
    `recording.addresses_and_handles` that says how `arrays` are read.
    """
    dtype, adds = name_of(target.dtype), planning.ADD in pieces[:, 0]
    if not in_host_memory(target.context) or (adds and dtype not in executing.DTYPES):
        _write_by_operators(target, arrays, pieces)
        return
    code = assembling.code_of_pieces(dtype, pieces, first=1, base=0, offset=0)
    bases = bases_of([target, *arrays], b"w" + use * len(arrays))
    push(executing.Program(code), bases, " fill")


def _write_by_operators(target: NDArray, arrays: Sequence[NDArray], pieces: Array) -> None:
    flat = target.reshape((-1,))
    for piece in pieces_in(pieces):
        written = part(flat, piece.target, piece.target + piece.length)
        if piece.action == planning.ZERO:
            zero(written)
            continue
        array = arrays[piece.arena].reshape((-1,))
        source = part(array, piece.element, piece.element + piece.length)
        if piece.action == planning.ADD:
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
    code = assembling.code_of_copies(name_of(source.dtype), starts, size)
    bases = bases_of([source, *copies], b"r" + b"w" * len(copies))
    push(executing.Program(code), bases, " copies")
    return copies


def bases_of(arrays: List[Any], uses: bytes) -> executing.Bases:
    """Return the bases of a program; for `uses`, see `recording.addresses_and_handles`."""
    return executing.Bases(arrays, *recording.addresses_and_handles(arrays, uses), uses)


def view(array: NDArray, first: int, shape: Tuple[int, ...]) -> NDArray:
    """Return the elements of an array from `first` on, as a view of `shape`."""
    return part(array.reshape((-1,)), first, first + prod(shape)).reshape(shape)


class Arenas:
    """The arenas of a plan in memory.

    They come from `POOL`, because the flush allocates them; temporary buffers come from `pool`.
    """

    def __init__(self, plan: Plan, pool: Pool = POOL):
        self.plan, self.pool = plan, pool
        self.arrays = [
            POOL.take((rows, arena.row_size), arena.dtype, arena.context)
            for arena, rows in zip(plan.arenas, plan.sizes)
        ]

    def region(self, region: Region) -> NDArray:
        """Return a view of the rows of `region`."""
        return part(self.arrays[region.arena], region.start, region.start + region.rows)

    def operand(self, operand: Optional[Operand], dtype: str, context: mx.Context) -> NDArray:
        """Return an operand that MXNet's operators read from arenas."""
        assert isinstance(operand, (Slice, Rows))
        if isinstance(operand, Slice):
            shape = operand.rows, operand.row_size
            return view(self.arrays[operand.arena], operand.element, shape)
        array = self.pool.take((operand.rows, operand.row_size), dtype, context)
        pieces = self.plan.pieces[operand.first :][: operand.pieces]
        write_pieces(array, self.arrays, pieces, b"r")
        return array


def shaped(array: NDArray, shape: Tuple[int, ...]) -> NDArray:
    """Return an array as a view of `shape`, or itself if it has this shape."""
    return array if array.shape == shape else array.reshape(shape)


def add_to(total: NDArray, array: NDArray) -> None:
    """Add in place; ``+=`` makes copies and takes twice as long."""
    mx.nd.add_n(total, array, out=total)


def zero(array: NDArray) -> None:
    """Fill `array` with zeros."""
    mx.nd._internal._zeros(shape=array.shape, ctx=array.context, dtype=array.dtype, out=array)
