"""What programs consist of, and the records that copy, add up and zero."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ..native import executing, resolving

#: What is at a base: a kind of array, and all that tells which.
Base = Tuple[Any, ...]
#: A base number, and an offset in bytes.
Spot = Tuple[int, int]


class Item(NamedTuple):
    """A launch, or what comes before or after all of them."""

    #: Where its code ends; it begins where that of the item before ends.
    stop: int
    #: Position of the launch in the plan.
    launch: Optional[int] = None
    #: Whether MXNet's operators run it, after the code.
    by_operators: bool = False
    #: Whether the engine gets all code up to here in one piece, unless launches are looked at.
    ends_piece: bool = True


class Assembled(NamedTuple):
    """A pass as native code, with what it needs."""

    program: executing.Program
    #: In order; the first one copies arrays from outside side by side, into arenas.
    items: Tuple[Item, ...]
    #: Numbers of these arrays; their bases come after all others.
    externals: Tuple[int, ...]
    bases: Tuple[Base, ...]
    #: Letters of what is done with them.
    uses: bytes
    #: Bytes of memory by use.
    sizes: Dict[str, int]


@lru_cache(maxsize=None)
def itemsize(dtype: str) -> int:
    """Return the bytes of a number."""
    return int(np.dtype(dtype).itemsize)


def is_native(context: Any, dtype: str, what: Any) -> bool:
    """Whether native code puts an array together, given what is done with each piece."""
    return context.device_type == "cpu" and (dtype in executing.DTYPES or resolving.ADD not in what)


def copies(dtype: str, count: int, target: Spot) -> List[int]:
    """Return the beginning of a record that puts so many pieces together."""
    kind = executing.DTYPES.get(dtype, len(executing.DTYPES))
    return [executing.ROWS, kind, itemsize(dtype), count, *target]


def code_of(context: Any, dtype: str, pieces: np.ndarray) -> Optional[array[int]]:
    """Return code that puts pieces of bases 1, 2, ... together in base 0; None if it cannot."""
    if not is_native(context, dtype, pieces[:, 0]):
        return None
    found = pieces + [0, 0, 1, 0, 0]
    found[:, 3] *= itemsize(dtype)
    code = array("q", copies(dtype, len(pieces), (0, 0)))
    code.frombytes(found.tobytes())
    return code
