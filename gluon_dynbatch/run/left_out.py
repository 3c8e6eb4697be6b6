"""Go backward through a launch without the samples whose losses the user left out.

A result that gets no gradient gets zeros, as rows of the launches that its sample shares with
others.  In the sums over rows that are the gradients of parameters, zero times infinity would be
NaN for all.  So if some results got no gradient, and what came out is not finite, the backward pass
is run once more: a launch with rows of both kinds is recorded anew on the rows of those calls that
the other results depend on.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import MXNetError
from mxnet.ndarray import NDArray

from .. import rules
from ..modes import RECORDING, TRAINING
from ..plan.plan import Launch, Plan
from ..schedule.dependencies import Array, ragged_range
from .dispatch import go_backward


class Recorded(NamedTuple):
    """A launch that MXNet has recorded."""

    executable: Any
    arguments: List[NDArray]
    results: List[NDArray]

    def repeatable(self, segment: Any) -> bool:
        """Whether running it once more gives the same."""
        random = any(rules.is_random(op.op, op.attrs) for op in segment.ops)
        return not (segment.mode & TRAINING and random)


def all_finite(arrays: Sequence[NDArray]) -> bool:
    """Say whether no element is infinite or NaN; this waits until they have been computed."""
    try:
        # MXNet's own `multi_all_finite` takes a hundred times as long.
        return all(np.isfinite(array.asnumpy()).all() for array in arrays)
    except MXNetError:
        return True  # Who reads what could not be computed is told so.


def live_rows(plan: Plan, launch: Launch, live: Array) -> Optional[Array]:
    """Return the rows of live units in a launch; None if all are live."""
    alive = live[launch.units]
    if alive.all():
        return None
    counts = plan.graph.dependencies.rows[launch.units]
    first = np.cumsum(counts) - counts
    rows: Array = np.repeat(first[alive], counts[alive]) + ragged_range(counts[alive])
    return rows


def keep_rows(array: NDArray, rows: Array) -> None:
    """Set all other rows of an array to zero, whatever is in them."""
    index = _index(rows, array)
    _put_rows(array, mx.nd.take(array, index), index)


def backward_through(
    segment: Any,
    recorded: Recorded,
    rows: Array,
    regions: Dict[int, NDArray],
    heads: Sequence[int],
    gradients: Sequence[NDArray],
) -> None:
    """Run a launch on some of its rows, and these backward.

    Parameters
    ----------
    segment : Segment
        What is launched.
    recorded : Recorded
        The launch, of which parameters and shared arrays are the variables here too.
    rows : numpy.ndarray
        The rows.
    regions : dict of int to NDArray
        Per input where its gradient belongs; other rows of those that are not shared get zeros.
    heads : sequence of int
        Results that have a gradient.
    gradients : sequence of NDArray
        The gradients, of all rows.
    """
    executable, arguments, results = recorded
    index = _index(rows, results[0])
    taken: Dict[int, NDArray] = {}
    made = []
    for (kind, number), argument in zip(executable.arguments, arguments):
        if kind == "in" and not segment.inputs[number].shared:
            argument = taken[number] = mx.nd.take(argument, index)
        made.append(argument)
    written = {p: mx.nd.zeros_like(taken[p]) for p in regions if p in taken}
    if written:
        autograd.mark_variables([taken[p] for p in written], list(written.values()), "write")
    again = executable.launch(made, segment.mode | RECORDING)
    again = again if isinstance(again, list) else [again]
    taken_gradients = [mx.nd.take(gradient, index) for gradient in gradients]
    go_backward([again[k] for k in heads], taken_gradients, segment.mode)
    for p, gradient in written.items():
        _put_rows(regions[p], gradient, index)


def _index(rows: Array, array: NDArray) -> NDArray:
    # `nd.array` would wait for the engine.
    return mx.nd.from_numpy(rows.astype(np.int32), zero_copy=True).as_in_context(array.context)


def _put_rows(array: NDArray, rows: NDArray, index: NDArray) -> None:
    """Write rows to their places in an array, and zeros to all others."""
    mx.nd._internal._backward_gather_nd(rows, index.reshape((1, -1)), shape=array.shape, out=array)
