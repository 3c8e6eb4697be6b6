"""Nodes and edges of the picture of a plan: groups of launches, and the rows between them."""

from __future__ import annotations

from collections import defaultdict
from typing import (
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

from ..show.draw import Node
from .launch import Fill, Launch, Operand, Whole

#: Keys of nodes other than launches, besides ("fill", number): external arrays that are read
#: in place; backward, the gradients of external arrays.
WHOLE, OUTSIDE = ("whole", 0), ("outside", 0)
#: Key of the group of all launches beyond the limit.
REST = ("rest", 0)

#: Rows on each edge, from writer to reader, by their length in elements.
Edges = Dict[Tuple[Any, Any], Counter[int]]


class Group(NamedTuple):
    """Launches that are drawn as one node."""

    name: str
    launches: List[Launch]

    @property
    def node(self) -> Node:
        """What the picture says of them."""
        first, count = self.launches[0], len(self.launches)
        title = f"{count} launches" if count > 1 else f"launch {first.number}"
        widths = [len(launch.units) for launch in self.launches]
        alone = first.segment.layout == "unbatched"
        return Node(self.name, title, widths, first.segment.reason if alone else "")


def groups(launches: Sequence[Launch], name: Callable[[int], str], limit: int) -> Dict[Any, Group]:
    """Group launches for a picture with about `limit` nodes; `name` returns the name of a unit.

    Up to the limit, each launch is a node.  If there are more, all launches of one segment share a
    node, and so do all segments beyond the limit.
    """
    nodes: Dict[Any, Group] = {}
    by_segment = len(launches) > limit
    for launch in launches:
        key: Any = id(launch.segment) if by_segment else launch.number
        if key not in nodes and len(nodes) >= limit:
            key = REST
        title = name(int(launch.units[0])) if key != REST else "other calls"
        nodes.setdefault(key, Group(title, [])).launches.append(launch)
    return nodes


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


def ends(edges: Edges, fills: Iterable[Fill], backward: bool) -> Dict[Any, str]:
    """Return labels of the nodes that are no launches, by key."""
    labels: Dict[Any, str] = {}
    for number, fill in enumerate(fills):
        arrays = len(fill.externals)
        noun = "external array" + "s" * (arrays != 1)
        label = f"gradients of {arrays} results" if backward else f"{arrays} {noun}"
        labels["fill", number] = label
    labels[WHOLE], labels[OUTSIDE] = "whole arrays", "gradients of\nexternal arrays"
    drawn = {key for edge in edges for key in edge}
    return {key: label for key, label in labels.items() if key in drawn}
