import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.schedule import Budget, analyze, check_groups, group_by_depth
from gluon_dynbatch.schedule.merge import merge_groups
from tests.schedule.dags import build, graphs, slow_merge


def test_paths_through_other_groups_are_respected(draw):
    """Either the a's or the b's can be merged; after that, the others depend on each other.

    a0 -> b1
    b2 -> a3
    """
    drawing = draw("a0 -> b1\nb2 -> a3")
    merged = merge_groups(drawing.graph, np.arange(4, dtype=np.int32))
    assert drawing.launches(merged) == ["b2", "a0 a3", "b1"]


@settings(deadline=None)
@given(graphs(), st.booleans())
def test_pairs_are_merged_until_none_is_left(graph, single):
    start = np.arange(graph.size, dtype=np.int32) if single else group_by_depth(graph)
    before = start.copy()
    merged = merge_groups(graph, start)
    check_groups(graph, merged)
    assert merged.tolist() == slow_merge(graph, start.tolist())
    assert (merge_groups(graph, merged) == merged).all() and (start == before).all()


def test_depth_merges_several_hundred_groups():
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
