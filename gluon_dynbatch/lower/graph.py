"""The graph of one flush: its units with their operands, and the part that the scheduler sees."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from ..native import lowering
from ..schedule.dependencies import Array, Dependencies
from .segment import Cut, Segment


class Graph(NamedTuple):
    """The units of a flush: their segments, slots and operands.

    A *slot* is an output of a unit.  An operand is a sum of *terms*, almost always of one; a term
    is a slot or, as ``-1 - e``, external ``e``, with an offset and a size in elements.  If the port
    has `concat`, the terms are concatenated instead.
    """

    dependencies: Dependencies
    segments: List[Segment]
    #: What native code reads of each segment.
    briefs: List[lowering.SegmentBrief]
    #: Per unit: segment, recorded node, first slot, and first input; the last ends with a total.
    segment: Array
    node: Array
    slot0: Array
    input0: Array
    #: Per input its first term, and at the end the total.
    term0: Array
    #: Per term: slot or external, offset and elements.
    term: Array
    term_offset: Array
    term_size: Array
    #: Per slot: unit and elements.
    slot_unit: Array
    slot_size: Array
    #: Per value its slot or external, as in `term`; the least integer if no unit computes it.
    value_term: Array
    #: Per node its entry, numbered in the order of the tape; per entry its cut.
    entry: Array
    cuts: Sequence[Cut]

    def name(self, unit: int) -> str:
        """Return the name of the callee of a unit."""
        return self.cuts[int(self.entry[self.node[unit]])].name


def check_graph(graph: Graph) -> None:
    """Raise ``AssertionError`` if `graph` breaks an invariant.

    The numbers of slots and inputs are those of the segments; every term is an external or a slot
    of an earlier unit; predecessors are the units of these slots; every unit has rows; units of one
    signature have segments of one family, equal shared arrays, and a layout that merges.
    """
    units, signature = graph.dependencies.size, graph.dependencies.signature
    arrays = (graph.segment, graph.node, graph.slot0, graph.input0[1:], graph.dependencies.rows)
    assert {len(array) for array in arrays} == {units}, "an array of units has a wrong length"
    assert (np.diff(graph.node) >= 0).all(), "units are not in the order of their calls"
    assert (graph.dependencies.rows > 0).all(), "a unit has no rows"
    assert (graph.term_offset >= 0).all(), "an offset is negative"
    externals = ((graph.value_term < 0) & (graph.value_term > np.iinfo(np.int64).min)).sum()
    assert (graph.term >= -externals).all(), "a term is a missing external"
    slots, inputs, terms, edges = 0, 0, 0, 0
    seen: Dict[int, Tuple[str, bytes]] = {}
    for unit in range(units):
        segment = graph.segments[graph.segment[unit]]
        assert graph.slot0[unit] == slots, "slots do not add up"
        assert graph.input0[unit] == inputs, "inputs do not add up"
        assert graph.term0[inputs] == terms, "terms do not add up"
        bounds = graph.term0[inputs : inputs + len(segment.inputs) + 1]
        assert (np.diff(bounds) > 0).all(), "an input has no terms"
        sources = graph.term[terms : bounds[-1]]
        assert (sources < slots).all(), "a unit reads a slot that no earlier unit has"
        producers = graph.slot_unit[sources[sources >= 0]]
        preds = graph.dependencies.preds[edges : edges + len(producers)]
        assert np.array_equal(preds, producers), "predecessors are not the units that are read"
        assert graph.dependencies.offsets[unit] == edges, "offsets of predecessors do not add up"
        shared = bounds[list(segment.shared)]
        assert (np.diff(bounds)[list(segment.shared)] == 1).all(), "a shared array is a sum"
        shared_arrays = graph.term[shared].tobytes() + graph.term_offset[shared].tobytes()
        merging, number = (segment.family, shared_arrays), int(signature[unit])
        assert segment.layout != "unbatched" or number not in seen, f"unit {unit} is unbatched"
        assert seen.setdefault(number, merging) == merging, f"unit {unit}: signature of another"
        units_of_slots = graph.slot_unit[slots : slots + len(segment.outputs)]
        assert (units_of_slots == unit).all(), "a slot has another unit"
        slots, edges = slots + len(segment.outputs), edges + len(producers)
        inputs, terms = inputs + len(segment.inputs), int(bounds[-1])
    assert (len(graph.slot_unit), len(graph.slot_size)) == (slots, slots), "slots do not add up"
    assert len(graph.term0) == graph.input0[-1] + 1 == inputs + 1, "inputs do not add up"
    columns = graph.term, graph.term_offset, graph.term_size
    assert {len(column) for column in columns} == {terms}, "terms do not add up"
    assert graph.dependencies.offsets[-1] == edges, "offsets of predecessors do not add up"
