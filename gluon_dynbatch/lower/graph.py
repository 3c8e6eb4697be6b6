"""The graph of one flush: its units, what they read, and what the scheduler sees of it."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

import numpy as np

from ..schedule.dependencies import Array, Dependencies
from .segment import Segment


class Graph(NamedTuple):
    """The units of a flush: places, segments and operands.

    A *slot* is an output of a unit.  An operand is a sum of *terms*, almost always of one; a term
    is a slot or, as ``-1 - e``, the external number ``e``, with an offset in elements.  The terms
    of a port that joins stand one after another instead.
    """

    dependencies: Dependencies
    segments: List[Segment]
    #: Per unit: segment, recorded node, first slot, first input.
    segment: np.ndarray
    node: np.ndarray
    slot0: np.ndarray
    input0: np.ndarray
    #: Per input, one more at the end: first term.
    term0: np.ndarray
    term: np.ndarray
    term_offset: np.ndarray
    #: Per slot: its unit.
    slot_unit: np.ndarray
    #: Per value: term that stands for it.
    value_term: np.ndarray
    #: Per node its entry, and names of entries.
    entry: np.ndarray
    names: Dict[int, str]
    #: Of entries that join their arguments: the rows of each.
    joined: Dict[int, Tuple[int, ...]]

    def name(self, unit: int) -> str:
        """Return the name of what the call behind a unit called."""
        return self.names[int(self.entry[self.node[unit]])]

    def joined_rows(self, units: Array) -> Array:
        """Return the rows of every term of units that join their terms."""
        return np.concatenate([self.joined[e] for e in self.entry[self.node[units]].tolist()])
