"""Run the model over minibatches in one of several ways that compute the same."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import gluon

import gluon_dynbatch as gdb
from baselines.fold import DepthBatching
from baselines.manual import ManualBatching

from .data import CLASSES, Sample
from .model import RelatednessModel

#: Modes in which this package's baselines compute whole minibatches.
BATCHED = {"manual": ManualBatching, "fold": DepthBatching}
MODES = ("dynamic", "imperative", "hybridized", *BATCHED)


class Step(NamedTuple):
    """What one training step left behind; reading `losses` waits for it to finish."""

    losses: mx.nd.NDArray  # (N,)
    report: Optional[Any]  # of the flush; None unless the mode is dynamic


class Runner:
    """Runs a model sample by sample, or batched: by the library, or by one of the baselines.

    Parameters
    ----------
    model : RelatednessModel
        Initialized.
    mode : {"dynamic", "imperative", "hybridized", "manual", "fold"}
        Batched by gluon_dynbatch; one sample after the other with cells that are hybridized or not;
        batched by hand; batched by depth with concatenation and split (see `baselines`).
    options : dict
        Options of `gluon_dynbatch.batching`; used if the mode is dynamic.
    contexts : sequence of mx.Context
        Where to compute; the samples of a minibatch are dealt out among them.

    Attributes
    ----------
    report : gluon_dynbatch.Report or None
        What happened in the last minibatch; None unless the mode is dynamic.
    """

    def __init__(
        self,
        model: RelatednessModel,
        mode: str = "dynamic",
        options: Optional[Dict[str, Any]] = None,
        contexts: Sequence[mx.Context] = (mx.cpu(),),
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        self.model = model
        self.mode = mode
        self.options = options or {}
        self.contexts = list(contexts)
        self.report: Optional[Any] = None
        self.loss = gluon.loss.KLDivLoss(from_logits=True)
        for block in (self.model, self.loss):
            block.hybridize(mode != "imperative")
        self._batched = BATCHED[mode](model) if mode in BATCHED else None

    def step(self, samples: Sequence[Sample], trainer: gluon.Trainer) -> Step:
        """Train on one minibatch."""
        samples = self._dealt(samples)
        if self._batched is not None:
            batched = self._batched
            losses = self._per_context(samples, lambda s: batched.differentiate(s, self.loss))
        else:
            with mx.autograd.record(), self._scope() as batch:
                each = [self.loss(self._score(sample), sample.target) for sample in samples]
            mx.autograd.backward(each)
            self.report = batch.report if batch is not None else None
            losses = _gather(each)
        trainer.step(len(samples))
        return Step(losses, self.report)

    def predict(self, samples: Sequence[Sample]) -> np.ndarray:
        """Give the expected score of every sample of one minibatch. Shape (N,)."""
        samples = self._dealt(samples)
        if self._batched is not None:
            outputs = self._per_context(samples, self._batched.score)
        else:
            with self._scope() as batch:
                each = [self._score(sample) for sample in samples]
            self.report = batch.report if batch is not None else None
            outputs = _gather(each)
        probabilities = np.exp(outputs.asnumpy())  # (N, CLASSES)
        return probabilities @ np.arange(1, CLASSES + 1)

    def _score(self, sample: Sample) -> mx.nd.NDArray:
        return self.model(sample.tokens_a, sample.tree_a, sample.tokens_b, sample.tree_b)

    def _dealt(self, samples: Sequence[Sample]) -> List[Sample]:
        count = len(self.contexts)
        return [sample.to(self.contexts[i % count]) for i, sample in enumerate(samples)]

    def _per_context(
        self, samples: List[Sample], run: Callable[[List[Sample]], mx.nd.NDArray]
    ) -> mx.nd.NDArray:
        """Run the samples of each context at once, and put the results in the samples' order."""
        count = min(len(self.contexts), len(samples))
        results = _gather([run(samples[first::count]) for first in range(count)])
        if count == 1:
            return results
        places = np.concatenate([np.arange(len(samples))[first::count] for first in range(count)])
        return results.take(mx.nd.array(np.argsort(places)))

    def _scope(self) -> ContextManager[Any]:
        if self.mode == "dynamic":
            return gdb.batching(**self.options)
        return contextlib.nullcontext()


def _gather(arrays: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    if len(arrays) == 1:
        return arrays[0].as_in_context(mx.cpu())
    return mx.nd.concat(*[array.as_in_context(mx.cpu()) for array in arrays], dim=0)
