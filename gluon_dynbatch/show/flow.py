"""Nodes and edges of the picture of a plan: groups of launches, and the rows between them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Counter, DefaultDict, Dict, List, NamedTuple, Tuple

import numpy as np

if TYPE_CHECKING:
    from ..plan.plan import Launch, Plan

#: Keys of nodes other than launches, besides ("fill", number): external arrays that are read
#: in place; backward, the gradients of external arrays.
WHOLE, OUTSIDE = ("whole", 0), ("outside", 0)
#: Key of the group of all launches beyond the limit.
REST = ("rest", 0)

BARS = "▁▂▃▄▅▆▇█"
#: Most bars in a row.
MOST_BARS = 16


class Group(NamedTuple):
    """Launches that are drawn as one node."""

    name: str
    launches: List[Launch]

    @property
    def widths(self) -> List[int]:
        """Number of calls of each launch."""
        return [len(launch.units) for launch in self.launches]

    @property
    def reason(self) -> str:
        """Reason why the calls did not merge; empty if they may merge."""
        segment = self.launches[0].segment
        return segment.reason if segment.layout == "unbatched" else ""

    @property
    def title(self) -> str:
        """Number of the launch, or the count of several launches."""
        count = len(self.launches)
        return f"{count} launches" if count > 1 else f"launch {self.launches[0].number}"


def bars(widths: List[int]) -> str:
    """Draw widths as bars of text; if there are many, the largest of each range.

    >>> bars([8, 4, 2, 1])
    '█▄▂▁'
    """
    step = -(-len(widths) // MOST_BARS)
    shown = [max(widths[i : i + step]) for i in range(0, len(widths), step)]
    return "".join(BARS[max(-(-len(BARS) * width // max(shown)) - 1, 0)] for width in shown)


def groups(plan: Plan, limit: int) -> Dict[Any, Group]:
    """Group launches for a picture with about `limit` nodes.

    Up to the limit, each launch is a node.  If there are more, all launches of one segment share a
    node, and so do all segments beyond the limit.
    """
    nodes: Dict[Any, Group] = {}
    by_segment = len(plan.launches) > limit
    for launch in plan.launches:
        key: Any = id(launch.segment) if by_segment else launch.number
        if key not in nodes and len(nodes) >= limit:
            key = REST
        name = plan.graph.name(int(launch.units[0])) if key != REST else "other calls"
        nodes.setdefault(key, Group(name, [])).launches.append(launch)
    return nodes


def flow(plan: Plan, nodes: Dict[Any, Group]) -> Dict[Tuple[Any, Any], Counter[int]]:
    """Count the rows on each edge, from writer to reader, by their length in elements."""
    key_of = {launch.number: key for key, group in nodes.items() for launch in group.launches}
    writers: List[Any] = [(("fill", i), [fill.region]) for i, fill in enumerate(plan.fills)]
    writers += [(key_of[launch.number], launch.regions) for launch in plan.launches]
    #: Per row of each arena, the index of its writer.
    writer_of = [np.zeros(rows, dtype=np.int64) for rows in plan.sizes]
    for index, (_, regions) in enumerate(writers):
        for region in regions:
            writer_of[region.arena][region.start : region.start + region.rows] = index
    edges: DefaultDict[Tuple[Any, Any], Counter[int]] = defaultdict(Counter)
    readers = [(key_of[launch.number], launch.operands) for launch in plan.launches]
    for key, operands in [*readers, (OUTSIDE, plan.results)]:
        for operand in operands:
            if hasattr(operand, "external"):
                edges[WHOLE, key][0] += 1
                continue
            for arena, first, count in plan.stretches(operand):
                size = plan.arenas[arena].row_size
                indices = writer_of[arena][first // size : -(-(first + count) // size)]
                for index, rows in zip(*np.unique(indices, return_counts=True)):
                    edges[writers[index][0], key][size] += int(rows)
    return edges
