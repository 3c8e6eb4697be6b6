"""The options of a scope, and their validation."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from operator import is_
from typing import Any, Mapping, NamedTuple, Optional, Tuple

import numpy as np
from mxnet.gluon import HybridBlock

from .errors import ArgumentError, BudgetError, OptionError, ScopeError, Where
from .native.recording import environment_variable
from .record.where import user_line
from .schedule import POLICIES, Budget, parse_budget

GRANULARITIES = ("graph", "block", "operator")
#: Sets the analysis budget of scopes that are opened without one.
BUDGET_VARIABLE = "GLUON_DYNBATCH_ANALYSIS_BUDGET"

#: The arguments of Gluon's ``hybridize``.
FLAGS = list(inspect.signature(HybridBlock.hybridize).parameters)[1:-1]


class Options(NamedTuple):
    """Options of a scope, each a value or ``"auto"``; see :func:`gluon_dynbatch.batching`."""

    analysis_budget: Any = "auto"
    granularity: str = "auto"
    policy: str = "auto"
    max_rows: Optional[int] = None
    strict: bool = False
    debug: bool = False

    @functools.lru_cache(maxsize=64)  # noqa: B019
    def with_defaults(self, defaults: Options) -> Options:
        """Replace each "auto" by the value in `defaults`."""
        return Options(*(b if a == "auto" else a for a, b in zip(self, defaults)))

    @functools.lru_cache(maxsize=64)  # noqa: B019
    def resolved(self) -> Options:
        """Return the options of a flush, with each "auto" resolved as in 0005 of `docs/design`."""
        policy = "depth" if self.analysis_budget == "auto" else "search"
        resolved = self.with_defaults(Options(Budget(), "operator", policy))
        if resolved.analysis_budget.is_zero:
            resolved = resolved._replace(granularity="block", policy="depth")
        return resolved

    @classmethod
    def of_environment(cls) -> Options:
        """Return the options that environment variables set."""
        # Each scope asks for it, and `os.environ` finds out by an exception that it has none.
        budget = environment_variable(BUDGET_VARIABLE)
        try:
            return DEFAULTS if budget is None else cls(parse_budget(budget))
        except BudgetError as error:
            raise BudgetError(f"environment variable {BUDGET_VARIABLE}: {error}") from None

    def check_joined(self, outer: Options, opened_at: Where) -> None:
        """Raise if a scope has other options than the outer scope that it joins."""
        for name, value, outer_value, default in zip(self._fields, self, outer, DEFAULTS):
            if value not in (default, outer_value):
                raise ScopeError(
                    f"a batching scope inside another has {name}={value!r}, but the outer scope, "
                    f"opened at {opened_at.filename}:{opened_at.line}, has {name}={outer_value!r}",
                    user_line(),
                    advice="pass the option to the outer scope, or leave it out here",
                )


#: A scope with these options may run calls at once.
DEFAULTS = Options()


def check_count(name: str, count: Any, minimum: int = 1, or_none: bool = True) -> None:
    """Raise unless `count` is a whole number of at least `minimum`, or None if that is allowed.

    Python counts nothing beyond ``sys.maxsize``.
    """
    if count is None and or_none:
        return
    is_whole = isinstance(count, (int, np.integer)) and not isinstance(count, bool)
    if not is_whole or not minimum <= count <= sys.maxsize:
        most = f", at most {sys.maxsize}" if is_whole and count > sys.maxsize else ""
        expected = f"a whole number of at least {minimum}{most}" + ", or None" * or_none
        raise OptionError(f"{name} must be {expected}, not {count!r}")


def check_switch(name: str, switch: Any) -> None:
    """Raise unless `switch` is a boolean: a string such as "no" is true in Python."""
    if not isinstance(switch, (bool, np.bool_)):
        raise OptionError(f"{name} must be True or False, not {switch!r}")


def check_seconds(name: str, value: Any) -> None:
    """Raise unless a value is a number of seconds that Python can wait for."""
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if isinstance(value, bool) or not (is_number and 0 <= value <= threading.TIMEOUT_MAX):
        message = f"{name} must be a number of seconds, 0 or more, not {value!r}"
        raise OptionError(message)


def check_path(path: Any) -> str:
    """Return the path of a file as text; raise if it is none."""
    try:
        return os.fsdecode(path)
    except TypeError:
        message = f"the path is an object of type {type(path).__name__}"
        advice = "pass a string or a pathlib.Path"
        raise ArgumentError.like(TypeError)(message, user_line(), advice=advice) from None


def with_path(error: OSError, path: str) -> OSError:
    """Return an error of a socket with its path, which Python leaves out."""
    return error if error.errno is None else type(error)(error.errno, error.strerror, path)


def check_choice(name: str, value: Any, valid: Tuple[str, ...]) -> None:
    """Raise unless a value is one of the valid names."""
    if not isinstance(value, str) or value not in valid:
        raise OptionError.unknown(name, value, valid)


def check_names(given: Mapping[str, Any], function: str) -> Mapping[str, Any]:
    """Return options of a scope that `function` passes on; raise if one has an unknown name."""
    for name in given:
        if name not in Options._fields:
            names = ", ".join(Options._fields)
            raise ArgumentError(
                f"{function} has no option {name!r}",
                user_line(),
                advice=f"those of a scope are {names}",
            )
    return given


def check_flags(given: Mapping[str, Any], are_known: bool) -> None:
    """Raise if a flag of `hybridize` is an option without a default, or must be known and is not.

    Gluon takes a flag that it does not know for an option of a backend.
    """
    for name in given:
        if name in Options._fields:
            what, advice = f"sets no default for {name!r}", f"pass {name} to batching()"
        elif are_known and name not in FLAGS:
            names = ", ".join([*Options._fields[:3], "trace_once", *FLAGS])
            what, advice = f"has no option {name!r}", f"choose one of {names}"
        else:
            continue
        raise ArgumentError(f"hybridize {what}", user_line(), advice=advice)


def check_options(options: Options) -> Options:
    """Return the options with their budget parsed; raise if one is invalid."""
    if all(map(is_, options, DEFAULTS)):
        return DEFAULTS
    check_choice("granularity", options.granularity, ("auto", *GRANULARITIES))
    check_choice("policy", options.policy, ("auto", *POLICIES))
    check_count("max_rows", options.max_rows)
    check_switch("strict", options.strict)
    check_switch("debug", options.debug)
    return options._replace(
        analysis_budget=parse_budget(options.analysis_budget),
        max_rows=None if options.max_rows is None else int(options.max_rows),
        strict=bool(options.strict),
        debug=bool(options.debug),
    )
