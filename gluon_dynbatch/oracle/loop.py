"""``debug=True`` of `map`: each sample is compared with the plain loop, run from the same state."""

from __future__ import annotations

import contextvars
from typing import Any, Callable, Iterable, Iterator, List, Optional, Tuple

import greenlet
import mxnet as mx

from ..errors import DynBatchError, MismatchError
from ..record.state import STATE
from ..record.where import user_line
from .results import TOLERANCES, Values, find_difference, to_numpy, values_of
from .snapshot import Snapshot

#: Errors of MXNet, and of this package in their place, whose messages differ.
REFUSALS = (DynBatchError, mx.MXNetError)
#: Tolerances of whole programs, relative to those of single calls.
LOOSER = 10
ADVICE = (
    "pass state as arguments and results, keep it in attributes of objects, or pass concurrency=1: "
    "samples of map run at the same time"
)


class Oracle:
    """Runs the samples of a map again, in the plain loop.

    The loop begins with the state that the map began with.  Afterwards, the state is as the map
    left it, but for the numbers that MXNet's random operators will draw.
    """

    def __init__(self, scope: Any, program: Any, apply: Callable[[Any], Any]):
        self._scope, self._apply, self._place = scope, apply, user_line()
        self._samples: List[Any] = []
        self._before = Snapshot()
        scope.flush()
        scope.unrecorded(lambda: self._before.add(program))

    def note(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Yield the samples, and remember each as it is before it runs."""
        for sample in samples:
            self._samples.append(sample)
            self._scope.unrecorded(lambda: self._before.add(self._samples[-1]))
            yield sample

    def check(self, run: Callable[[], List[Any]]) -> List[Any]:
        """Run the map; return its results, or raise `MismatchError` if those of the loop differ."""
        try:
            results = run()
            self._scope.flush()
        except REFUSALS:
            raise
        except Exception as error:
            self._compare([], error)
            raise
        self._compare(results)
        return results

    def _compare(self, results: List[Any], error: Optional[Exception] = None) -> None:
        if self._before.complete:
            difference = self._scope.unrecorded(lambda: self._difference(results, error))
            if difference is not None:
                raise MismatchError(difference, self._place, None, ADVICE) from error

    def _difference(self, results: List[Any], error: Optional[Exception]) -> Optional[str]:
        """Run the loop; return what differs first between the map and the loop."""
        got = [_values_of(result, number) for number, result in enumerate(results)]
        after, (seed, _) = self._before.renewed(), _draw()
        try:
            self._before.restore()
            mx.random.seed(0)
            first_drawn = _draw()
            mx.random.seed(0)
            outcomes = contextvars.copy_context().run(self._run_loop)
            wanted = [_values_of(outcome, number) for number, outcome in enumerate(outcomes)]
            if _draw() != first_drawn:  # the scope cannot draw the same numbers
                return None
        finally:
            after.restore()
            mx.random.seed(seed)
        if error is not None:
            raises = any(isinstance(outcome, Exception) for outcome in outcomes)
            text = f"the map raised {error!r}, and the loop over its samples raises nothing"
            return None if raises else text
        return self._first_difference(outcomes, wanted, results, got)

    def _run_loop(self) -> List[Any]:
        """Return the results of the samples, or the exceptions that they raise."""
        outcomes: List[Any] = []
        for sample in self._samples:
            try:
                outcomes.append(self._apply(sample))
            except Exception as error:
                outcomes.append(error)
        return outcomes

    def _first_difference(
        self, outcomes: List[Any], wanted: List[Values], results: List[Any], got: List[Values]
    ) -> Optional[str]:
        dtypes = self._before.dtypes().union(
            str(value.dtype) for values in wanted for _, value in values if hasattr(value, "dtype")
        )
        limits = [TOLERANCES[dtype] for dtype in dtypes | {"float32"} if dtype in TOLERANCES]
        relative, absolute = max(limits)
        tolerance = LOOSER * relative, LOOSER * absolute
        for outcome, expected, result, actual in zip(outcomes, wanted, results, got):
            if isinstance(outcome, REFUSALS) and not isinstance(result, Exception):
                return None  # MXNet refuses what the scope can compute
            if not isinstance(outcome, REFUSALS) and not isinstance(result, REFUSALS):
                difference = find_difference(expected, actual, tolerance, "map")
                if difference is not None:
                    return difference
        return None


def is_within_map() -> bool:
    """Return whether a sample of a map is running, in a fiber or in the loop of an `Oracle`."""
    return STATE.recorder is None or getattr(greenlet.getcurrent(), "mapper", None) is not None


def _values_of(result: Any, number: int) -> Values:
    return to_numpy(values_of(result, f"sample {number}: its result", strict=False))


def _draw() -> Tuple[int, List[float]]:
    """Draw numbers with both of MXNet's generators: they depend on all that was drawn before."""
    number = mx.nd.random.randint(0, 2**31 - 1, ctx=mx.cpu())
    order = mx.nd.random.shuffle(mx.nd.arange(16, ctx=mx.cpu()))
    return int(number.asscalar()), order.asnumpy().tolist()
