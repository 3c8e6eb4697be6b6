"""Turn recorded calls into the graph of their units.

The program of each entry is cut, the segments of all calls are wired together, and the signatures
are computed that decide merging.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import replace
from itertools import accumulate
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..native import lowering, recording
from ..record.lazy_base import Lazy
from ..record.tape import Tape
from ..record.types import TYPES
from ..schedule.dependencies import Array, Dependencies, rank_rows
from ..trace.entry import NONE, Entry
from .cut import cut_call
from .graph import Graph
from .segment import Cut, Segment, find_root

#: Layouts in which segments of different sizes can share launches.
MERGED_LAYOUTS = "rows", "stack"

#: The largest table of which callee delivers which argument.  If there are so many callees that the
#: table would be larger, no argument counts as recurrent.
MOST_EDGES = 2**22


def find_weights(tape: Tape) -> Tuple[int, ...]:
    """Return the external values that are variables with a gradient and several rows."""
    externals = tape.externals
    # A lazy array, which is kept in an arena, has no gradient, and no handle yet.
    found = [
        n
        for n in lowering.find_rows(tape, TYPES.has_rows)
        if not isinstance(externals[n], Lazy)
    ]
    if not found:
        return ()
    # All variables are in MXNet's graph, and this test is much faster than reading `grad`.
    in_graph = recording.in_graph([externals[n] for n in found])
    return tuple(
        tape.external_values[n]
        for n, is_in_graph in zip(found, in_graph)
        if is_in_graph and externals[n].grad is not None
    )


def expand(
    tape: Tape,
    granularity: str,
    weights: Tuple[int, ...],
    ragged: Callable[[Segment], bool] = lambda segment: False,
) -> Graph:
    """Cut every call and wire the segments together.

    At granularity ``"unbatched"``, calls do not merge; `weights` is the result of `find_weights`;
    `ragged` returns whether a segment can share launches with segments of other sizes.
    """
    entry_of = np.empty(len(tape.node_entry), dtype=np.int32)
    found = lowering.find_cuts(tape, weights, granularity, MOST_EDGES, entry_of, _find_cut)
    return _wire(tape, entry_of, *found, ragged, granularity == "graph")


def _find_cut(entry: Entry, granularity: str, marks: bytes) -> Cut:
    """Return the cut of the calls of an entry."""
    cut: Optional[Cut] = entry.cuts.get((granularity, marks))
    return cut or _cut(entry, granularity, marks)


def _cut(entry: Entry, granularity: str, marks: bytes) -> Cut:
    """Cut the calls of an entry, like all of its kind if they share no arguments; keep the cut."""
    shared, recurrent, uneven, varied = (
        frozenset(i for i, own_marks in enumerate(marks) if own_marks & mark)
        for mark in (lowering.SHARED, lowering.RECURRENT, lowering.UNEVEN, lowering.VARIED)
    )
    # At least one array must belong to each call.
    shared = shared if len(shared) < len(marks) else NONE
    if shared or granularity == "unbatched":
        variant = entry.variant(shared)
        if shared and variant.reason and not entry.variant(NONE).reason:
            variant = entry.variant(NONE)
        cut = cut_call(variant, granularity, recurrent, uneven, varied)
    else:
        cuts, key = entry.kind.cuts, (granularity, recurrent, uneven, varied)
        if key not in cuts:
            cuts[key] = cut_call(entry.kind.variant, *key)
        cut = replace(cuts[key], rows=entry.variant(NONE).rows)
    entry.cuts[granularity, marks] = cut
    return cut


def _wire(
    tape: Tape,
    entry: Array,
    cuts: List[Cut],
    codes: List[array[int]],
    segments: List[Tuple[Segment, ...]],
    ragged: Callable[[Segment], bool],
    lockstep: bool,
) -> Graph:
    """Wire the segments of all calls together.

    The entry of each call is numbered as in `tape.entries`, and so are the cuts, their codes and
    their segments.  In `lockstep`, samples share launches only if they make the same calls, call by
    call.
    """
    wired = lowering.Cuts(codes, segments, entry)
    units, slots, inputs, terms = wired.sizes
    columns: Dict[str, Array] = {
        **{name: np.empty(units, np.int32) for name in ("segment", "slot0")},
        **{name: np.empty(terms, np.int32) for name in ("term", "term_offset", "term_size")},
        "input0": np.empty(units + 1, np.int32),
        "term0": np.empty(inputs + 1, np.int32),
        **{name: np.empty(slots, np.int32) for name in ("slot_unit", "slot_size")},
        "value_term": np.empty(len(tape.value_type), np.int64),
    }
    node, preds = np.empty(units, np.int32), np.empty(terms, np.int32)
    rows, offsets = np.empty(units, np.int64), np.empty(units + 1, np.int64)
    edges = wired.wire(
        tape, entry, unit_node=node, rows=rows, pred0=offsets, preds=preds, **columns
    )
    if wired.sizes[0] < units:
        units, slots, inputs, terms = wired.sizes
        sizes = {"input0": units + 1, "term0": inputs + 1, "value_term": None}
        sizes.update(dict.fromkeys(("segment", "slot0"), units))
        sizes.update(dict.fromkeys(("term", "term_offset", "term_size"), terms))
        sizes.update(dict.fromkeys(("slot_unit", "slot_size"), slots))
        columns = {name: column[: sizes[name]] for name, column in columns.items()}
        node, rows, offsets = node[:units], rows[:units], offsets[: units + 1]
    segment = columns["segment"]
    dependencies = Dependencies(segment, offsets, preds[:edges], rows)
    used = list(wired.segments)
    briefs = [segment.brief for segment in used]
    graph = Graph(dependencies, used, briefs, node=node, entry=entry, cuts=cuts, **columns)
    signature = signatures(graph, ragged)
    if lockstep:
        pairs = np.stack([signature, _steps(graph)], axis=1)
        signature = rank_rows(pairs).astype(np.int32)
    if signature is segment:
        return graph
    return graph._replace(dependencies=graph.dependencies._replace(signature=signature))


def signatures(graph: Graph, ragged: Callable[[Segment], bool]) -> Array:
    """Return the signature of each unit: units of one signature may share a launch.

    Their segments are equal, or of one family and `ragged`, and they read the same shared arrays.
    Each unit of an unbatched segment has a signature of its own.
    """
    if lowering.merge_freely(graph.briefs):
        return graph.segment
    apart = [segment.layout == "unbatched" or segment.shared for segment in graph.segments]
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
            subclass = rank_rows(np.concatenate([graph.term[at], graph.term_offset[at]], axis=1))
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
        if count[segment.family] > 1 and segment.layout in MERGED_LAYOUTS and ragged(segment)
        else number
        for number, segment in enumerate(segments)
    ]
