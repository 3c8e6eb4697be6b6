"""Run the model over minibatches in one of three ways that compute the same."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Dict, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import gluon

import gluon_dynbatch as gdb

from .data import CLASSES, Sample
from .model import RelatednessModel

MODES = ("dynamic", "imperative", "hybridized")


class Step(NamedTuple):
    """What one training step left behind; reading `losses` waits for it to finish."""

    losses: mx.nd.NDArray  # (N,)
    report: Optional[Any]  # of the flush; None unless the mode is dynamic


class Runner:
    """Runs a model sample by sample, or batched dynamically.

    Parameters
    ----------
    model : RelatednessModel
        Initialized.
    mode : {"dynamic", "imperative", "hybridized"}
        Batched by gluon_dynbatch, or one sample after the other with cells that are hybridized or
        not.
    options : dict
        Options of `gluon_dynbatch.batching`; used if the mode is dynamic.
    contexts : sequence of mx.Context
        Where to compute; the samples of a minibatch are dealt out among them.
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
        self.loss = gluon.loss.KLDivLoss(from_logits=True)
        for block in (self.model, self.loss):
            block.hybridize(mode != "imperative")

    def step(self, samples: Sequence[Sample], trainer: gluon.Trainer) -> Step:
        """Train on one minibatch."""
        samples = self._dealt(samples)
        with mx.autograd.record(), self._scope() as batch:
            losses = [self.loss(self._score(sample), sample.target) for sample in samples]
        mx.autograd.backward(losses)
        trainer.step(len(losses))
        gathered = _gather(losses)
        return Step(gathered, batch.report if batch is not None else None)

    def predict(self, samples: Sequence[Sample]) -> np.ndarray:
        """Give the expected score of every sample of one minibatch. Shape (N,)."""
        samples = self._dealt(samples)
        if self.mode == "dynamic":
            outputs = gdb.map(self._score, samples, **self.options)
        else:
            outputs = [self._score(sample) for sample in samples]
        probabilities = np.exp(_gather(outputs).asnumpy())  # (N, CLASSES)
        return probabilities @ np.arange(1, CLASSES + 1)

    def _score(self, sample: Sample) -> mx.nd.NDArray:
        return self.model(sample.tokens_a, sample.tree_a, sample.tokens_b, sample.tree_b)

    def _dealt(self, samples: Sequence[Sample]) -> List[Sample]:
        count = len(self.contexts)
        return [sample.to(self.contexts[i % count]) for i, sample in enumerate(samples)]

    def _scope(self) -> ContextManager[Any]:
        if self.mode == "dynamic":
            return gdb.batching(**self.options)
        return contextlib.nullcontext()


def _gather(arrays: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    return mx.nd.concat(*[array.as_in_context(mx.cpu()) for array in arrays], dim=0)
