import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.schedule import Budget, analyze, check_groups, group_by_depth
from gluon_dynbatch.schedule.dependencies import reverse, successors, unreverse
from gluon_dynbatch.schedule.depth import group_by_level, unit_depth
from tests.schedule.dags import build, graphs, pred_lists, random_graph, slow_depth


def test_chains_of_different_lengths(draw):
    """Short chains drop out; the longest chain decides how many launches there are.

    a0 -> a1 -> a2
    a3 -> a4
    a5
    """
    drawing = draw("a0 -> a1 -> a2\na3 -> a4\na5")
    assert drawing.launches(group_by_depth(drawing.graph)) == ["a0 a3 a5", "a1 a4", "a2"]


def test_diamond(draw):
    """The sides of a diamond are at one depth, but only those that look alike share a launch.

         b1                   b5
    a0 <    > d3         a4 <    > d7
         c2                   b6
    """
    drawing = draw("a0 -> b1 -> d3\na0 -> c2 -> d3\na4 -> b5 -> d7\na4 -> b6 -> d7")
    assert drawing.launches(group_by_depth(drawing.graph)) == ["a0 a4", "b1 b5 b6", "c2", "d3 d7"]


def test_long_way_round(draw):
    """The longest path counts: c3 is at depth 2 although an edge leads there from depth 0.

    a0 -> b1 -> c3
    a0 -------> c3
    a2 -------> c4       c4 is at depth 1 and runs by itself
    """
    drawing = draw("a0 -> b1 -> c3\na0 -> c3\na2 -> c4")
    assert drawing.launches(group_by_depth(drawing.graph)) == ["a0 a2", "b1", "c4", "c3"]


def test_prefix_keeps_its_groups_and_the_rest_follows():
    """Of two interleaved chains the first four units are analysed.

    a0 -> b2 -> b4
    a1 -> b3 -> b5
    """
    graph = build([0, 0, 1, 1, 1, 1], [[], [], [0], [1], [2], [3]])
    for visits, wanted in {
        0: [0, 1, 2, 3, 4, 5],
        4: [0, 0, 1, 1, 2, 3],
        6: [0, 0, 1, 1, 2, 2],
    }.items():
        analysis = analyze(graph, "depth", Budget(visits=visits))
        assert analysis.groups.tolist() == wanted
        assert analysis.visits == visits and analysis.complete == (visits == 6)


@settings(deadline=None)
@given(graphs())
def test_every_prefix_is_valid_and_a_longer_one_never_worse(graph):
    counts = []
    for prefix in range(graph.size + 1):
        groups = analyze(graph, "depth", Budget(visits=prefix)).groups
        check_groups(graph, groups)
        counts.append(int(groups.max(initial=-1)) + 1)
    assert counts[0] == graph.size
    assert counts == sorted(counts, reverse=True)


@settings(deadline=None)
@given(st.one_of(graphs(), st.builds(random_graph, st.integers(0, 99), st.just(300), st.just(5),
                                     st.sampled_from([2, 40, 300]))))  # fmt: skip
def test_depth_is_the_longest_path(graph):
    assert unit_depth(graph).tolist() == slow_depth(graph)
    check_groups(graph, group_by_depth(graph))


def test_deep_chain():
    units = 20_000
    graph = build([0] * units, [[]] + [[unit] for unit in range(units - 1)])
    assert (group_by_depth(graph) == np.arange(units)).all()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))), st.booleans())
def test_levels_are_numbered_as_sorted_pairs(pairs, sparse):
    level, signature = np.array(pairs, np.int32).reshape(-1, 2).T
    if sparse:
        signature = signature * 100_000
    keys = list(zip(level.tolist(), signature.tolist()))
    numbers = group_by_level(level, signature)
    assert numbers.tolist() == [sorted(set(keys)).index(key) for key in keys]
    assert numbers.dtype == np.int32


@settings(deadline=None)
@given(graphs())
def test_successors_invert_predecessors(graph):
    offsets, units = successors(graph)
    found = [(u, int(s)) for u in range(graph.size) for s in units[offsets[u] : offsets[u + 1]]]
    wanted = [(pred, unit) for unit, preds in enumerate(pred_lists(graph)) for pred in preds]
    assert sorted(found) == sorted(wanted)


@settings(deadline=None)
@given(graphs())
def test_the_reversed_graph_is_grouped_backwards(graph):
    check_groups(graph, unreverse(group_by_depth(reverse(graph))))
    again = reverse(reverse(graph))
    for before, after in zip(pred_lists(graph), pred_lists(again)):
        assert sorted(before) == sorted(after)
    assert (again.signature == graph.signature).all() and (again.rows == graph.rows).all()


@pytest.mark.parametrize("function", [unit_depth, successors])
def test_native_code_refuses_arrays_of_other_widths(function):
    graph = build([0, 0], [[], [0]])
    with pytest.raises(ValueError, match="expected 'const int32_t' but got 'long'"):
        function(graph._replace(preds=graph.preds.astype(np.int64)))
