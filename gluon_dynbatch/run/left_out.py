"""Run a launch backward without the calls that no gradient arrives at.

These are losses that the user left out, and calls whose results are not used.  Their rows of head
gradients are zero.  Parameter gradients are sums over all rows of a launch, where zero times
infinity would be NaN for every sample.  So a launch with live and other rows is recorded again,
with each other row replaced by a live one.  Zero times its finite derivative adds nothing.

Which calls are live follows from the arrays that ``backward`` was called with (`chain.Node`), not
from values: so nothing waits for them.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from .. import rules
from ..lower.segment import Segment
from ..modes import RECORDING, TRAINING
from ..schedule.dependencies import Array
from .dispatch import Executable


class Recorded(NamedTuple):
    """The graph of a launch, as MXNet has recorded it."""

    executable: Executable
    arguments: List[NDArray]
    results: List[NDArray]

    def repeatable(self, segment: Segment) -> bool:
        """Return whether the launch would give equal results if it ran again."""
        training = bool(segment.mode & TRAINING)
        return not any(rules.is_random(op.op, op.attrs, training) for op in segment.ops)

    def again(self, segment: Segment, live: Array, gradients: Dict[int, NDArray]) -> Recorded:
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


def keep_rows(array: NDArray, live: Array) -> None:
    """Set all rows but the live ones to zero, even where they are infinite or NaN."""
    mask = _as_array(live.astype(np.float32), array)
    mx.nd.where(mask, array, mx.nd.zeros_like(array), out=array)


def _as_array(values: Array, like: NDArray) -> NDArray:
    # Unlike `nd.array`, this does not wait for the engine.
    return mx.nd.from_numpy(values, zero_copy=True).as_in_context(like.context)
