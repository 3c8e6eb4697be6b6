"""From recorded calls to units: what the analyzer groups, with every operand named.

How the calls of each entry are cut is decided here; `wiring.py` puts the pieces together.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence

import numpy as np

from ..modes import FLOATS
from ..native import PLANNING
from ..record.tape import Tape
from ..record.types import TYPES
from ..schedule.dependencies import Array, ragged_range
from .cut import cut_call
from .graph import Graph
from .segment import SegmentTable
from .wire import Kind, wire

#: The largest table of who delivers which argument that is made natively.
MOST_EDGES = 2**22


class Nodes(NamedTuple):
    """A recording as arrays."""

    entry: np.ndarray
    #: First operand and first output value of each node.
    operand0: np.ndarray
    value0: np.ndarray
    #: Per operand: value, and offset into it in elements.
    source: np.ndarray
    offset: np.ndarray
    #: Per value: producing node, or -1 for an external.
    producer: np.ndarray


def read_nodes(recording: Tape) -> Nodes:
    """Turn a recording into arrays."""
    entry = np.array(recording.node_entry, dtype=np.int32)
    value0 = np.array(recording.node_value0, dtype=np.int64)
    counts = _table(recording, lambda e: len(e.in_types))[entry]
    producer = np.full(len(recording.value_type), -1, dtype=np.int64)
    outputs = _table(recording, lambda e: len(e.out_types))[entry]
    made = np.repeat(value0, outputs) + ragged_range(outputs)
    producer[made] = np.repeat(np.arange(len(entry)), outputs)
    return Nodes(
        entry,
        np.cumsum(counts) - counts,
        value0,
        np.array(recording.sources, dtype=np.int64),
        np.array(recording.offsets, dtype=np.int64),
        producer,
    )


def _table(recording: Tape, of: Any, dtype: Any = np.int64) -> Array:
    """Return a figure of every entry, indexed by entry id."""
    table = np.zeros(max(recording.entries, default=-1) + 1, dtype=dtype)
    for number, entry in recording.entries.items():
        table[number] = of(entry)
    return table


def find_weights(recording: Tape) -> np.ndarray:
    """Mark the values that are variables with a gradient of their own and several rows."""
    weights = np.zeros(len(recording.value_type), dtype=bool)
    for value, external in zip(recording.external_values, recording.externals):
        kind = TYPES[recording.value_type[value]]
        if kind.shape[0] > 1 and kind.dtype in FLOATS and external.grad is not None:
            weights[value] = True
    return weights


def find_unused(recording: Tape, wanted: Sequence[int]) -> Optional[Array]:
    """Mark the calls of which no result is wanted, nor read by a call with such a result.

    Parameters
    ----------
    recording : Tape
        The calls.
    wanted : sequence of int
        Values that the user still holds.

    Returns
    -------
    numpy.ndarray of bool, shape (nodes,), or None
        None if there are no such calls, as is the rule.
    """
    used = np.zeros(len(recording.value_type), dtype=bool)
    used[wanted] = True
    unused = np.zeros(len(recording.node_entry), dtype=bool)
    arity = _table(recording, lambda e: len(e.in_types), np.int32)
    outputs = _table(recording, lambda e: len(e.out_types), np.int32)
    if PLANNING is not None:
        found = PLANNING.unused(
            recording.node_entry,
            recording.node_value0,
            recording.sources,
            arity,
            outputs,
            used,
            unused,
        )
        return unused if found else None
    last = len(recording.sources)
    for node in range(len(unused) - 1, -1, -1):
        entry, value = recording.node_entry[node], recording.node_value0[node]
        first = last - int(arity[entry])
        if used[value : value + outputs[entry]].any():
            used[memoryview(recording.sources)[first:last].tolist()] = True
        else:
            unused[node] = True
        last = first
    return unused if unused.any() else None


def expand(
    recording: Tape,
    granularity: str,
    weights: np.ndarray,
    table: SegmentTable,
    unused: Optional[Array] = None,
) -> Graph:
    """Cut every call and wire the pieces together.

    Parameters
    ----------
    recording : Tape
        The calls.
    granularity : str
        ``"block"`` or ``"operator"``; ``"alone"`` keeps every call as it was written.
    weights : numpy.ndarray of bool, shape (values,)
        What `find_weights` returns.
    table : SegmentTable
        Where equal segments meet.
    unused : numpy.ndarray of bool, shape (nodes,), optional
        What `find_unused` returns.  Such calls share no launch with others: gradients do not come
        to them, and zero times what is not finite is no gradient of zero.
    """
    survey = _survey(recording, weights)
    late = survey.late() if granularity == "operator" else {}
    kinds = {}
    for number, entry in recording.entries.items():
        shared = survey.shared(entry)
        variant = entry.variant(shared)
        if shared and not variant.mergeable and entry.variant(frozenset()).mergeable:
            # Better a copy per sample than each sample alone.
            variant = entry.variant(frozenset())
        places = late.get(survey.callee[number], frozenset())
        arguments = frozenset(i for i, place in enumerate(entry.places) if place in places)
        cut = cut_call(variant, granularity, arguments, table)
        kinds[number] = Kind(entry, cut, _rows(variant), variant.joined)
    units = wire(recording, kinds)
    if unused is None:
        return units
    before = units.dependencies.signature
    apart = (int(before.max()) + 1) * unused[units.node]
    signature = (before + apart).astype(np.int32)
    return units._replace(dependencies=units.dependencies._replace(signature=signature))


def _rows(variant: Any) -> int:
    """Return how many rows a call adds to its launch."""
    if variant.layout == "rows":
        types = enumerate(variant.entry.in_types)
        return next(t.shape[0] for i, t in types if i not in variant.shared)
    return sum(variant.joined) or 1


class Survey(NamedTuple):
    """What was seen in one look at all calls.

    Calls of one callee with the same number of arrays are a *family*.
    """

    callee: Dict[int, int]
    #: Family of each entry, and per family its calls and its first argument in what follows.
    family: Dict[int, int]
    count: Array
    argument0: Array
    #: Per argument: whether all calls get one array; whether all get a weight.
    same: Array
    weight: Array
    #: Distinct (producing callee, consuming callee, place of the argument), one per row.
    edges: Array

    def shared(self, entry: Any) -> FrozenSet[int]:
        """Return the arguments that are one array for all calls.

        An argument of several rows is shared if it is a variable with a gradient of its own (a
        weight), or if every call of the family gets the very same array.
        """
        family, arguments = self.family[entry.id], len(entry.in_types)
        first = int(self.argument0[family])
        several = self.count[family] > 1
        found = frozenset(
            i
            for i, kind in enumerate(entry.in_types)
            if kind.shape[0] > 1 and ((several and self.same[first + i]) or self.weight[first + i])
        )
        return found if len(found) < arguments else frozenset()

    def late(self) -> Dict[int, FrozenSet[int]]:
        """Find per callee the arguments that come out of a recursion it takes part in.

        Arrays that are passed in one list are one argument here: that the second child of a node
        is a leaf in all of a minibatch does not make it another kind of child.
        """
        count = max(self.callee.values(), default=-1) + 1
        reach = np.zeros((count, count), dtype=bool)
        reach[self.edges[:, 0], self.edges[:, 1]] = True
        for middle in range(count):
            reach |= reach[:, middle : middle + 1] & reach[middle : middle + 1, :]
        found: Dict[int, FrozenSet[int]] = {}
        for source, target, place in self.edges.tolist():
            if reach[target, source]:
                found[target] = found.get(target, frozenset()) | {place}
        return found


def _survey(recording: Tape, weights: Array) -> Survey:
    callees: Dict[Any, int] = {}
    families: Dict[Any, int] = {}
    callee, family, widths = {}, {}, []
    for number, entry in recording.entries.items():
        callee[number] = callees.setdefault(entry.token, len(callees))
        key = (entry.token, len(entry.in_types))
        family[number] = families.setdefault(key, len(families))
        if family[number] == len(widths):
            widths.append(len(entry.in_types))
    width = 1 + max((p for e in recording.entries.values() for p in e.places), default=0)
    arguments = sum(widths)
    survey = Survey(
        callee,
        family,
        np.zeros(len(widths), dtype=np.int32),
        np.cumsum([0] + widths)[:-1].astype(np.int32),
        np.ones(arguments, dtype=bool),
        np.ones(arguments, dtype=bool),
        np.zeros((0, 3), dtype=np.int64),
    )
    edges = len(callees) ** 2 * width
    if PLANNING is not None and edges <= MOST_EDGES:
        table = np.zeros(edges, dtype=np.uint8)
        _look_natively(recording, survey, weights, table)
        found = table.reshape((len(callees), len(callees), width))
        return survey._replace(edges=np.argwhere(found))
    return _look(recording, survey, weights)


def _look_natively(recording: Tape, survey: Survey, weights: Array, table: Array) -> None:
    """Do what `_look` does; see ``survey`` in ``_planning.c``."""
    entries = recording.entries
    places: List[int] = []
    place0 = {}
    for number, entry in entries.items():
        place0[number] = len(places)
        places += entry.places
    PLANNING.survey(
        recording.node_entry,
        recording.node_value0,
        recording.sources,
        recording.offsets,
        _table(recording, lambda e: survey.family[e.id], np.int32),
        _table(recording, lambda e: survey.callee[e.id], np.int32),
        _table(recording, lambda e: len(e.in_types), np.int32),
        _table(recording, lambda e: len(e.out_types), np.int32),
        _table(recording, lambda e: place0[e.id], np.int32),
        np.array(places, dtype=np.int32),
        survey.argument0,
        weights,
        survey.same,
        survey.weight,
        survey.count,
        table,
    )


def _look(recording: Tape, survey: Survey, weights: Array) -> Survey:
    nodes = read_nodes(recording)
    entries = recording.entries
    arity = _table(recording, lambda e: len(e.in_types))[nodes.entry]
    family = _table(recording, lambda e: survey.family[e.id])[nodes.entry]
    for number in range(len(survey.count)):
        members = np.flatnonzero(family == number)
        survey.count[number] = len(members)
        if not len(members):
            continue
        arguments = int(arity[members[0]])
        at = nodes.operand0[members][:, None] + np.arange(arguments)
        values, offsets = nodes.source[at], nodes.offset[at]
        first = int(survey.argument0[number])
        same = ((values == values[:1]) & (offsets == offsets[:1])).all(0)
        survey.same[first : first + arguments] = same
        survey.weight[first : first + arguments] = weights[values].all(0) & (offsets == 0).all(0)
    callee = _table(recording, lambda e: survey.callee[e.id])[nodes.entry]
    places = np.array([place for e in entries.values() for place in e.places], dtype=np.int64)
    place0 = np.zeros(max(entries, default=-1) + 1, dtype=np.int64)
    place0[list(entries)] = np.cumsum([0] + [len(e.places) for e in entries.values()])[:-1]
    place = places[np.repeat(place0[nodes.entry], arity) + ragged_range(arity)]
    producer = nodes.producer[nodes.source]
    inner = producer >= 0
    found = np.stack([callee[producer], np.repeat(callee, arity), place], axis=1)[inner]
    return survey._replace(edges=np.unique(found, axis=0))
