"""Run the minibatches of a workload in one of several ways."""

import contextlib

import mxnet as mx
from mxnet.util import is_np_array

import gluon_dynbatch as gdb
from baselines.manual import ManualBatching
from baselines.padded import FORMS
from baselines.phrases import LevelBatching
from relatedness.distributed import prepare
from workloads.front import ND, front, semantics

#: By workload, the baselines, which compute whole minibatches without the library.
BATCHED = {"sick": ManualBatching, "sst": LevelBatching, **FORMS}
MODES = ("dynamic", "imperative", "hybridized", "manual")


class Runner:
    """Runs a workload sample by sample, or batched by the library or by a baseline.

    Modes are "dynamic": batched by gluon_dynbatch, with `options` of `gluon_dynbatch.batching`;
    "imperative", "hybridized": one sample after the other; "manual": by a baseline of `BATCHED`.
    The workload's model must be initialized and hybridized; the mode "imperative" ends its
    hybridization. Samples of minibatches are those of the workload.
    """

    def __init__(self, workload, mode="dynamic", options=None):
        self.workload, self.mode, self.options = workload, mode, options or {}
        #: Report and plan of the last minibatch; None unless the mode is "dynamic".
        self.report = self.plan = None
        if mode == "imperative":
            for block in (workload.model, workload.loss_block):
                block.hybridize(False)
        self._own = {}
        if workload.interface != ND:  # samples may have other arrays than the model
            self._own = {id(each): each.of(workload.interface) for each in workload.samples}
            workload = workload._replace(samples=list(self._own.values()))
        with semantics(workload.interface):
            self.batched = BATCHED[workload.name](workload) if mode == "manual" else None

    def step(self, samples, whole=None):
        """Train on a minibatch, or on a share of one of `whole` samples, which may be empty.

        Returns the losses, shape (N,); reading them waits for the step to finish.
        """
        with self._minibatch(samples) as samples:
            if whole is not None:
                prepare(self.workload.trainer)
            if not samples:
                losses = mx.nd.zeros(1)
            elif self.batched is not None:
                losses = self.batched.differentiate(samples)
            else:
                with mx.autograd.record(), self._scope() as scope:
                    losses = _joined([self.workload.loss(sample) for sample in samples])
                losses.backward()
                self._note(scope)
            # Not every minibatch calls every block.
            self.workload.trainer.step(whole or len(samples), ignore_stale_grad=True)
            return losses

    def predict(self, samples):
        """Return the model's results for a minibatch, concatenated along axis 0."""
        with self._minibatch(samples) as samples:
            if self.batched is not None:
                return self.batched.score(samples)
            with self._scope() as scope:
                results = _joined(self.workload.predict(samples))
            self._note(scope)
            return results

    @contextlib.contextmanager
    def _minibatch(self, samples):
        """Switch to the interface of the model in the body, and give it the samples with it."""
        if self.workload.interface == ND:
            yield samples
        else:
            with semantics(self.workload.interface):
                yield [self._own[id(sample)] for sample in samples]

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
    if is_np_array() and not arrays[0].ndim:
        return mx.np.stack(arrays)
    return arrays[0] if len(arrays) == 1 else front().concat(*arrays, dim=0)
