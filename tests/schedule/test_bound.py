import numpy as np
import pytest
from hypothesis import given, settings

from gluon_dynbatch.schedule import POLICIES, Budget, analyze, heights, lower_bound, unit_depth
from gluon_dynbatch.schedule.bound import quick_bound
from tests.schedule.dags import (
    as_networkx,
    build,
    fewest_launches,
    graphs,
    random_graph,
    slow_bound,
)


def test_signatures_that_alternate(draw):
    """Two of a and one each of b and c on one path: four launches; the other sample needs no more.

    a0 -> b1 -> a2 -> c3
    a4 -> c5
    """
    assert lower_bound(draw("a0 -> b1 -> a2 -> c3\na4 -> c5").graph) == 4


def test_bound_that_cannot_be_reached(draw):
    """One of each on every path, but whichever goes first, the other order needs it again.

    a0 -> b1
    b2 -> a3
    """
    drawing = draw("a0 -> b1\nb2 -> a3")
    assert lower_bound(drawing.graph) == 2
    assert (
        analyze(drawing.graph, "search", Budget()).launches == 3 == fewest_launches(drawing.graph)
    )


@settings(deadline=None)
@given(graphs(max_units=8))
def test_equals_the_walk_over_all_paths(graph):
    assert lower_bound(graph) == slow_bound(graph)


@settings(deadline=None)
@given(graphs(max_units=8))
def test_bounds_are_below_the_fewest_launches_and_these_below_every_policy(graph):
    fewest = fewest_launches(graph)
    assert quick_bound(graph, unit_depth(graph)) <= lower_bound(graph) <= fewest
    for policy in POLICIES:
        assert fewest <= analyze(graph, policy, Budget()).launches


@pytest.mark.parametrize("cells", [1, 4000, 2**21])
def test_heights_do_not_depend_on_how_many_signatures_are_followed_at_once(cells, monkeypatch):
    monkeypatch.setattr(heights, "CELLS", cells)
    graph = random_graph(seed=5, units=300, signatures=7, window=40)
    found = heights.signature_heights(graph, unit_depth(graph))
    dag = as_networkx(graph)
    for unit in range(0, graph.size, 29):
        assert found[unit] == most_of_its_kind(graph, dag, unit)


def most_of_its_kind(graph, dag, start):
    own = graph.signature == graph.signature[start]
    best = np.zeros(graph.size, int)
    for unit in range(graph.size - 1, start - 1, -1):
        best[unit] = own[unit] + max((best[after] for after in dag.successors(unit)), default=0)
    return best[start]


def test_signatures_at_one_depth_are_not_followed():
    """Of a0 -> b1 and a2 -> b3 -> a4 only signature a lies at two depths."""
    graph = build([0, 1, 0, 1, 0], [[], [0], [], [2], [3]])
    assert heights.repeated_signatures(graph, unit_depth(graph)).tolist() == [0]


def test_deep_chain():
    units = 3000
    graph = build([unit % 2 for unit in range(units)], [[]] + [[unit] for unit in range(units - 1)])
    assert lower_bound(graph) == units


def test_empty_graph():
    graph = build([], [])
    assert lower_bound(graph) == 0 == quick_bound(graph, unit_depth(graph))
