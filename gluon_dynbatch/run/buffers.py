"""Arenas in memory: fill them, read them, copy arrays out, and pass arrays to native code."""

from __future__ import annotations

import ctypes
from array import array as Places
from math import prod
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray

from ..native import assembling, executing, planning, recording
from ..native.recording import part
from ..plan.launch import Operand, Region, Rows, Slice, pieces_in
from ..plan.plan import Plan
from ..record.types import in_host_memory, name_of
from ..schedule.dependencies import Array
from .pool import POOL, ArrayKind, Pool, allocate_like
from .team import use_threads

_FUNCTIONS = (
    *("MXEnginePushSyncND", "MXNDArrayDetach", "MXNDArrayFree", "MXNDArrayGetData"),
    "MXInvokeCachedOpEx",
)
#: A C++ function, hence the mangled name; it exists only in builds of MXNet with oneDNN.
_REORDER = "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv"
#: ``_M_release`` of GNU's C++ library, of which MXNet has a copy.
_RELEASE = "_ZNSt16_Sp_counted_baseILN9__gnu_cxx12_Lock_policyE2EE10_M_releaseEv"
#: Fewer elements are copied by one thread: to find out what others could do takes longer.
MOST_ALONE = 1 << 18
#: ``std::__throw_out_of_range`` of GNU's C++ library, which MXNet is linked to on Linux.
_THROW = "_ZSt20__throw_out_of_rangePKc"


def _addresses(names: Sequence[str]) -> List[int]:
    """Return the addresses of symbols of MXNet's library, 0 if it does not have them."""
    # By index, as attributes may be replaced.
    found: Iterator[Any] = (_LIB[name] if hasattr(_LIB, name) else None for name in names)
    return [ctypes.cast(symbol, ctypes.c_void_p).value or 0 for symbol in found]


executing.use_mxnet(*_addresses([*_FUNCTIONS, _REORDER, _RELEASE, _THROW]))
use_threads()


@executing.OneAtATime
def push(
    program: executing.Program,
    bases: executing.Bases,
    name: str,
    low: int = 0,
    high: int = -1,
    forward: bool = True,
    notice: Optional[executing.Notice] = None,
    here: bool = False,
) -> None:
    """Push records [low, high) of a program to the engine, under a name for the profiler.

    For `forward`, `notice` and `here`, see `executing.Program.push`.
    """
    shown = f"gluon_dynbatch{name}".encode()
    check_call(program.push(bases, shown, low, high, forward, notice, here))


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
    """Write pieces by one gather, and by one sum if pieces are added."""
    arrays = [recording.plain_array(array) for array in arrays]
    flat, (action, start, number, *_) = target.reshape((-1,)), pieces.T
    only_copies = (action == planning.COPY).all()
    with autograd.pause():
        if not only_copies or 1 == len(np.unique(number)) < len(pieces):
            _gather_by_operators(flat, arrays, pieces)
            return
        parts = [
            part(arrays[p.arena].reshape((-1,)), p.element, p.element + p.length)
            for p in pieces_in(pieces[start.argsort()])
        ]
        mx.nd.concat(*parts, dim=0, out=flat)


