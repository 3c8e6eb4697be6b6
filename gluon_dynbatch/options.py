"""The options of a scope, and what may stand in them."""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple, Optional, Tuple

import numpy as np

from .errors import BudgetError, OptionError, ScopeError, Where
from .record.where import user_line
from .schedule import POLICIES, Budget, parse_budget

GRANULARITIES = ("graph", "block", "operator")
#: Sets the analysis budget of scopes that are opened without one.
BUDGET_VARIABLE = "GLUON_DYNBATCH_ANALYSIS_BUDGET"


class Options(NamedTuple):
    """Options of a scope, each a value or ``"auto"``; see :func:`gluon_dynbatch.batching`."""

    analysis_budget: Any = "auto"
    granularity: str = "auto"
    policy: str = "auto"
    max_rows: Optional[int] = None
    strict: bool = False
    debug: bool = False

    @functools.lru_cache(maxsize=64)  # noqa: B019
    def filled(self, others: Options) -> Options:
        """Return these, and others where these are "auto"."""
        return Options(*(b if a == "auto" else a for a, b in zip(self, others)))

    @functools.lru_cache(maxsize=64)  # noqa: B019
    def settled(self) -> Options:
        """Return what a flush is run with: "auto" becomes what 0005 of `docs/design` says."""
        policy = "depth" if self.analysis_budget == "auto" else "search"
        chosen = self.filled(Options(Budget(), "operator", policy))
        if chosen.analysis_budget.is_zero:
            chosen = chosen._replace(granularity="block", policy="depth")
        return chosen


#: Nothing is asked for that calls run at once could not give.
OPEN = Options()


def check_count(name: str, count: Any, least: int = 1, or_none: bool = True) -> None:
    """Raise unless `count` is a whole number of at least so much, or None."""
    if count is None and or_none:
        return
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        what = f"a whole number of at least {least}" + ", or None" * or_none
        raise OptionError(f"{name} must be {what}, not {count!r}")


def check_choice(name: str, value: Any, valid: Tuple[str, ...]) -> None:
    """Raise unless a value is one of the valid names."""
    if value not in valid:
        raise OptionError.unknown(name, value, valid)


def check_options(asked: Options) -> Options:
    """Return options as they are used, or raise."""
    check_choice("granularity", asked.granularity, ("auto", *GRANULARITIES))
    check_choice("policy", asked.policy, ("auto", *POLICIES))
    check_count("max_rows", asked.max_rows)
    for name, switch in (("strict", asked.strict), ("debug", asked.debug)):
        # A text such as "no" counts as true in Python.
        if not isinstance(switch, (bool, np.bool_)):
            raise OptionError(f"{name} must be True or False, not {switch!r}")
    budget = parse_budget(asked.analysis_budget)
    return Options(budget, *asked[1:4], bool(asked.strict), bool(asked.debug))


def options_of_environment() -> Options:
    """Return what the environment asks for."""
    asked = os.environ.get(BUDGET_VARIABLE)
    if asked is None:
        return OPEN
    try:
        return Options(parse_budget(asked))
    except BudgetError as error:
        raise BudgetError(f"environment variable {BUDGET_VARIABLE}: {error}") from None


def check_joined(asked: Options, given: Options, outer: Where) -> None:
    """Raise if a scope asks for other options than those of the one that it joins."""
    for name, own, others, plain in zip(Options._fields, asked, given, OPEN):
        if own != plain and own != others:
            raise ScopeError(
                f"a batching scope inside another has {name}={own!r}, but the outer scope, "
                f"opened at {outer.filename}:{outer.line}, has {name}={others!r}",
                user_line(),
                advice="pass the option to the outer scope, or leave it out here",
            )
