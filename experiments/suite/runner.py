"""Run the minibatches of a workload in one of several ways that compute the same."""

import contextlib

import mxnet as mx

import gluon_dynbatch as gdb
from baselines.manual import ManualBatching
from baselines.padded import PaddedBatching
from relatedness.distributed import prepare

#: What computes whole minibatches without the library.
BATCHED = {"manual": ManualBatching, "padded": PaddedBatching}
#: Those that the model of sentence pairs has.
MODES = ("dynamic", "imperative", "hybridized", "manual")


class Runner:
    """Runs a workload sample by sample, or batched: by the library, or by one of the baselines.

    Modes are "dynamic": batched by gluon_dynbatch, with `options` of `gluon_dynbatch.batching`;
    "imperative", "hybridized": one sample after the other; "manual" (sentence pairs), "padded" (the
    tagger): see `baselines`. The workload's model is initialized and hybridized; it belongs to this
    runner if the mode is "imperative".
    """

    def __init__(self, workload, mode="dynamic", options=None):
        self.workload, self.mode, self.options = workload, mode, options or {}
        #: What happened in the last minibatch, and what it ran; None unless the mode is dynamic.
        self.report = self.plan = None
        if mode == "imperative":
            for block in (workload.model, workload.loss_block):
                block.hybridize(False)
        self.batched = BATCHED[mode](workload) if mode in BATCHED else None

    def step(self, samples, whole=None):
        """Train on one minibatch, or on a share, maybe none, of one of `whole` samples.

        Returns the losses, shape (N,); reading them waits for the step to finish.
        """
        if whole is not None:
            prepare(self.workload.trainer)
        if not samples:
            losses = mx.nd.zeros(1)
        elif self.batched is not None:
            losses = self.batched.differentiate(samples)
        else:
            with mx.autograd.record(), self._scope() as scope:
                each = [self.workload.loss(sample) for sample in samples]
            mx.autograd.backward(each)
            self._note(scope)
            losses = _joined(each)
        # Not every minibatch calls every block.
        self.workload.trainer.step(whole or len(samples), ignore_stale_grad=True)
        return losses

    def predict(self, samples):
        """Give the model's results for one minibatch, joined along axis 0."""
        if self.batched is not None:
            return self.batched.score(samples)
        with self._scope() as scope:
            each = self.workload.predict(samples)
        self._note(scope)
        return _joined(each)

    def _scope(self):
        # Entered by whoever runs a minibatch, as "auto" keeps accounts by place.
        dynamic = self.mode == "dynamic"
        return gdb.batching(**self.options) if dynamic else contextlib.nullcontext()

    def _note(self, scope):
        if scope is not None:
            self.report, self.plan = scope.report, scope.plan


def one_behind(items):
    """Give each item when the next one has been made, so that recording overlaps with running."""
    before = []
    for item in items:
        yield from before
        before = [item]
    yield from before


def _joined(arrays):
    return arrays[0] if len(arrays) == 1 else mx.nd.concat(*arrays, dim=0)
