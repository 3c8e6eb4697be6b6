import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.schedule import (
    Budget,
    Meter,
    analyze,
    check_groups,
    group_by_depth,
    lower_bound,
    merge,
)
from gluon_dynbatch.schedule.merge import merge_groups
from gluon_dynbatch.schedule.search import EFFORT, SMALL, Search
from tests.schedule.dags import build, fewest_launches, graphs, random_graph, random_trees


def test_merge_lets_a_unit_wait(draw):
    """Depth runs c4 before c2, although nothing needs it then.

    a0 -> b1 -> c2
    a3 -> c4
    """
    drawing = draw("a0 -> b1 -> c2\na3 -> c4")
    groups = group_by_depth(drawing.graph)
    assert drawing.launches(groups) == ["a0 a3", "b1", "c4", "c2"]
    assert drawing.launches(merge_groups(drawing.graph, groups)) == ["a0 a3", "b1", "c2 c4"]


def test_merge_respects_paths_through_other_groups(draw):
    """Either the a's or the b's can be joined; after that, the others depend on each other.

    a0 -> b1
    b2 -> a3
    """
    drawing = draw("a0 -> b1\nb2 -> a3")
    one_by_one = np.arange(4, dtype=np.int32)
    launches = drawing.launches(merge_groups(drawing.graph, one_by_one))
    assert launches == ["b2", "a0 a3", "b1"]


def test_merge_takes_what_is_launched_closest_together(draw):
    """Any of the c's could be joined with c5; the nearest delays it the least.

    c0 -> c1 -> c2
    a3 -> a4 -> c5
    """
    drawing = draw("c0 -> c1 -> c2\na3 -> a4 -> c5")
    groups = np.empty(6, np.int32)
    for place, name in enumerate(["c0", "a3", "a4", "c1", "c2", "c5"]):
        groups[drawing.names.index(name)] = place
    merged = drawing.launches(merge_groups(drawing.graph, groups))
    assert merged == ["c0", "a3", "a4", "c1", "c2 c5"] or merged == [
        "a3",
        "c0",
        "a4",
        "c1",
        "c2 c5",
    ]


def test_depth_joins_several_hundred_groups():
    """Two sequences of two cells in turn, one of them a step ahead; depth finds no two alike.

    a -> b -> a -> b -> ...
    b -> a -> b -> a -> ...
    """
    steps = 300
    signature = [unit % 2 for unit in range(steps)] + [(unit + 1) % 2 for unit in range(steps)]
    preds = [[unit - 1] if unit % steps else [] for unit in range(2 * steps)]
    graph = build(signature, preds)
    assert group_by_depth(graph).max() + 1 == 2 * steps
    assert analyze(graph, "depth", Budget()).launches == steps + 1


@settings(deadline=None)
@given(graphs())
def test_merged_groups_are_valid_and_cannot_be_merged_further(graph):
    start = np.arange(graph.size, dtype=np.int32)
    merged = merge_groups(graph, start)
    check_groups(graph, merged)
    again = merge_groups(graph, merged)
    assert merged.max(initial=-1) == again.max(initial=-1) <= start.max(initial=-1)


@pytest.mark.skipif(merge.PLANNING is None, reason="native code was not built")
@settings(deadline=None)
@given(graphs(), st.booleans())
def test_native_joins_are_those_of_numpy(graph, single):
    start = np.arange(graph.size, dtype=np.int32) if single else group_by_depth(graph)
    native = merge_groups(graph, start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "PLANNING", None)
        assert (merge_groups(graph, start) == native).all()


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
    assert analysis.launches < analyze(graph, "agenda", Budget()).launches
    assert analysis.complete


@settings(deadline=None, derandomize=True)
@given(graphs(max_units=9))
def test_search_is_nearly_always_best_on_tiny_graphs(graph):
    """At most one launch more than the fewest; this is a heuristic, but a good one."""
    assert analyze(graph, "search", Budget()).launches <= fewest_launches(graph) + 1


def test_stops_as_soon_as_the_bound_is_reached():
    graph = build([0] * 50, [[]] * 50)
    analysis = analyze(graph, "search", Budget())
    assert (analysis.launches, analysis.visits, analysis.complete) == (1, 50, True)


@pytest.mark.parametrize("seed", range(3))
def test_an_unlimited_search_ends_within_a_fixed_multiple_of_the_units(seed):
    graph = random_graph(seed, units=1500, signatures=8, window=200)
    depth = analyze(graph, "depth", Budget())
    search = analyze(graph, "search", Budget())
    assert search.complete and search.launches < depth.launches
    assert search.visits <= depth.visits + EFFORT * graph.size + SMALL


def test_equal_graphs_get_equal_groups():
    graph = random_graph(seed=9, units=300, signatures=5, window=50)
    first, second = (analyze(graph, "search", Budget()) for _ in range(2))
    assert (first.groups == second.groups).all() and first.visits == second.visits


def test_search_on_a_graph_whose_bound_is_too_dear(monkeypatch):
    """Very many signatures on a deep, narrow graph: the bound is left out, the rest still works."""
    graph = random_graph(seed=4, units=600, signatures=40, window=4)
    search = Search(graph, group_by_depth(graph), Meter(Budget()))
    assert search._raise_bound in [step.run for step in search._steps("search", dear=10**9)]
    assert search._raise_bound not in [step.run for step in search._steps("search", dear=0)]
    monkeypatch.setattr("gluon_dynbatch.schedule.search.EFFORT", 10)
    monkeypatch.setattr("gluon_dynbatch.schedule.search.SMALL", 60_000)
    assert search.climb("search") and search.launches < group_by_depth(graph).max() + 1
    check_groups(graph, search.groups)
