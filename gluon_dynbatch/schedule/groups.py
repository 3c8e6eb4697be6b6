"""What a grouping is: checked, and cut to a limit on the rows of a launch."""

from __future__ import annotations

import numpy as np

from gluon_dynbatch.errors import OptionError, user_message
from gluon_dynbatch.schedule.dependencies import Dependencies
from gluon_dynbatch.schedule.frontier import Array, Ints


def one_by_one(graph: Dependencies) -> Ints:
    """Put every unit into a group of its own, in recording order."""
    return np.arange(graph.size, dtype=np.int32)


def check_groups(graph: Dependencies, groups: Array) -> None:
    """Raise ``AssertionError`` unless `groups` can be launched in order of its numbers.

    Parameters
    ----------
    graph : Dependencies
        What is grouped.
    groups : numpy.ndarray of int32, shape (units,)
        Group of each unit.
    """
    assert groups.dtype == np.int32, f"groups are {groups.dtype}, not int32"
    assert groups.shape == (graph.size,), f"{groups.shape} groups for {graph.size} units"
    if not graph.size:
        return
    assert groups.min() >= 0, "a unit has no group"
    assert np.bincount(groups).all(), "a group has no unit"
    members = np.empty(int(groups.max()) + 1, np.int64)
    members[groups] = graph.signature
    assert (members[groups] == graph.signature).all(), "a group has two signatures"
    owners = np.repeat(groups, np.diff(graph.offsets))
    assert (groups[graph.preds] < owners).all(), "a unit is launched before what it depends on"


def split_by_rows(groups: Ints, rows: Array, max_rows: int | None) -> Ints:
    """Cut groups so that none has more than `max_rows` rows.

    Parameters
    ----------
    groups : numpy.ndarray of int32, shape (units,)
        A valid grouping.
    rows : numpy.ndarray of int64, shape (units,)
        Rows of each unit.
    max_rows : int or None
        The limit; ``None`` for no limit.  A unit that alone has more rows gets its own group.

    Returns
    -------
    numpy.ndarray of int32, shape (units,)
        A valid grouping.  The parts of a group follow each other, units in recording order.

    Raises
    ------
    OptionError
        If `max_rows` is less than one.
    """
    if max_rows is None:
        return groups
    if max_rows < 1:
        advice = "give at least 1, or None for no limit"
        raise OptionError(user_message(f"max_rows is {max_rows!r}", advice=advice))
    count = int(groups.max(initial=-1)) + 1
    totals = np.bincount(groups, weights=rows, minlength=count)
    if not len(groups) or totals.max() <= max_rows:
        return groups
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(np.bincount(groups, minlength=count)).tolist()
    filled = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows[order], dtype=np.int64)])
    is_first = np.zeros(len(groups), np.int32)
    is_first[[0] + ends[:-1]] = 1
    for group in np.flatnonzero(totals > max_rows).tolist():
        start = ends[group - 1] if group else 0
        while start < ends[group]:
            is_first[start] = 1
            fit = int(np.searchsorted(filled, filled[start] + max_rows, side="right")) - 1
            start = max(fit, start + 1)
    result = np.empty(len(groups), np.int32)
    result[order] = np.cumsum(is_first) - 1
    return result


def singles_in_order(groups: Ints) -> Ints:
    """Put neighbouring groups of one unit each into recording order.

    What cannot be merged may move statistics, one call after another as they were made.

    Parameters
    ----------
    groups : numpy.ndarray of int32, shape (units,)
        A valid grouping of units that are numbered topologically.

    Returns
    -------
    numpy.ndarray of int32, shape (units,)
        A valid grouping.
    """
    single = np.bincount(groups) == 1
    if np.count_nonzero(single[1:] & single[:-1]) == 0:
        return groups
    unit = np.empty(len(single), np.int64)
    unit[groups] = np.arange(len(groups))
    run = np.cumsum(np.concatenate([[True], ~(single[1:] & single[:-1])]))
    place = np.empty(len(single), np.int32)
    place[np.lexsort((unit, run))] = np.arange(len(single))
    return np.asarray(place[groups], np.int32)
