"""The contracts of policies and budgets, and a policy of the user's."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gluon_dynbatch as gdb
from gluon_dynbatch.errors import OptionError
from gluon_dynbatch.schedule import POLICIES, Budget, analyze, group_by_depth, merges
from gluon_dynbatch.schedule.budget import DEFAULT_RATE, parse_budget
from gluon_dynbatch.schedule.dependencies import reverse, unreverse
from gluon_dynbatch.schedule.merge import merged_groups, needed_groups
from tests.cells import chain, inputs, launches, ready, unary
from tests.schedule.dags import build, check_contract, graphs, random_graph


@given(graphs(), st.lists(st.integers(0, 6000), max_size=3))
@example(random_graph(7, 400, 6, 60), [1, 100, *range(399, 80_000, 9200)])
@example(random_graph(2, 700, 5, 60), [1, 100, *range(699, 80_000, 9200)])
def test_a_larger_budget_or_another_policy_than_depth_adds_no_launches(graph, visits):
    check_contract(graph, visits)


@pytest.mark.parametrize("visits, wanted", [
    (0, [0, 1, 2, 3, 4, 5]), (4, [0, 0, 1, 1, 2, 3]), (6, [0, 0, 1, 1, 2, 2]),
])  # fmt: skip
def test_units_within_the_budget_are_grouped_and_the_rest_run_alone(visits, wanted):
    """A visit is one unit, in the order of recording; units without a visit run alone.

    a0 -> b2 -> b4      0 visits    {a0} {a1} {b2} {b3} {b4} {b5}
    a1 -> b3 -> b5      4 visits    {a0 a1} {b2 b3} {b4} {b5}
                        6 visits    {a0 a1} {b2 b3} {b4 b5}
    """
    graph = build([0, 0, 1, 1, 1, 1], [[], [], [0], [1], [2], [3]])
    analysis = analyze(graph, "depth", Budget(visits=visits))
    assert analysis.groups.tolist() == wanted
    assert analysis.visits == visits


@pytest.mark.parametrize("budget, rate, visits", [
    (Budget(milliseconds=2), 10, 20), (Budget(2, visits=12), 10, 12), (Budget(2, 30), 10, 20),
    (Budget(milliseconds=2), None, 2 * DEFAULT_RATE), (Budget(milliseconds=2), math.inf, 10**5),
])  # fmt: skip
def test_milliseconds_become_visits_at_the_measured_rate(budget, rate, visits):
    """The tighter limit counts.  All units could share a launch; those beyond it run alone."""
    graph = build([0] * 10**5, [[]] * 10**5)
    analysis = analyze(graph, "depth", budget, rate, clock=lambda: 5.0)
    assert analysis.visits == visits
    assert analysis.launches == 1 + graph.size - visits


def test_policies_read_the_clock_between_steps():
    """A reading takes a millisecond; there is time to merge the groups of depth and drop some."""
    graph = random_graph(seed=1, units=400, signatures=6, window=30)
    ticks = iter(range(10**6))
    analysis = analyze(
        graph, "search", Budget(milliseconds=3.5), rate=math.inf, clock=lambda: next(ticks) / 1e3
    )
    fewer = needed_groups(graph, merged_groups(graph, group_by_depth(graph)))
    assert analysis.groups.tolist() == fewer.tolist()
    assert 3.5 <= analysis.milliseconds < 10


@pytest.mark.parametrize("value, budget", [
    (None, Budget()), (" None ", Budget()), (0, Budget(milliseconds=0)), ("AUTO", "auto"),
    ("2.5", Budget(milliseconds=2.5)), (np.float32(0.5), Budget(milliseconds=0.5)),
    (math.inf, Budget(milliseconds=math.inf)), (Budget(visits=7), Budget(visits=7)),
])  # fmt: skip
def test_budgets_as_users_write_them(value, budget):
    assert parse_budget(value) == budget


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("preds, fewest", [([[]] * 50, 1), ([[], [0]], 2)])
def test_policies_stop_when_no_fewer_launches_are_possible(policy, preds, fewest):
    """That is one per signature, found in one visit per unit, or one per unit of a path."""
    graph = build([0] * len(preds), preds)
    by_depth, analysis = analyze(graph, "depth", Budget()), analyze(graph, policy, Budget())
    assert (analysis.launches, analysis.visits) == (fewest, by_depth.visits)
    assert fewest > 1 or analysis.visits == graph.size


def as_late_as_possible(search):
    """Group by the distance to the sinks instead of that to the sources."""
    visits = 4 * search.graph.size
    yield visits, lambda: unreverse(group_by_depth(reverse(search.graph)))
    yield from merges(search)


def all_together(search):
    """Put dependent calls into one launch, which is wrong on purpose."""
    yield 1, search.graph.signature.copy


@pytest.fixture
def count(monkeypatch):
    """Return a function that counts the launches of two chains under a policy."""
    monkeypatch.setitem(POLICIES, "late", as_late_as_possible)
    monkeypatch.setitem(POLICIES, "wrong", all_together)
    b, c = ready(unary(prefix="b_")), ready(unary(prefix="c_"))
    samples = list(zip(([b, b, c, c], [c, c, b]), inputs(2)))
    return lambda policy: len(
        launches(lambda sample: chain(*sample), samples, "block", policy, debug=True)
    )


def test_users_choose_a_policy_by_name(count):
    """Depth runs c4 and c5 too early, each alone.

    b0 -> b1 -> c2 -> c3      by depth    {b0} {c4} {c5} {b1 b6} {c2} {c3}
    c4 -> c5 -> b6            late        {b0} {b1} {c2 c4} {c3 c5} {b6}
    """
    assert (count("depth"), count("late")) == (6, 5)
    with pytest.raises(OptionError, match="'search', 'late'"):
        gdb.batching(policy="later")
    with pytest.raises(OptionError, match="'best'.*\n.*'depth', 'agenda', 'search'"):
        analyze(build([], []), "best", Budget())


def test_debug_refuses_groups_that_cannot_run(count):
    with pytest.raises(AssertionError, match="launched before"):
        count("wrong")
