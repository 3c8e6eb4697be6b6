"""From recorded calls to units: how the calls of each entry are cut, which `wire.py` wires."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, FrozenSet, Tuple

import numpy as np

from ..native import lowering, recording
from ..record.lazy import LazyNDArray
from ..record.tape import Tape
from ..record.types import TYPES
from ..trace.entry import Entry
from ..trace.variant import Variant
from .cut import cut_call
from .graph import Graph
from .segment import Cut, Segment
from .wire import wire

NONE: FrozenSet[int] = frozenset()

#: The largest table of who delivers which argument; with more callees, none counts as recurrent.
MOST_EDGES = 2**22


def find_weights(tape: Tape) -> Tuple[int, ...]:
    """Return the values that are variables with a gradient of their own and several rows."""
    several = np.frombuffer(bytes(TYPES.several), np.uint8)[tape.external_type]
    found = [(tape.external_values[n], tape.externals[n]) for n in np.flatnonzero(several).tolist()]
    # A variable is in MXNet's graph; to ask for a gradient takes much longer.
    marks = recording.in_graph([array for _, array in found])
    return tuple(
        value
        for (value, array), mark in zip(found, marks)
        # What is kept in an arena has no gradient, nor a handle yet.
        if mark and type(array) is not LazyNDArray and array.grad is not None
    )


def expand(
    tape: Tape,
    granularity: str,
    weights: Tuple[int, ...],
    ragged: Callable[[Segment], bool] = lambda segment: False,
) -> Graph:
    """Cut every call and wire the segments together.

    Parameters
    ----------
    tape : Tape
        The calls.
    granularity : str
        ``"graph"``, ``"block"`` or ``"operator"``; ``"unbatched"`` keeps every call as it was
        written.
    weights : tuple of int
        What `find_weights` returns.
    ragged : callable, optional
        Whether a segment can share launches with those that have arrays of other sizes.
    """
    entry = np.empty(len(tape.node_entry), dtype=np.int32)
    marks = lowering.survey(tape, weights, granularity == "operator", MOST_EDGES, entry)
    cuts = [_cut(one, granularity, own) for one, own in zip(tape.entries.values(), marks)]
    return wire(tape, entry, cuts, ragged, granularity == "graph")


def _cut(entry: Entry, granularity: str, marks: bytes) -> Cut:
    """Return a cut that was made before, perhaps for another number of rows, or make it."""
    known: Dict[Any, Cut] = entry.cuts
    if (granularity, marks) not in known:
        shared, recurrent, uneven = (
            frozenset(i for i, own in enumerate(marks) if own & mark)
            for mark in (lowering.SHARED, lowering.RECURRENT, lowering.UNEVEN)
        )
        shared = shared if len(shared) < len(marks) else NONE
        if shared or granularity == "unbatched" or entry.first is entry:
            made = cut_call(_variant(entry, shared), granularity, recurrent, uneven)
        else:
            first = _cut(entry.first, granularity, marks)
            made = replace(first, rows=entry.in_types[0].shape[0])
        known[granularity, marks] = made
    return known[granularity, marks]


def _variant(entry: Entry, shared: FrozenSet[int]) -> Variant:
    variant = entry.variant(shared)
    if variant.shared and variant.reason and not entry.variant(NONE).reason:
        # Better a copy per sample than each sample alone.
        return entry.variant(NONE)
    return variant
