import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.errors import OptionError
from gluon_dynbatch.native import PLANNING
from gluon_dynbatch.schedule import (
    POLICIES,
    Budget,
    agenda,
    analyze,
    check_groups,
    depth,
    frontier,
    group_by_agenda,
    group_by_depth,
    heights,
    lower_bound,
    merge,
    singles_in_order,
    split_by_rows,
    unit_depth,
)
from gluon_dynbatch.schedule.bound import quick_bound
from gluon_dynbatch.schedule.merge import merge_groups
from tests.schedule.dags import as_networkx, build, graphs, random_graph, random_trees, slow_depth

budgets = st.one_of(
    st.builds(Budget, visits=st.integers(0, 4000)),
    st.builds(Budget, milliseconds=st.floats(0, 3)),
    st.builds(Budget),
)
policies = st.sampled_from(POLICIES)
LARGER = st.builds(random_graph, st.integers(0, 99), st.just(200), st.just(5),
                   st.sampled_from([2, 30, 200]))  # fmt: skip


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


def launches(graph, policy, budget, worth=None):
    return analyze(graph, policy, budget, worth=worth).launches


@settings(deadline=None)
@given(graphs(), st.lists(st.integers(0, 6000), max_size=6), st.sampled_from([None, 0, 9, 900]))
def test_no_policy_gives_more_launches_than_depth_with_the_same_budget(graph, visits, worth):
    whole = analyze(graph, "depth", Budget())
    around = [max(0, whole.visits + step) for step in (-1, 0, 1)]
    for budget in [Budget(), *(Budget(visits=v) for v in [*visits, *around])]:
        depth = launches(graph, "depth", budget)
        for policy in POLICIES:
            assert lower_bound(graph) <= launches(graph, policy, budget, worth) <= depth


@pytest.mark.parametrize("worth", [None, 1, 300])
@pytest.mark.parametrize("graph", [random_graph(2, 700, 5, 60), random_trees(1, 60, 12)])
def test_no_policy_gives_more_launches_than_depth_on_larger_graphs(graph, worth):
    for visits in [1, graph.size, *range(graph.size + 1, 70_000, 2300)]:
        budget = Budget(visits=visits)
        depth = launches(graph, "depth", budget)
        assert launches(graph, "agenda", budget, worth) <= depth
        assert launches(graph, "search", budget, worth) <= depth


@settings(deadline=None)
@given(graphs(), st.sampled_from(["agenda", "search"]), st.lists(st.floats(0, 900), max_size=5))
def test_launches_that_are_worth_more_never_become_more(graph, policy, worths):
    """From depth's result, if they are worth nothing, to what an unlimited search finds."""
    depth = analyze(graph, "depth", Budget())
    nothing = analyze(graph, policy, Budget(), worth=0)
    assert (nothing.groups == depth.groups).all() and nothing.visits == depth.visits
    assert nothing.complete
    counts = [launches(graph, policy, Budget(), worth) for worth in [0, *sorted(worths), math.inf]]
    assert all(after <= before for before, after in zip(counts, counts[1:]))
    assert counts[-1] == launches(graph, policy, Budget())


@settings(deadline=None)
@given(graphs(), st.sampled_from(["agenda", "search"]), st.floats(0, 900))
def test_no_more_is_spent_in_vain_than_what_could_be_gained(graph, policy, worth):
    depth = analyze(graph, "depth", Budget())
    found = analyze(graph, policy, Budget(), worth=worth)
    possible = depth.launches - quick_bound(graph, unit_depth(graph))
    spent = found.visits - depth.visits
    # Anew after each success, which saves a launch at least, and when the bound is known.
    assert spent <= worth * possible * (2 + depth.launches - found.launches)


def test_search_goes_on_as_long_as_it_may_pay(draw):
    """Depth runs b3 too early; if it waits for b1, a launch less does, and less is impossible.

    c0 -> b1 -> b2
    b3 -> b4
    """
    graph = draw("c0 -> b1 -> b2\nb3 -> b4").graph
    depth = analyze(graph, "depth", Budget())
    search = analyze(graph, "search", Budget())
    assert (depth.launches, search.launches, lower_bound(graph)) == (4, 3, 3)
    spent = search.visits - depth.visits
    assert analyze(graph, "search", Budget(), worth=spent).launches == 3
    assert analyze(graph, "search", Budget(), worth=spent - 1).launches == 4


@pytest.mark.skipif(PLANNING is None, reason="native code was not built")
@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=50)
@given(graph=st.one_of(graphs(), LARGER))
def test_native_code_decides_as_python_does(policy, graph):
    native = analyze(graph, policy, Budget())
    with pytest.MonkeyPatch.context() as patch:
        for module in (agenda, depth, frontier, heights, merge):
            patch.setattr(module, "PLANNING", None)
        assert (unit_depth(graph) == slow_depth(graph)).all()
        slow = analyze(graph, policy, Budget())
    assert (native.groups == slow.groups).all() and native.visits == slow.visits


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
    assert agenda <= group_by_agenda(graph).max(initial=-1) + 1


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


def test_looks_at_the_clock_between_steps():
    """Each look at the clock takes a millisecond, which is enough for the joins of depth."""
    graph = random_graph(seed=1, units=400, signatures=6, window=30)
    ticks = iter(range(10**6))
    analysis = analyze(
        graph, "search", Budget(milliseconds=4.5), rate=math.inf, clock=lambda: next(ticks) / 1e3
    )
    assert not analysis.complete
    joined = merge_groups(graph, group_by_depth(graph))
    assert analysis.groups.tolist() == joined.tolist()
    assert 4.5 <= analysis.milliseconds < 10


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
