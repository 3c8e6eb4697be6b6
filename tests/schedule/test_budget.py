import math

import numpy as np
import pytest

from gluon_dynbatch.errors import BudgetError, DynBatchError
from gluon_dynbatch.schedule import DEFAULT_RATE, Budget, Meter, parse_budget
from gluon_dynbatch.schedule.budget import UNLIMITED


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


@pytest.mark.parametrize(
    "value", [-1, -0.5, "-3", math.nan, "nan", True, np.bool_(False), "", "soon", [], {}, b"2", 1j]
)
def test_parse_refuses(value):
    with pytest.raises(BudgetError, match='(?s)analysis budget.*"auto"') as caught:
        parse_budget(value)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, DynBatchError)


@pytest.mark.parametrize(
    "limits",
    [
        {"visits": -1},
        {"visits": True},
        {"visits": 1.5},
        {"visits": "many"},
        {"visits": math.nan},
        {"milliseconds": -1},
        {"milliseconds": "3"},
        {"milliseconds": False},
    ],
)
def test_budget_refuses(limits):
    with pytest.raises(BudgetError, match=next(iter(limits))) as caught:
        Budget(**limits)
    assert "auto" not in str(caught.value)


def test_zero_and_text():
    assert Budget(visits=0).is_zero and Budget(milliseconds=0.0).is_zero
    assert not Budget().is_zero and not Budget(visits=1, milliseconds=0.1).is_zero
    assert str(Budget(milliseconds=2.5)) == "2.5 ms"
    assert str(Budget(1, 20)) == "1 ms, 20 visits"
    assert str(Budget()) == "unlimited"


def test_visits_run_out():
    meter = Meter(Budget(visits=10), Clock())
    assert meter.left_visits() == 10 and not meter.exhausted
    meter.spend(7)
    assert meter.left_visits() == 3 and meter.visits == 7
    meter.spend(5)
    assert meter.left_visits() == 0 and meter.exhausted and not meter.out_of_time()


def test_time_runs_out():
    clock = Clock()
    meter = Meter(Budget(milliseconds=4), clock)
    assert meter.left_visits() == 4 * DEFAULT_RATE
    assert meter.left_visits(rate=10) == 40
    clock.seconds += 0.003
    assert meter.milliseconds == pytest.approx(3)
    assert meter.left_visits(rate=1000) == pytest.approx(1000, abs=1) and not meter.exhausted
    clock.seconds += 0.002
    assert meter.left_visits(rate=math.inf) == 0 and meter.exhausted and meter.out_of_time()


def test_the_tighter_limit_counts():
    meter = Meter(Budget(milliseconds=4, visits=30), Clock())
    assert meter.left_visits(rate=10) == 30
    assert meter.left_visits(rate=5) == 20


def test_without_limits_nothing_runs_out():
    meter = Meter(Budget())
    meter.spend(10**12)
    assert meter.left_visits() == UNLIMITED and not meter.exhausted
    with pytest.raises(AssertionError):
        meter.spend(-1)
