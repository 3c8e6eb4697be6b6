"""From recorded calls to units: what the analyzer groups, with every operand named.

All of it is done for whole blocks of like calls at once, in NumPy; nothing here loops over nodes.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, NamedTuple, Tuple

import numpy as np

from .arrays import TYPES
from .cut import cut_call
from .graph import FLOATS, UnitGraph, ragged_range
from .record import Recording
from .segment import Cut, Segment, SegmentTable

#: In the place of a term: the value has no place of its own.
ABSENT = np.iinfo(np.int64).min


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


class Units(NamedTuple):
    """The units of a flush: places, segments and operands.

    A *slot* is an output of a unit.  An operand is a sum of *terms*, almost always of one; a term
    is a slot or, as ``-1 - e``, the external number ``e``, with an offset in elements.
    """

    graph: UnitGraph
    segments: List[Segment]
    #: Per unit: segment, recorded node, first slot, first input.
    segment: np.ndarray
    node: np.ndarray
    slot0: np.ndarray
    input0: np.ndarray
    #: Per input, one more at the end: first term.
    term0: np.ndarray
    term: np.ndarray
    term_offset: np.ndarray
    #: Per slot: its unit.
    slot_unit: np.ndarray
    #: Per value: term that stands for it.
    value_term: np.ndarray
    #: Per node its entry, and names of entries.
    entry: np.ndarray
    names: Dict[int, str]

    def name(self, unit: int) -> str:
        """Return the name of what the call behind a unit called."""
        return self.names[int(self.entry[self.node[unit]])]


def read_nodes(recording: Recording) -> Nodes:
    """Turn a recording into arrays."""
    entry = np.array(recording.node_entry, dtype=np.int32)
    value0 = np.array(recording.node_value0, dtype=np.int64)
    counts = _table(recording, lambda e: len(e.in_types))[entry]
    operand0 = (
        np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(entry) else np.zeros(0, np.int64)
    )
    producer = np.full(len(recording.value_type), -1, dtype=np.int64)
    outputs = _table(recording, lambda e: len(e.out_types))[entry]
    made = np.repeat(value0, outputs) + ragged_range(outputs)
    producer[made] = np.repeat(np.arange(len(entry)), outputs)
    return Nodes(
        entry,
        operand0,
        value0,
        np.array(recording.sources, dtype=np.int64),
        np.array(recording.offsets, dtype=np.int64),
        producer,
    )


def _table(recording: Recording, of: Any) -> np.ndarray:
    """Return a figure of every entry, indexed by entry id."""
    table = np.zeros(max(recording.entries, default=-1) + 1, dtype=np.int64)
    for number, entry in recording.entries.items():
        table[number] = of(entry)
    return table


class _Block(NamedTuple):
    """Calls that are cut alike, with their operands as a matrix (calls, arguments)."""

    nodes: np.ndarray
    values: np.ndarray
    offsets: np.ndarray
    cut: Cut
    rows: int
    shared: FrozenSet[int]


def find_weights(recording: Recording) -> np.ndarray:
    """Mark the values that are variables with a gradient of their own and several rows."""
    weights = np.zeros(len(recording.value_type), dtype=bool)
    for value, external in zip(recording.external_values, recording.externals):
        kind = TYPES[recording.value_type[value]]
        if kind.shape[0] > 1 and kind.dtype in FLOATS and external.grad is not None:
            weights[value] = True
    return weights


def expand(
    recording: Recording, nodes: Nodes, granularity: str, weights: np.ndarray, table: SegmentTable
) -> Units:
    """Cut every call and wire the pieces together."""
    blocks = _cut_blocks(recording, nodes, granularity, weights, table)
    return _Wiring(recording, nodes, blocks).units()


def _cut_blocks(
    recording: Recording, nodes: Nodes, granularity: str, weights: np.ndarray, table: SegmentTable
) -> List[_Block]:
    callees: Dict[Any, int] = {}
    callee_of = {n: callees.setdefault(e.token, len(callees)) for n, e in recording.entries.items()}
    late: Dict[int, FrozenSet[int]] = {}
    if granularity == "operator":
        late = _late_arguments(recording, nodes, callee_of, len(callees))
    # Calls of one callee with different numbers of arrays share different ones.
    kinds: Dict[Any, int] = {}
    kind_of = {
        n: kinds.setdefault((e.token, len(e.in_types)), len(kinds))
        for n, e in recording.entries.items()
    }
    blocks = []
    order = np.argsort(nodes.entry, kind="stable")
    sorted_entries = nodes.entry[order]
    kind_table = _table(recording, lambda e: kind_of[e.id])
    shared_of = _shared_arguments(nodes, kind_table[nodes.entry], weights)
    for number, entry in recording.entries.items():
        low, high = np.searchsorted(sorted_entries, [number, number + 1])
        if low == high:
            continue
        members = order[low:high]
        at = nodes.operand0[members][:, None] + np.arange(len(entry.in_types))
        shared = shared_of(kind_of[number], entry)
        variant = entry.variant(shared)
        if shared and not variant.mergeable and entry.variant(frozenset()).mergeable:
            # Better a copy per sample than each sample alone.
            shared, variant = frozenset(), entry.variant(frozenset())
        places = late.get(callee_of[number], frozenset())
        arguments = frozenset(i for i, place in enumerate(entry.places) if place in places)
        cut = cut_call(variant, granularity, arguments, table)
        rows = entry.in_types[_first_own(entry, shared)].shape[0] if variant.layout == "rows" else 1
        blocks.append(_Block(members, nodes.source[at], nodes.offset[at], cut, rows, shared))
    return blocks


def _first_own(entry: Any, shared: FrozenSet[int]) -> int:
    return next(i for i in range(len(entry.in_types)) if i not in shared)


def _shared_arguments(nodes: Nodes, kinds: np.ndarray, weights: np.ndarray) -> Any:
    """Return a function (kind, entry) -> arguments that are one array for all calls.

    An argument of several rows is shared if it is a variable with a gradient of its own (a weight),
    or if every call of that kind gets the very same array.
    """
    found: Dict[Tuple[int, int], FrozenSet[int]] = {}

    def shared(kind: int, entry: Any) -> FrozenSet[int]:
        arguments = len(entry.in_types)
        key = (kind, entry.id)
        if key not in found:
            members = np.flatnonzero(kinds == kind)
            at = nodes.operand0[members][:, None] + np.arange(arguments)
            values, offsets = nodes.source[at], nodes.offset[at]
            same = ((values == values[:1]) & (offsets == offsets[:1])).all(0) & (len(members) > 1)
            weight = weights[values].all(0) & (offsets == 0).all(0)
            several = np.array([t.shape[0] > 1 for t in entry.in_types], dtype=bool)
            picked = frozenset(np.flatnonzero((same | weight) & several).tolist())
            found[key] = picked if len(picked) < arguments else frozenset()
        return found[key]

    return shared


def _late_arguments(
    recording: Recording, nodes: Nodes, callee_of: Dict[int, int], count: int
) -> Dict[int, FrozenSet[int]]:
    """Find per callee the arguments that come out of a recursion it takes part in.

    Arrays that are passed in one list are one argument here: that the second child of a node is a
    leaf in all of a minibatch does not make it another kind of child.
    """
    callees = _table(recording, lambda e: callee_of[e.id])[nodes.entry]
    arguments = _table(recording, lambda e: len(e.in_types))
    entries = list(recording.entries.values())
    first = np.zeros(len(arguments), dtype=np.int64)
    first[[e.id for e in entries]] = np.cumsum([0] + [len(e.places) for e in entries])[:-1]
    place_of = np.array([place for e in entries for place in e.places], dtype=np.int64)
    counts = arguments[nodes.entry]
    consumer = np.repeat(callees, counts)
    place = place_of[np.repeat(first[nodes.entry], counts) + ragged_range(counts)]
    producer = nodes.producer[nodes.source]
    inner = producer >= 0
    width = int(place.max(initial=0)) + 1
    made_by = callees[producer[inner]]
    coded = np.unique((made_by * count + consumer[inner]) * width + place[inner])
    edges = np.stack([coded // width // count, coded // width % count, coded % width])
    reach = np.zeros((count, count), dtype=bool)
    reach[edges[0], edges[1]] = True
    for middle in range(count):
        reach |= reach[:, middle : middle + 1] & reach[middle : middle + 1, :]
    late: Dict[int, FrozenSet[int]] = {}
    for source, target, argument in edges.T.tolist():
        if reach[target, source]:
            late[target] = late.get(target, frozenset()) | {argument}
    return late


class _Wiring:
    """Numbers units, slots, inputs and terms, and fills in who reads what."""

    def __init__(self, recording: Recording, nodes: Nodes, blocks: List[_Block]):
        self._blocks = blocks
        self._nodes = nodes
        self._names = {number: entry.name for number, entry in recording.entries.items()}
        self._values = len(recording.value_type)
        self._external_values = np.array(recording.external_values, dtype=np.int64)
        count = len(nodes.entry)
        self._unit0 = self._starts(count, lambda cut: len(cut.uses))
        self._slot0 = self._starts(count, lambda cut: sum(len(u.segment.outputs) for u in cut.uses))
        self._input0 = self._starts(count, lambda cut: sum(len(u.sources) for u in cut.uses))
        self._term0 = self._starts(
            count, lambda cut: sum(len(s) for u in cut.uses for s in u.sources)
        )

    def _starts(self, nodes: int, size: Any) -> np.ndarray:
        sizes = np.zeros(nodes + 1, dtype=np.int64)
        for block in self._blocks:
            sizes[block.nodes + 1] = size(block.cut)
        return np.cumsum(sizes)

    def units(self) -> Units:
        """Wire everything."""
        value_term = self._value_terms()
        units, slots = int(self._unit0[-1]), int(self._slot0[-1])
        inputs, terms = int(self._input0[-1]), int(self._term0[-1])
        self._segment = np.zeros(units, np.int32)
        self._node = np.zeros(units, np.int64)
        self._rows = np.zeros(units, np.int64)
        self._signature = np.zeros(units, np.int32)
        self._unit_slot0 = np.zeros(units, np.int64)
        self._unit_input0 = np.zeros(units + 1, np.int64)
        self._unit_input0[-1] = inputs
        self._input_term0 = np.zeros(inputs + 1, np.int64)
        self._input_term0[-1] = terms
        self._term = np.zeros(terms, np.int64)
        self._offset = np.zeros(terms, np.int64)
        self._slot_unit = np.zeros(slots, np.int64)
        self._segments: Dict[Segment, int] = {}
        self._signatures: Dict[Any, int] = {}
        for block in self._blocks:
            self._fill(block, value_term)
        graph = self._graph()
        return Units(
            graph,
            list(self._segments),
            self._segment,
            self._node,
            self._unit_slot0,
            self._unit_input0[:-1],
            self._input_term0,
            self._term,
            self._offset,
            self._slot_unit,
            value_term,
            self._nodes.entry,
            self._names,
        )

    def _value_terms(self) -> np.ndarray:
        term = np.full(self._values, ABSENT, dtype=np.int64)
        term[self._external_values] = -1 - np.arange(len(self._external_values))
        for block in self._blocks:
            first = np.cumsum([0] + [len(u.segment.outputs) for u in block.cut.uses])
            for out, (segment, slot) in enumerate(block.cut.heads):
                term[self._nodes.value0[block.nodes] + out] = (
                    self._slot0[block.nodes] + first[segment] + slot
                )
        return term

    def _fill(self, block: _Block, value_term: np.ndarray) -> None:
        nodes = block.nodes
        slot_first = np.cumsum([0] + [len(u.segment.outputs) for u in block.cut.uses])
        arguments = value_term[block.values]
        inputs, terms = 0, 0
        for position, use in enumerate(block.cut.uses):
            units = self._unit0[nodes] + position
            self._segment[units] = self._segments.setdefault(use.segment, len(self._segments))
            self._node[units] = nodes
            self._rows[units] = block.rows if use.segment.layout == "rows" else 1
            self._unit_slot0[units] = self._slot0[nodes] + slot_first[position]
            self._unit_input0[units] = self._input0[nodes] + inputs
            for out in range(len(use.segment.outputs)):
                self._slot_unit[self._slot0[nodes] + slot_first[position] + out] = units
            for sources in use.sources:
                self._input_term0[self._input0[nodes] + inputs] = self._term0[nodes] + terms
                inputs += 1
                for kind, a, b in sources:
                    at = self._term0[nodes] + terms
                    terms += 1
                    if kind == "in":
                        self._term[at] = arguments[:, a]
                        self._offset[at] = block.offsets[:, a]
                    else:
                        self._term[at] = self._slot0[nodes] + slot_first[a] + b
            self._sign(block, use, units, arguments)

    def _sign(self, block: _Block, use: Any, units: np.ndarray, arguments: np.ndarray) -> None:
        """Give the units their signatures: segment, and identity of every array they share."""
        segment = self._segments[use.segment]
        if use.segment.layout == "alone":
            first = len(self._signatures)
            for k in range(len(units)):
                self._signatures[("alone", first + k)] = first + k
            self._signature[units] = first + np.arange(len(units))
            return
        columns = [s[0][1] for s, port in zip(use.sources, use.segment.inputs) if port.shared]
        if not columns:
            key: Any = (segment,)
            self._signature[units] = self._signatures.setdefault(key, len(self._signatures))
            return
        shared = np.concatenate([arguments[:, columns], block.offsets[:, columns]], axis=1)
        distinct, inverse = np.unique(shared, axis=0, return_inverse=True)
        ids = [
            self._signatures.setdefault((segment, *row), len(self._signatures))
            for row in distinct.tolist()
        ]
        self._signature[units] = np.array(ids, dtype=np.int32)[inverse.reshape(-1)]

    def _graph(self) -> UnitGraph:
        inner = self._term >= 0
        before = np.concatenate([[0], np.cumsum(inner)])
        firsts = self._input_term0[self._unit_input0]
        preds = self._slot_unit[self._term[inner]].astype(np.int32)
        return UnitGraph(self._signature, before[firsts].astype(np.int64), preds, self._rows)
