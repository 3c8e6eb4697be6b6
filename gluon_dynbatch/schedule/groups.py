"""Groupings: checks, a limit on the rows of a launch, and the order of single units."""

from __future__ import annotations

import numpy as np

from ..native import scheduling
from .dependencies import Array, Dependencies, Ints


def count_groups(groups: Ints) -> int:
    """Count the groups of a valid grouping."""
    return int(scheduling.largest(groups)) + 1


def check_groups(graph: Dependencies, groups: Array) -> None:
    """Raise ``AssertionError`` unless groups can be launched in the order of their numbers."""
    assert groups.dtype == np.int32, f"groups are {groups.dtype}, not int32"
    assert groups.shape == (graph.size,), f"{groups.shape} groups for {graph.size} units"
    if not graph.size:
        return
    assert groups.min() >= 0, "a unit has no group"
    assert np.bincount(groups).all(), "a group has no unit"
    signature = np.empty(count_groups(groups), np.int64)
    signature[groups] = graph.signature
    assert (signature[groups] == graph.signature).all(), "a group has two signatures"
    readers = np.repeat(groups, np.diff(graph.offsets))
    assert (groups[graph.preds] < readers).all(), "a unit is launched before what it depends on"


def arrange(groups: Ints, rows: Array, max_rows: int | None) -> Ints:
    """Split groups that exceed `max_rows`, and put single units in recording order."""
    return singles_in_order(split_by_rows(groups, rows, max_rows))


def split_by_rows(groups: Ints, rows: Array, max_rows: int | None) -> Ints:
    """Split groups so that none has more than `max_rows` rows; None means no limit.

    The parts of a group are consecutive, with units in recording order.  A unit with more rows gets
    a group of its own.
    """
    if max_rows is None or np.bincount(groups, weights=rows).max(initial=0) <= max_rows:
        return groups
    result = np.empty(len(groups), np.int32)
    part, group, filled = -1, -1, 0
    for unit in np.argsort(groups, kind="stable").tolist():
        filled += rows[unit]
        if groups[unit] != group or filled > max_rows:
            part, group, filled = part + 1, groups[unit], rows[unit]
        result[unit] = part
    return result


def singles_in_order(groups: Ints) -> Ints:
    """Put neighbouring groups of one unit each into recording order; the others keep their places.

    Calls that cannot be merged may update running statistics, so their order matters.
    """
    ordered = np.empty(len(groups), np.int32)
    return ordered if scheduling.order_singles(groups, ordered) else groups
