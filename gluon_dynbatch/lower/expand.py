"""Turn recorded calls into units: cut the program of each entry; `wire.py` does the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, FrozenSet, Tuple

import numpy as np

from ..native import lowering, recording
from ..record.lazy import Lazy
from ..record.tape import Tape
from ..record.types import TYPES
from ..trace.entry import Entry
from .cut import cut_call
from .graph import Graph
from .segment import Cut, Segment
from .wire import wire

NONE: FrozenSet[int] = frozenset()

#: The largest table of which callee delivers which argument.  If there are so many callees that the
#: table would be larger, no argument counts as recurrent.
MOST_EDGES = 2**22


def find_weights(tape: Tape) -> Tuple[int, ...]:
    """Return the external values that are variables with a gradient and several rows."""
    candidates = [
        (tape.external_values[n], tape.externals[n])
        for n in lowering.find_rows(tape, TYPES.has_rows)
    ]
    # All variables are in MXNet's graph, and this test is much faster than reading `grad`.
    in_graph = recording.in_graph([array for _, array in candidates])
    return tuple(
        value
        for (value, array), is_in_graph in zip(candidates, in_graph)
        # A lazy array, which is kept in an arena, has no gradient, and no handle yet.
        if is_in_graph and not isinstance(array, Lazy) and array.grad is not None
    )


def expand(
    tape: Tape,
    granularity: str,
    weights: Tuple[int, ...],
    ragged: Callable[[Segment], bool] = lambda segment: False,
) -> Graph:
    """Cut every call and wire the segments together.

    At granularity ``"unbatched"``, calls do not merge; `weights` is the result of `find_weights`;
    `ragged` returns whether a segment can share launches with segments of other sizes.
    """
    entry_of = np.empty(len(tape.node_entry), dtype=np.int32)
    marks_of = lowering.survey(tape, weights, granularity == "operator", MOST_EDGES, entry_of)
    cuts = [
        entry.cuts.get((granularity, marks)) or _cut(entry, granularity, marks)
        for entry, marks in zip(tape.entries.values(), marks_of)
    ]
    return wire(tape, entry_of, cuts, ragged, granularity == "graph")


def _cut(entry: Entry, granularity: str, marks: bytes) -> Cut:
    """Cut the calls of an entry, or adapt the cut of its `representative`; cache the result."""
    shared, recurrent, uneven = (
        frozenset(i for i, own_marks in enumerate(marks) if own_marks & mark)
        for mark in (lowering.SHARED, lowering.RECURRENT, lowering.UNEVEN)
    )
    # At least one array must belong to each call.
    shared = shared if len(shared) < len(marks) else NONE
    if shared or granularity == "unbatched" or entry.representative is entry:
        variant = entry.variant(shared)
        if shared and variant.reason and not entry.variant(NONE).reason:
            variant = entry.variant(NONE)
        cut = cut_call(variant, granularity, recurrent, uneven)
    else:
        first = entry.representative
        cut = first.cuts.get((granularity, marks)) or _cut(first, granularity, marks)
        cut = replace(cut, rows=entry.in_types[0].shape[0])
    entry.cuts[granularity, marks] = cut
    return cut
