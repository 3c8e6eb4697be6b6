import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.schedule import Budget, analyze, check_groups, group_by_depth
from gluon_dynbatch.schedule.dependencies import reverse, successors, unreverse
from gluon_dynbatch.schedule.depth import group_by_level, unit_depth
from tests.schedule.dags import build, graphs, pred_lists, random_graph, slow_depth


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
@given(st.one_of(graphs(), st.builds(random_graph, st.integers(0, 99), st.just(300), st.just(5),
                                     st.sampled_from([2, 40, 300]))))  # fmt: skip
def test_depth_is_the_longest_path(graph):
    assert unit_depth(graph).tolist() == slow_depth(graph)
    check_groups(graph, group_by_depth(graph))


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
