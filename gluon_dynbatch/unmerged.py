"""Which calls of a plan did not merge, or only with some of their kind, and why.

A plan does not know lines: in the place of its line, each `Alone` has the number of a call.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, DefaultDict, Dict, Iterator, List, Sequence, Set, Tuple

import numpy as np

from .lower.graph import Graph
from .plan.plan import Launch, Plan
from .report import Alone, count

NUMBERS = (
    "the number of arrays differs from call to call, and each number is a launch of its own; {}"
    "make one array of them before the call, with mx.nd.concat or mx.nd.stack{}"
)
#: What to change, at either granularity.
BLOCKS = {
    "block": NUMBERS.format('try granularity="operator", or ', ""),
    "operator": NUMBERS.format("", ", or add them up in the block, with F.add_n"),
}
OPERATORS = NUMBERS.format("", "")
SIZES = (
    "the sizes of its arrays, or its numbers, differ, and each is a launch of its own, because "
    "MXNet's own operators run it: {}"
)


def find_unmerged(
    plan: Plan, entries: Sequence[Any], granularity: str
) -> Tuple[Tuple[Alone, ...], Tuple[Alone, ...]]:
    """Return what did not merge, and what merged only with some of its kind.

    Parameters
    ----------
    plan : Plan
        The launches.
    entries : sequence of Entry
        What was called, as the graph numbers it.
    granularity : str
        At ``"graph"``, samples with other calls never share launches, whatever their arrays.

    Returns
    -------
    tuple of Alone
        The calls that no rule allows to merge, by callee and reason.
    tuple of Alone
        The calls of one callee that share no launch, though they could if changed a little.
    """
    alone: Dict[Tuple[str, str], Alone] = {}
    families: DefaultDict[str, List[Launch]] = defaultdict(list)
    for number, place in enumerate(plan.segment.tolist()):
        segment = plan.graph.segments[place]
        if segment.layout == "unbatched":
            one = _calls_of(plan, [plan.launch(number)], segment.reason)
            count(alone, one[:2], one)
        elif isinstance(segment.kernels, str):
            families[segment.family].append(plan.launch(number))
    split = [
        _calls_of(plan, own, SIZES.format(own[0].segment.kernels))
        for own in families.values()
        if len({launch.segment for launch in own}) > 1
    ]
    if granularity != "graph":
        split += _by_number(plan.graph, entries, granularity)
    return tuple(alone.values()), tuple(split)


def _calls_of(plan: Plan, launches: List[Launch], reason: str) -> Alone:
    unit, calls = int(launches[0].units[0]), sum(len(launch.units) for launch in launches)
    return Alone(plan.graph.name(unit), reason, calls, int(plan.graph.node[unit]))


def _by_number(graph: Graph, entries: Sequence[Any], granularity: str) -> Iterator[Alone]:
    """Find callees with pieces that only calls with one number of arrays have."""
    sizes: DefaultDict[Any, Set[int]] = defaultdict(set)
    for entry in entries:
        sizes[entry.token].add(len(entry.in_types))
    #: Per callee and piece, the numbers of arrays of its calls.
    pieces: DefaultDict[Any, DefaultDict[str, Set[int]]] = defaultdict(lambda: defaultdict(set))
    for entry, cut in zip(entries, graph.cuts):
        for segment in cut.segments if len(sizes[entry.token]) > 1 else ():
            if segment.layout != "unbatched":
                pieces[entry.token][segment.family].add(len(entry.in_types))
    for token, found in pieces.items():
        apart = set().union(*(counts for counts in found.values() if len(counts) == 1))
        if len(apart) > 1:
            own = [
                n for n, e in enumerate(entries) if e.token == token and len(e.in_types) in apart
            ]
            calls = np.flatnonzero(np.isin(graph.entry, own))
            entry = entries[int(graph.entry[calls[0]])]
            reason = OPERATORS if entry.block_id is None else BLOCKS[granularity]
            yield Alone(entry.name, reason, len(calls), int(calls[0]))
