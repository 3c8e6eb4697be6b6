"""Go backward through a launch without the calls that no gradient arrives at.

Their results get zeros, as rows of the launches that they share with others: losses that the user
left out, and what nobody reads.  In the sums over rows that are the gradients of parameters, zero
times infinity would be NaN for all.  So if what came out is not finite, the backward pass is run
once more: a launch with rows of both kinds is recorded anew, with a row that a gradient arrives at
in the place of each other one.  Zero times a finite derivative adds nothing.
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
    """A launch that MXNet has recorded."""

    executable: Any
    arguments: List[NDArray]
    results: List[NDArray]

    def repeatable(self, segment: Any) -> bool:
        """Whether running it once more gives the same."""
        random = any(rules.is_random(op.op, op.attrs) for op in segment.ops)
        return not (segment.mode & TRAINING and random)

    def again(self, segment: Any, live: Array, gradients: Dict[int, NDArray]) -> Recorded:
        """Record the launch anew, with live rows only.

        Parameters
        ----------
        segment : Segment
            What is launched.
        live : numpy.ndarray of bool, shape (rows,)
            Which rows are.
        gradients : dict of int to NDArray
            Per input where its gradient belongs.
        """
        rows = np.where(live, np.arange(len(live)), live.argmax()).astype(np.int32)
        index, made = _as_array(rows, self.results[0]), list(self.arguments)
        taken = {}
        for k, (kind, number) in enumerate(self.executable.arguments):
            if kind == "in" and not segment.inputs[number].shared:
                made[k] = taken[number] = mx.nd.take(made[k], index)
        own = [p for p in gradients if p in taken]
        if own:
            targets = [gradients[p].reshape(taken[p].shape) for p in own]
            autograd.mark_variables([taken[p] for p in own], targets, "write")
        results = self.executable.launch(made, segment.mode | RECORDING)
        return Recorded(self.executable, made, results if isinstance(results, list) else [results])


def all_finite(arrays: Sequence[NDArray]) -> bool:
    """Say whether no element is infinite or NaN; this waits until they have been computed."""
    try:
        # MXNet's own `multi_all_finite` takes a hundred times as long.
        return all(np.isfinite(array.asnumpy()).all() for array in arrays)
    except MXNetError:
        return True  # Who reads what could not be computed is told so.


def keep_rows(array: NDArray, live: Array) -> None:
    """Set all other rows of an array to zero, whatever is in them."""
    mask = _as_array(live.astype(np.float32), array)
    mx.nd.where(mask, array, mx.nd.zeros_like(array), out=array)


def _as_array(values: Array, like: NDArray) -> NDArray:
    # `nd.array` would wait for the engine.
    return mx.nd.from_numpy(values, zero_copy=True).as_in_context(like.context)
