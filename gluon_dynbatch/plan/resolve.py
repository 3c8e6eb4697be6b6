"""Reads of rows as operands, for both directions; arenas while they are laid out."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import numpy as np

from ..native import resolving
from ..schedule.dependencies import Array
from .plan import Arena, Operand, Reads, Region, Rows, Slice


class Layout:
    """Arenas being laid out."""

    def __init__(self) -> None:
        self.arenas: List[Arena] = []
        #: Rows reserved so far.
        self.sizes: List[int] = []
        self._numbers: Dict[Arena, int] = {}

    def reserve(self, arena: Arena, rows: int) -> Region:
        """Reserve the next rows of `arena`."""
        number = self._numbers.setdefault(arena, len(self.arenas))
        if number == len(self.arenas):
            self.arenas.append(arena)
            self.sizes.append(0)
        start = self.sizes[number]
        self.sizes[number] += rows
        return Region(number, start, rows)


def resolve(rows: Array, row_sizes: Array, reads: Reads) -> Tuple[List[Optional[Operand]], Array]:
    """Find out how operands are read: in place, or put together from pieces.

    Parameters
    ----------
    rows, row_sizes : numpy.ndarray of int64, shape (operands,)
        Rows of each operand, -1 if it is none of these, and elements of each row.
    reads : Reads
        What to read.  Several reads of one element are added up, in their order.

    Returns
    -------
    list of Operand
        None for operands without reads or rows.
    numpy.ndarray of int64, shape (pieces, 5)
        All pieces.
    """
    operand, _, *columns = reads
    found, pieces = resolving.resolve(Slice, Rows, rows, row_sizes, operand, *columns)
    return found, np.frombuffer(pieces, dtype=np.int64).reshape((-1, 5))
