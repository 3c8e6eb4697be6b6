"""Find the calls of a plan that did not merge, or not all with each other, and the reasons.

A plan does not know the user's lines, so it has the number of a call in place of its line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, DefaultDict, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple, Union

import numpy as np

from .errors import Where
from .findings import Finding
from .lower.graph import Graph
from .native.recording import Place
from .plan.launch import Launch
from .plan.plan import Plan
from .rules.spelling import signed
from .schedule.dependencies import Array, Dependencies
from .trace.entry import Entry
from .trace.symbols import VARIABLE

OWN = "the number of arrays differs from call to call, and each number needs its own launch"
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
MOST_BETWEEN = 4
IN_A_ROW = "each waits for the one before, so each is a launch of its own"


class Unmerged(NamedTuple):
    """What a `Finding` says, with the number of a call in place of its line."""

    kind: str
    name: str
    reason: str
    calls: int
    node: int
    advice: str = ""

    def at(self, places: Sequence[Place]) -> List[Finding]:
        """Return the finding, given the place of each call."""
        where = places[self.node].where
        return [Finding(self.kind, self.name, self.reason, self.calls, where, self.advice)]


class Uneven(NamedTuple):
    """Calls of one callee that merge only with calls of as many arrays."""

    name: str
    #: Per entry: the number of arrays, what to do instead, and the numbers of its calls.
    entries: Tuple[Tuple[int, str, List[int]], ...]
    kind: str = "split"

    def at(self, places: Sequence[Place]) -> List[Finding]:
        """Return the findings, given the place of each call: one per line to change.

        These are the lines of which calls have different numbers of arrays; or all lines, if none
        has.
        """
        counts: DefaultDict[Where, Set[int]] = defaultdict(set)
        calls: Counter[Where] = Counter()
        advice_of: Dict[Where, str] = {}
        for count, advice, nodes in self.entries:
            for place, number in Counter(places[node] for node in nodes).items():
                counts[place.where].add(count)
                calls[place.where] += number
                advice_of.setdefault(place.where, advice)
        lines = [where for where in calls if len(counts[where]) > 1] or [*calls]
        return [
            Finding(self.kind, self.name, OWN, calls[where], where, advice_of[where])
            for where in lines
        ]


class InARow(NamedTuple):
    """Calls of which each waits for one before, though most other calls share launches."""

    #: Per callee, the numbers of its calls.
    nodes: Dict[str, List[int]]
    kind: str = "chain"

    def at(self, places: Sequence[Place]) -> List[Finding]:
        """Return the findings, given the place of each call: one per line with many calls."""
        calls: DefaultDict[Where, Counter[str]] = defaultdict(Counter)
        for name, nodes in self.nodes.items():
            for place, number in Counter(places[node] for node in nodes).items():
                calls[place.where][name] += number
        return [
            Finding(self.kind, ", ".join(sorted(names)[:3]), IN_A_ROW, sum(names.values()), where)
            for where, names in calls.items()
            if sum(names.values()) >= MANY_LAUNCHES
        ]


#: What a plan knows of findings; `at` returns these, given the places of calls.
Found = Union[Unmerged, Uneven, InARow]


def find_unmerged(plan: Plan, entries: Sequence[Entry], granularity: str) -> Tuple[Found, ...]:
    """Return the calls that did not merge, those that merged only in several launches, and chains.

    The first, of kind "alone", are those that no rule allows to merge, by callee and reason.  The
    second, of kind "split", are calls of one callee that need several launches, but would merge
    after a small change.  The third, of kind "chain", wait for each other.  `entries` has the
    entries of the calls, in the order of their numbers in the graph.
    """
    alone: Dict[Tuple[str, str], Unmerged] = {}
    families: DefaultDict[str, List[Launch]] = defaultdict(list)
    for number, index in enumerate(plan.segment.tolist()):
        segment = plan.graph.segments[index]
        if segment.layout == "unbatched":
            calls = _calls_of("alone", plan, [plan.launch(number)], segment.reason)
            total = alone.setdefault((calls.name, calls.reason), calls._replace(calls=0))
            alone[calls.name, calls.reason] = total._replace(calls=total.calls + calls.calls)
        elif isinstance(plan.kernels[index], str):
            families[segment.family].append(plan.launch(number))
    split: List[Found] = [
        _split_by_size(plan, launches)
        for launches in families.values()
        if len({launch.segment for launch in launches}) > 1
    ]
    # There, samples with different calls never share launches, whatever their arrays.
    if granularity != "graph":
        split += _split_by_count(plan.graph, entries, granularity)
    return (*alone.values(), *split, *_in_a_row(plan))


def _in_a_row(plan: Plan) -> Iterator[InARow]:
    """Yield the calls of which each waits for the one before, if there are many."""
    graph, first = plan.graph, plan.members.first
    lone = np.sort(plan.members.units[first[:-1][np.diff(first) == 1]])
    launches = len(plan.segment)
    least = max(MANY_LAUNCHES, int(LARGE_SHARE * launches))
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
        yield InARow({name: sorted(calls) for name, calls in nodes.items()})


def _waits(graph: Dependencies, units: Array) -> Array:
    """Return for each unit but the first whether it depends on the one before; not if far away."""
    waits = np.zeros(len(units) - 1, dtype=bool)
    owner, front = np.arange(len(waits)), units[1:]
    for _ in range(MOST_BETWEEN + 1):
        sizes = graph.offsets[front + 1] - graph.offsets[front]
        begins = graph.offsets[front] - (np.cumsum(sizes) - sizes)
        owner = np.repeat(owner, sizes)
        front = graph.preds[np.repeat(begins, sizes) + np.arange(len(owner))]
        waits[owner[front == units[owner]]] = True
        between = (front > units[owner]) & ~waits[owner]  # all units on the way have such numbers
        owner, front = owner[between], front[between]
    return waits


def _calls_of(
    kind: str, plan: Plan, launches: List[Launch], reason: str, advice: str = ""
) -> Unmerged:
    unit, calls = int(launches[0].units[0]), sum(len(launch.units) for launch in launches)
    return Unmerged(kind, plan.graph.name(unit), reason, calls, int(plan.graph.node[unit]), advice)


def _split_by_size(plan: Plan, launches: List[Launch]) -> Unmerged:
    """Return calls of one callee that MXNet runs with a launch per size."""
    reason = SIZES.format(plan.kernels_of(launches[0].number))
    advice = STEPS if "operator RNN " in reason or "npx.rnn " in reason else PAD
    return _calls_of("split", plan, launches, reason, advice)


def _split_by_count(graph: Graph, entries: Sequence[Entry], granularity: str) -> Iterator[Uneven]:
    """Yield the calls of which some pieces merge only with calls of as many arrays."""
    count_of: Dict[Any, int] = {}
    several = set()
    for entry in entries:
        count = len(entry.in_types)
        if count_of.setdefault(entry.token, count) != count:
            several.add(entry.token)
    if not several:
        return
    #: Per callee and family of pieces, the numbers of arrays of the calls that have such a piece.
    families_of: DefaultDict[Any, DefaultDict[str, Set[int]]]
    families_of = defaultdict(lambda: defaultdict(set))
    #: Per callee, the numbers of arrays of calls that merge apart, which takes fewer launches.
    whole: DefaultDict[Any, Set[int]] = defaultdict(set)
    for entry, cut in zip(entries, graph.cuts):
        if cut.whole:
            whole[entry.token].add(len(entry.in_types))
        for segment in cut.segments if entry.token in several else ():
            if segment.layout != "unbatched":
                families_of[entry.token][segment.family].add(len(entry.in_types))
    for token, families in families_of.items():
        unshared = set().union(*(counts for counts in families.values() if len(counts) == 1))
        unshared -= whole[token]
        if len(unshared) > 1:
            uneven = []
            for number, entry in enumerate(entries):
                if entry.token == token and len(entry.in_types) in unshared:
                    name = entry.name
                    of_block = entry.block_id is not None
                    advice = _of_block(entry, granularity) if of_block else _along_axis(entry)
                    calls = np.flatnonzero(graph.entry == number).tolist()
                    uneven.append((len(entry.in_types), advice, calls))
            yield Uneven(name, tuple(uneven))


def _of_block(entry: Entry, granularity: str) -> str:
    """Return the advice for a call of a block."""
    before = 'try granularity="operator", or ' if granularity == "block" else ""
    numpy = entry.program.numpy
    adds = granularity == "operator"
    after = f", or add them up in the block, with {SUMS[numpy]}" if adds else ""
    return COUNTS.format(before, *JOINED[numpy], after)


def _along_axis(entry: Entry) -> str:
    """Return how to put the arrays of an operator together along axis 0."""
    (op,) = (op for op in entry.program.ops if op.op != VARIABLE)
    numpy = entry.program.numpy
    if op.op not in ALONG_AXIS:
        return COUNTS.format("", *JOINED[numpy], "")
    attribute, *instead = ALONG_AXIS[op.op]
    shape = entry.in_types[0].shape
    axis = int(op.attrs.get(attribute, op.op == "Concat"))
    axis += (axis < 0) * (len(shape) + (op.op == "stack"))
    if op.op == "Concat" and len(shape) == axis + 1 and set(shape[:axis]) == {1}:
        return ALONG_FIRST.format(ONE_ROW[numpy].format((*shape[:axis], -1)))
    return ALONG_FIRST.format(instead[numpy].format(axis))
