"""The order of units within their launches, chosen so that operands lie side by side.

Rows that a launch reads are copied together, unless they already follow each other in an arena in
the order of the launch's members.  So each unit stands where a reader of it stands: the last
launch is ordered first, and what it reads is ordered like it.  A unit with several readers follows
one of them:

* among those that read a result nobody else reads, the latest.  A gate of a Tree-LSTM's node that
  each child reads too is copied for the children anyway; the node itself can read the others in
  place.
* otherwise the earliest.  A state of a sequence follows the next step, so the longest sequences
  come first and each step reads a prefix.

Members with more summands come before all others, so that each further summand is added to a
prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, NamedTuple

import numpy as np

from ..native import ordering
from ..schedule.dependencies import Array

if TYPE_CHECKING:
    from ..lower.graph import Graph
    from ..lower.segment import Segment


class Members(NamedTuple):
    """Launches and their units, in order."""

    units: Array
    #: Per unit, in this order: its first row within the launch.
    row: Array
    #: Per launch, one more at the end: where its units begin.
    first: Array
    #: Per launch.
    rows: Array
    segments: List[Segment]

    @property
    def widths(self) -> Array:
        """Units of each launch."""
        return np.diff(self.first)


def order_members(graph: Graph, groups: Array) -> Members:
    """Order units by launch, and within a launch by who reads them.

    Parameters
    ----------
    graph : Graph
        What the analyzer saw, with operands.
    groups : numpy.ndarray of int32, shape (units,)
        Launch of each unit; predecessors have smaller numbers.
    """
    units = np.empty(len(groups), dtype=np.int64)
    ordering.order(groups, graph.input0, graph.term0, graph.term, graph.slot_unit, units)
    widths = np.bincount(groups)
    first = np.concatenate([[0], np.cumsum(widths)])
    ends = np.concatenate([[0], np.cumsum(graph.dependencies.rows[units])])
    segments = [graph.segments[number] for number in graph.segment[units[first[:-1]]].tolist()]
    row = ends[:-1] - np.repeat(ends[first[:-1]], widths)
    return Members(units, row, first, np.diff(ends[first]), segments)
