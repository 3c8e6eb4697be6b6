"""Rows that are equal because equal numbers chose them from a table.

words      3   7   3   3        what a launch computes of embeddings alone is equal for equal
chosen    e3  e7  e3  e3        words: it is computed once for each word of a minibatch
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional

import numpy as np

from ..native import resolving
from ..plan.plan import Plan, Region, Rows, Slice, pieces_of
from .records import Spot


class Chosen(NamedTuple):
    """Rows of an arena that were chosen from a table."""

    #: First element, and the one behind the last.
    start: int
    stop: int
    #: Base of the table.
    table: int
    #: Where the numbers are by which they were chosen, and the bytes of one.
    numbers: Spot
    size: int


class EqualRows:
    """Remembers which rows of arenas were chosen from tables.

    Parameters
    ----------
    plan : Plan
        What is run.
    """

    def __init__(self, plan: Plan):
        self._plan = plan
        self._chosen: Dict[int, List[Chosen]] = {}

    def note(self, region: Region, table: int, numbers: Spot, size: int) -> None:
        """Take note of a region of rows chosen by numbers, each of so many bytes."""
        row_size = self._plan.arenas[region.arena].row_size
        start, stop = region.start * row_size, (region.start + region.rows) * row_size
        own = Chosen(start, stop, table, numbers, size)
        self._chosen.setdefault(region.arena, []).append(own)

    def keys(self, operand: object) -> Optional[np.ndarray[int, np.dtype[np.int64]]]:
        """Return what tells the rows of an operand apart, as a DISTINCT record has it.

        None stands for an operand all of whose rows may differ.
        """
        if not self._chosen or not isinstance(operand, (Slice, Rows)):
            return None
        row_size = operand.row_size
        if isinstance(operand, Slice):
            whole = operand.rows * row_size
            pieces = pieces_of(resolving.COPY, np.zeros(1), operand.arena, operand.element, whole)
        else:
            pieces = self._plan.pieces[operand.first :][: operand.pieces]
        what, _, arena, element, length = pieces.T
        if (what != resolving.COPY).any() or (pieces[:, [1, 4]] % row_size).any():
            return None
        keys = pieces_of(-1, length, 0, length // row_size, 0)
        for number, chosen in self._chosen.items():
            if self._plan.arenas[number].row_size != row_size:
                continue
            for one in chosen:
                own = (arena == number) & (element >= one.start) & (element + length <= one.stop)
                (base, offset), first = one.numbers, (element[own] - one.start) // row_size
                keys[own, 0], keys[own, 1], keys[own, 4] = one.table, base, one.size
                keys[own, 2] = offset + first * one.size
        return keys if (keys[:, 0] >= 0).any() else None
