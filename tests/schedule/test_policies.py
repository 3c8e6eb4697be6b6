import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.errors import OptionError
from gluon_dynbatch.schedule import (
    POLICIES,
    Budget,
    Search,
    analyze,
    group_by_depth,
    lower_bound,
)
from gluon_dynbatch.schedule.agenda import group_by_agenda
from gluon_dynbatch.schedule.depth import unit_depth
from gluon_dynbatch.schedule.merge import merge_groups
from tests.schedule.dags import (
    build,
    check_promises,
    fewest_launches,
    graphs,
    random_graph,
    random_trees,
)

policies = st.sampled_from(sorted(POLICIES))
searches = st.sampled_from(["agenda", "search"])


def launches(graph, policy, budget):
    return analyze(graph, policy, budget).launches


# What every policy holds, whatever the budget


@settings(deadline=None)
@given(graphs(), st.lists(st.integers(0, 6000), max_size=8))
def test_promises(graph, visits):
    check_promises(graph, visits)


@pytest.mark.parametrize(
    "graph",
    [random_graph(7, 400, 6, 60), random_graph(2, 700, 5, 60), random_trees(1, 60, 12)],
)
def test_promises_on_larger_graphs(graph):
    check_promises(graph, [1, 100, *range(graph.size - 1, 80_000, 2300)])


@pytest.mark.parametrize("policy", POLICIES)
def test_visits_charged_are_the_visits_needed(policy):
    """With as many visits as an unlimited run is charged, all is the same; one less is missed."""
    graph = random_graph(seed=8, units=300, signatures=6, window=50)
    unlimited = analyze(graph, policy, Budget())
    same = analyze(graph, policy, Budget(visits=unlimited.visits))
    assert same.complete and (same.groups == unlimited.groups).all()
    less = analyze(graph, policy, Budget(visits=unlimited.visits - 1))
    assert not less.complete and less.visits < unlimited.visits


def test_unknown_policy_lists_the_valid_ones():
    with pytest.raises(OptionError, match="'best'.*\n.*'depth', 'agenda', 'search'"):
        analyze(build([], []), "best", Budget())


# Time


def test_milliseconds_are_converted_by_the_measured_rate():
    """Two milliseconds at ten visits each: the first 20 of 30 units are grouped."""
    graph = build([0] * 30, [[]] * 30)
    analysis = analyze(graph, "depth", Budget(milliseconds=2), rate=10, clock=lambda: 5.0)
    assert analysis.launches == 1 + 10 and not analysis.complete
    assert analysis.visits == 20


def test_looks_at_the_clock_between_steps():
    """Each look at the clock takes a millisecond, which is enough for the merges of depth."""
    graph = random_graph(seed=1, units=400, signatures=6, window=30)
    ticks = iter(range(10**6))
    analysis = analyze(
        graph, "search", Budget(milliseconds=3.5), rate=math.inf, clock=lambda: next(ticks) / 1e3
    )
    assert not analysis.complete
    merged = merge_groups(graph, group_by_depth(graph))
    assert analysis.groups.tolist() == merged.tolist()
    assert 3.5 <= analysis.milliseconds < 10


# How good they are


@settings(deadline=None)
@given(graphs())
def test_each_policy_is_at_least_as_good_as_the_one_before(graph):
    depth, agenda, search = (launches(graph, p, Budget()) for p in ("depth", "agenda", "search"))
    assert search <= agenda <= depth
    assert agenda <= group_by_agenda(graph, unit_depth(graph)).max(initial=-1) + 1


@settings(deadline=None, derandomize=True)
@given(graphs(max_units=9))
def test_search_is_nearly_always_best_on_tiny_graphs(graph):
    """At most one launch more than the fewest; this is a heuristic, but a good one."""
    assert launches(graph, "search", Budget()) <= fewest_launches(graph) + 1


def test_search_finds_the_least_for_a_long_arm_and_a_short_one(draw):
    """Agenda cannot tell when to run the lone c; counting from the sinks does.

    a0 -> c1 -> c2 -> b3
    a4 -> b5
    c6
    """
    drawing = draw("a0 -> c1 -> c2 -> b3\na4 -> b5\nc6")
    analysis = analyze(drawing.graph, "search", Budget())
    assert analysis.launches == lower_bound(drawing.graph) == 4
    assert drawing.launches(analysis.groups)[0] == "a0 a4"


@pytest.mark.parametrize("seed", range(4))
def test_trees_keyed_by_child_count_come_close_to_the_bound(seed):
    graph = random_trees(seed, trees=100, size=10)
    analysis = analyze(graph, "search", Budget())
    assert analysis.launches <= lower_bound(graph) + 1
    assert analysis.launches < launches(graph, "agenda", Budget())
    assert analysis.complete


def test_stops_as_soon_as_the_bound_is_reached():
    graph = build([0] * 50, [[]] * 50)
    analysis = analyze(graph, "search", Budget())
    assert (analysis.launches, analysis.visits, analysis.complete) == (1, 50, True)


def test_search_on_a_graph_whose_paths_are_too_expensive_to_count():
    """Very many signatures on a deep, narrow graph: it goes by average depth alone."""
    graph = random_graph(seed=9, units=1975, signatures=700, window=40)
    assert Search(graph).path_counts_cost is None
    search, agenda = (analyze(graph, policy, Budget()) for policy in ("search", "agenda"))
    assert search.complete and search.launches < launches(graph, "depth", Budget())
    assert (search.groups == agenda.groups).all() and search.visits == agenda.visits


@pytest.mark.parametrize("seed", range(3))
def test_a_search_without_limit_ends_soon(seed):
    graph = random_graph(seed, units=1500, signatures=8, window=200)
    depth, search = (analyze(graph, policy, Budget()) for policy in ("depth", "search"))
    assert search.complete and search.launches < depth.launches
    assert search.visits <= 300 * graph.size
