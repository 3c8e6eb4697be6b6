"""Numbers units, slots, inputs and terms, fills in who reads what, and says what may merge."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from ..native import lowering
from ..record.tape import Tape
from ..schedule.dependencies import Array, Dependencies
from .graph import Graph
from .segment import Cut, Segment

#: Layouts in which segments of several sizes share launches.
MERGED = "rows", "stack"


def wire(
    tape: Tape,
    entry: Array,
    cuts: List[Cut],
    ragged: Callable[[Segment], bool],
    lockstep: bool,
) -> Graph:
    """Wire the segments of all calls together.

    Parameters
    ----------
    tape : Tape
        The calls, each after those whose results it reads.
    entry : numpy.ndarray of int32, shape (nodes,)
        The entry of each call, which is numbered here as it comes in the tape.
    cuts : sequence of Cut
        How the calls of each entry are cut.
    ragged : callable
        Whether a segment can share launches with those that have arrays of other sizes.
    lockstep : bool
        Whether only samples with the same calls share launches, call by call.
    """
    wired = lowering.Cuts(cuts, entry)
    units, slots, inputs, terms = wired.sizes
    segment, node, slot0, term, preds, slot_unit, input0, term0 = (
        np.empty(size, dtype=np.int32)
        for size in (units, units, units, terms, terms, slots, units + 1, inputs + 1)
    )
    rows, offsets, term_offset, term_size, slot_size = (
        np.empty(size, dtype=np.int64) for size in (units, units + 1, terms, terms, slots)
    )
    value_term = np.empty(len(tape.value_type), dtype=np.int64)
    edges = wired.wire(
        *(tape, entry),
        *(segment, node, rows, slot0, input0, term0, term, term_offset, term_size),
        *(slot_unit, slot_size, value_term, offsets, preds),
    )
    graph = Graph(
        Dependencies(segment, offsets, preds[:edges].copy(), rows),
        list(wired.segments),
        *(segment, node, slot0, input0, term0, term, term_offset, term_size),
        *(slot_unit, slot_size, value_term, entry),
        cuts,
    )
    signature = signatures(graph, ragged)
    if lockstep:
        units = np.stack([signature, _steps(graph)])
        signature = np.unique(units, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int32)
    return graph._replace(dependencies=graph.dependencies._replace(signature=signature))


def signatures(graph: Graph, ragged: Callable[[Segment], bool]) -> Array:
    """Return numbers of what may share a launch: segments and shared arrays.

    Segments are equal, or equal but for sizes and `ragged`.  Units of an unbatched segment have a
    signature each.
    """
    family = np.array(_families(graph.segments, ragged))
    distinct = [1] * len(family)
    within: List[Tuple[Array, Array]] = []
    for number, segment in enumerate(graph.segments):
        alone = segment.layout == "unbatched"
        if family[number] != number or not (alone or segment.shared):
            continue
        members = np.flatnonzero(family[graph.segment] == number)
        own = np.arange(len(members))
        if not alone:
            at = graph.term0[graph.input0[members][:, None] + segment.shared]
            arrays = np.concatenate([graph.term[at], graph.term_offset[at]], axis=1)
            own = np.unique(arrays, axis=0, return_inverse=True)[1].reshape(-1)
        distinct[number] = own.max() + 1
        within.append((members, own))
    first = list(accumulate(distinct, initial=0))
    signature: Array = np.array([first[own] for own in family.tolist()], dtype=np.int32)[
        graph.segment
    ]
    for members, own in within:
        signature[members] += own.astype(np.int32)
    return signature


def _steps(graph: Graph) -> Array:
    """Give numbers to units, one to equal steps of equal samples.

    A sample is a connected component of the graph.  Samples are equal if their units are, one after
    another, and read the same of each other.  Units of samples without their like have number 0.
    """
    preds, offsets = graph.dependencies.preds.tolist(), graph.dependencies.offsets.tolist()
    read = [preds[low:high] for low, high in zip(offsets, offsets[1:])]
    first = list(range(len(read)))

    def find(unit: int) -> int:
        while first[unit] != unit:
            first[unit] = unit = first[first[unit]]
        return unit

    for unit, own in enumerate(read):
        for one in own:
            low, high = sorted((find(one), find(unit)))
            first[high] = low
    samples: Dict[int, List[int]] = {}
    for unit in range(len(read)):
        samples.setdefault(find(unit), []).append(unit)
    alike: Dict[Any, List[List[int]]] = {}
    place = [0] * len(read)
    segment = graph.segment.tolist()
    for units in samples.values():
        for position, unit in enumerate(units):
            place[unit] = position
        calls = tuple((segment[unit], *(place[one] for one in read[unit])) for unit in units)
        alike.setdefault(calls, []).append(units)
    steps, known = np.zeros(len(read), dtype=np.int64), 1
    for calls, found in alike.items():
        if len(found) > 1:
            steps[found] = np.arange(known, known + len(calls))
            known += len(calls)
    return steps


def _families(segments: Sequence[Segment], ragged: Callable[[Segment], bool]) -> List[int]:
    """Return per segment the first one that it may share launches with."""
    found: Dict[str, List[int]] = {}
    for number, segment in enumerate(segments):
        found.setdefault(segment.family, []).append(number)
    family = list(range(len(segments)))
    for numbers in found.values():
        if len(numbers) > 1:
            alike = [n for n in numbers if segments[n].layout in MERGED and ragged(segments[n])]
            for number in alike:
                family[number] = alike[0]
    return family
