"""What the scheduler is given, and what it returns: dependencies, and groups, indexed by unit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..native import scheduling

#: An array of integers or booleans.
Array = NDArray[Any]
Ints = NDArray[np.int32]


class Dependencies(NamedTuple):
    """The dependency graph of one flush at one granularity.

    A *unit* is placed into a launch as a whole: a recorded call, or at granularity ``operator`` a
    segment of one.  Units are numbered in topological order, so a predecessor has a smaller number
    than its successors.  Signatures and predecessors are of int32, the others of int64.
    """

    #: Two units may share a launch if and only if their signature ids are equal and neither depends
    #: on the other.
    signature: Array
    #: Unit ``u`` depends on ``preds[offsets[u]:offsets[u + 1]]``, perhaps several times on one.
    offsets: Array
    preds: Array
    #: Rows that each unit adds to its launch, which ``max_rows`` limits.
    rows: Array

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self.signature)

    def first(self, units: int) -> Dependencies:
        """Return the graph of the first `units`, which depend on no later unit."""
        offsets = self.offsets[: units + 1]
        preds = self.preds[: offsets[-1]]
        return Dependencies(self.signature[:units], offsets, preds, self.rows[:units])


def check_dependencies(graph: Dependencies) -> None:
    """Raise ``AssertionError`` unless `graph` is a topologically numbered DAG."""
    units = graph.size
    assert graph.offsets.shape == (units + 1,) and graph.rows.shape == (units,)
    assert graph.offsets[0] == 0 and graph.offsets[-1] == len(graph.preds)
    assert (np.diff(graph.offsets) >= 0).all()
    owners = np.repeat(np.arange(units), np.diff(graph.offsets))
    assert (graph.preds >= 0).all() and (graph.preds < owners).all(), "not topological"
    assert (graph.rows >= 0).all()


def rank_rows(rows: Array) -> Array:
    """Return the rank of each row among the distinct rows of a matrix, in ascending order.

    If Ctrl-C interrupts NumPy's ``unique`` of rows, it may raise a ``TypeError`` instead.
    """
    if (rows == rows[:1]).all():  # most often so, with few samples
        return np.zeros(len(rows), np.int64)
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    numbers = np.zeros(len(rows), np.int64)
    numbers[order[1:]] = np.cumsum((ordered[1:] != ordered[:-1]).any(axis=1))
    return numbers


def successors(graph: Dependencies) -> tuple[Array, Ints]:
    """Return offsets and units: ``units[offsets[u]:offsets[u + 1]]`` depend on unit ``u``."""
    owners = np.repeat(np.arange(graph.size, dtype=np.int32), np.diff(graph.offsets))
    counts = np.bincount(graph.preds, minlength=graph.size)
    units = owners[np.argsort(graph.preds, kind="stable")]
    return np.concatenate([[0], np.cumsum(counts)]), units


def reverse(graph: Dependencies) -> Dependencies:
    """Reverse every dependency of `graph`.

    Unit ``u`` becomes unit ``size - 1 - u``, which keeps the numbering topological.  `unreverse`
    converts a grouping of the result into one of `graph`.
    """
    offsets, units = successors(graph)
    return Dependencies(
        np.ascontiguousarray(graph.signature[::-1]),
        np.ascontiguousarray(offsets[-1] - offsets[::-1]),
        np.ascontiguousarray(graph.size - 1 - units[::-1]),
        np.ascontiguousarray(graph.rows[::-1]),
    )


def unreverse(groups: Ints) -> Ints:
    """Convert a grouping of ``reverse(graph)`` into one of ``graph``."""
    return np.ascontiguousarray(groups.max(initial=-1) - groups[::-1])


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
