"""Plans as programs: integers that native code runs, and the arrays that these stand for.

Launches that have no kernel stand between stretches of native code.
"""

from __future__ import annotations

from array import array
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ..native import assembling, executing, resolving
from ..native.assembling import itemsize, kind_of
from ..plan.plan import Fill, Plan

#: What is at a base: a kind of array, and all that tells which.
Base = Tuple[Any, ...]


class Assembled(NamedTuple):
    """A pass as native code, with what it needs."""

    program: executing.Program
    #: How much code fills arenas, before all launches.
    first: int
    #: Each launch in order, and what comes after all of them: how much code there is up to its end,
    #: its number or None, whether MXNet's operators run it, after the code, and whether the engine
    #: gets all code up to there in one piece, unless launches are looked at.
    items: Tuple[Tuple[int, Optional[int], bool, bool], ...]
    #: Numbers of arrays from outside that are copied into arenas; their bases come last.
    externals: Tuple[int, ...]
    #: What arenas are filled with that are on other devices.
    elsewhere: Tuple[Fill, ...]
    bases: Tuple[Base, ...]
    #: Letters of what is done with them, see `recording.places`.
    uses: bytes
    #: Bytes of memory by use.
    sizes: Dict[str, int]


def assemble(assembler: assembling.Assembler) -> Assembled:
    """Assemble a program."""
    assembler.assemble()
    fills, externals, elsewhere = _fills(assembler, assembler.plan)
    first = len(fills)
    return Assembled(
        assembler.program(fills),
        first,
        tuple(assembler.items),
        tuple(externals),
        tuple(elsewhere),
        tuple(assembler.bases),
        bytes(assembler.uses),
        assembler.sizes,
    )


def _fills(assembler: assembling.Assembler, plan: Plan) -> Tuple[array[int], List[int], List[Fill]]:
    """Return code that fills arenas, which arrays have the last bases, and what else is filled."""
    code, externals, elsewhere = array("q"), [], []
    # Gradients that arrive at heads are added up before the program of a backward pass runs.
    fills = plan.fills if isinstance(assembler, assembling.Forward) else ()
    for number, fill in enumerate(fills):
        arena = plan.arenas[fill.region.arena]
        if arena.context.device_type == "cpu":
            count, source = len(fill.externals), assembler.stop + len(externals)
            pieces = fill.pieces(np.arange(source, source + count))
            code.extend(copies(arena.dtype, pieces, assembler.spot_of_fill(number)))
            externals += fill.externals.tolist()
        else:
            elsewhere.append(fill)
    return code, externals, elsewhere


def copies(dtype: str, pieces: np.ndarray, target: Tuple[int, int]) -> array[int]:
    """Return a record that puts pieces of arrays, with first bytes, together in another."""
    head = executing.ROWS, kind_of(dtype), itemsize(dtype), len(pieces), *target
    code = array("q", head)
    code.frombytes(pieces.tobytes())
    return code


def code_of(context: Any, dtype: str, pieces: np.ndarray) -> Optional[array[int]]:
    """Return code that puts pieces of bases 1, 2, ... together in base 0; None if it cannot."""
    adds = resolving.ADD in pieces[:, 0]
    if context.device_type != "cpu" or (adds and dtype not in executing.DTYPES):
        return None
    found = pieces + [0, 0, 1, 0, 0]
    found[:, 3] *= itemsize(dtype)
    return copies(dtype, found, (0, 0))
