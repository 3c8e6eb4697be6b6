"""A policy that is not the library's: one class, and a line in the registry."""

import pytest
from hypothesis import given, settings

import gluon_dynbatch as gdb
from gluon_dynbatch.schedule import POLICIES, Merge, group_by_depth
from gluon_dynbatch.schedule.dependencies import reverse, unreverse
from tests.cells import Unary, chain, inputs, launches, ready
from tests.schedule.dags import check_promises, graphs


class AsLateAsPossible:
    """Group by the distance to the sinks instead of the sources."""

    def cost(self, search):
        return 4 * search.graph.size

    def run(self, search):
        return unreverse(group_by_depth(reverse(search.graph)))


@pytest.fixture
def late():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POLICIES, "late", (AsLateAsPossible(), Merge()))
        yield "late"


def test_users_choose_it_by_name(late):
    """Depth runs b3 too early: it has no company then, and b2 has none either.

    c0 -> b1 -> b2      by depth    {c0} {b3} {b1 b4} {b2}
    b3 -> b4            late        {c0} {b1 b3} {b2 b4}
    """
    b, c = ready(Unary(prefix="b_")), ready(Unary(prefix="c_"))
    samples = list(zip(([c, b, b], [b, b]), inputs(2)))

    def count(policy):
        return launches(lambda sample: chain(*sample), samples, "block", policy, debug=True)

    assert (count("depth"), count(late)) == (4, 3)
    with pytest.raises(gdb.OptionError, match="'search', 'late'"):
        gdb.batching(policy="later")


class AllTogether:
    """Wrong on purpose: calls that need each other in one launch, which is fewer than any."""

    def cost(self, search):
        return 1

    def run(self, search):
        return search.graph.signature.copy()


def test_debug_refuses_groups_that_cannot_run():
    b, c = ready(Unary(prefix="b_")), ready(Unary(prefix="c_"))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(
        AssertionError, match="launched before"
    ):
        patch.setitem(POLICIES, "wrong", (AllTogether(),))
        with gdb.batching(granularity="block", policy="wrong", debug=True):
            _held = [chain(*sample) for sample in zip(([c, b, b], [b, b]), inputs(2))]


@settings(deadline=None)
@given(graph=graphs())
def test_it_keeps_what_every_policy_promises(graph):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POLICIES, "late", (AsLateAsPossible(), Merge()))
        check_promises(graph, [10, 100, 1000])
