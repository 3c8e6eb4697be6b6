"""Assemble plans into programs: integers that native code runs, and the arrays they refer to.

Launches without a kernel run between stretches of native code.
"""

from __future__ import annotations

from array import array
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
from mxnet.ndarray import NDArray

from ..native import assembling, executing, resolving
from ..native.assembling import itemsize, kind_of
from ..plan.launch import Fill
from ..record.types import in_host_memory
from ..schedule.dependencies import Array
from .draws import array_of

#: An array that a program works on: its kind, then what identifies it among those of that kind.
Base = Tuple[Any, ...]


class Assembled(NamedTuple):
    """The program of one pass, and what is needed to run it."""

    program: executing.Program
    #: Length of the code that fills arenas; it precedes the code of all launches.
    fill_length: int
    #: Per launch in order, and once more for the code after the last launch: where its code ends,
    #: counted from the end of the fills; its number or None; whether MXNet's operators run it
    #: after that code; and whether all code up to there is pushed to the engine at once.
    items: Tuple[Tuple[int, Optional[int], bool, bool], ...]
    #: Numbers of the external arrays that the program copies into arenas.
    externals: Tuple[int, ...]
    #: Fills of arenas in memory of other devices, which the program leaves out.
    device_fills: Tuple[Fill, ...]
    #: The program's own bases; those of `externals` follow.
    bases: Tuple[Base, ...]
    #: One letter per base: how it is accessed, see `recording.addresses_and_handles`.
    uses: bytes
    #: Bytes of each kind of memory, see `assembling.MEMORY`.
    sizes: Dict[str, int]
    #: What identifies the rows that draw random numbers; None if there are none.
    identities: Optional[NDArray]


def assemble(assembler: assembling.Assembler) -> Assembled:
    """Assemble a plan into a program."""
    assembler.assemble()
    code, plan = array("q"), assembler.plan
    externals: List[int] = []
    device_fills: List[Fill] = []
    fills: Tuple[Fill, ...] = ()
    identities = b""
    # Backward, fills are sums of head gradients, which `Pull` adds up before the program.
    if isinstance(assembler, assembling.Forward):
        fills, identities = plan.fills, assembler.identities
    for number, fill in enumerate(fills):
        arena = plan.arenas[fill.region.arena]
        if in_host_memory(arena.context):
            count, source = len(fill.externals), assembler.stop + len(externals)
            pieces = fill.pieces(np.arange(source, source + count))
            code.extend(rows_record(arena.dtype, pieces, assembler.spot_of_fill(number)))
            externals += fill.externals.tolist()
        else:
            device_fills.append(fill)
    fill_length = len(code)  # before `program` appends the launches to this very array
    return Assembled(
        assembler.program(code),
        fill_length,
        tuple(assembler.items),
        tuple(externals),
        tuple(device_fills),
        tuple(assembler.bases),
        bytes(assembler.uses) + b"a" * len(externals),
        assembler.sizes,
        array_of(identities) if identities else None,
    )


def rows_record(dtype: str, pieces: Array, target: Tuple[int, int]) -> array[int]:
    """Return a ROWS record that writes pieces to a target, a base and an offset in bytes.

    Sources of `pieces` are bases, with offsets in bytes.
    """
    head = executing.ROWS, kind_of(dtype), itemsize(dtype), len(pieces), *target
    code = array("q", head)
    code.frombytes(pieces.tobytes())
    return code


def code_of_pieces(context: Any, dtype: str, pieces: Array) -> Optional[array[int]]:
    """Return code that writes pieces of bases 1, 2, ... to base 0; None if native code cannot."""
    adds = resolving.ADD in pieces[:, 0]
    if not in_host_memory(context) or (adds and dtype not in executing.DTYPES):
        return None
    native_pieces = pieces + [0, 0, 1, 0, 0]
    native_pieces[:, 3] *= itemsize(dtype)
    return rows_record(dtype, native_pieces, (0, 0))


def code_of_copies(dtype: str, starts: Array, size: int) -> Array:
    """Return code that copies elements of base 0, `size` from each start on, to bases 1, 2, ..."""
    record = rows_record(dtype, np.array([[resolving.COPY, 0, 0, 0, size]]), (0, 0))
    code = np.tile(np.array(record), (len(starts), 1))
    code[:, 4] = np.arange(1, len(starts) + 1)  # the base of the target
    code[:, 9] = starts * itemsize(dtype)  # the offset of the source
    return code.reshape(-1)
