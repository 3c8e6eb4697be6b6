"""Wire the segments of all calls into a graph, and compute the signatures that decide merging."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from ..native import lowering
from ..record.tape import Tape
from ..schedule.dependencies import Array, Dependencies
from .graph import Graph
from .segment import Cut, Segment, find_root

#: Layouts in which segments of different sizes can share launches.
MERGED = "rows", "stack"


def wire(
    tape: Tape, entry: Array, cuts: List[Cut], ragged: Callable[[Segment], bool], lockstep: bool
) -> Graph:
    """Wire the segments of all calls together.

    The entry of each call is numbered as in `tape.entries`, and so are the cuts.  In `lockstep`,
    samples share launches only if they make the same calls, call by call.
    """
    wired = lowering.Cuts(cuts, entry)
    units, slots, inputs, terms = wired.sizes
    segment, node, slot0, term, preds, slot_unit, input0, term0 = (
        np.empty(size, dtype=np.int32)
        for size in (units, units, units, terms, terms, slots, units + 1, inputs + 1)
    )
    rows, offsets, term_offset, term_size, slot_size, value_term = (
        np.empty(size, dtype=np.int64)
        for size in (units, units + 1, terms, terms, slots, len(tape.value_type))
    )
    columns: Dict[str, Array] = {
        "segment": segment,
        "slot0": slot0,
        "input0": input0,
        "term0": term0,
        "term": term,
        "term_offset": term_offset,
        "term_size": term_size,
        "slot_unit": slot_unit,
        "slot_size": slot_size,
        "value_term": value_term,
    }
    edges = wired.wire(
        tape, entry, unit_node=node, rows=rows, pred0=offsets, preds=preds, **columns
    )
    dependencies = Dependencies(segment, offsets, preds[:edges], rows)
    segments = list(wired.segments)
    graph = Graph(dependencies, segments, node=node, entry=entry, cuts=cuts, **columns)
    signature = signatures(graph, ragged)
    if lockstep:
        pairs = np.stack([signature, _steps(graph)])
        signature = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int32)
    if signature is segment:
        return graph
    return graph._replace(dependencies=graph.dependencies._replace(signature=signature))


def signatures(graph: Graph, ragged: Callable[[Segment], bool]) -> Array:
    """Return the signature of each unit: units of one signature may share a launch.

    Their segments are equal, or of one family and `ragged`, and they read the same shared arrays.
    Each unit of an unbatched segment has a signature of its own.
    """
    apart = [segment.layout == "unbatched" or segment.shared for segment in graph.segments]
    if not any(apart) and len({segment.family for segment in graph.segments}) == len(apart):
        return graph.segment
    family = np.array(_families(graph.segments, ragged))
    counts = [1] * len(family)
    subdivided: List[Tuple[Array, Array]] = []
    for number, segment in enumerate(graph.segments):
        if family[number] != number or not apart[number]:
            continue
        members = np.flatnonzero(family[graph.segment] == number)
        subclass = np.arange(len(members))
        if segment.layout != "unbatched":
            at = graph.term0[graph.input0[members][:, None] + segment.shared]
            arrays = np.concatenate([graph.term[at], graph.term_offset[at]], axis=1)
            subclass = np.unique(arrays, axis=0, return_inverse=True)[1].reshape(-1)
        counts[number] = subclass.max() + 1
        subdivided.append((members, subclass))
    first = np.array(list(accumulate(counts, initial=0)), dtype=np.int32)
    signature: Array = first[family][graph.segment]
    for members, subclass in subdivided:
        signature[members] += subclass.astype(np.int32)
    return signature


def _steps(graph: Graph) -> Array:
    """Return a number per unit, the same for equal steps of equal samples.

    A sample is a connected component of the graph.  Samples are equal if their units, in order,
    have equal segments and read from the same positions.  Units of unique samples have number 0.
    """
    preds, offsets = graph.dependencies.preds.tolist(), graph.dependencies.offsets.tolist()
    reads = [preds[low:high] for low, high in zip(offsets, offsets[1:])]
    parent = list(range(len(reads)))
    for unit, unit_reads in enumerate(reads):
        for pred in unit_reads:
            low, high = sorted((find_root(parent, pred), find_root(parent, unit)))
            parent[high] = low
    samples: Dict[int, List[int]] = {}
    for unit in range(len(reads)):
        samples.setdefault(find_root(parent, unit), []).append(unit)
    by_calls: Dict[Any, List[List[int]]] = {}
    position = [0] * len(reads)
    segment = graph.segment.tolist()
    for units in samples.values():
        for number, unit in enumerate(units):
            position[unit] = number
        calls = tuple((segment[unit], *(position[pred] for pred in reads[unit])) for unit in units)
        by_calls.setdefault(calls, []).append(units)
    steps, next_step = np.zeros(len(reads), dtype=np.int64), 1
    for calls, equal in by_calls.items():
        if len(equal) > 1:
            steps[equal] = np.arange(next_step, next_step + len(calls))
            next_step += len(calls)
    return steps


def _families(segments: Sequence[Segment], ragged: Callable[[Segment], bool]) -> List[int]:
    """Return per segment the first segment that it can share launches with."""
    count = Counter(segment.family for segment in segments)
    first: Dict[str, int] = {}
    return [
        first.setdefault(segment.family, number)
        if count[segment.family] > 1 and segment.layout in MERGED and ragged(segment)
        else number
        for number, segment in enumerate(segments)
    ]
