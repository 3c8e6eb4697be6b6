import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.analysis import (
    POLICIES,
    Budget,
    analyze,
    check_groups,
    group_by_agenda,
    group_by_depth,
    lower_bound,
    singles_in_order,
    split_by_rows,
)
from gluon_dynbatch.analysis.merge import merge_groups
from gluon_dynbatch.errors import OptionError
from tests.analysis.dags import as_networkx, build, graphs, random_graph, random_trees

budgets = st.one_of(
    st.builds(Budget, visits=st.integers(0, 4000)),
    st.builds(Budget, milliseconds=st.floats(0, 3)),
    st.builds(Budget),
)
policies = st.sampled_from(POLICIES)


@settings(deadline=None)
@given(graphs(), policies, budgets)
def test_every_policy_and_budget_gives_a_valid_grouping(graph, policy, budget):
    analysis = analyze(graph, policy, budget)
    check_groups(graph, analysis.groups)
    assert analysis.launches == len(set(analysis.groups.tolist()))
    assert lower_bound(graph) <= analysis.launches <= graph.size
    assert analysis.policy == policy
    if budget.visits is not None:
        assert analysis.visits <= budget.visits


@settings(deadline=None)
@given(graphs(), policies)
def test_launches_follow_some_topological_order(graph, policy):
    """Contracting each group to one vertex leaves a DAG, says networkx, and its edges go up."""
    groups = analyze(graph, policy, Budget()).groups.tolist()
    contracted = nx.DiGraph()
    contracted.add_nodes_from(groups)
    contracted.add_edges_from((groups[a], groups[b]) for a, b in as_networkx(graph).edges)
    assert nx.is_directed_acyclic_graph(contracted)
    assert all(before < after for before, after in contracted.edges)


@settings(deadline=None)
@given(graphs(), policies, st.lists(st.integers(0, 6000), min_size=2, max_size=12))
def test_more_visits_never_give_more_launches(graph, policy, visits):
    counts = [analyze(graph, policy, Budget(visits=v)).launches for v in sorted(visits)]
    counts.append(analyze(graph, policy, Budget()).launches)
    assert all(after <= before for before, after in zip(counts, counts[1:]))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("graph", [random_graph(7, 400, 6, 60), random_trees(3, 30, 14)])
def test_more_visits_never_give_more_launches_on_larger_graphs(graph, policy):
    ladder = [0, 1, 100, 399, graph.size, *range(1000, 60_000, 1900), 10**6]
    counts = [analyze(graph, policy, Budget(visits=v)).launches for v in ladder]
    assert all(after <= before for before, after in zip(counts, counts[1:]))
    assert counts[0] == graph.size > counts[-1] == analyze(graph, policy, Budget()).launches


@pytest.mark.parametrize("policy", POLICIES)
def test_visits_charged_are_the_visits_needed(policy):
    """With as many visits as an unlimited run is charged, all is the same; one less is missed."""
    graph = random_graph(seed=8, units=300, signatures=6, window=50)
    unlimited = analyze(graph, policy, Budget())
    same = analyze(graph, policy, Budget(visits=unlimited.visits))
    assert same.complete and (same.groups == unlimited.groups).all()
    less = analyze(graph, policy, Budget(visits=unlimited.visits - 1))
    assert not less.complete and less.visits < unlimited.visits


@settings(deadline=None)
@given(graphs())
def test_each_policy_is_at_least_as_good_as_the_one_before(graph):
    depth, agenda, search = (analyze(graph, p, Budget()).launches for p in POLICIES)
    assert search <= agenda <= depth
    assert depth <= group_by_depth(graph).max(initial=-1) + 1
    assert agenda == min(depth, group_by_agenda(graph).max(initial=-1) + 1)


@pytest.mark.parametrize("budget", [Budget(visits=0), Budget(milliseconds=0)])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_budget_means_one_by_one(policy, budget):
    graph = random_graph(seed=1, units=30, signatures=2, window=9)
    analysis = analyze(graph, policy, budget)
    assert analysis.groups.tolist() == list(range(30))
    assert analysis.visits == 0 and not analysis.complete


@pytest.mark.parametrize("policy", POLICIES)
def test_empty_graph(policy):
    analysis = analyze(build([], []), policy, Budget())
    assert analysis.groups.dtype == np.int32 and analysis.launches == 0 and analysis.complete


def test_unknown_policy_lists_the_valid_ones():
    with pytest.raises(OptionError, match="'best'.*\n.*'depth', 'agenda', 'search'"):
        analyze(build([], []), "best", Budget())


def test_milliseconds_are_converted_by_the_measured_rate():
    """Two milliseconds at ten visits each: the first 20 of 30 units are grouped."""
    graph = build([0] * 30, [[]] * 30)
    analysis = analyze(graph, "depth", Budget(milliseconds=2), rate=10, clock=lambda: 5.0)
    assert analysis.launches == 1 + 10 and not analysis.complete
    assert analysis.visits == 20


def test_looks_at_the_clock_between_launches():
    """Each look at the clock takes a millisecond, so the agenda is given up half-way."""
    graph = random_graph(seed=1, units=400, signatures=6, window=30)
    ticks = iter(range(10**6))
    analysis = analyze(
        graph, "search", Budget(milliseconds=30), rate=math.inf, clock=lambda: next(ticks) / 1e3
    )
    assert not analysis.complete
    joined = merge_groups(graph, group_by_depth(graph))
    assert analysis.groups.tolist() == joined.tolist()
    assert 30 <= analysis.milliseconds < 40


@settings(deadline=None)
@given(graphs(), st.integers(1, 9))
def test_split_groups_are_valid_and_small_enough(graph, max_rows):
    groups = group_by_depth(graph)
    parts = split_by_rows(groups, graph.rows, max_rows)
    check_groups(graph, parts)
    assert len(set(zip(groups.tolist(), parts.tolist()))) == parts.max(initial=-1) + 1
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
    assert len(set(zip(groups.tolist(), ordered.tolist()))) == groups.max(initial=-1) + 1


def test_neighbouring_singles_are_ordered_as_recorded():
    groups = np.array([2, 0, 1, 3, 3, 5, 4], np.int32)
    assert singles_in_order(groups).tolist() == [0, 1, 2, 3, 3, 4, 5]
    paired = np.array([1, 1, 0], np.int32)
    assert singles_in_order(paired) is paired
