"""What a picture of a plan shows: launches, alike ones as one if they are many, and their rows."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Counter, DefaultDict, Dict, List, NamedTuple, Tuple

import numpy as np

if TYPE_CHECKING:
    from ..plan.plan import Launch, Plan

#: Keys of nodes that are no launches, beside ("fill", number): arrays from outside that are read as
#: they are, and backward, their gradients.
WHOLE, OUTSIDE = ("whole", 0), ("outside", 0)
#: Key of the launches beyond the limit.
REST = ("rest", 0)

BARS = "▁▂▃▄▅▆▇█"
#: Most characters of a row of bars.
MOST_BARS = 16


class Group(NamedTuple):
    """Launches that are shown as one."""

    name: str
    launches: List[Launch]

    @property
    def widths(self) -> List[int]:
        """Calls per launch."""
        return [len(launch.units) for launch in self.launches]

    @property
    def reason(self) -> str:
        """Why the calls did not merge; empty if they may."""
        segment = self.launches[0].segment
        return segment.reason if segment.layout == "unbatched" else ""

    @property
    def title(self) -> str:
        """The launch by its number, or how many launches there are."""
        if len(self.launches) > 1:
            return f"{len(self.launches)} launches"
        return f"launch {self.launches[0].number}"


def bars(widths: List[int]) -> str:
    """Draw widths as characters; of many, the largest of each stretch.

    >>> bars([8, 4, 2, 1])
    '█▄▂▁'
    """
    step = -(-len(widths) // MOST_BARS)
    shown = [max(widths[i : i + step]) for i in range(0, len(widths), step)]
    return "".join(BARS[max(-(-len(BARS) * width // max(shown)) - 1, 0)] for width in shown)


def groups(plan: Plan, limit: int) -> Dict[Any, Group]:
    """Group launches for a picture with about `limit` nodes.

    As long as there are no more, each launch stands for itself.  Else all launches of one segment
    are one node, and the segments beyond the limit, those that come last, one more.
    """
    found: Dict[Any, Group] = {}
    alike = len(plan.launches) > limit
    for launch in plan.launches:
        key: Any = id(launch.segment) if alike else launch.number
        if key not in found and len(found) >= limit:
            key = REST
        name = plan.graph.name(int(launch.units[0])) if key != REST else "other calls"
        found.setdefault(key, Group(name, [])).launches.append(launch)
    return found


def flow(plan: Plan, found: Dict[Any, Group]) -> Dict[Tuple[Any, Any], Counter[int]]:
    """Return what flows between nodes: per maker and reader, rows by their length in elements."""
    key_of = {launch.number: key for key, group in found.items() for launch in group.launches}
    #: Per row of each arena, the number of who writes it.
    maker = [np.zeros(rows, dtype=np.int64) for rows in plan.sizes]
    writers: List[Any] = [(("fill", i), [fill.region]) for i, fill in enumerate(plan.fills)]
    writers += [(key_of[launch.number], launch.regions) for launch in plan.launches]
    for number, (_, regions) in enumerate(writers):
        for region in regions:
            maker[region.arena][region.start : region.start + region.rows] = number
    edges: DefaultDict[Tuple[Any, Any], Counter[int]] = defaultdict(Counter)
    readers = [(key_of[launch.number], launch.operands) for launch in plan.launches]
    for key, operands in [*readers, (OUTSIDE, plan.results)]:
        for operand in operands:
            if hasattr(operand, "external"):
                edges[WHOLE, key][0] += 1
                continue
            for arena, first, count in plan.stretches(operand):
                size = plan.arenas[arena].row_size
                rows = maker[arena][first // size : -(-(first + count) // size)]
                for number, times in zip(*np.unique(rows, return_counts=True)):
                    edges[writers[number][0], key][size] += int(times)
    return edges
