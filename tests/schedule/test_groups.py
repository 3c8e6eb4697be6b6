"""Every way to group is valid and does what it promises; the bound equals a slow one."""

from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.schedule import POLICIES, Budget, analyze, check_groups, lower_bound
from gluon_dynbatch.schedule.agenda import group_by_agenda
from gluon_dynbatch.schedule.bound import quick_bound
from gluon_dynbatch.schedule.depth import group_by_depth, unit_depth
from gluon_dynbatch.schedule.groups import singles_in_order, split_by_rows
from gluon_dynbatch.schedule.merge import drop_groups, merge_groups
from tests.schedule import dags

LARGER = st.builds(dags.random_graph, st.integers(0, 99), st.just(70), st.just(4),
                   st.sampled_from([2, 20, 60]))  # fmt: skip


def pairs(first, second):
    return set(zip(first.tolist(), second.tolist()))


@given(dags.graphs() | LARGER)
def test_depth(graph):
    """Groups are numbered as the pairs of a longest path and a signature are sorted."""
    groups, depth = group_by_depth(graph), dags.slow_depth(graph)
    check_groups(graph, groups)
    assert unit_depth(graph).tolist() == depth
    keys = list(zip(depth, graph.signature.tolist()))
    assert groups.tolist() == [sorted(set(keys)).index(key) for key in keys]


@given(dags.graphs() | LARGER)
def test_agenda(graph):
    """A launch takes all units of its signature that are ready; the least mean depth is first."""
    depth, preds = unit_depth(graph), dags.pred_lists(graph)
    groups = group_by_agenda(graph)
    check_groups(graph, groups)
    for launch, chosen in dict(zip(groups, graph.signature)).items():
        left = groups >= launch
        ready = [unit for unit in np.flatnonzero(left) if (groups[preds[unit]] < launch).all()]
        assert all(groups[unit] == launch for unit in ready if graph.signature[unit] == chosen)
        keys = set(graph.signature[ready])
        urgency = {key: depth[left & (graph.signature == key)].mean() for key in keys}
        assert urgency[chosen] == min(urgency.values())


def starts(graph, kind):
    return np.arange(graph.size, dtype=np.int32) if kind == "single" else group_by_depth(graph)


@given(dags.graphs() | LARGER, st.sampled_from(["depth", "single"]))
def test_merge(graph, kind):
    """Groups stay together and are merged until no two of a signature can be."""
    start = starts(graph, kind)
    before = start.copy()
    merged = merge_groups(graph, start)
    check_groups(graph, merged)
    assert len(pairs(start, merged)) == start.max(initial=-1) + 1 and (start == before).all()
    launches = nx.relabel_nodes(nx.DiGraph(dags.as_networkx(graph)), dict(enumerate(merged)))
    reach, signature = nx.transitive_closure(launches), dict(zip(merged, graph.signature))
    for one, other in combinations(signature, 2):
        tied = reach.has_edge(one, other) or reach.has_edge(other, one)
        assert tied or signature[one] != signature[other]


@given(dags.graphs() | LARGER, st.sampled_from(["depth", "merged", "single"]))
def test_drop(graph, kind):
    """Groups are dropped until each is needed: without it, some units could not run."""
    start = starts(graph, kind)
    start = merge_groups(graph, start) if kind == "merged" else start
    before = start.copy()
    left = drop_groups(graph, start)
    check_groups(graph, left)
    assert (start == before).all()
    preds, signature = dags.pred_lists(graph), graph.signature.tolist()
    launches = list(dict(sorted(zip(left.tolist(), signature))).values())
    for number in range(len(launches)):
        done = set()
        for launch in launches[:number] + launches[number + 1 :]:
            ready = [unit for unit in range(graph.size) if done.issuperset(preds[unit])]
            done.update(unit for unit in ready if signature[unit] == launch)
        assert len(done) < graph.size


@settings(derandomize=True)  # the last line holds nearly always
@given(dags.graphs(max_units=8))
def test_bounds_are_below_the_fewest_launches_and_these_below_every_policy(graph):
    fewest = dags.fewest_launches(graph)
    assert lower_bound(graph) == dags.slow_bound(graph)
    assert quick_bound(graph) <= lower_bound(graph) <= fewest
    for policy in POLICIES:
        assert fewest <= analyze(graph, policy, Budget()).launches
    assert analyze(graph, "search", Budget()).launches <= fewest + 1, "the heuristic is a good one"


@given(dags.graphs(), st.integers(1, 9))
def test_split_groups_are_valid_small_enough_and_full(graph, max_rows):
    """What is then alone between two groups stays in the order in which it was recorded."""
    groups = group_by_depth(graph)
    parts = split_by_rows(groups, graph.rows, max_rows)
    check_groups(graph, parts)
    assert len(pairs(groups, parts)) == parts.max(initial=-1) + 1
    members = [np.flatnonzero(parts == part) for part in range(parts.max(initial=-1) + 1)]
    rows = [graph.rows[units] for units in members]
    assert all(some.sum() <= max_rows or len(some) == 1 for some in rows)
    for number in range(1, len(members)):
        if groups[members[number - 1][0]] == groups[members[number][0]]:
            assert rows[number - 1].sum() + rows[number][0] > max_rows
    assert split_by_rows(groups, graph.rows, None) is groups
    ordered = singles_in_order(parts)
    check_groups(graph, ordered)
    assert len(pairs(parts, ordered)) == len(members)
    alone = np.bincount(ordered, minlength=1) == 1
    unit = np.argsort(ordered, kind="stable")
    for first, second in zip(unit, unit[1:]):
        assert not alone[ordered[[first, second]]].all() or first < second


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
    graph = dags.build([0, 0, 0, 1], [[], [0], [1], []])
    groups = np.array(groups, None if isinstance(groups, np.ndarray) else np.int32)
    with pytest.raises(AssertionError, match=reason):
        check_groups(graph, groups)
    check_groups(graph, np.array([0, 1, 2, 3], np.int32))
