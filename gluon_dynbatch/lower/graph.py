"""The graph of one flush: its units, what they read, and what the scheduler sees of it."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

import numpy as np

from ..schedule.dependencies import Array, Dependencies, ragged_range
from .segment import Segment

#: In the place of a term: the value has no place of its own.
ABSENT = np.iinfo(np.int64).min


class Graph(NamedTuple):
    """The units of a flush: places, segments and operands.

    A *slot* is an output of a unit.  An operand is a sum of *terms*, almost always of one; a term
    is a slot or, as ``-1 - e``, the external number ``e``, with an offset and a size in elements.
    The terms of a port that concatenates stand one after another instead.
    """

    dependencies: Dependencies
    segments: List[Segment]
    #: Per unit: segment, recorded node, first slot, first input.
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
    #: Per value: term that stands for it.
    value_term: Array
    #: Per node its entry, and names of entries.
    entry: Array
    names: Dict[int, str]

    def name(self, unit: int) -> str:
        """Return the name of what the call behind a unit called."""
        return self.names[int(self.entry[self.node[unit]])]


def check_graph(graph: Graph) -> None:
    """Raise ``AssertionError`` if `graph` breaks an invariant.

    Slots, inputs and terms are counted as the segments say; every term is an external or a slot of
    an earlier unit; predecessors are the units behind the terms; every unit has rows; units of one
    signature have segments of one family and equal shared arrays, and are batched.
    """
    _check_counts(graph)
    units, signature = graph.dependencies.size, graph.dependencies.signature
    reader = np.repeat(np.repeat(np.arange(units), _ports(graph)), np.diff(graph.term0))
    inner = graph.term >= 0
    made_by = graph.slot_unit[graph.term[inner]]
    assert (made_by < reader[inner]).all(), "a unit reads what is not made before it"
    assert np.array_equal(graph.dependencies.preds, made_by), "predecessors are not those read"
    before = np.append(0, np.cumsum(np.bincount(reader[inner], minlength=units)))
    assert np.array_equal(graph.dependencies.offsets, before), "offsets of predecessors"
    seen: Dict[int, Tuple[str, bytes]] = {}
    for unit in range(units):
        segment = graph.segments[graph.segment[unit]]
        shared = [p for p, port in enumerate(segment.inputs) if port.shared]
        at = graph.term0[graph.input0[unit] + np.array(shared, dtype=np.int64)]
        arrays = graph.term[at].tobytes() + graph.term_offset[at].tobytes()
        number = int(signature[unit])
        assert segment.layout != "unbatched" or number not in seen, f"unit {unit} is unbatched"
        known = seen.setdefault(number, (segment.family, arrays))
        assert known == (segment.family, arrays), f"unit {unit}: signature of another"


def _ports(graph: Graph) -> Array:
    """Return the number of inputs of each unit."""
    ports: Array = np.array([len(segment.inputs) for segment in graph.segments])
    return ports.take(graph.segment)


def _check_counts(graph: Graph) -> None:
    units, ports = graph.dependencies.size, _ports(graph)
    outputs = np.array([len(segment.outputs) for segment in graph.segments])[graph.segment]
    arrays = (graph.segment, graph.node, graph.slot0, graph.input0, graph.dependencies.rows)
    assert {len(array) for array in arrays} == {units}, "an array is not one per unit"
    assert (np.diff(graph.node) >= 0).all(), "units are not in the order of their calls"
    assert (graph.dependencies.rows > 0).all(), "a unit has no rows"
    assert np.array_equal(graph.slot0, np.cumsum(outputs) - outputs), "slots do not add up"
    assert np.array_equal(graph.slot_unit, np.repeat(np.arange(units), outputs)), "units of slots"
    assert np.array_equal(graph.input0, np.cumsum(ports) - ports), "inputs do not add up"
    assert len(graph.term0) == ports.sum() + 1 and graph.term0[0] == 0, "inputs without terms"
    assert graph.term0[-1] == len(graph.term) == len(graph.term_offset), "terms do not add up"
    terms = np.diff(graph.term0)
    port_of = [port for segment in graph.segments for port in segment.inputs]
    first = np.cumsum([0] + [len(segment.inputs) for segment in graph.segments])[graph.segment]
    wanted = np.repeat(first, ports) + ragged_range(ports)
    assert (terms > 0).all(), "an input has no terms"
    shared = np.array([port.shared for port in port_of], dtype=bool)[wanted]
    assert (terms[shared] == 1).all(), "a shared array is a sum"
    externals = ((graph.value_term < 0) & (graph.value_term != ABSENT)).sum()
    assert (graph.term >= -externals).all(), "a term is no external"
    assert (graph.term < len(graph.slot_unit)).all(), "a term is no slot"
    assert (graph.term_offset >= 0).all(), "an offset is negative"
