"""Run the minibatches of a workload in one of several ways that compute the same."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np

import gluon_dynbatch as gdb
from baselines.manual import ManualBatching
from baselines.padded import PaddedBatching
from relatedness.distributed import prepare
from workloads.base import Workload

#: What computes whole minibatches without the library.
BATCHED: Dict[str, Callable[[Workload], Any]] = {
    "manual": lambda workload: ManualBatching(workload.model),
    "padded": PaddedBatching,
}
#: Those that the model of sentence pairs has.
MODES = ("dynamic", "imperative", "hybridized", "manual")


class Step(NamedTuple):
    """What one training step left behind; reading `losses` waits for it to finish."""

    losses: mx.nd.NDArray  # (N,)
    report: Optional[Any]  # of the flush; None unless the mode is dynamic


class Runner:
    """Runs a workload sample by sample, or batched: by the library, or by one of the baselines.

    Parameters
    ----------
    workload : Workload
        Its model is initialized and hybridized; it belongs to this runner if the mode is
        "imperative".
    mode : str
        "dynamic": batched by gluon_dynbatch. "imperative", "hybridized": one sample after the
        other. "manual" (sentence pairs), "padded" (the tagger): see `baselines`.
    options : dict
        Options of `gluon_dynbatch.batching`; used if the mode is dynamic.
    contexts : sequence of mx.Context
        Where to compute; the samples of a minibatch are dealt out among them.

    Attributes
    ----------
    trainer : gluon.Trainer
        What updates the parameters.
    report : gluon_dynbatch.Report or None
        What happened in the last minibatch; None unless the mode is dynamic.
    plan : object or None
        What the last minibatch ran; None unless the mode is dynamic.
    """

    def __init__(
        self,
        workload: Workload,
        mode: str = "dynamic",
        options: Optional[Dict[str, Any]] = None,
        contexts: Sequence[mx.Context] = (mx.cpu(),),
    ) -> None:
        self.workload = workload
        self.mode = mode
        self.options = options or {}
        self.contexts = list(contexts)
        self.report: Optional[Any] = None
        self.plan: Optional[Any] = None
        if mode == "imperative":
            for block in (workload.model, workload.loss_block):
                block.hybridize(False)
        self.batched = BATCHED[mode](workload) if mode in BATCHED else None
        self.trainer = getattr(self.batched, "trainer", workload.trainer)

    def step(self, samples: Sequence[Any], whole: Optional[int] = None) -> Step:
        """Train on one minibatch, or on a share, maybe none, of one of `whole` samples."""
        samples = self._dealt(samples)
        if whole is not None:
            prepare(self.trainer)
        if not samples:
            losses = mx.nd.zeros(1)
        elif self.batched is not None:
            batched, loss = self.batched, self.workload.loss_block
            losses = self._per_context(samples, lambda own: batched.differentiate(own, loss))
        else:
            with mx.autograd.record(), self._scope() as scope:
                each = [self.workload.loss(sample) for sample in samples]
            mx.autograd.backward(each)
            self._note(scope)
            losses = _gather(each)
        # Not every minibatch calls every block.
        self.trainer.step(whole or len(samples), ignore_stale_grad=True)
        return Step(losses, self.report)

    def predict(self, samples: Sequence[Any]) -> mx.nd.NDArray:
        """Give the model's results for one minibatch, joined along axis 0."""
        samples = self._dealt(samples)
        if self.batched is not None:
            return self._per_context(samples, self.batched.score)
        with self._scope() as scope:
            each = self.workload.predict(samples)
        self._note(scope)
        return _gather(each)

    def _scope(self) -> ContextManager[Any]:
        if self.mode == "dynamic":
            return gdb.batching(**self.options)
        return contextlib.nullcontext()

    def _note(self, scope: Optional[Any]) -> None:
        if scope is not None:
            self.report, self.plan = scope.report, scope.plan

    def _dealt(self, samples: Sequence[Any]) -> Sequence[Any]:
        if self.contexts == [mx.cpu()]:
            return samples
        count = len(self.contexts)
        return [_moved(sample, self.contexts[i % count]) for i, sample in enumerate(samples)]

    def _per_context(
        self, samples: Sequence[Any], run: Callable[[Sequence[Any]], mx.nd.NDArray]
    ) -> mx.nd.NDArray:
        """Run the samples of each context at once, and put the results in the samples' order."""
        count = min(len(self.contexts), len(samples))
        results = _gather([run(samples[first::count]) for first in range(count)])
        if count == 1:
            return results
        places = np.concatenate([np.arange(len(samples))[first::count] for first in range(count)])
        return results.take(mx.nd.array(np.argsort(places)))


def _moved(sample: Any, ctx: mx.Context) -> Any:
    """Move the arrays of a sample, a named tuple, to a context."""
    is_array = [isinstance(part, mx.nd.NDArray) for part in sample]
    return type(sample)(
        *(part.as_in_context(ctx) if there else part for part, there in zip(sample, is_array))
    )


def _gather(arrays: List[mx.nd.NDArray]) -> mx.nd.NDArray:
    if len(arrays) == 1:
        return arrays[0].as_in_context(mx.cpu())
    return mx.nd.concat(*[array.as_in_context(mx.cpu()) for array in arrays], dim=0)
