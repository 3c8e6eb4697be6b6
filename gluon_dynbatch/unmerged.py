"""Find the calls of a plan that did not merge, or not all with each other, and the reasons.

A plan does not know the user's lines, so its findings get these at each flush.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Callable, DefaultDict, Iterator, List, NamedTuple, Sequence, Set, Tuple

import numpy as np

from .lower.graph import Graph
from .native import lowering
from .native.recording import Place
from .plan.launch import Launch
from .plan.plan import Plan
from .report.findings import NO_LINE, Finding, Findings
from .rules.spelling import signed
from .schedule import most_on_a_path, unit_depth
from .schedule.dependencies import Array, Dependencies
from .trace.entry import Entry
from .trace.symbols import VARIABLE

EACH_NUMBER = "the number of arrays differs from call to call, and each number needs its own launch"
COUNTS = "{}make one array of them before the call, with {} or {}{}"
#: Whether arrays are those of `mx.np`: how to make one array of several.
JOINED = {
    False: ("mx.nd.concat(..., dim=0)", "mx.nd.stack(..., axis=0)"),
    True: ("mx.np.concatenate(..., axis=0)", "mx.np.stack(..., axis=0)"),
}
#: How a block adds up the arrays of a list.
SUMS = {False: "F.add_n", True: "Python's sum(arrays)"}
#: For operators that put arrays together along another axis than 0, by name: the attribute, and
#: what to call instead, given the axis; for `mx.nd` and for `mx.np`.
ALONG_AXIS = {
    "Concat": (
        "dim",
        "mx.nd.concat(*[x.swapaxes(0, {0}) for x in arrays], dim=0).swapaxes(0, {0})",
        "mx.np.concatenate([x.swapaxes(0, {0}) for x in arrays], axis=0).swapaxes(0, {0})",
    ),
    "stack": (
        "axis",
        "mx.nd.moveaxis(mx.nd.stack(*arrays, axis=0), 0, {0})",
        "mx.np.moveaxis(mx.np.stack(arrays, axis=0), 0, {0})",
    ),
}
#: The same, if axis 0 of each array and all up to the axis have one element.
ONE_ROW = (
    "mx.nd.concat(*[x.reshape(-1) for x in arrays], dim=0).reshape({})",
    "mx.np.concatenate([x.reshape(-1) for x in arrays], axis=0).reshape({})",
)
ALONG_FIRST = "any number merges along axis 0: use {}"
SIZES = (
    "the sizes of its arrays, or its numbers, differ from call to call, and each variant needs its "
    "own launch, because MXNet's own operators run it: {}"
)
PAD = (
    "put samples of similar sizes into one minibatch, or pad these arrays to the next multiple of "
    "8, which leaves fewer sizes"
)
#: For fused recurrent layers, whose last states padding changes.
STEPS = (
    "call a cell for each step of a sequence, one of gluon.rnn, or with mx.np one of your own: "
    "steps share launches for any lengths; or put sequences of equal length into one minibatch"
)


#: Launches in a row, and share of all launches, from which on calls in a row are told.
MANY_LAUNCHES, LARGE_SHARE = 8, 0.1
#: Most units on the way from one call in a row to the next.
MOST_APART = 4
#: Most levels of a graph whose paths are counted; more take milliseconds.
MOST_LEVELS = 100
IN_A_ROW = "each waits for the one before, so each is a launch of its own"


class Unplaced(NamedTuple):
    """A finding of a plan, with the numbers of its calls in place of their lines."""

    finding: Finding
    nodes: List[int]
    #: A number of the callee, and which of its variants these calls are, of which each needs
    #: launches of its own; zeros if these do not matter.
    callee: int = 0
    variant: int = 0


def at_lines(unmerged: Sequence[Unplaced], place_of: Callable[[int], Place]) -> Tuple[Finding, ...]:
    """Return findings of a plan with the lines of their calls; `place_of` returns that of a call.

    If a callee has lines with calls of several variants, these are the lines to change, and those
    of which all calls are of one variant are left out.
    """
    if not unmerged:
        return ()
    found, callees = Findings(), {}
    variants: DefaultDict[Any, Set[int]] = defaultdict(set)
    for finding, nodes, callee, variant in unmerged:
        for place, calls in Counter(map(place_of, nodes)).items():
            here = finding._replace(where=place.where, calls=calls)
            found.add([here])
            callees[here.key] = callee
            variants[here.key].add(variant)
    uneven = {key for key, seen in variants.items() if len(seen) > 1}
    to_change = {callees[key] for key in uneven}
    return tuple(
        x
        for x in found
        if x.key in uneven
        or callees[x.key] not in to_change
        and (x.kind != "chain" or x.calls >= MANY_LAUNCHES)
    )


def find_unmerged(plan: Plan, entries: Sequence[Entry], granularity: str) -> Tuple[Unplaced, ...]:
    """Return the calls that did not merge, those that merged only in several launches, and chains.

    The first, of kind "alone", are those that no rule allows to merge, by callee and reason.  The
    second, of kind "split", are calls of one callee that need several launches, but fewer after a
    small change.  The third, of kind "chain", wait for each other.  `entries` has the
    entries of the calls, in the order of their numbers in the graph.
    """
    alone: DefaultDict[Tuple[str, str], List[int]] = defaultdict(list)
    families: DefaultDict[str, List[Launch]] = defaultdict(list)
    otherwise = lowering.run_otherwise(plan.graph.briefs, plan.kernels)
    numbers = np.flatnonzero(np.isin(plan.segment, otherwise)) if otherwise else plan.segment[:0]
    for number, index in zip(numbers.tolist(), plan.segment[numbers].tolist()):
        segment = plan.graph.segments[index]
        if segment.layout == "unbatched":
            name, nodes = _calls_of(plan, plan.launch(number))
            alone[name, segment.reason] += nodes
        elif isinstance(plan.kernels[index], str):
            families[segment.family].append(plan.launch(number))
    found = [_unplaced("alone", *key, nodes) for key, nodes in alone.items()]
    for launches in families.values():
        units = np.concatenate([launch.units for launch in launches])
        if len({launch.segment for launch in launches}) > 1 and _can_share(plan, units):
            found += _split_by_size(plan, launches)
    # There, samples with different calls never share launches, whatever their arrays.
    if granularity != "graph":
        found += _split_by_count(plan, entries, granularity)
    return (*found, *_in_a_row(plan))


def _can_share(plan: Plan, units: Array) -> bool:
    """Return whether some units might need fewer launches if all of them could merge.

    They cannot if as many of them as they have launches are on one path.
    """
    graph = plan.graph.dependencies
    launches, depth = len(np.unique(plan.members.launch[units])), unit_depth(graph)
    # No path has two units of one depth.
    if launches > len(np.unique(depth[units])) or depth.max() >= MOST_LEVELS:
        return launches > 1
    own = np.zeros((1, graph.size), bool)
    own[0, units] = True
    return bool(launches > most_on_a_path(graph, depth, own)[0])


def _in_a_row(plan: Plan) -> Iterator[Unplaced]:
    """Yield the calls of which each waits for the one before, if there are many."""
    graph, first = plan.graph, plan.members.first
    lone = plan.members.units[first[:-1][np.diff(first) == 1]]
    launches = len(plan.segment)
    least = max(MANY_LAUNCHES, int(LARGE_SHARE * launches))
    if len(lone) < least:
        return
    lone = np.sort(lone)
    signature = graph.dependencies.signature[lone]
    nodes: DefaultDict[str, Set[int]] = defaultdict(set)
    chained = 0
    for number in np.flatnonzero(np.bincount(signature) >= least).tolist():
        units = lone[signature == number]
        merges = graph.segments[graph.segment[units[0]]].layout != "unbatched"
        if merges and np.count_nonzero(_waits(graph.dependencies, units)) >= 0.9 * (len(units) - 1):
            chained += len(units)
            nodes[signed(graph.name(int(units[0])))].update(graph.node[units].tolist())
    # If hardly any other call merges, other findings say why.
    others = len(graph.entry) - len(set().union(*nodes.values()))
    if nodes and others >= 2 * (launches - chained) > 0:
        names = ", ".join(sorted(nodes)[:3])
        yield _unplaced("chain", names, IN_A_ROW, sorted(set().union(*nodes.values())))


def _waits(graph: Dependencies, units: Array) -> Array:
    """Return for each unit but the first whether it depends on the one before; not if far away."""
    waits = np.zeros(len(units) - 1, dtype=bool)
    owner, front = np.arange(len(waits)), units[1:]
    for _ in range(MOST_APART + 1):
        sizes = graph.offsets[front + 1] - graph.offsets[front]
        begins = graph.offsets[front] - (np.cumsum(sizes) - sizes)
        owner = np.repeat(owner, sizes)
        front = graph.preds[np.repeat(begins, sizes) + np.arange(len(owner))]
        waits[owner[front == units[owner]]] = True
        between = (front > units[owner]) & ~waits[owner]  # all units on the way have such numbers
        if not between.any():
            break
        owner, front = owner[between], front[between]
    return waits


def _unplaced(
    kind: str, name: str, reason: str, nodes: List[int], advice: str = "", *variant: int
) -> Unplaced:
    return Unplaced(Finding(kind, name, reason, len(nodes), NO_LINE, advice), nodes, *variant)


def _calls_of(plan: Plan, launch: Launch) -> Tuple[str, List[int]]:
    """Return the name and the numbers of the calls of a launch."""
    return plan.graph.name(int(launch.units[0])), plan.graph.node[launch.units].tolist()


def _split_by_size(plan: Plan, launches: List[Launch]) -> Iterator[Unplaced]:
    """Yield calls of one callee that MXNet runs with a launch per size."""
    reason = SIZES.format(plan.kernels_of(launches[0].number))
    advice = STEPS if "operator RNN " in reason or "npx.rnn " in reason else PAD
    for launch in launches:
        name, nodes = _calls_of(plan, launch)
        yield _unplaced("split", name, reason, nodes, advice)


def _split_by_count(plan: Plan, entries: Sequence[Entry], granularity: str) -> Iterator[Unplaced]:
    """Yield the calls of which some pieces merge only with calls of as many arrays."""
    graph = plan.graph
    for callee, (token, unshared, families) in enumerate(_merging_by_count(graph, entries), 1):
        numbers = [
            number
            for number, entry in enumerate(entries)
            if entry.token == token and len(entry.in_types) in unshared
        ]
        apart = np.array([segment.family in families for segment in graph.segments])
        of_callee = np.zeros(len(entries), bool)
        of_callee[numbers] = True
        units = np.flatnonzero(apart[graph.segment] & of_callee[graph.entry][graph.node])
        if not _can_share(plan, units):
            continue
        for number in numbers:
            entry = entries[number]
            of_block = entry.block_id is not None
            advice = _of_block(entry, granularity) if of_block else _along_axis(entry)
            calls = np.flatnonzero(graph.entry == number).tolist()
            count = len(entry.in_types)
            yield _unplaced("split", entry.name, EACH_NUMBER, calls, advice, callee, count)


def _merging_by_count(
    graph: Graph, entries: Sequence[Entry]
) -> Iterator[Tuple[Any, Set[int], Set[str]]]:
    """Yield callees whose calls merge only with calls of as many arrays.

    Each comes with these numbers of arrays, and with the families of the pieces that are apart.
    """
    several = lowering.several_counts(entries)
    if not several:
        return
    #: Per callee and family of pieces, the numbers of arrays of the calls that have such a piece.
    families_of: DefaultDict[Any, DefaultDict[str, Set[int]]]
    families_of = defaultdict(lambda: defaultdict(set))
    #: Per callee, the numbers of arrays of calls that merge apart, which takes fewer launches.
    whole: DefaultDict[Any, Set[int]] = defaultdict(set)
    for entry, cut in zip(entries, graph.cuts):
        if entry.token in several:
            if cut.whole:
                whole[entry.token].add(len(entry.in_types))
            for segment in cut.segments:
                if segment.layout != "unbatched":
                    families_of[entry.token][segment.family].add(len(entry.in_types))
    for token, families in families_of.items():
        apart = {family for family, counts in families.items() if len(counts) == 1}
        unshared = set().union(*(families[family] for family in apart)) - whole[token]
        if len(unshared) > 1:
            yield token, unshared, apart


def _of_block(entry: Entry, granularity: str) -> str:
    """Return the advice for a call of a block."""
    before = 'try granularity="operator", or ' if granularity == "block" else ""
    numpy = entry.program.numpy
    adds = granularity == "operator"
    after = f", or add them up in the block, with {SUMS[numpy]}" if adds else ""
    return COUNTS.format(before, *JOINED[numpy], after)


def _along_axis(entry: Entry) -> str:
    """Return how to put the arrays of an operator together along axis 0."""
    op, *others = (op for op in entry.program.ops if op.op != VARIABLE)
    numpy = entry.program.numpy
    # Several operators are one of `mx.np` that changes the shapes of its arrays.
    if others or op.op not in ALONG_AXIS:
        return COUNTS.format("", *JOINED[numpy], "")
    attribute, *instead = ALONG_AXIS[op.op]
    shape = entry.in_types[0].shape
    axis = int(op.attrs.get(attribute, op.op == "Concat"))
    axis += (axis < 0) * (len(shape) + (op.op == "stack"))
    if op.op == "Concat" and len(shape) == axis + 1 and set(shape[:axis]) == {1}:
        return ALONG_FIRST.format(ONE_ROW[numpy].format((*shape[:axis], -1)))
    return ALONG_FIRST.format(instead[numpy].format(axis))
