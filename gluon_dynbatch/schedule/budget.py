"""How much analysis a flush may cost, in time or, for runs that must repeat, in visits."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Callable

from gluon_dynbatch.errors import BudgetError, user_message
from gluon_dynbatch.native import PLANNING

DEFAULT_RATE = 2_000.0 if PLANNING is None else 20_000.0
"""Visits per millisecond assumed until a rate has been measured; a slow machine's figure."""

UNLIMITED = 2**62
"""What `Meter.left_visits` returns when nothing limits the visits."""


@dataclass(frozen=True)
class Budget:
    """A limit on the analysis of one flush; ``None`` leaves a quantity unlimited.

    A *visit* is one unit (a recorded call, or a piece of one at granularity "operator") looked at
    once.  Grouping a minibatch by depth takes a visit per unit.  Whatever else the analyzer does,
    such as choosing launches or joining groups, is charged as the visits that take as long, some
    0.01 microseconds each, before it is done.

    Parameters
    ----------
    milliseconds : float, optional
        Wall-clock time.  The analyzer looks at the clock between its steps, so it may overrun by
        one step that it estimated to fit.
    visits : int, optional
        Visits.  Gives the same grouping on every machine.

    Raises
    ------
    BudgetError
        If a limit is negative, NaN, a boolean or not a number, or if `visits` is not whole.
    """

    milliseconds: float | None = None
    visits: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is not a limit."""
        if not (self.milliseconds is None or _is_limit(self.milliseconds)):
            advice = "give a number of 0 or more, or None for no limit"
            raise _refusal("number of milliseconds", self.milliseconds, advice)
        if not (self.visits is None or _is_limit(self.visits) and _is_whole(self.visits)):
            advice = "give a whole number of 0 or more, or None for no limit"
            raise _refusal("number of visits", self.visits, advice)

    @property
    def is_zero(self) -> bool:
        """Whether there is to be no analysis at all, so that units are launched one by one."""
        return self.milliseconds == 0 or self.visits == 0

    def __str__(self) -> str:
        """Write the limits with their units."""
        limits = [(self.milliseconds, "ms"), (self.visits, "visits")]
        return ", ".join(f"{limit:g} {unit}" for limit, unit in limits if limit is not None) or (
            "unlimited"
        )


def parse_budget(value: object) -> Budget | str:
    """Turn what a user may write for a budget into a `Budget`, or ``"auto"``.

    Parameters
    ----------
    value : str, float, Budget or None
        ``"auto"``, ``None`` or ``"none"`` (no limit), milliseconds as a number or as text such as
        an environment variable holds, or a `Budget`, which is returned as it is.

    Returns
    -------
    Budget or str
        ``"auto"`` is the only string that is returned.

    Raises
    ------
    BudgetError
        If `value` is nothing of these.
    """
    if isinstance(value, Budget):
        return value
    if value is None:
        return Budget()
    number = value
    if isinstance(value, str):
        text = value.strip().lower()
        if text == "auto":
            return text
        if text == "none":
            return Budget()
        try:
            number = float(text)
        except ValueError:
            number = math.nan
    if not _is_limit(number):
        advice = 'give a number of 0 or more, "auto", or None for no limit'
        raise _refusal("analysis budget", value, advice)
    return Budget(milliseconds=float(number))  # type: ignore[arg-type]


class Meter:
    """Holds the analysis of one flush to its budget.

    Parameters
    ----------
    budget : Budget
        The limits.
    clock : callable, optional
        Returns seconds that only grow.  The time counts from when the meter is made.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.perf_counter) -> None:
        self.budget = budget
        self.visits = 0
        self._clock = clock
        self._start = clock()

    @property
    def milliseconds(self) -> float:
        """Time since the meter was made."""
        return (self._clock() - self._start) * 1e3

    def spend(self, visits: int) -> None:
        """Charge `visits`; more than is left may be charged, less than nothing may not."""
        assert visits >= 0
        self.visits += int(visits)

    def out_of_time(self) -> bool:
        """Whether the milliseconds are used up."""
        limit = self.budget.milliseconds
        return limit is not None and self.milliseconds >= limit

    @property
    def exhausted(self) -> bool:
        """Whether either limit is used up."""
        limit = self.budget.visits
        return (limit is not None and self.visits >= limit) or self.out_of_time()

    def left_visits(self, rate: float | None = None) -> int:
        """Count the visits that both limits still allow.

        Parameters
        ----------
        rate : float, optional
            Visits per millisecond, to express the time left in visits.

        Returns
        -------
        int
            Zero if the budget is used up, `UNLIMITED` if there is no limit.
        """
        left = float(UNLIMITED)
        if self.budget.visits is not None:
            left = min(left, self.budget.visits - self.visits)
        if self.budget.milliseconds is not None:
            time_left = self.budget.milliseconds - self.milliseconds
            if time_left <= 0:
                return 0
            left = min(left, time_left * (DEFAULT_RATE if rate is None else rate))
        return max(0, int(left))


def _is_limit(value: object) -> bool:
    """Whether `value` is a number of zero or more."""
    if isinstance(value, (bool, str, bytes)) or type(value).__name__ == "bool_":
        return False
    try:
        return float(value) >= 0  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def _is_whole(number: float) -> bool:
    return number == math.inf or number == int(number)


def _refusal(what: str, value: object, advice: str) -> BudgetError:
    return BudgetError(user_message(f"{value!r} is no valid {what}", advice=advice))
