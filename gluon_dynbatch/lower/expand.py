"""From recorded calls to units: how the calls of each entry are cut, which `wire.py` wires."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Set, Tuple

import numpy as np
from mxnet.ndarray import NDArray

from ..native import lowering
from ..record.lazy import LazyNDArray
from ..record.tape import Tape
from ..record.types import TYPES
from ..schedule.dependencies import Array
from ..trace.entry import Entry
from ..trace.variant import Variant
from .cut import cut_call
from .graph import Graph
from .segment import Cut, Segment
from .wire import wire

NONE: FrozenSet[int] = frozenset()

#: Marks of arguments: all calls get one array; a recursion that the call takes part in delivers it;
#: calls bring different numbers of arrays.
SHARED, RECURRENT, UNEVEN = 1, 2, 4

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
    entries = list(tape.entries.values())
    number = np.zeros(max(tape.entries) + 1, dtype=np.int32)
    number[list(tape.entries)] = np.arange(len(entries))
    entry = number[tape.node_entry]
    survey = _Survey(tape, entry, entries, weights)
    marks = survey.marks(granularity == "operator").tobytes()
    cuts = [_cut(one, granularity, marks[survey.spans[one.first]]) for one in entries]
    return wire(tape, entry, cuts, ragged, granularity == "graph")


def _cut(entry: Entry, granularity: str, marks: bytes) -> Cut:
    """Return a cut that was made before, perhaps for another number of rows, or make it."""
    known: Dict[Any, Cut] = entry.cuts
    if (granularity, marks) not in known:
        shared, recurrent, uneven = (
            frozenset(i for i, own in enumerate(marks) if own & mark)
            for mark in (SHARED, RECURRENT, UNEVEN)
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


class _Survey:
    """One look at all calls: which arguments they share, and who delivers which.

    Calls of one callee with the same number of arrays are a *family*.
    """

    def __init__(self, tape: Tape, entry: Array, entries: List[Entry], weights: Tuple[int, ...]):
        callees: Dict[Any, int] = {}
        families: Dict[Any, int] = {}
        #: Per family, one more at the end: its first argument.
        argument0 = [0]
        #: Per entry that was analysed: its arguments.
        self.spans: Dict[Entry, slice] = {}
        #: Per such entry: family, callee, arrays, results, and its first argument.
        rows: List[int] = []
        #: Per argument: which of its family it is, the place in which it came, and whether it has
        #: several rows.
        arguments: List[int] = []
        places: List[int] = []
        several: List[bool] = []
        for one in dict.fromkeys(one.first for one in entries):
            token, arity, first = one.token, len(one.in_types), len(places)
            family = families.setdefault((token, arity), len(families))
            if len(families) == len(argument0):
                argument0.append(argument0[-1] + arity)
            rows += (
                family,
                callees.setdefault(token, len(callees)),
                arity,
                len(one.out_types),
                first,
            )
            self.spans[one] = slice(first, first + arity)
            arguments += range(argument0[family], argument0[family] + arity)
            places += one.places
            several += one.several
        self._rows, self._place = _ints(rows).reshape((-1, 5)), _ints(places)
        self._callees, self._places = len(callees), 1 + max(places, default=0)
        size = len(callees) if len(callees) ** 2 * self._places <= MOST_EDGES else 0
        #: Whether one callee delivers an argument, which came in some place, to another.
        self._edges = np.zeros((size, size, self._places), np.uint8)
        is_weight = np.zeros(len(tape.value_type), dtype=bool)
        is_weight[list(weights)] = True
        shared = np.zeros(argument0[-1], dtype=np.uint8)
        row = {one: k for k, one in enumerate(self.spans)}
        lowering.survey(
            *(entry, tape.node_value0, tape.sources, tape.offsets),
            *(_ints([row[one.first] for one in entries]), self._rows, self._place),
            *(_ints(argument0), is_weight, shared, self._edges),
        )
        self._shared = np.array(several) & (shared[_ints(arguments)] > 0)

    def marks(self, fine: bool) -> Array:
        """Return the marks of each argument; all but `SHARED` only if they are to be `fine`.

        An argument of several rows is shared if it is a variable with a gradient of its own (a
        weight), or if every call of the family gets the very same array.
        """
        marks: Array = SHARED * self._shared.view(np.uint8)
        if fine:
            at = self._rows[:, 1].repeat(self._rows[:, 2]), self._place
            marks |= RECURRENT * self._recurrent()[at]
            marks |= UNEVEN * self._uneven()[at]
        return marks

    def _recurrent(self) -> Array:
        """Tell per callee and place what comes out of a recursion that the callee takes part in.

        Arrays that are passed in one list are one argument here: that the second child of a node
        is a leaf in all of a minibatch does not make it another kind of child.
        """
        reach = self._edges.any(axis=2)
        # Most callees are at an end of all paths.
        for middle in np.flatnonzero(reach.any(axis=0) & reach.any(axis=1)).tolist():
            reach |= reach[:, middle : middle + 1] & reach[middle : middle + 1, :]
        found = np.zeros((self._callees, self._places), dtype=np.uint8)
        found[: len(reach)] = (self._edges & reach.T[:, :, None]).any(axis=0)
        return found

    def _uneven(self) -> Array:
        """Tell per callee and place whether its calls bring different numbers of arrays there.

        Only where calls with sums do.
        """
        found = np.zeros((self._callees, self._places), dtype=np.uint8)
        counts = np.zeros((len(self._rows), self._places), dtype=np.int32)
        np.add.at(counts, (np.arange(len(self._rows)).repeat(self._rows[:, 2]), self._place), 1)
        arities: Dict[int, Set[int]] = {}
        for one, (_, callee, arity, *_) in zip(self.spans, self._rows.tolist()):
            if one.program.adds:
                arities.setdefault(callee, set()).add(arity)
        for callee, several in arities.items():
            if len(several) > 1:
                own = counts[self._rows[:, 1] == callee]
                found[callee] = (own != own[0]).any(axis=0)
        return found


def _ints(numbers: List[int]) -> Array:
    return np.array(numbers, dtype=np.int32)
