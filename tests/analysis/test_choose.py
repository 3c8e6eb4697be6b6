from concurrent.futures import ThreadPoolExecutor

import pytest

from gluon_dynbatch.analysis import Budget, Controller, Setting
from gluon_dynbatch.errors import OptionError

FAST = Setting("operator", "depth", Budget())
GOOD = Setting("block", "search", Budget(milliseconds=5))
SLOW = Setting("block", "depth", Budget(visits=0))


def run(controller, cost, flushes, key="k", candidates=(GOOD, FAST, SLOW), units=100):
    """Let `controller` choose for a number of flushes; return what it chose."""
    chosen = []
    for _ in range(flushes):
        setting, measuring = controller.choose(key, candidates)
        chosen.append((setting, measuring))
        controller.observe(key, setting, cost[setting] * units, units)
    return chosen


def test_tries_in_turns_then_stays_with_the_fastest():
    controller = Controller(trials=2)
    chosen = run(controller, {FAST: 1.0, GOOD: 2.0, SLOW: 2.5}, 20)
    assert [setting for setting, _ in chosen[:9]] == [GOOD, FAST, SLOW] * 3
    assert all(measuring for _, measuring in chosen[:9])
    assert chosen[9:] == [(FAST, False)] * 11


def test_the_first_measurement_pays_for_compilation_and_does_not_count():
    controller = Controller(trials=1)
    for setting, seconds in [(GOOD, 2.0), (FAST, 500.0), (GOOD, 2.0), (FAST, 1.0)]:
        assert controller.choose("k", [GOOD, FAST]) == (setting, True)
        controller.observe("k", setting, seconds, 1)
    assert controller.choose("k", [GOOD, FAST]) == (FAST, False)


def test_a_hopeless_candidate_is_tried_no_more():
    controller = Controller(trials=5, hopeless=3.0)
    chosen = run(controller, {FAST: 1.0, GOOD: 2.9, SLOW: 3.1}, 30)
    tries = [setting for setting, measuring in chosen if measuring]
    assert (tries.count(SLOW), tries.count(FAST), tries.count(GOOD)) == (2, 6, 6)
    assert "given up" in controller.explain("k").splitlines()[-1]


def test_the_first_candidate_can_be_hopeless_too():
    controller = Controller(trials=5)
    chosen = run(controller, {SLOW: 10.0, FAST: 1.0}, 20, candidates=(SLOW, FAST))
    assert [setting for setting, measuring in chosen if measuring].count(SLOW) == 2


def test_one_hiccup_neither_decides_nor_rules_out():
    controller = Controller(trials=3)
    seconds = {FAST: iter([1.0, 50.0, 1.0, 1.0]), GOOD: iter([2.0] * 4)}
    for _ in range(8):
        setting, _ = controller.choose("k", [GOOD, FAST])
        controller.observe("k", setting, next(seconds[setting]), 1)
    assert controller.choose("k", [GOOD, FAST]) == (FAST, False)


def test_figures_are_per_unit_of_work():
    """GOOD happens to get the large minibatches: longer in all, shorter per unit."""
    controller = Controller(trials=1)
    for _ in range(2):
        assert controller.choose("k", [GOOD, FAST])[0] == GOOD
        controller.observe("k", GOOD, seconds=3.0, units=300)
        assert controller.choose("k", [GOOD, FAST])[0] == FAST
        controller.observe("k", FAST, seconds=2.0, units=100)
    assert controller.choose("k", [GOOD, FAST]) == (GOOD, False)


def test_close_candidates_are_measured_some_more():
    """Three figures each mislead here: the fourth and later ones show who is faster."""
    controller = Controller(trials=2)
    early, late = {FAST: 1.1, GOOD: 1.0, SLOW: 2.0}, {FAST: 0.9, GOOD: 1.0, SLOW: 2.0}
    run(controller, early, 9)
    chosen = run(controller, late, 20)
    measured = [setting for setting, measuring in chosen if measuring]
    assert measured == [GOOD, FAST] * 6, "four times as often, and only those that are close"
    assert {setting for setting, measuring in chosen if not measuring} == {FAST}


def test_one_that_nobody_is_close_to_needs_no_more():
    controller = Controller(trials=2)
    chosen = run(controller, {FAST: 1.0, GOOD: 1.6, SLOW: 1.8}, 12)
    assert [measuring for _, measuring in chosen] == [True] * 9 + [False] * 3


def test_a_drift_of_the_machine_does_not_start_it_wavering():
    controller = Controller(trials=2)
    run(controller, {FAST: 1.0, GOOD: 1.6, SLOW: 1.8}, 10)
    later = run(controller, {FAST: 10.0, GOOD: 16.0, SLOW: 18.0}, 40)
    assert {setting for setting, _ in later} == {FAST}


