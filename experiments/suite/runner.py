"""Run the minibatches of a workload in one of several ways."""

import contextlib

import mxnet as mx

import gluon_dynbatch as gdb
from baselines.manual import ManualBatching
from baselines.padded import PaddedBatching
from relatedness.distributed import prepare

#: Baselines, which compute whole minibatches without the library.
BATCHED = {"manual": ManualBatching, "padded": PaddedBatching}
#: The modes for the model of sentence pairs.
MODES = ("dynamic", "imperative", "hybridized", "manual")


class Runner:
    """Runs a workload sample by sample, or batched by the library or by a baseline.

    Modes are "dynamic": batched by gluon_dynbatch, with `options` of `gluon_dynbatch.batching`;
    "imperative", "hybridized": one sample after the other; "manual" (sentence pairs), "padded" (the
    tagger): see `baselines`. The workload's model must be initialized and hybridized; the mode
    "imperative" ends its hybridization.
    """

    def __init__(self, workload, mode="dynamic", options=None):
        self.workload, self.mode, self.options = workload, mode, options or {}
        #: Report and plan of the last minibatch; None unless the mode is "dynamic".
        self.report = self.plan = None
        if mode == "imperative":
            for block in (workload.model, workload.loss_block):
                block.hybridize(False)
        self.batched = BATCHED[mode](workload) if mode in BATCHED else None

    def step(self, samples, whole=None):
        """Train on a minibatch, or on a share of one of `whole` samples, which may be empty.

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
        """Return the model's results for a minibatch, concatenated along axis 0."""
        if self.batched is not None:
            return self.batched.score(samples)
        with self._scope() as scope:
            each = self.workload.predict(samples)
        self._note(scope)
        return _joined(each)

    def _scope(self):
        # The caller enters the scope, because "auto" keeps statistics by the line that does.
        dynamic = self.mode == "dynamic"
        return gdb.batching(**self.options) if dynamic else contextlib.nullcontext()

    def _note(self, scope):
        if scope is not None:
            self.report, self.plan = scope.report, scope.plan


def one_behind(items):
    """Yield each item after the next one was made, so that recording overlaps with running."""
    previous = []
    for item in items:
        yield from previous
        previous = [item]
    yield from previous


def _joined(arrays):
    return arrays[0] if len(arrays) == 1 else mx.nd.concat(*arrays, dim=0)
