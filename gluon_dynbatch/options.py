"""The options of a scope, and what may stand in them."""

from __future__ import annotations

import os
from typing import Any, Dict, NamedTuple, Optional

import numpy as np

from .errors import BudgetError, OptionError, ScopeError, Where
from .record.where import user_line
from .schedule import POLICIES, parse_budget

GRANULARITIES = ("graph", "block", "operator")
#: Sets the analysis budget of scopes that are opened without one.
BUDGET_VARIABLE = "GLUON_DYNBATCH_ANALYSIS_BUDGET"


class Options(NamedTuple):
    """Options of a scope, each a value or ``"auto"``."""

    budget: Any
    granularity: str
    policy: str
    max_rows: Optional[int]
    strict: bool
    debug: bool

    @property
    def leaves_all_open(self) -> bool:
        """Whether nothing is asked for that calls run at once could not give."""
        return self == ("auto", "auto", "auto", None, False, False)


def check_count(name: str, count: Optional[int]) -> None:
    """Raise unless `count` is None or a whole number of at least 1."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise OptionError(f"{name} must be a whole number of at least 1, or None, not {count!r}")


def check_options(
    analysis_budget: Any = "auto",
    granularity: str = "auto",
    policy: str = "auto",
    max_rows: Optional[int] = None,
    strict: bool = False,
    debug: bool = False,
) -> Options:
    """Check the options of a scope; see :func:`gluon_dynbatch.batching`."""
    if granularity not in ("auto", *GRANULARITIES):
        raise OptionError.unknown("granularity", granularity, ("auto", *GRANULARITIES))
    if policy not in ("auto", *POLICIES):
        raise OptionError.unknown("policy", policy, ("auto", *POLICIES))
    check_count("max_rows", max_rows)
    for name, switch in (("strict", strict), ("debug", debug)):
        # A text such as "no" counts as true in Python.
        if not isinstance(switch, (bool, np.bool_)):
            raise OptionError(f"{name} must be True or False, not {switch!r}")
    return Options(
        parse_budget(analysis_budget), granularity, policy, max_rows, bool(strict), bool(debug)
    )


def budget_from_environment() -> Any:
    """Return the budget that the environment asks for."""
    text = os.environ.get(BUDGET_VARIABLE, "auto")
    try:
        return parse_budget(text)
    except BudgetError as error:
        raise BudgetError(f"environment variable {BUDGET_VARIABLE}: {error}") from None


def check_joined(asked: Options, given: Options, outer: Where) -> None:
    """Raise if a scope asks for other options than those of the one that it joins."""
    for name, own, others, plain in zip(Options._fields, asked, given, check_options()):
        if own != plain and own != others:
            raise ScopeError(
                f"a batching scope inside another asks for {name}={own!r}, the outer "
                f"one, opened at {outer.filename}:{outer.line}, has {others!r}",
                user_line(),
                None,
                "give the option to the outer scope, or leave it out here",
            )


def scope_defaults(options: Dict[str, Any]) -> Dict[str, Any]:
    """Check options given to ``hybridize`` and return them under the names of :class:`Options`."""
    checked = check_options(**options)
    names = {name: name.replace("analysis_", "") for name in options}
    return {field: getattr(checked, field) for field in names.values()}
