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

Members whose arrays have equal sizes stand together, the smallest first: who attends to something
short mostly ends early, and what ends is read first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..native import ordering
from ..schedule.dependencies import Array
from .plan import Members, Ports

if TYPE_CHECKING:
    from ..lower.graph import Graph


def order_members(graph: Graph, groups: Array, inputs: Ports, outputs: Ports) -> Members:
    """Order units by launch, and within a launch by who reads them.

    Parameters
    ----------
    graph : Graph
        What the analyzer saw, with operands.
    groups : numpy.ndarray of int32, shape (units,)
        Launch of each unit; predecessors have smaller numbers.
    inputs, outputs : Ports
        Those of the graph's segments.
    """
    size = inputs.sums(inputs.row_size) + outputs.sums(outputs.row_size)
    rank, joins = np.argsort(np.argsort(size, kind="stable")), inputs.sums(inputs.concat) > 0
    units, begins = np.empty((2, len(groups)), dtype=np.int64)
    launches, parts = ordering.order(
        *(groups, graph.segment, rank, joins),
        *(graph.input0, graph.term0, graph.term, graph.slot_unit, units, begins),
    )
    begins = begins[:parts]
    part0 = np.searchsorted(groups[units[begins]], np.arange(launches + 1))
    rows = np.add.reduceat(graph.dependencies.rows[units], begins)
    first = np.append(begins, len(units))[part0]
    return Members(
        *(groups, units, first, part0, graph.segment[units[begins]].astype(np.int64), rows)
    )
