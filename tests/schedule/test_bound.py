import numpy as np
from hypothesis import given, settings

from gluon_dynbatch.schedule import POLICIES, Budget, analyze, lower_bound
from gluon_dynbatch.schedule.bound import path_counts, quick_bound, repeated_signatures
from gluon_dynbatch.schedule.dependencies import Dependencies
from gluon_dynbatch.schedule.depth import unit_depth
from tests.schedule.dags import (
    build,
    fewest_launches,
    graphs,
    random_graph,
    slow_bound,
    slow_path_counts,
)


def test_bound_that_cannot_be_reached(draw):
    """One of each on every path, but whichever goes first, the other order needs it again.

    a0 -> b1
    b2 -> a3
    """
    graph = draw("a0 -> b1\nb2 -> a3").graph
    assert lower_bound(graph) == 2
    assert analyze(graph, "search", Budget()).launches == 3 == fewest_launches(graph)


@settings(deadline=None)
@given(graphs(max_units=8))
def test_bounds_are_below_the_fewest_launches_and_these_below_every_policy(graph):
    fewest = fewest_launches(graph)
    assert lower_bound(graph) == slow_bound(graph)
    assert quick_bound(graph, unit_depth(graph)) <= lower_bound(graph) <= fewest
    for policy in POLICIES:
        assert fewest <= analyze(graph, policy, Budget()).launches


@settings(deadline=None)
@given(graphs())
def test_path_counts(graph):
    assert path_counts(graph, unit_depth(graph))[0].tolist() == slow_path_counts(graph)


def test_path_counts_of_more_signatures_than_are_followed_at_once():
    """Three thousand copies of a graph count as one of them does, in several rounds."""
    part = random_graph(seed=5, units=60, signatures=20, window=60)
    copies = 3000
    whole = Dependencies(
        np.tile(part.signature, copies),
        np.append(0, np.tile(np.diff(part.offsets), copies).cumsum()),
        np.concatenate([part.preds + part.size * copy for copy in range(copies)]).astype(np.int32),
        np.tile(part.rows, copies),
    )
    assert len(repeated_signatures(part, unit_depth(part))) * whole.size > 2**21
    counts, bound = path_counts(whole, unit_depth(whole))
    assert (counts.reshape(copies, -1) == slow_path_counts(part)).all()
    assert bound == lower_bound(part)


def test_signatures_at_one_depth_are_not_followed():
    """Of a0 -> b1 and a2 -> b3 -> a4 only signature a lies at two depths."""
    graph = build([0, 1, 0, 1, 0], [[], [0], [], [2], [3]])
    assert repeated_signatures(graph, unit_depth(graph)).tolist() == [0]
