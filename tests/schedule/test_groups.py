import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.errors import OptionError
from gluon_dynbatch.schedule import check_groups, group_by_depth, singles_in_order, split_by_rows
from tests.schedule.dags import build, graphs


def pairs(first, second):
    return set(zip(first.tolist(), second.tolist()))


@settings(deadline=None)
@given(graphs(), st.integers(1, 9))
def test_split_groups_are_valid_and_small_enough(graph, max_rows):
    groups = group_by_depth(graph)
    parts = split_by_rows(groups, graph.rows, max_rows)
    check_groups(graph, parts)
    assert len(pairs(groups, parts)) == parts.max(initial=-1) + 1
    for part in range(parts.max(initial=-1) + 1):
        rows = graph.rows[parts == part]
        assert rows.sum() <= max_rows or len(rows) == 1


def test_split_fills_each_part():
    rows = np.array([2, 2, 2, 9, 0, 1, 4])
    groups = np.array([0, 0, 0, 0, 0, 0, 1], np.int32)
    assert split_by_rows(groups, rows, 4).tolist() == [0, 0, 1, 2, 3, 3, 4]
    assert split_by_rows(groups, rows, None) is groups
    assert split_by_rows(groups, rows, 100).tolist() == groups.tolist()
    with pytest.raises(OptionError, match="max_rows is 0"):
        split_by_rows(groups, rows, 0)


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([0, 0, 1, 2], "before what it depends on"),
        ([0, 1, 2, 2], "two signatures"),
        ([0, 1, 2, 4], "no unit"),
        ([0, 1, 2, -1], "no group"),
        ([0, 1, 2], "3"),
        ([1, 0, 2, 3], "before what it depends on"),
        (np.arange(4.0), "int32"),
    ],
)
def test_check_refuses(groups, reason):
    """a0 -> a1 -> a2, and b3 by itself."""
    graph = build([0, 0, 0, 1], [[], [0], [1], []])
    groups = np.array(groups, None if isinstance(groups, np.ndarray) else np.int32)
    with pytest.raises(AssertionError, match=reason):
        check_groups(graph, groups)
    check_groups(graph, np.array([0, 1, 2, 3], np.int32))


@settings(deadline=None)
@given(graphs())
def test_groups_stay_together_when_singles_are_ordered(graph):
    groups = group_by_depth(graph)
    ordered = singles_in_order(groups)
    check_groups(graph, ordered)
    assert len(pairs(groups, ordered)) == groups.max(initial=-1) + 1


def test_neighbouring_singles_are_ordered_as_recorded():
    groups = np.array([2, 0, 1, 3, 3, 5, 4], np.int32)
    assert singles_in_order(groups).tolist() == [0, 1, 2, 3, 3, 4, 5]
    paired = np.array([1, 1, 0], np.int32)
    assert singles_in_order(paired) is paired
