"""The user's handle of a batching scope."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Callable, Iterable, List, Optional, TypeVar, Union, cast

from .errors import ScopeError
from .native.recording import Statements
from .options import Options, check_choice, check_count
from .oracle.loop import Oracle, is_within_map
from .plan.plan import NoPlan, Plan
from .record.state import STATE
from .record.where import user_line
from .report.report import Report
from .samples.arguments import applier, iterator_of
from .samples.fibers import MapFibers
from .scope import OpenScope

Result = TypeVar("Result")


def _never() -> None:
    """Return the scope that a `Batch` has opened which was never entered: None."""


#: Units of a plan from which on a report does not say how few launches it needs: it takes too long.
MANY_UNITS = 20_000


def _fewest_launches(batch: Optional[Batch]) -> Optional[int]:
    """Return how many launches the only flush of a scope needs at least; None if not known."""
    plan = None if batch is None else batch.plan
    if batch is None or not isinstance(plan, Plan) or len(batch.report.flushes) != 1:
        return None
    return plan.fewest_launches if plan.graph.dependencies.size < MANY_UNITS else None


class Batch(Statements):
    """A scope in which calls are recorded and run together.

    :func:`gluon_dynbatch.batching` creates it.  You can use it in several ``with`` statements.
    Inside another scope, it joins that scope and cannot have other options.  A scope stays open
    until all ``with`` statements that opened or joined it have ended, in any order.  Pending calls
    are computed when the oldest of these statements ends.

    Attributes
    ----------
    report : Report
        What happened since the scope was entered.
    plan : Plan or NoPlan
        The launches of the last flush.  If there was none, as when all calls ran at once, a
        `NoPlan`, which is false, and says so if it is printed or used.
    backward_plan : Plan or None
        The launches of the backward pass of the last flush; None if it records no gradients.
    """

    def __init__(self, options: Options):
        self.options = options
        #: Whether "auto" may decide to run calls at once.
        self.decides = True
        #: Returns the `OpenScope` that this has opened last, until it closes.
        self._opened: Callable[[], Optional[OpenScope]] = _never
        self._begin()

    def __repr__(self) -> str:
        return f"<Batch: {self.report.line}>"

    def _begin(self) -> None:
        self.report = Report()
        # Weak: a report that is kept does not keep plans.
        handle = weakref.ref(self)
        self.report.fewest_launches = lambda: _fewest_launches(handle())
        self.plan: Union[Plan, NoPlan] = NoPlan(self.report, user_line)
        self.backward_plan: Optional[Plan] = None

    def _enter(self) -> OpenScope:
        """Return the open scope, to be joined, or else a new one, to be opened."""
        scope = cast("Optional[OpenScope]", STATE.scope)
        if scope is not None:
            scope.settle()  # it may have lost all members
            scope = cast("Optional[OpenScope]", STATE.scope)
        if self.scope is not None and self.scope is not scope:
            raise ScopeError(
                "this scope is open in another thread",
                user_line(),
                advice="make a scope for each thread with gluon_dynbatch.batching()",
            )
        if scope is None:
            if self._opened is not _never:
                self._begin()
            scope = OpenScope(self, sys._getframe(1))
            self._opened = weakref.ref(scope)
        else:
            self.options.check_joined(scope.options, scope.place.where)
        return scope

    def map(
        self,
        fn: Callable[[Any], Result],
        samples: Iterable[Any],
        concurrency: Optional[int] = None,
        on_error: str = "raise",
    ) -> List[Result]:
        """Apply a function to every sample within this scope, each in a fiber.

        Parameters and results are those of :func:`gluon_dynbatch.map`.  Results may be pending.

        Raises
        ------
        ArgumentError, OptionError
            `fn` or an option cannot be used.
        MismatchError
            With ``debug=True``, a result differs from that of the plain loop.
        ScopeError
            The scope is not open.
        """
        scope = self._opened()
        if scope is None or not scope.members:
            raise ScopeError(
                "map was called on a scope that is not open",
                user_line(),
                advice="call it inside `with gluon_dynbatch.batching() as batch:`",
            )
        check_choice("on_error", on_error, ("raise", "return"))
        check_count("concurrency", concurrency)
        apply, keeps, samples = applier(fn), on_error == "return", iterator_of(samples)

        def run(samples: Iterable[Any]) -> List[Any]:
            return MapFibers(scope, fn, apply, samples, concurrency, keeps).run()

        if self.options.debug and not is_within_map():
            oracle = Oracle(scope, fn, apply)
            return oracle.check(lambda: run(oracle.note(samples)))
        return run(samples)

    def flush(self) -> None:
        """Compute everything recorded so far.

        Returns as soon as the work is handed to MXNet's engine.  The end of the scope flushes by
        itself, and so does reading a value.  Outside of an open scope, this does nothing.

        Raises
        ------
        LaunchError
            A launch failed.
        MismatchError
            With ``debug=True``, a result differs from that of its call alone.
        NotMergedError
            With ``strict=True``, calls could not be merged, or not all with each other.
        """
        scope = self._opened()
        if scope is not None:
            scope.flush()
