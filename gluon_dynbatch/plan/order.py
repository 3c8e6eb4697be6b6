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

from typing import Any, NamedTuple

import numpy as np

from ..native import PLANNING
from ..schedule.dependencies import Array, ragged_range


class _Reads(NamedTuple):
    """Who reads which slot, by launch of the reader; arrays of one length."""

    slot: Array
    reader: Array
    #: Numbers (launch, port, summand) in their order.
    place: Array


def order_members(units: Any, groups: Array) -> Array:
    """Order units by launch, and within a launch by who reads them.

    Parameters
    ----------
    units : Graph
        What the analyzer saw, with operands.
    groups : numpy.ndarray of int32, shape (units,)
        Launch of each unit; predecessors have smaller numbers.

    Returns
    -------
    numpy.ndarray of int64, shape (units,)
        The units.
    """
    count = len(groups)
    if PLANNING is not None:
        made = np.empty(count, dtype=np.int64)
        PLANNING.order(groups, units.input0, units.term0, units.term, units.slot_unit, made)
        return made
    order: Array = np.argsort(groups, kind="stable")
    if count < 2:
        return order
    inputs = np.append(units.input0, len(units.term0) - 1)
    summands = units.term0[inputs[1:]] - units.term0[inputs[:-1]]
    reads = _reads(units, groups, order, inputs, summands)
    maker = units.slot_unit[reads.slot]
    leader, place = np.arange(count), np.full(count, int(reads.place.max(initial=0)) + 1)
    # Of several assignments to one place the last stays.
    leader[maker[::-1]], place[maker[::-1]] = reads.reader[::-1], reads.place[::-1]
    once = np.bincount(reads.slot, minlength=1)[reads.slot] == 1
    leader[maker[once]], place[maker[once]] = reads.reader[once], reads.place[once]
    extra = summands - np.diff(inputs)
    rank = ((int(extra.max()) - extra) * (int(place.max()) + 1) + place) * count
    position = np.arange(count)
    ends = np.cumsum(np.bincount(groups))
    for end, start in zip(ends[::-1].tolist(), [*ends[-2::-1].tolist(), 0]):
        if end - start > 1:
            members = order[start:end]
            chosen = np.argsort(rank[members] + position[leader[members]], kind="stable")
            order[start:end] = members = members[chosen]
            position[members] = np.arange(end - start)
    return order


def _reads(units: Any, groups: Array, order: Array, inputs: Array, summands: Array) -> _Reads:
    port = ragged_range(np.diff(inputs))
    counts = np.diff(units.term0)
    level = ragged_range(counts)
    levels, ports = int(level.max(initial=0)) + 1, int(port.max(initial=0)) + 1
    place = np.repeat(port, counts) * levels + level
    lengths = summands[order]
    terms = np.repeat(units.term0[units.input0[order]], lengths) + ragged_range(lengths)
    terms = terms[units.term[terms] >= 0]
    owner = np.repeat(np.arange(len(groups)), summands)
    reader = owner[terms]
    return _Reads(units.term[terms], reader, groups[reader] * (ports * levels) + place[terms])
