import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_dynbatch.schedule import (
    agenda,
    check_groups,
    group_by_agenda,
    group_by_depth,
    unit_depth,
)
from gluon_dynbatch.schedule.agenda import AverageDepth, Priority, TopFirst
from gluon_dynbatch.schedule.heights import signature_heights
from tests.schedule.dags import graphs, random_graph, random_trees


def top_first(graph):
    depth = unit_depth(graph)
    return TopFirst(graph, depth, signature_heights(graph, depth))


def average_depth(graph):
    return AverageDepth(graph, unit_depth(graph))


class FixedOrder(Priority):
    """A priority that the native code knows nothing of: one number per signature."""

    def __init__(self, values):
        self._values = values

    def value(self, signature):
        return self._values[signature]


ARM = """
    a0 -> b1 -> b2 -> b3 -> c4
    a5 -> c6
    a7 -> b8 -> b9 -> b10 -> c11
    """


def test_long_arm(draw):
    """The short sample can wait with its c for the others; depth does not let it.

    a0 -> b1 -> b2 -> b3  -> c4
    a5 -> c6
    a7 -> b8 -> b9 -> b10 -> c11

    Mean depth: a 0, b 2, c 3.  After each b it grows to 2.5 and 3; at 3, b and c are equally
    urgent, and b has the smaller id.
    """
    drawing = draw(ARM)
    by_depth = ["a0 a5 a7", "b1 b8", "c6", "b2 b9", "b10 b3", "c11 c4"]
    assert drawing.launches(group_by_depth(drawing.graph)) == by_depth
    by_agenda = ["a0 a5 a7", "b1 b8", "b2 b9", "b10 b3", "c11 c4 c6"]
    assert drawing.launches(group_by_agenda(drawing.graph)) == by_agenda


def test_two_cell_types_interleaved(draw):
    """Two sequences alternate between two cells, one of them a step ahead: agenda lets it wait.

    a0 -> b1 -> a2
    b3 -> a4 -> b5

    Depth never finds two units alike.  Of the agenda's two equally deep signatures, a goes first;
    from then on the samples are in step.
    """
    drawing = draw("a0 -> b1 -> a2\nb3 -> a4 -> b5")
    assert len(drawing.launches(group_by_depth(drawing.graph))) == 6
    by_agenda = ["a0", "b1 b3", "a2 a4", "b5"]
    assert drawing.launches(group_by_agenda(drawing.graph)) == by_agenda


def test_average_depth_can_be_worse_than_depth(draw):
    """The mean depth of a is small because of a2 and a3, so they run before a1 is ready.

    b0 -> a1 -> b4
    a2 -> a3
    """
    drawing = draw("b0 -> a1 -> b4\na2 -> a3")
    by_depth = ["a2", "b0", "a1 a3", "b4"]
    assert drawing.launches(group_by_depth(drawing.graph)) == by_depth
    assert drawing.launches(group_by_agenda(drawing.graph)) == ["a2", "a3", "b0", "a1", "b4"]


def test_top_first_waits_for_a_wide_launch(draw):
    """The same graph: a path holds at most two of a, and only a2 starts such a path.

    b0 -> a1 -> b4
    a2 -> a3

    So a2 is no waste, and neither is b0; then a1 and a3 are all that is left of a.
    """
    drawing = draw("b0 -> a1 -> b4\na2 -> a3")
    groups = group_by_agenda(drawing.graph, top_first(drawing.graph))
    assert drawing.launches(groups) == ["a2", "b0", "a1 a3", "b4"]


def test_chains_of_different_lengths(draw):
    """With one signature there is no choice, so agenda does what depth does.

    a0 -> a1 -> a2
    a3 -> a4
    a5
    """
    drawing = draw("a0 -> a1 -> a2\na3 -> a4\na5")
    assert drawing.launches(group_by_agenda(drawing.graph)) == ["a0 a3 a5", "a1 a4", "a2"]


