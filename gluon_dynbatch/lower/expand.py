"""From recorded calls to units: how the calls of each entry are cut, which `wire.py` wires."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple

import numpy as np
from mxnet.ndarray import NDArray

from ..native import lowering
from ..record.lazy import LazyNDArray
from ..record.tape import Tape
from ..record.types import TYPES
from ..trace.entry import Entry
from ..trace.variant import Variant
from .cut import cut_call
from .graph import Graph
from .segment import Cut, Segment, SegmentTable
from .wire import wire

NONE: FrozenSet[int] = frozenset()

#: The largest table of who delivers which argument; with more callees, none counts as recurrent.
MOST_EDGES = 2**22


def find_weights(tape: Tape) -> Tuple[int, ...]:
    """Return the values that are variables with a gradient of their own and several rows."""
    several = np.frombuffer(bytes(TYPES.several), np.uint8)[tape.external_type]
    return tuple(
        tape.external_values[number]
        for number in np.flatnonzero(several).tolist()
        if _grad(tape.externals[number]) is not None
    )


def _grad(array: NDArray) -> Optional[NDArray]:
    """Return the gradient of an array; what is kept in an arena has none, nor a handle yet."""
    return None if type(array) is LazyNDArray else array.grad


def expand(
    tape: Tape,
    granularity: str,
    weights: Tuple[int, ...],
    table: SegmentTable,
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
    table : SegmentTable
        Where equal segments meet.
    ragged : callable, optional
        Whether a segment can share launches with those that have arrays of other sizes.
    """
    survey = _Survey(tape, weights)
    cuts = {}
    fine = granularity == "operator"
    recurrent, uneven = (survey.recurrent(), survey.uneven()) if fine else ({}, {})
    hows: Dict[Entry, Any] = {}
    for number, entry in tape.entries.items():
        if entry.first not in hows:
            callee = survey.rows[entry.first][1]
            delivered = _arguments(entry, recurrent.get(callee))
            varying = _arguments(entry, uneven.get(callee))
            hows[entry.first] = survey.shared(entry), (granularity, delivered, varying)
        shared, how = hows[entry.first]
        cuts[number] = _cut(entry, shared, how, table)
    return wire(tape, cuts, ragged, granularity == "graph")


def _cut(
    entry: Entry,
    shared: FrozenSet[int],
    how: Tuple[str, FrozenSet[int], FrozenSet[int]],
    table: SegmentTable,
) -> Cut:
    """Return a cut that was made before, perhaps for another number of rows, or make it."""
    known = table.cuts(entry)
    if (shared, how) not in known:
        if shared or how[0] == "unbatched" or entry.first is entry:
            made = cut_call(_variant(entry, shared), *how, table)
        else:
            made = replace(_cut(entry.first, shared, how, table), rows=entry.in_types[0].shape[0])
        known[shared, how] = made
    return known[shared, how]


def _arguments(entry: Entry, places: Optional[FrozenSet[int]]) -> FrozenSet[int]:
    """Return the arrays of a call that came in some places."""
    return frozenset(i for i, p in enumerate(entry.places) if p in places) if places else NONE


def _variant(entry: Entry, shared: FrozenSet[int]) -> Variant:
    variant = entry.variant(shared)
    if variant.shared and variant.reason and not entry.variant(frozenset()).reason:
        # Better a copy per sample than each sample alone.
        return entry.variant(frozenset())
    return variant


class _Survey:
    """One look at all calls: which arguments they share, and who delivers which.

    Calls of one callee with the same number of arrays are a *family*.
    """

    def __init__(self, tape: Tape, weights: Tuple[int, ...]):
        callees: Dict[Any, int] = {}
        families: Dict[Any, int] = {}
        places: List[int] = []
        #: Per entry that was analysed: family, callee, arrays, results, and its first place.
        self.rows: Dict[Entry, Tuple[int, int, int, int, int]] = {}
        for entry in {entry.first: None for entry in tape.entries.values()}:
            token, arity = entry.token, len(entry.in_types)
            callee = callees.setdefault(token, len(callees))
            family = families.setdefault((token, arity), len(families))
            self.rows[entry] = family, callee, arity, len(entry.out_types), len(places)
            places += entry.places
        table = np.zeros((5, max(tape.entries) + 1), dtype=np.int32)
        rows = [self.rows[entry.first] for entry in tape.entries.values()]
        table[:, list(tape.entries)] = np.array(rows, dtype=np.int32).T
        arrays = [0] + [count for _, count in families]
        #: Per family: its first argument in what follows, and its calls.
        self._argument0 = np.cumsum(arrays, dtype=np.int32)[:-1].copy()
        self._calls = np.zeros(len(families), dtype=np.int32)
        #: Per argument: whether all calls get one array; whether all get a weight.
        self._same = np.ones(sum(arrays), dtype=bool)
        self._weight = np.ones(sum(arrays), dtype=bool)
        shape = len(callees), len(callees), 1 + max(places, default=0)
        #: Whether one callee delivers an argument, which came in some place, to another.
        self._edges = np.zeros(shape if np.prod(shape) <= MOST_EDGES else (0, 0, 0), np.uint8)
        is_weight = np.zeros(len(tape.value_type), dtype=bool)
        is_weight[list(weights)] = True
        lowering.survey(
            *(tape.node_entry, tape.node_value0, tape.sources, tape.offsets),
            *(*table, np.array(places, dtype=np.int32)),
            *(self._argument0, is_weight, self._same, self._weight, self._calls, self._edges),
        )

    def shared(self, entry: Entry) -> FrozenSet[int]:
        """Return the arguments that are one array for all calls.

        An argument of several rows is shared if it is a variable with a gradient of its own (a
        weight), or if every call of the family gets the very same array.
        """
        if not entry.several:
            return NONE
        family = self.rows[entry.first][0]
        first, often = int(self._argument0[family]), self._calls[family] > 1
        shared = frozenset(
            i for i in entry.several if (often and self._same[first + i]) or self._weight[first + i]
        )
        return shared if len(shared) < len(entry.in_types) else NONE

    def recurrent(self) -> Dict[int, FrozenSet[int]]:
        """Find per callee the arguments that come out of a recursion it takes part in.

        Arrays that are passed in one list are one argument here: that the second child of a node
        is a leaf in all of a minibatch does not make it another kind of child.
        """
        reach = self._edges.any(axis=2)
        for middle in range(len(reach)):
            reach |= reach[:, middle : middle + 1] & reach[middle : middle + 1, :]
        found: Dict[int, FrozenSet[int]] = {}
        for source, target, place in np.argwhere(self._edges).tolist():
            if reach[target, source]:
                found[target] = found.get(target, frozenset()) | {place}
        return found

    def uneven(self) -> Dict[int, FrozenSet[int]]:
        """Find per callee the arguments of which its calls bring different numbers of arrays.

        Only where calls with sums do.
        """
        entries: Dict[int, List[Entry]] = {}
        for entry, (_, callee, *_) in self.rows.items():
            entries.setdefault(callee, []).append(entry)
        found = {}
        for callee, own in entries.items():
            if len({len(entry.in_types) for entry in own if entry.program.adds}) > 1:
                counts = [Counter(entry.places) for entry in own]
                places = set().union(*counts)
                found[callee] = frozenset(p for p in places if len({c[p] for c in counts}) > 1)
        return found
