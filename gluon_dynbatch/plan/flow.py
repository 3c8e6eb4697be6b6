"""Nodes and edges of the picture of a plan: groups of launches, and the rows between them.

A plan of more launches than a picture can show is folded: equal launches, such as the steps of a
chain, become one node.
"""

from __future__ import annotations

from collections import defaultdict
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Counter,
    DefaultDict,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from ..rules.spelling import written
from ..show.draw import LaunchNode
from .launch import Fill, Launch, Operand, Whole

if TYPE_CHECKING:
    from ..lower.graph import Graph

#: Keys of nodes other than launches, besides ("fill", number): external arrays that are read
#: in place; backward, the gradients of external arrays.
WHOLE, OUTSIDE = ("whole", 0), ("outside", 0)
#: Key of the group of all launches beyond the limit.
REST = ("rest", 0)
#: MXNet's names of variables and copies, and most operators in the name of a piece.
NO_WORK, MOST_NAMED = ("null", "_copy"), 3
#: Most launches on the way from one to the next that share a node; and most nodes of equal
#: launches to which another one may belong.
MOST_BETWEEN, MOST_BRANCHES = 4, 16

#: Rows on each edge, from writer to reader, by their length in elements.
Edges = Dict[Tuple[Any, Any], Counter[int]]


class Group(NamedTuple):
    """Launches that are drawn as one node: of one block or operator, or of a piece of it."""

    name: str
    piece: str
    launches: List[Launch]

    @property
    def node(self) -> LaunchNode:
        """What the picture says of them."""
        numbers = [launch.number for launch in self.launches]
        low, high = min(numbers), max(numbers)
        title = f"launch {low}"
        if low < high:
            title = f"launches {low}-{high}"
            if len(numbers) <= high - low:
                title = f"{len(numbers)} launches, {low} to {high}"
        widths = [len(launch.units) for launch in self.launches]
        segment = self.launches[0].segment
        alone = segment.layout == "unbatched"
        return LaunchNode(self.name, self.piece, title, widths, segment.reason if alone else "")


def piece_of(graph: Graph, launch: Launch) -> str:
    """Name what a launch runs of its calls, by blocks or else operators; empty if it is all."""
    unit, segment = int(launch.units[0]), launch.segment
    cut = graph.cuts[int(graph.entry[graph.node[unit]])]
    if len(cut.segments) == 1:
        return ""
    own = f"{cut.name}_"  # the names of other blocks' parameters do not begin with it
    blocks = (
        parameter.name[len(own) :].rpartition("_")[0]
        for parameter in segment.parameters
        if parameter.name.startswith(own)
    )
    names = dict.fromkeys(filter(None, blocks)) or dict.fromkeys(
        written(op) for op in segment.called if op not in NO_WORK
    )
    more = ", ..." if len(names) > MOST_NAMED else ""
    return ", ".join([*names][:MOST_NAMED]) + more


def groups(launches: Sequence[Launch], graph: Graph, limit: int) -> Dict[Any, Group]:
    """Group launches for a picture with at most `limit` nodes, and one for all others.

    Up to the limit, each launch is a node.  If there are more, equal ones share a node if few
    launches are between them: those of one family of segments, or else of one name.  If there are
    still more nodes, the largest are shown.
    """
    before = _before(launches, graph)
    keys: Tuple[Callable[[Launch], Any], ...] = (
        lambda launch: launch.number,
        lambda launch: (graph.name(int(launch.units[0])), launch.segment.family),
        lambda launch: graph.name(int(launch.units[0])),
    )
    for key_of in keys:
        nodes: Dict[Any, Group] = {}
        #: Per key, its nodes.
        alike: DefaultDict[Any, List[Any]] = defaultdict(list)
        for launch in sorted(launches, key=lambda launch: launch.number):
            name, key = graph.name(int(launch.units[0])), key_of(launch)
            recent = reversed(alike[key][-MOST_BRANCHES:])
            near = (x for x in recent if _is_near(before, nodes[x].launches[-1], launch))
            node = next(near, (key, len(alike[key])) if alike[key] else key)
            if node not in nodes:
                alike[key].append(node)
                piece = "" if isinstance(key, str) else piece_of(graph, launch)
                nodes[node] = Group(name, piece, [])
            nodes[node].launches.append(launch)
        if len(nodes) <= limit:
            break
    largest = sorted(nodes, key=lambda node: -sum(len(x.units) for x in nodes[node].launches))
    for node in largest[limit:]:
        rest = nodes.setdefault(REST, Group("other calls", "", []))
        rest.launches.extend(nodes.pop(node).launches)
    position = {launch.number: at for at, launch in enumerate(launches)}
    for group in nodes.values():
        group.launches.sort(key=lambda launch: position[launch.number])
    order = sorted(nodes, key=lambda node: (node == REST, position[nodes[node].launches[0].number]))
    return {node: nodes[node] for node in order}


