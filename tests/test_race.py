"""Who wins a race, after how many scopes, and what trying may cost."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_dynbatch.race import AT_ONCE, MOST_SCOPES, RUNS, SHARE, Race, Setting
from gluon_dynbatch.schedule import Budget

OPERATOR, BLOCK, GRAPH = (Setting(g, "auto", Budget()) for g in ("operator", "block", "graph"))
#: The first run of each pays for compiling.
COMPILING = 10.0


def run(race, seconds, noise=lambda: 1.0, calls=lambda: 1, most=200):
    """Run scopes, each of them as long as `seconds` says of its setting; return the settings."""
    ran = []
    while race.open and len(ran) < most:
        setting, count = race.next(), calls()
        first = setting not in ran
        ran.append(setting)
        took = count * seconds[setting] * noise() + first * COMPILING
        race.observe(setting, took, count)
    return ran


@pytest.mark.parametrize("slow, scopes", [(1.4, 8), (1.6, 6), (3.5, 4), (50.0, 4)])
@pytest.mark.parametrize("order", [(OPERATOR, BLOCK), (BLOCK, OPERATOR)])
def test_a_clear_winner_takes_few_scopes(slow, scopes, order):
    race = Race(order)
    ran = run(race, {OPERATOR: slow, BLOCK: 1.0})
    assert race.next() == BLOCK
    assert len(ran) <= scopes


def test_what_is_close_is_run_often_and_the_faster_wins():
    race = Race([OPERATOR, BLOCK])
    ran = run(race, {OPERATOR: 1.05, BLOCK: 1.0})
    assert race.next() == BLOCK and len(ran) == 2 * (RUNS + 1)


def test_scopes_are_bounded_whatever_enters():
    race = Race([OPERATOR, BLOCK, GRAPH, AT_ONCE, OPERATOR._replace(hold=10)])
    seconds = dict.fromkeys(race.settings, 1.0)
    assert len(run(race, seconds)) == MOST_SCOPES
    assert "30 scopes are enough" in race.explain()


def test_scopes_that_could_not_be_timed_count_too():
    race = Race([OPERATOR, BLOCK])
    for _ in range(MOST_SCOPES):
        assert race.open
        race.skip()
    assert not race.open


def test_noise_that_only_adds_seldom_misleads():
    """One run in five takes three times as long, as when other programs run."""
    won = []
    for seed in range(200):
        rng = random.Random(seed)
        race = Race([OPERATOR, BLOCK, GRAPH])
        seconds = {OPERATOR: 1.25, BLOCK: 1.0, GRAPH: 1.6}
        run(race, seconds, lambda r=rng: 3.0 if r.random() < 0.2 else 1 + 0.05 * r.random())
        won.append(race.next())
    assert won.count(BLOCK) > 0.9 * len(won) and won.count(GRAPH) < 0.02 * len(won)


def test_minibatches_of_other_sizes_compare_by_the_call():
    rng = random.Random(0)
    race = Race([OPERATOR, BLOCK])
    run(race, {OPERATOR: 1.4, BLOCK: 1.0}, calls=lambda: rng.randint(100, 400))
    assert race.next() == BLOCK


def test_trying_is_given_up_where_it_costs_more_than_its_share():
    """None is clearly slower after two runs each, but all of them together are dear."""
    race = Race([OPERATOR, BLOCK, GRAPH, AT_ONCE])
    seconds = {OPERATOR: 1.0, BLOCK: 1.4, GRAPH: 1.42, AT_ONCE: 1.45}
    ran = run(race, seconds)
    assert race.next() == OPERATOR and len(ran) <= 4 * 4
    assert "trying had cost" in race.explain()
    lost = sum(seconds[setting] - 1 for setting in ran)
    assert lost <= 1.25 * SHARE * sum(seconds[setting] for setting in ran)


def test_who_enters_later_opens_the_race_again():
    race = Race([OPERATOR, BLOCK])
    run(race, {OPERATOR: 1.0, BLOCK: 3.0})
    race.enter(AT_ONCE)
    assert race.open and race.next() == AT_ONCE
    run(race, {OPERATOR: 1.0, BLOCK: 3.0, AT_ONCE: 0.4})
    assert race.next() == AT_ONCE


def test_a_setting_whose_planning_is_too_dear_is_given_up():
    race = Race([OPERATOR, BLOCK, GRAPH])
    race.observe(OPERATOR, 4.0, 40)
    race.note_planning(GRAPH, 15.0, 40)
    assert "planning" not in race.explain(), "the first time, programs are put together"
    race.observe(GRAPH, 19.0, 40)
    race.note_planning(GRAPH, 3.9, 40)
    assert "planning" not in race.explain()
    race.note_planning(GRAPH, 4.1, 40)
    race.note_planning(BLOCK, 16.1, 40)
    assert not race.open and race.next() == OPERATOR
    assert race.explain().splitlines() == [
        "auto: settled on operator",
        "  block: not timed, planning alone took 16100 ms",
        "  graph: not timed, planning alone took 4100 ms",
    ]


def test_a_setting_given_up_during_its_own_scope_is_not_counted():
    race = Race([OPERATOR, BLOCK, GRAPH])
    for setting in (OPERATOR, BLOCK, GRAPH):
        race.observe(setting, 4.0, 40)
    race.note_planning(OPERATOR, 4.1, 40)
    race.observe(OPERATOR, 8.0, 40)
    assert race.open and race.next() != OPERATOR
    assert "operator: not timed, planning alone took 4100 ms" in race.explain()


@given(steps=st.lists(st.tuples(st.sampled_from("opsen"), st.integers(0, 3), st.floats(1e-3, 9.0))))
def test_whatever_happens_there_is_a_setting_to_run_next(steps):
    """Scopes that are timed or not, plans that are dear, settings that enter late."""
    settings = [OPERATOR, BLOCK, GRAPH, AT_ONCE]
    race = Race(settings[:2])
    for what, number, seconds in steps:
        setting = settings[number]
        if what == "e":
            race.enter(setting)
        elif what == "n" and setting in race.settings:
            race.note_planning(setting, seconds, 40)
        elif what == "s":
            race.skip()
        elif what == "o":
            race.observe(setting, seconds, 40)
        else:
            race.observe(race.next(), seconds, 40)
        assert race.next() in race.settings and race.explain()


def test_what_it_prints_is_what_it_ranks_by():
    """The medians are the other way round."""
    race = Race([OPERATOR, BLOCK])
    for operator, block in [(9, 9), (1.0, 1.05), (1.0, 1.05), (1.2, 1.05)] + [(1.2, 1.06)] * 3:
        race.observe(OPERATOR, operator * 1e-6, 1)
        race.observe(BLOCK, block * 1e-6, 1)
    assert not race.open and race.next() == OPERATOR
    assert race.explain().splitlines() == [
        "auto: settled on operator",
        "  operator: 1 us per call, lower quartile of 6",
        "  block: 1.05 us per call, lower quartile of 6",
    ]


def test_measurements_that_are_none_do_not_count():
    race = Race([OPERATOR, BLOCK])
    for seconds, calls in ((0.0, 5), (float("nan"), 5), (1.0, 0)):
        race.observe(OPERATOR, seconds, calls)
    assert race.explain() == "auto: trying, 0 scopes so far"
