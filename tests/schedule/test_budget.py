import math

import numpy as np
import pytest

from gluon_dynbatch.schedule.budget import DEFAULT_RATE, UNLIMITED, Budget, Meter, parse_budget


class Clock:
    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


@pytest.mark.parametrize(
    ("value", "budget"),
    [
        (None, Budget()),
        ("none", Budget()),
        (" None ", Budget()),
        (0, Budget(milliseconds=0)),
        (2.5, Budget(milliseconds=2.5)),
        ("2.5", Budget(milliseconds=2.5)),
        (np.float32(0.5), Budget(milliseconds=0.5)),
        (math.inf, Budget(milliseconds=math.inf)),
        (Budget(visits=7), Budget(visits=7)),
        ("AUTO", "auto"),
    ],
)
def test_parse(value, budget):
    assert parse_budget(value) == budget


def meter(budget, rate=None, clock=None):
    return Meter(budget, rate, clock or Clock())


def test_visits_run_out():
    limited = meter(Budget(visits=10))
    assert limited.left == 10
    limited.visits += 7
    assert limited.left == 3
    limited.visits += 5
    assert limited.left == 0


def test_time_runs_out():
    clock = Clock()
    budget = Budget(milliseconds=4)
    assert meter(budget).left == 4 * DEFAULT_RATE
    slow, instant = meter(budget, 1000, clock), meter(budget, math.inf, clock)
    assert slow.left == 4000
    clock.seconds += 0.003
    assert slow.milliseconds == pytest.approx(3)
    assert slow.left == pytest.approx(1000, abs=1) and instant.left == UNLIMITED
    clock.seconds += 0.002
    assert slow.left == instant.left == 0


def test_the_tighter_limit_counts():
    budget = Budget(milliseconds=4, visits=30)
    assert meter(budget, 10).left == 30
    assert meter(budget, 5).left == 20


def test_without_limits_nothing_runs_out():
    unlimited = meter(Budget())
    unlimited.visits += 10**12
    assert unlimited.left == UNLIMITED
