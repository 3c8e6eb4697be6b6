"""The graph of one flush: its units, what they read, and what the scheduler sees of it."""

from __future__ import annotations

from typing import Dict, List, NamedTuple

from ..schedule.dependencies import Array, Dependencies
from .segment import Segment


class Graph(NamedTuple):
    """The units of a flush: places, segments and operands.

    A *slot* is an output of a unit.  An operand is a sum of *terms*, almost always of one; a term
    is a slot or, as ``-1 - e``, the external number ``e``, with an offset and a size in elements.
    The terms of a port that concatenates stand one after another instead.
    """

    dependencies: Dependencies
    segments: List[Segment]
    #: Per unit: segment, recorded node, first slot, first input.
    segment: Array
    node: Array
    slot0: Array
    input0: Array
    #: Per input, one more at the end: first term.
    term0: Array
    term: Array
    term_offset: Array
    term_size: Array
    #: Per slot: its unit, and elements.
    slot_unit: Array
    slot_size: Array
    #: Per value: term that stands for it; the least number for a value that has none.
    value_term: Array
    #: Per node its entry, and names of entries.
    entry: Array
    names: Dict[int, str]

    def name(self, unit: int) -> str:
        """Return the name of what the call behind a unit called."""
        return self.names[int(self.entry[self.node[unit]])]
