"""Reads of rows as operands, for both directions; arenas while they are laid out."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import numpy as np

from ..native import resolving
from ..schedule.dependencies import Array
from .plan import Arena, Gather, Mixed, Operand, Reads, Region, Scatter, Slice, Sum


class Layout:
    """Arenas being laid out."""

    def __init__(self) -> None:
        self.arenas: List[Arena] = []
        #: Rows reserved so far; row 0 is the zero row.
        self.sizes: List[int] = []
        self._numbers: Dict[Arena, int] = {}

    def reserve(self, arena: Arena, rows: int, spare: int = 0) -> Region:
        """Reserve the next rows of `arena`, and some behind them that are nobody's."""
        number = self._numbers.setdefault(arena, len(self.arenas))
        if number == len(self.arenas):
            self.arenas.append(arena)
            self.sizes.append(1)
        start = self.sizes[number]
        self.sizes[number] += rows + spare
        return Region(number, start, rows)


def resolve(
    rows: Array, row_sizes: Array, reads: Reads, arenas: List[Arena], most_levels: int
) -> Tuple[List[Optional[Operand]], Array]:
    """Find the cheapest way to read operands.

    Parameters
    ----------
    rows, row_sizes : numpy.ndarray of int64, shape (operands,)
        Rows of each operand and elements of each row.  Whoever reads an operand gets rows of this
        size, or smaller rows if a read begins or ends within one.
    reads : Reads
        What to read.  Several reads of one element are added up, in their order.
    arenas : list of Arena
        What is read from.
    most_levels : int
        Beyond this many reads of one row, rows are added up by index instead of level by level.

    Returns
    -------
    list of Operand
        None for operands without reads.
    numpy.ndarray of int32
        All gather indices.
    """
    found, indices = resolving.resolve(
        (Slice, Gather, Mixed, Sum, Scatter),
        most_levels,
        rows,
        row_sizes,
        reads.operand,
        reads.target,
        reads.length,
        reads.arena,
        reads.element,
        np.array([arena.row_size for arena in arenas], dtype=np.int64),
    )
    return found, np.frombuffer(indices, dtype=np.int32)
