"""Run a minibatch of requests: each gets its result or its exception, whatever the others do."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, List

import mxnet as mx

from . import errors
from .native import recording
from .samples import with_mxnet_arrays
from .scope import Batch

#: Errors of a flush, raised in every sample that waits for it: another sample may be at fault.
FLUSH_ERRORS = (errors.LaunchError, errors.NotMergedError, errors.StaleArrayError)


def run_or_split(apply: Callable[[Any], Any], samples: List[Any], scope: Batch) -> List[Any]:
    """Return for each sample its result, with NumPy arrays, or its exception.

    If a minibatch fails as a whole, run its halves, until the sample at fault runs alone.
    """
    half = len(samples) // 2
    try:
        return _run_together(apply, samples, scope)
    except BaseException as error:
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()  # otherwise the next wait would raise a pending error of the engine
        if not half:
            return [error]
        parts = samples[:half], samples[half:]
    finally:
        samples.clear()  # the traceback of an exception may hold this frame
    return [outcome for part in parts for outcome in run_or_split(apply, part, scope)]


def _run_together(apply: Callable[[Any], Any], samples: List[Any], scope: Batch) -> List[Any]:
    arguments = with_mxnet_arrays(samples)
    with scope:
        outcomes = scope.map(apply, arguments, on_error="return")
        failed = list(filter(_is_of_a_flush, outcomes))
        if failed and len(samples) > 1:
            raise failed[0]
        # In the scope: values are read from their arenas, and results that are released before the
        # scope ends are not copied out.
        for number, outcome in enumerate(outcomes):
            outcomes[number] = _to_numpy(outcome)
            del outcome
        return outcomes


def _is_of_a_flush(outcome: Any) -> bool:
    """Return whether an outcome is an error for which another sample may be at fault."""
    if isinstance(outcome, errors.DynBatchError):
        return isinstance(outcome, FLUSH_ERRORS)
    return isinstance(outcome, mx.MXNetError)


def _to_numpy(outcome: Any) -> Any:
    """Replace MXNet arrays in a nested result by NumPy arrays that own their memory."""
    # All objects but lists, tuples and dictionaries are leaves.
    leaves, spec = recording.flatten(outcome, object)
    leaves = [x.asnumpy() if isinstance(x, mx.nd.NDArray) else x for x in leaves]
    return recording.unflatten(spec, leaves)
