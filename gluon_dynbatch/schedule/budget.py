"""A limit on the analysis of a flush: in time, or in visits if results must be reproducible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable

from ..errors import BudgetError

DEFAULT_RATE = 20_000.0
"""Visits per millisecond of a slow machine, assumed until the rate has been measured."""

UNLIMITED = 2**62
"""The value of `Meter.left` if there is no limit."""


@dataclass(frozen=True)
class Budget:
    """A limit on the analysis of one flush; ``None`` means no limit.

    A *visit* is the work of the analysis at one unit in one step.  A unit is a recorded call, or a
    part of a call at granularity "operator".  Grouping a minibatch by depth takes one visit per
    unit.  Other work, such as choosing launches or merging groups, counts as the number of visits
    that take as long.  A visit takes about 0.01 microseconds.

    Parameters
    ----------
    milliseconds : float, optional
        Wall-clock time.  The clock is read between steps, so the last step may overrun.
    visits : int, optional
        Number of visits.  The grouping is then the same on every machine.

    Raises
    ------
    BudgetError
        If a limit is negative, NaN, a boolean or not a number, or if `visits` is not whole.
    """

    milliseconds: float | None = None
    visits: int | None = None

    def __post_init__(self) -> None:
        """Check both limits."""
        _check_limit("number of milliseconds", self.milliseconds, self.milliseconds)
        _check_limit("number of visits", self.visits, self.visits, whole=True)

    @property
    def is_zero(self) -> bool:
        """Whether the budget allows no analysis, so that units are launched one by one."""
        return self.milliseconds == 0 or self.visits == 0

    def __str__(self) -> str:
        """Write the limits with their units."""
        limits = [(self.milliseconds, "ms"), (self.visits, "visits")]
        texts = [f"{limit:g} {unit}" for limit, unit in limits if limit is not None]
        return ", ".join(texts) or "unlimited"


class Meter:
    """Measures the analysis of one flush against `budget`, from its construction on.

    `rate`, the visits per millisecond on this machine, converts the time left into visits; by
    default it is `DEFAULT_RATE`.  `clock` returns seconds.
    """

    def __init__(self, budget: Budget, rate: float | None, clock: Callable[[], float]) -> None:
        #: Visits charged so far.
        self.visits = 0
        self._budget = budget
        self._rate = DEFAULT_RATE if rate is None else rate
        self._clock = clock
        self._start = clock()

    @property
    def milliseconds(self) -> float:
        """Time since the construction."""
        return (self._clock() - self._start) * 1e3

    @property
    def left(self) -> int:
        """Visits that both limits still allow; `UNLIMITED` if there is no limit."""
        left = float(UNLIMITED)
        if self._budget.visits is not None:
            left = min(left, self._budget.visits - self.visits)
        if self._budget.milliseconds is not None:
            time_left = self._budget.milliseconds - self.milliseconds
            left = min(left, time_left * self._rate if time_left > 0 else 0)
        return max(0, int(left))


def parse_budget(value: object) -> Budget | str:
    """Convert the value of an option into a `Budget`, or return ``"auto"``.

    It is ``"auto"``, ``None`` or ``"none"`` (no limit), milliseconds as a number or as text (as in
    an environment variable), or a `Budget`; anything else is a `BudgetError`.
    """
    if isinstance(value, Budget):
        return value
    number: Any = value
    if isinstance(value, str):
        text = value.strip().lower()
        if text == "auto":
            return text
        try:
            number = None if text == "none" else float(text)
        except ValueError:
            number = math.nan
    _check_limit("analysis budget", value, number, alternative='"auto", ')
    return Budget(None if number is None else float(number))


def _check_limit(
    noun: str, value: object, limit: Any, whole: bool = False, alternative: str = ""
) -> None:
    """Raise unless `limit` is None or a number of 0 or more, and a whole one if `whole`.

    The message quotes `value`, from which `limit` was parsed; the advice mentions `alternative`.
    """
    if limit is None:
        return
    is_number = not isinstance(limit, (bool, str, bytes)) and type(limit).__name__ != "bool_"
    try:
        number = float(limit) if is_number else math.nan
    except (TypeError, ValueError):
        number = math.nan
    is_whole = number == math.inf or number % 1 == 0
    if not number >= 0 or (whole and not is_whole):
        advice = f"give a {'whole ' * whole}number of 0 or more, {alternative}or None for no limit"
        raise BudgetError(f"{value!r} is not a valid {noun}", advice=advice)