def _before(launches: Sequence[Launch], graph: Graph) -> Dict[int, List[int]]:
    """Return for each launch those that it depends on, in the forward pass."""
    launch_of = np.zeros(graph.dependencies.size, dtype=np.int64)
    for launch in launches:
        launch_of[launch.units] = launch.number
    offsets, preds = graph.dependencies.offsets, graph.dependencies.preds
    readers = np.repeat(launch_of, np.diff(offsets))
    before: DefaultDict[int, List[int]] = defaultdict(list)
    for reader, writer in sorted(set(zip(readers.tolist(), launch_of[preds].tolist()))):
        before[reader].append(writer)
    return before


def _is_near(before: Dict[int, List[int]], first: Launch, last: Launch) -> bool:
    """Return whether a launch depends on an earlier one, with few others between them."""
    front = {last.number}
    for _ in range(MOST_BETWEEN + 1):
        front = {x for number in front for x in before.get(number, ()) if x >= first.number}
        if first.number in front:
            return True
    return False


def flow(
    nodes: Dict[Any, Group],
    fills: Iterable[Fill],
    results: Sequence[Optional[Operand]],
    arenas: Sequence[Tuple[int, int]],
    stretches: Callable[[Optional[Operand]], Iterator[Tuple[int, int, int]]],
) -> Edges:
    """Count the rows on each edge; see `Plan` for `fills`, `results` and `stretches`.

    Of each arena, `arenas` has the number of rows and their size.
    """
    launches = [(key, launch) for key, group in nodes.items() for launch in group.launches]
    writers: List[Any] = [(("fill", i), [fill.region]) for i, fill in enumerate(fills)]
    writers += [(key, launch.regions) for key, launch in launches]
    #: Per row of each arena, the index of its writer.
    writer_of = [np.zeros(rows, dtype=np.int64) for rows, _ in arenas]
    for index, (_, regions) in enumerate(writers):
        for region in regions:
            writer_of[region.arena][region.start : region.start + region.rows] = index
    edges: DefaultDict[Tuple[Any, Any], Counter[int]] = defaultdict(Counter)
    for key, operands in [*((key, x.operands) for key, x in launches), (OUTSIDE, results)]:
        for operand in operands:
            if isinstance(operand, Whole):
                edges[WHOLE, key][0] += 1
                continue
            for arena, first, elements in stretches(operand):
                size = arenas[arena][1]
                indices = writer_of[arena][first // size : -(-(first + elements) // size)]
                for index, rows in zip(*np.unique(indices, return_counts=True)):
                    edges[writers[index][0], key][size] += int(rows)
    return edges


def ends(edges: Edges, fills: int, backward: bool) -> Dict[Any, str]:
    """Return labels of what is read and written that is no result of a launch, by key."""
    read = "gradients of results" if backward else "external arrays"
    labels: Dict[Any, str] = {WHOLE: "external arrays", OUTSIDE: "gradients of external arrays"}
    labels.update((("fill", number), read) for number in range(fills))
    drawn = {key for edge in edges for key in edge}
    return {key: label for key, label in labels.items() if key in drawn}
