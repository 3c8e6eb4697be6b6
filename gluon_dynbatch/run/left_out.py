"""Run a launch backward without the calls that no gradient arrives at.

These are losses that the user left out, and calls whose results are not used.  Their rows of head
gradients are zero.  Parameter gradients are sums over all rows of a launch, where zero times
infinity would be NaN for every sample.  So if a gradient is not finite, the backward pass runs once
more: a launch with live and other rows is recorded again, with each other row replaced by a live
one.  Zero times its finite derivative adds nothing.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import MXNetError
from mxnet.ndarray import NDArray

from .. import rules
from ..modes import RECORDING, TRAINING
from ..schedule.dependencies import Array


class Recorded(NamedTuple):
    """The graph of a launch, as MXNet has recorded it."""

    executable: Any
    arguments: List[NDArray]
    results: List[NDArray]

    def repeatable(self, segment: Any) -> bool:
        """Return whether the launch would give equal results if it ran again."""
        training = bool(segment.mode & TRAINING)
        return not any(rules.is_random(op.op, op.attrs, training) for op in segment.ops)

    def again(self, segment: Any, live: Array, gradients: Dict[int, NDArray]) -> Recorded:
        """Record the launch again, with live rows only: those that a gradient arrives at.

        `gradients` are the rows into which the gradients of inputs are written, by input.
        """
        rows = np.where(live, np.arange(len(live)), live.argmax()).astype(np.int32)
        index, arguments = _as_array(rows, self.results[0]), list(self.arguments)
        inputs = {}
        for k, (kind, number) in enumerate(self.executable.arguments):
            if kind == "in" and not segment.inputs[number].shared:
                arguments[k] = inputs[number] = mx.nd.take(arguments[k], index)
        variables = [p for p in gradients if p in inputs]
        if variables:
            targets = [gradients[p].reshape(inputs[p].shape) for p in variables]
            autograd.mark_variables([inputs[p] for p in variables], targets, "write")
        results = self.executable.launch(arguments, segment.mode | RECORDING)
        if not isinstance(results, list):
            results = [results]
        return Recorded(self.executable, arguments, results)


def all_finite(arrays: Sequence[NDArray]) -> bool:
    """Wait for arrays, and return whether all of their elements are finite."""
    try:
        # MXNet's own `multi_all_finite` takes a hundred times as long.
        return all(np.isfinite(array.asnumpy()).all() for array in arrays)
    except MXNetError:
        return True  # the computation failed, and the reader of its result gets the error


def keep_rows(array: NDArray, live: Array) -> None:
    """Set all rows but the live ones to zero, even where they are infinite or NaN."""
    mask = _as_array(live.astype(np.float32), array)
    mx.nd.where(mask, array, mx.nd.zeros_like(array), out=array)


def _as_array(values: Array, like: NDArray) -> NDArray:
    # Unlike `nd.array`, this does not wait for the engine.
    return mx.nd.from_numpy(values, zero_copy=True).as_in_context(like.context)