def _gather_by_operators(flat: NDArray, arrays: Sequence[NDArray], pieces: Array) -> None:
    """Gather all terms of all rows at once, where a row is the largest unit of all pieces."""
    action = pieces[:, 0]
    pieces = pieces[action != planning.ZERO]
    if not len(pieces):
        zero(flat)
        return
    _, start, _, element, length = pieces.T
    size = int(np.gcd.reduce([flat.size, *start, *element, *length]))
    table, starts = _table(arrays, pieces, size)
    counts = length // size
    within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    row = np.repeat(start // size, counts) + within
    source = np.repeat(starts, counts) + within
    # The terms of a row are numbered in the order of the pieces.
    order = row.argsort(kind="stable")
    row, source, rows = row[order], source[order], flat.size // size
    number = np.arange(len(row)) - np.searchsorted(row, row)
    terms = int(number.max()) + 1
    index, given = np.zeros((terms, rows), np.int32), np.zeros((terms, rows), np.float32)
    index[number, row], given[number, row] = source, 1
    if terms == 1 and given.all():
        mx.nd.take(table, _on(flat, index[0]), out=flat.reshape((rows, size)))
        return
    taken = mx.nd.take(table, _on(flat, index.ravel()))
    if not given.all():
        taken = mx.nd.where(_on(flat, given.ravel()), taken, mx.nd.zeros_like(taken))
    layers = taken.reshape((terms, -1))
    add_all([layers[k] for k in range(terms)], flat)


def _table(arrays: Sequence[NDArray], pieces: Array, size: int) -> Tuple[NDArray, Array]:
    """Return the sources of pieces as rows of a size, and the first row of each piece."""
    parts, starts, rows = [], np.empty(len(pieces), np.int64), 0
    _, _, numbers, elements, lengths = pieces.T
    for number in np.unique(numbers).tolist():
        chosen = numbers == number
        first = elements[chosen]
        low, high = int(first.min()), int((first + lengths[chosen]).max())
        starts[chosen] = rows + (first - low) // size
        source = part(arrays[number].reshape((-1,)), low, high).reshape((-1, size))
        parts.append(source)
        rows += source.shape[0]
    return (parts[0] if len(parts) == 1 else mx.nd.concat(*parts, dim=0)), starts


def _on(like: NDArray, values: Array) -> NDArray:
    """Return an array of NumPy in the memory of another array's device."""
    return mx.nd.from_numpy(values).as_in_context(like.context)


def copy_out(
    source: NDArray, kinds: List[ArrayKind], starts: Array, sizes: Array
) -> List[NDArray]:
    """Return copies of arrays, of these kinds and sizes, that start at given elements of an arena.

    If the device needs operators for the copies, none is of ``mx.np``, and all have axes.

    Each has memory of its own.  MXNet queues operations by memory: if a backward pass in Python
    writes the gradient of one copy and reads another one, these must not be one memory.
    """
    if not in_host_memory(source.context):
        copies = allocate_like(source, [(shape or (1,), False) for shape, _ in kinds])
        with autograd.pause():
            for size in np.unique(sizes).tolist():
                alike = np.flatnonzero(sizes == size).tolist()
                chosen = [copies[i] for i in alike]
                _copy_by_operators(source, chosen, size, starts[alike].tolist())
        return copies
    copies = allocate_like(source, kinds)
    code = assembling.code_of_copies(name_of(source.dtype), starts, sizes)
    bases = bases_of([source, *copies], b"r" + b"w" * len(copies))
    together = int(sizes.sum()) >= MOST_ALONE
    push(executing.Program(code, together=together), bases, " copies")
    return copies


def _copy_by_operators(
    source: NDArray, copies: Sequence[NDArray], size: int, starts: Sequence[int]
) -> None:
    """Copy stretches of one size to arrays by one operator, which reads what a gather brought."""
    flat, out = source.reshape((-1,)), [copy.reshape((size,)) for copy in copies]
    if len(out) == 1:
        part(flat, starts[0], starts[0] + size).copyto(out[0])
        return
    stretches = [[planning.COPY, k * size, 0, first, size] for k, first in enumerate(starts)]
    together = allocate_like(source, [((len(out) * size,), False)])[0]
    _write_by_operators(together, [source], np.array(stretches))
    mx.nd.SliceChannel(together, num_outputs=len(out), axis=0, out=out)


def bases_of(
    arrays: List[Any], uses: bytes, placed: Optional[Places[int]] = None
) -> executing.Bases:
    """Return the bases of a program.

    For `uses`, see `recording.addresses_and_handles`; for `placed`, `recording.arrays_of_bases`.
    """
    return executing.Bases(arrays, *recording.addresses_and_handles(arrays, uses), uses, placed)


def view(array: NDArray, first: int, shape: Tuple[int, ...]) -> NDArray:
    """Return the elements of an array from `first` on, as a view of `shape`."""
    return part(array.reshape((-1,)), first, first + prod(shape)).reshape(shape)


class Arenas:
    """The arenas of a plan in memory.

    They are those of an earlier flush from a `shelf`, if it has any.  Others come from `POOL`,
    because the flush allocates them; temporary buffers come from `pool`.
    """

    def __init__(self, plan: Plan, pool: Pool = POOL, shelf: Optional[recording.Shelf] = None):
        self.plan, self.pool = plan, pool
        found = None if shelf is None else shelf.take(executing.count_failures())
        self.arrays: List[NDArray] = found or [
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


def add_all(arrays: Sequence[NDArray], out: NDArray) -> None:
    """Write the sum of arrays to another, or a copy of the only one."""
    if len(arrays) == 1:
        arrays[0].copyto(out)
    else:
        mx.nd.add_n(*arrays, out=out)


def add_to(total: NDArray, array: NDArray) -> None:
    """Add in place; ``+=`` makes copies and takes twice as long."""
    mx.nd.add_n(total, array, out=total)


def zero(array: NDArray) -> None:
    """Fill `array` with zeros."""
    mx.nd._internal._zeros(shape=array.shape, ctx=array.context, dtype=array.dtype, out=array)
