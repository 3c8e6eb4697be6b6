"""The graph of one flush: its units, what they read, and what the scheduler sees of it."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from ..schedule.dependencies import Array, Dependencies
from .segment import Cut, Segment


class Graph(NamedTuple):
    """The units of a flush: places, segments and operands.

    A *slot* is an output of a unit.  An operand is a sum of *terms*, almost always of one; a term
    is a slot or, as ``-1 - e``, the external number ``e``, with an offset and a size in elements.
    The terms of a port that concatenates stand one after another instead.
    """

    dependencies: Dependencies
    segments: List[Segment]
    #: Per unit: segment, recorded node, first slot, and, one more at the end, first input.
    segment: Array
    node: Array
    slot0: Array
    input0: Array
    #: Per input, one more at the end: first term.
    term0: Array
    term: Array
    term_offset: Array
    term_size: Array
    #: Per slot: its unit, and elements.
    slot_unit: Array
    slot_size: Array
    #: Per value: term that stands for it; the least number for a value that has none.
    value_term: Array
    #: Per node its entry, in the order of the tape; and how the calls of each entry are cut.
    entry: Array
    cuts: Sequence[Cut]

    def name(self, unit: int) -> str:
        """Return the name of what the call behind a unit called."""
        return self.cuts[int(self.entry[self.node[unit]])].name


def check_graph(graph: Graph) -> None:
    """Raise ``AssertionError`` if `graph` breaks an invariant.

    Slots, inputs and terms are counted as the segments say; every term is an external or a slot of
    an earlier unit; predecessors are the units behind the terms; every unit has rows; units of one
    signature have segments of one family and equal shared arrays, and are batched.
    """
    units, signature = graph.dependencies.size, graph.dependencies.signature
    arrays = (graph.segment, graph.node, graph.slot0, graph.input0[1:], graph.dependencies.rows)
    assert {len(array) for array in arrays} == {units}, "an array is not one per unit"
    assert (np.diff(graph.node) >= 0).all(), "units are not in the order of their calls"
    assert (graph.dependencies.rows > 0).all(), "a unit has no rows"
    assert (graph.term_offset >= 0).all(), "an offset is negative"
    externals = ((graph.value_term < 0) & (graph.value_term > np.iinfo(np.int64).min)).sum()
    assert (graph.term >= -externals).all(), "a term is no external"
    slots, inputs, terms, edges = 0, 0, 0, 0
    seen: Dict[int, Tuple[str, bytes]] = {}
    for unit in range(units):
        segment = graph.segments[graph.segment[unit]]
        assert graph.slot0[unit] == slots, "slots do not add up"
        assert graph.input0[unit] == inputs, "inputs do not add up"
        assert graph.term0[inputs] == terms, "terms do not add up"
        ends = graph.term0[inputs : inputs + len(segment.inputs) + 1]
        assert (np.diff(ends) > 0).all(), "an input has no terms"
        read = graph.term[terms : ends[-1]]
        assert (read < slots).all(), "a unit reads what is not made before it"
        makers = graph.slot_unit[read[read >= 0]]
        own = graph.dependencies.preds[edges : edges + len(makers)]
        assert np.array_equal(own, makers), "predecessors are not those read"
        assert graph.dependencies.offsets[unit] == edges, "offsets of predecessors"
        at = ends[list(segment.shared)]
        assert (np.diff(ends)[list(segment.shared)] == 1).all(), "a shared array is a sum"
        known = segment.family, graph.term[at].tobytes() + graph.term_offset[at].tobytes()
        number = int(signature[unit])
        assert segment.layout != "unbatched" or number not in seen, f"unit {unit} is unbatched"
        assert seen.setdefault(number, known) == known, f"unit {unit}: signature of another"
        made = graph.slot_unit[slots : slots + len(segment.outputs)]
        assert (made == unit).all(), "units of slots are others"
        slots, edges = slots + len(segment.outputs), edges + len(makers)
        inputs, terms = inputs + len(segment.inputs), int(ends[-1])
    assert (len(graph.slot_unit), len(graph.slot_size)) == (slots, slots), "slots do not add up"
    assert len(graph.term0) == graph.input0[-1] + 1 == inputs + 1, "inputs do not add up"
    columns = graph.term, graph.term_offset, graph.term_size
    assert {len(column) for column in columns} == {terms}, "terms do not add up"
    assert graph.dependencies.offsets[-1] == edges, "offsets of predecessors"
