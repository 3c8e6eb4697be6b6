import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.schedule import check_groups, group_by_depth
from gluon_dynbatch.schedule.agenda import group_by_agenda
from gluon_dynbatch.schedule.bound import path_counts
from gluon_dynbatch.schedule.depth import unit_depth
from tests.schedule.dags import graphs, random_graph, random_trees, slow_agenda


def by_average(graph):
    return group_by_agenda(graph, unit_depth(graph))


def toward_bound(graph):
    depth = unit_depth(graph)
    return group_by_agenda(graph, depth, path_counts(graph, depth)[0])


def test_average_depth_can_be_worse_than_depth_and_the_bound_helps(draw):
    """The mean depth of a is small because of a2 and a3, so they run before a1 is ready.

    b0 -> a1 -> b4
    a2 -> a3

    A path holds at most two of a, and only a2 starts such a path.  So toward the bound a2 is no
    waste, and neither is b0; then a1 and a3 are all that is left of a.
    """
    drawing = draw("b0 -> a1 -> b4\na2 -> a3")
    wanted = ["a2", "b0", "a1 a3", "b4"]
    assert drawing.launches(group_by_depth(drawing.graph)) == wanted
    assert drawing.launches(by_average(drawing.graph)) == ["a2", "a3", "b0", "a1", "b4"]
    assert drawing.launches(toward_bound(drawing.graph)) == wanted


@pytest.mark.parametrize("agenda", [by_average, toward_bound])
@settings(deadline=None)
@given(graph=st.one_of(graphs(), st.builds(random_graph, st.integers(0, 99), st.just(60),
                                           st.just(4), st.sampled_from([2, 20, 60]))))  # fmt: skip
def test_launches_all_ready_units_of_the_most_urgent_signature(agenda, graph):
    groups = agenda(graph)
    check_groups(graph, groups)
    assert groups.tolist() == slow_agenda(graph, agenda is toward_bound)


def test_trees_keyed_by_child_count():
    """Depth and mean depth spread each child count over the levels; the bound does not."""
    graph = random_trees(seed=0, trees=40, size=12)
    groups = toward_bound(graph)
    check_groups(graph, groups)
    assert groups.max() < by_average(graph).max()
    assert groups.max() < group_by_depth(graph).max()
    assert groups.dtype == np.int32