def test_complete_binary_trees(draw):
    """Leaves all lie at depth 0, so they go first; then level by level.

    l0  l1  l2  l3        l4  l5
      n0      n1            n3
          n2
    """
    drawing = draw(
        """
        l0 -> n0 -> n2
        l1 -> n0
        l2 -> n1 -> n2
        l3 -> n1
        l4 -> n3
        l5 -> n3
        """
    )
    wanted = ["l0 l1 l2 l3 l4 l5", "n0 n1 n3", "n2"]
    assert drawing.launches(group_by_agenda(drawing.graph)) == wanted


def test_fixed_order(draw):
    """Whatever is ready of the signature with the lowest number goes first.

    a0 -> c1         b2
    """
    drawing = draw("a0 -> c1\nb2")
    groups = group_by_agenda(drawing.graph, FixedOrder([2.0, 3.0, 1.0]))
    assert drawing.launches(groups) == ["a0", "c1", "b2"]
    groups = group_by_agenda(drawing.graph, FixedOrder([2.0, 1.0, 3.0]))
    assert drawing.launches(groups) == ["b2", "a0", "c1"]


def test_gives_up_at_the_limit(draw):
    """Five launches are needed, so a limit of five is not undercut and one of six is.

    a0 -> b1 -> b2 -> b3 -> c4 (and the other two samples of the long arm)
    """
    drawing = draw(ARM)
    assert group_by_agenda(drawing.graph, limit=5) is None
    assert group_by_agenda(drawing.graph, limit=6) is not None


@settings(deadline=None)
@given(graphs(), st.integers(0, 5))
def test_every_priority_gives_a_valid_grouping(graph, seed):
    values = np.random.default_rng(seed).random(int(graph.signature.max(initial=0)) + 1)
    for priority in [None, Priority(), FixedOrder(values), top_first(graph)]:
        check_groups(graph, group_by_agenda(graph, priority))


@pytest.mark.skipif(agenda.PLANNING is None, reason="native code was not built")
@pytest.mark.parametrize("make", [average_depth, top_first])
@settings(deadline=None)
@given(graph=st.one_of(graphs(), st.builds(random_graph, st.integers(0, 99), st.just(150),
                                           st.just(4), st.just(20))),
       limit=st.one_of(st.none(), st.integers(0, 30)))  # fmt: skip
def test_native_agenda_is_that_of_python(make, graph, limit):
    native = group_by_agenda(graph, make(graph), limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agenda, "PLANNING", None)
        slow = group_by_agenda(graph, make(graph), limit)
    assert (native is None) == (slow is None)
    assert native is None or (native == slow).all()


@pytest.mark.parametrize("window", [3, 1000])
def test_takes_all_ready_units_of_the_lowest_average(window):
    """Replays the launches and recomputes every average from scratch."""
    graph = random_graph(seed=window, units=400, signatures=5, window=window)
    groups, depth = group_by_agenda(graph), unit_depth(graph)
    done = np.zeros(graph.size, bool)
    owners = np.repeat(np.arange(graph.size), np.diff(graph.offsets))
    for launch in range(groups.max() + 1):
        waiting = np.zeros(graph.size, bool)
        waiting[owners[~done[graph.preds]]] = True
        ready = ~done & ~waiting
        mean = {s: depth[~done & (graph.signature == s)].mean() for s in graph.signature[ready]}
        chosen = min(mean, key=lambda s: (mean[s], s))
        assert ((groups == launch) == (ready & (graph.signature == chosen))).all()
        done |= groups == launch


def test_top_first_on_trees_keyed_by_child_count():
    """Depth and mean depth spread each child count over the levels; the bound does not."""
    graph = random_trees(seed=0, trees=40, size=12)
    groups = group_by_agenda(graph, top_first(graph))
    check_groups(graph, groups)
    assert groups.max() < group_by_agenda(graph).max()
    assert groups.max() < group_by_depth(graph).max()
