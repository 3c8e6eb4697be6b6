import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.schedule import check_groups, depth, group_by_depth, unit_depth
from gluon_dynbatch.schedule.frontier import Frontier, reverse, successors, unreverse
from tests.schedule.dags import build, graphs, pred_lists, random_graph, slow_depth


def test_all_equal(draw):
    """Nothing depends on anything: one launch takes all.

    a0    a1    a2    a3
    """
    drawing = draw("a0\na1\na2\na3")
    assert drawing.launches(group_by_depth(drawing.graph)) == ["a0 a1 a2 a3"]


def test_chains_of_different_lengths(draw):
    """Short chains drop out; the longest chain decides how many launches there are.

    a0 -> a1 -> a2
    a3 -> a4
    a5
    """
    drawing = draw("a0 -> a1 -> a2\na3 -> a4\na5")
    assert drawing.launches(group_by_depth(drawing.graph)) == ["a0 a3 a5", "a1 a4", "a2"]


def test_complete_binary_trees(draw):
    """Two trees of the same shape: as many launches as one of them has levels.

    l0   l1   l2   l3        l4   l5   l6   l7
      n0       n1              n3       n4
          n2                       n5
    """
    drawing = draw(
        """
        l0 -> n0 -> n2
        l1 -> n0
        l2 -> n1 -> n2
        l3 -> n1
        l4 -> n3 -> n5
        l5 -> n3
        l6 -> n4 -> n5
        l7 -> n4
        """
    )
    assert drawing.launches(group_by_depth(drawing.graph)) == [
        "l0 l1 l2 l3 l4 l5 l6 l7",
        "n0 n1 n3 n4",
        "n2 n5",
    ]


def test_diamond(draw):
    """The sides of a diamond are at one depth, but only those that look alike share a launch.

         b1                   b5
    a0 <    > d3         a4 <    > d7
         c2                   b6
    """
    drawing = draw(
        """
        a0 -> b1 -> d3
        a0 -> c2 -> d3
        a4 -> b5 -> d7
        a4 -> b6 -> d7
        """
    )
    assert drawing.launches(group_by_depth(drawing.graph)) == ["a0 a4", "b1 b5 b6", "c2", "d3 d7"]


def test_long_way_round(draw):
    """The longest path counts: c3 is at depth 2 although an edge leads there from depth 0.

    a0 -> b1 -> c3
    a0 -------> c3
    a2 -------> c4       c4 is at depth 1 and runs apart
    """
    drawing = draw("a0 -> b1 -> c3\na0 -> c3\na2 -> c4")
    assert drawing.launches(group_by_depth(drawing.graph)) == ["a0 a2", "b1", "c4", "c3"]


def test_prefix_keeps_its_groups_and_the_rest_follows():
    """Of two interleaved chains the first four units are analysed.

    a0 -> b2 -> b4
    a1 -> b3 -> b5
    """
    graph = build([0, 0, 1, 1, 1, 1], [[], [], [0], [1], [2], [3]])
    assert group_by_depth(graph, 0).tolist() == [0, 1, 2, 3, 4, 5]
    assert group_by_depth(graph, 4).tolist() == [0, 0, 1, 1, 2, 3]
    assert group_by_depth(graph, 6).tolist() == [0, 0, 1, 1, 2, 2]
    assert group_by_depth(graph, 99).tolist() == group_by_depth(graph).tolist()


@settings(deadline=None)
@given(graphs())
def test_depth_is_the_longest_path(graph):
    assert unit_depth(graph).tolist() == slow_depth(graph)


@settings(deadline=None)
@given(graphs())
def test_every_prefix_is_valid_and_a_longer_one_never_worse(graph):
    counts = []
    for prefix in range(graph.size + 1):
        groups = group_by_depth(graph, prefix)
        check_groups(graph, groups)
        counts.append(int(groups.max(initial=-1)) + 1)
    assert counts[0] == graph.size
    assert all(after <= before for before, after in zip(counts, counts[1:]))


@pytest.mark.parametrize("window", [2, 40, 2000])
def test_depth_of_narrow_and_wide_graphs(window):
    graph = random_graph(seed=window, units=3000, signatures=5, window=window)
    assert unit_depth(graph).tolist() == slow_depth(graph)
    check_graph_groups = group_by_depth(graph)
    check_groups(graph, check_graph_groups)


def test_deep_chain():
    units = 20_000
    graph = build([0] * units, [[]] + [[unit] for unit in range(units - 1)])
    assert (group_by_depth(graph) == np.arange(units)).all()


def test_many_signatures_are_numbered_without_a_table():
    units = 3000
    graph = build([1000 * unit for unit in range(units)], [[]] * (units - 1) + [[0]])
    groups = group_by_depth(graph)
    check_groups(graph, groups)
    assert groups.max() == units - 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1), st.booleans())
def test_levels_are_numbered_as_sorted_pairs(pairs, sparse):
    level, signature = np.array(pairs, np.int32).T
    if sparse:
        signature = signature * 100_000
    numbers = depth.group_by_level(level, signature)
    keys = list(zip(level.tolist(), signature.tolist()))
    assert numbers.tolist() == [sorted(set(keys)).index(key) for key in keys]


@settings(deadline=None)
@given(graphs())
def test_reversed_twice_is_the_same(graph):
    again = reverse(reverse(graph))
    assert [sorted(preds) for preds in pred_lists(again)] == [
        sorted(preds) for preds in pred_lists(graph)
    ]
    assert (again.signature == graph.signature).all() and (again.rows == graph.rows).all()


@settings(deadline=None)
@given(graphs())
def test_grouping_of_the_reversed_graph_reads_backwards(graph):
    check_groups(graph, unreverse(group_by_depth(reverse(graph))))


@settings(deadline=None)
@given(graphs())
def test_successors_invert_predecessors(graph):
    offsets, succs = successors(graph)
    found = [
        (unit, s)
        for unit in range(graph.size)
        for s in succs[offsets[unit] :][: offsets[unit + 1] - offsets[unit]]
    ]
    wanted = [(pred, unit) for unit, preds in enumerate(pred_lists(graph)) for pred in preds]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("narrow", [0, 10_000])
def test_frontier_releases_a_unit_with_its_last_predecessor(narrow, monkeypatch):
    monkeypatch.setattr("gluon_dynbatch.schedule.frontier.NARROW", narrow)
    graph = random_graph(seed=3, units=300, signatures=1, window=300)
    preds = [set(units) for units in pred_lists(graph)]
    frontier, done = Frontier(graph), set()
    ready, rng = set(frontier.sources.tolist()), np.random.default_rng(0)
    while ready:
        assert ready == {u for u in range(graph.size) if u not in done and preds[u] <= done}
        some = rng.permutation(sorted(ready))[: rng.integers(1, 12)].astype(np.int32)
        released = frontier.launch(some).tolist()
        assert len(released) == len(set(released))
        done |= set(some.tolist())
        ready = (ready - done) | set(released)
    assert len(done) == graph.size