def test_fresh_figures_that_are_offered_can_overthrow_the_winner():
    controller = Controller(trials=2)
    run(controller, {FAST: 1.0, GOOD: 1.6, SLOW: 1.8}, 10)
    controller.observe("k", GOOD, 80.0, 100)
    controller.observe("k", GOOD, 80.0, 100)
    assert controller.choose("k", [GOOD, FAST, SLOW])[0] == FAST, "its own figures are old"
    run(controller, {FAST: 1.0}, 1)
    controller.observe("k", GOOD, 80.0, 100)
    assert controller.choose("k", [GOOD, FAST, SLOW]) == (GOOD, False)


def test_a_challenger_must_be_clearly_better():
    controller = Controller(trials=1)
    run(controller, {FAST: 1.0, GOOD: 1.6, SLOW: 1.8}, 10)
    for _ in range(5):
        controller.observe("k", GOOD, 95.0, 100)
    assert controller.choose("k", [GOOD, FAST, SLOW]) == (FAST, False)


def test_figures_from_before_an_overthrow_are_not_fresh_after_it():
    """GOOD takes over, then the machine slows down for all: FAST's old figures must not win."""
    controller = Controller(trials=2)
    run(controller, {FAST: 1.0, GOOD: 1.6, SLOW: 1.8}, 12)
    for seconds in (80.0, 80.0):
        controller.observe("k", GOOD, seconds, 100)
    assert run(controller, {GOOD: 5.0}, 4) == [(GOOD, False)] * 4
    for _ in range(4):
        controller.observe("k", FAST, 600.0, 100)
        assert controller.choose("k", [GOOD, FAST, SLOW]) == (GOOD, False)


def test_a_new_candidate_is_measured_before_the_choice_is_final_again():
    controller = Controller(trials=1)
    run(controller, {GOOD: 2.0, SLOW: 3.5}, 6, candidates=(GOOD, SLOW))
    assert controller.explain("k").startswith("auto: settled on block by search")
    assert controller.choose("k", (GOOD, FAST, SLOW)) == (FAST, True)
    assert controller.explain("k").startswith("auto: still measuring")
    chosen = run(controller, {GOOD: 2.0, SLOW: 3.5, FAST: 1.0}, 4)
    assert chosen == [(FAST, True), (FAST, True), (FAST, False), (FAST, False)]


def test_a_single_candidate_needs_no_measurement():
    assert Controller().choose("k", [GOOD]) == (GOOD, False)


def test_workloads_are_kept_apart_and_the_oldest_forgotten():
    controller = Controller(trials=1, capacity=2)
    for key in "ab":
        run(controller, {FAST: 1.0, GOOD: 2.0}, 5, key=key, candidates=(FAST, GOOD))
    assert controller.choose("a", [FAST, GOOD]) == (FAST, False)
    assert controller.choose("c", [FAST, GOOD]) == (FAST, True)
    assert controller.explain("b") == "auto: nothing measured yet"
    assert controller.choose("a", [FAST, GOOD]) == (FAST, False)


@pytest.mark.parametrize(
    ("seconds", "units"),
    [(1.0, 0), (0.0, 5), (-1.0, 5), (float("nan"), 5), (float("inf"), 5), (1.0, float("inf"))],
)
def test_what_is_no_measurement_is_ignored(seconds, units):
    controller = Controller()
    controller.observe("k", FAST, seconds, units)
    assert controller.explain("k") == "auto: nothing measured yet"


def test_explains_itself():
    controller = Controller(trials=1)
    run(controller, {FAST: 1e-6, GOOD: 2e-6}, 3, candidates=(GOOD, FAST))
    assert controller.explain("k").splitlines() == [
        "auto: still measuring",
        "  block by search (5 ms): 2 us per unit, 1 timed",
        "  operator by depth (unlimited): not measured yet",
    ]
    run(controller, {FAST: 1e-6, GOOD: 2e-6}, 2, candidates=(GOOD, FAST))
    assert controller.explain("k").splitlines() == [
        "auto: settled on operator by depth (unlimited)",
        "  operator by depth (unlimited): 1 us per unit, 2 timed",
        "  block by search (5 ms): 2 us per unit, 1 timed",
    ]


def test_refuses_nonsense():
    with pytest.raises(OptionError, match="no candidates"):
        Controller().choose("k", [])
    for options in ({"trials": 0}, {"capacity": 0}, {"hopeless": 0.5}, {"hopeless": float("nan")}):
        with pytest.raises(OptionError, match="at least 1"):
            Controller(**options)


def test_many_threads_lose_no_measurement():
    controller = Controller(trials=10_000)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: run(controller, {FAST: 1.0, GOOD: 2.0, SLOW: 2.5}, 100), range(8)))
    workload = controller._workloads["k"]
    assert sum(record.seen for record in workload.records.values()) == 800
