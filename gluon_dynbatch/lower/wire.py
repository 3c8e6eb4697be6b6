"""Numbers units, slots, inputs and terms, and fills in who reads what."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

from ..native import PLANNING
from ..record.tape import Tape
from ..schedule.dependencies import Array, Dependencies
from .graph import Graph
from .segment import Cut, Segment

#: In the place of a term: the value has no place of its own.
ABSENT = np.iinfo(np.int64).min


class Kind(NamedTuple):
    """How the calls of one entry are cut."""

    entry: Any
    cut: Cut
    #: Rows that each call adds to its launch.
    rows: int
    #: Rows of each argument, if the call joins them.
    joined: Tuple[int, ...]


class _Wires(NamedTuple):
    """What is known of units before they have signatures; arrays as in `Graph`."""

    segment: Array
    node: Array
    rows: Array
    slot0: Array
    #: One more at the end, as with `term0`.
    input0: Array
    term0: Array
    term: Array
    term_offset: Array
    slot_unit: Array
    value_term: Array


def wire(recording: Tape, kinds: Dict[int, Kind]) -> Graph:
    """Wire the pieces of all calls together.

    Parameters
    ----------
    recording : Tape
        The calls, each after those whose results it reads.
    kinds : dict
        How each entry's calls are cut.
    """
    numbers: Dict[Segment, int] = {}
    for kind in kinds.values():
        for use in kind.cut.uses:
            numbers.setdefault(use.segment, len(numbers))
    segments = list(numbers)
    if PLANNING is not None:
        wires, pred0, preds = _wire_natively(recording, kinds, numbers)
    else:
        wires = _Wiring(recording, kinds, numbers).wires()
        pred0, preds = _predecessors(wires)
    signature = _signatures(segments, wires)
    return Graph(
        Dependencies(signature, pred0, preds, wires.rows),
        segments,
        wires.segment,
        wires.node,
        wires.slot0,
        wires.input0[:-1],
        wires.term0,
        wires.term,
        wires.term_offset,
        wires.slot_unit,
        wires.value_term,
        np.array(recording.node_entry, dtype=np.int32),
        {number: kind.entry.name for number, kind in kinds.items()},
        {number: kind.joined for number, kind in kinds.items() if kind.joined},
    )


def _signatures(segments: List[Segment], wires: _Wires) -> Array:
    """Give the units of a segment one number per distinct set of arrays that they share."""
    within = np.zeros(len(wires.segment), dtype=np.int64)
    distinct = np.ones(len(segments) + 1, dtype=np.int64)
    for number, segment in enumerate(segments):
        ports = [p for p, port in enumerate(segment.inputs) if port.shared]
        if not ports and segment.layout != "alone":
            continue
        members = np.flatnonzero(wires.segment == number)
        if segment.layout == "alone":
            distinct[number], within[members] = len(members), np.arange(len(members))
            continue
        terms = wires.term0[wires.input0[members][:, None] + ports]
        arrays = np.concatenate([wires.term[terms], wires.term_offset[terms]], axis=1)
        found, inverse = np.unique(arrays, axis=0, return_inverse=True)
        distinct[number], within[members] = len(found), inverse.reshape(-1)
    first = np.cumsum(distinct) - distinct
    signature: Array = (first[wires.segment] + within).astype(np.int32)
    return signature


def _predecessors(wires: _Wires) -> Tuple[Array, Array]:
    inner = wires.term >= 0
    before = np.concatenate([[0], np.cumsum(inner)])
    preds = wires.slot_unit[wires.term[inner]].astype(np.int32)
    return before[wires.term0[wires.input0]], preds


class _Sizes(NamedTuple):
    """How much of everything a call has."""

    units: int
    slots: int
    inputs: int
    terms: int


def _sizes(cut: Cut) -> _Sizes:
    return _Sizes(
        len(cut.uses),
        sum(len(use.segment.outputs) for use in cut.uses),
        sum(len(use.sources) for use in cut.uses),
        sum(len(source) for use in cut.uses for source in use.sources),
    )


def _empty(sizes: _Sizes, values: int) -> _Wires:
    units, slots, inputs, terms = sizes
    wide = [
        np.empty(size, dtype=np.int64)
        for size in (units, units, units, units + 1, inputs + 1, terms, terms, slots, values)
    ]
    wide[3][-1], wide[4][-1] = inputs, terms
    return _Wires(np.empty(units, dtype=np.int32), *wide)


def _wire_natively(
    recording: Tape, kinds: Dict[int, Kind], numbers: Dict[Segment, int]
) -> Tuple[_Wires, Array, Array]:
    """Do what `_Wiring` and `_predecessors` do; see ``wire`` in ``_planning.c``."""
    last = max(kinds) + 1
    arity, rows, first = (np.zeros(last, dtype=np.int32) for _ in range(3))
    size = np.zeros((last, 4), dtype=np.int64)
    code: List[int] = []
    known: Dict[int, Tuple[int, _Sizes]] = {}
    for number, kind in kinds.items():
        found = known.get(id(kind.cut))
        if found is None:
            found = known[id(kind.cut)] = len(code), _sizes(kind.cut)
            code += _code(kind.cut, numbers)
        arity[number], rows[number] = len(kind.entry.in_types), kind.rows
        first[number], size[number] = found
    calls = np.bincount(np.array(recording.node_entry, dtype=np.int32), minlength=last)
    sizes = _Sizes(*(calls @ size).tolist())
    wires = _empty(sizes, len(recording.value_type))
    pred0, preds = np.empty(sizes.units + 1, np.int64), np.empty(sizes.terms, np.int32)
    edges = PLANNING.wire(
        recording.node_entry,
        recording.node_value0,
        recording.sources,
        recording.offsets,
        recording.external_values,
        arity,
        rows,
        first,
        np.array(code, dtype=np.int32),
        np.array([max(len(kind.cut.uses) for kind in kinds.values())], dtype=np.int32),
        *wires,
        pred0,
        preds,
    )
    return wires, pred0, preds[:edges].copy()


def _code(cut: Cut, numbers: Dict[Segment, int]) -> List[int]:
    """Write a cut as integers: see ``wire`` in ``_planning.c``."""
    code = [len(cut.uses), len(cut.heads)]
    for segment, sources in cut.uses:
        counts_rows = int(segment.layout in ("rows", "join"))
        code += [numbers[segment], counts_rows, len(segment.outputs), len(sources)]
        for terms in sources:
            code.append(len(terms))
            for where, a, b in terms:
                code += [int(where == "seg"), a, b]
    for head in cut.heads:
        code += head
    return code


class _Wiring:
    """Wires whole blocks of like calls at once, in NumPy."""

    def __init__(self, recording: Tape, kinds: Dict[int, Kind], numbers: Dict[Segment, int]):
        self._numbers = numbers
        entry = np.array(recording.node_entry, dtype=np.int64)
        last = max(kinds) + 1
        size = np.zeros((last, 4), dtype=np.int64)
        arity = np.zeros(last, dtype=np.int64)
        for number, kind in kinds.items():
            size[number], arity[number] = _sizes(kind.cut), len(kind.entry.in_types)
        #: Per node, one more at the end: first unit, slot, input and term.
        self._start = np.zeros((len(entry) + 1, 4), dtype=np.int64)
        np.cumsum(size[entry], axis=0, out=self._start[1:])
        counts = arity[entry]
        operand0 = np.cumsum(counts) - counts
        order = np.argsort(entry, kind="stable")
        ends = np.searchsorted(entry[order], [[number, number + 1] for number in kinds])
        self._value0 = np.array(recording.node_value0, dtype=np.int64)
        sources = np.array(recording.sources, dtype=np.int64)
        offsets = np.array(recording.offsets, dtype=np.int64)
        #: Calls that are cut alike: kind, nodes, values and offsets of their operands.
        self._blocks = []
        for kind, (low, high) in zip(kinds.values(), ends.tolist()):
            nodes = order[low:high]
            at = operand0[nodes][:, None] + np.arange(len(kind.entry.in_types))
            self._blocks.append((kind, nodes, sources[at], offsets[at]))
        self._wires = _empty(_Sizes(*self._start[-1].tolist()), len(recording.value_type))
        self._wires.value_term.fill(ABSENT)
        externals = np.array(recording.external_values, dtype=np.int64)
        self._wires.value_term[externals] = -1 - np.arange(len(externals))

    def wires(self) -> _Wires:
        """Wire everything."""
        for kind, nodes, _, _ in self._blocks:
            first = np.cumsum([0] + [len(use.segment.outputs) for use in kind.cut.uses])
            for out, (use, slot) in enumerate(kind.cut.heads):
                place = self._start[nodes, 1] + first[use] + slot
                self._wires.value_term[self._value0[nodes] + out] = place
        for block in self._blocks:
            self._fill(*block)
        return self._wires

    def _fill(self, kind: Kind, nodes: Array, values: Array, offsets: Array) -> None:
        made = self._wires
        units, slots, inputs, terms = self._start[nodes].T
        slot_first = np.cumsum([0] + [len(use.segment.outputs) for use in kind.cut.uses])
        arguments = made.value_term[values]
        read, summed = 0, 0
        for position, (segment, sources) in enumerate(kind.cut.uses):
            made.segment[units + position] = self._numbers[segment]
            made.node[units + position] = nodes
            counts_rows = segment.layout in ("rows", "join")
            made.rows[units + position] = kind.rows if counts_rows else 1
            made.slot0[units + position] = slots + slot_first[position]
            made.input0[units + position] = inputs + read
            for out in range(len(segment.outputs)):
                made.slot_unit[slots + slot_first[position] + out] = units + position
            for source in sources:
                made.term0[inputs + read] = terms + summed
                read += 1
                for where, a, b in source:
                    is_argument = where == "in"
                    made.term[terms + summed] = (
                        arguments[:, a] if is_argument else slots + slot_first[a] + b
                    )
                    made.term_offset[terms + summed] = offsets[:, a] if is_argument else 0
                    summed += 1
