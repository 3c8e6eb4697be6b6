"""Order the members of launches so that operands are contiguous.

The rows that a launch reads are gathered, unless they already follow each other in an arena in the
order of the launch's members.  So each unit follows one of its readers: launches are ordered from
the last to the first, and the units that a launch reads are ordered as its members are.  A unit
with several readers follows

* the latest of the readers that are the only reader of some result.  A gate of a Tree-LSTM's node
  that each child reads as well is copied for the children anyway; the node can read the others in
  place.
* otherwise the earliest.  A state of a sequence follows the next step, so the longest sequences
  come first and each step reads a prefix.

Members with more summands come first, so that each further summand is added to a prefix.

Members whose arrays have equal sizes are adjacent, the smallest first: a sample that attends to a
short memory mostly ends early, and its results are read first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..native import ordering
from ..schedule.dependencies import Array
from .plan import Members

if TYPE_CHECKING:
    from ..lower.graph import Graph


def order_members(graph: Graph, groups: Array) -> Members:
    """Order units by launch, and within a launch by who reads them.

    `groups` has the launch of each unit.
    """
    columns = [segment.columns for segment in graph.segments]
    rows, slots = graph.dependencies.rows, graph.slot_unit
    return Members(
        groups,
        *ordering.order(
            *(columns, groups, graph.segment, rows),
            *(graph.input0, graph.term0, graph.term, slots),
        ),
    )
