"""Run the minibatches of a workload in one of several ways that compute the same."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional, Sequence

import mxnet as mx

import gluon_dynbatch as gdb
from baselines.manual import ManualBatching
from baselines.padded import PaddedBatching
from relatedness.distributed import prepare
from workloads.base import Sample, Workload

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
        self, workload: Workload, mode: str = "dynamic", options: Optional[Dict[str, Any]] = None
    ) -> None:
        self.workload = workload
        self.mode = mode
        self.options = options or {}
        self.report: Optional[Any] = None
        self.plan: Optional[Any] = None
        if mode == "imperative":
            for block in (workload.model, workload.loss_block):
                block.hybridize(False)
        self.batched = BATCHED[mode](workload) if mode in BATCHED else None
        self.trainer = getattr(self.batched, "trainer", workload.trainer)

    def step(self, samples: Sequence[Sample], whole: Optional[int] = None) -> Step:
        """Train on one minibatch, or on a share, maybe none, of one of `whole` samples."""
        if whole is not None:
            prepare(self.trainer)
        if not samples:
            losses = mx.nd.zeros(1)
        elif self.batched is not None:
            losses = self.batched.differentiate(samples, self.workload.loss_block)
        else:
            with mx.autograd.record(), self._scope() as scope:
                each = [self.workload.loss(sample) for sample in samples]
            mx.autograd.backward(each)
            self._note(scope)
            losses = _joined(each)
        # Not every minibatch calls every block.
        self.trainer.step(whole or len(samples), ignore_stale_grad=True)
        return Step(losses, self.report)

    def predict(self, samples: Sequence[Sample]) -> mx.nd.NDArray:
        """Give the model's results for one minibatch, joined along axis 0."""
        if self.batched is not None:
            return self.batched.score(samples)
        with self._scope() as scope:
            each = self.workload.predict(samples)
        self._note(scope)
        return _joined(each)

    def _scope(self) -> ContextManager[Any]:
        # Entered by whoever runs a minibatch, as "auto" keeps accounts by place.
        dynamic = self.mode == "dynamic"
        return gdb.batching(**self.options) if dynamic else contextlib.nullcontext()

    def _note(self, scope: Optional[Any]) -> None:
        if scope is not None:
            self.report, self.plan = scope.report, scope.plan


def _joined(arrays: List[mx.nd.NDArray]) -> mx.nd.NDArray:
    return arrays[0] if len(arrays) == 1 else mx.nd.concat(*arrays, dim=0)
