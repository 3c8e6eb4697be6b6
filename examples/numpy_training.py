"""What the examples in mx.np share: training sample by sample, and comparing with padding."""

from contextlib import contextmanager

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, npx

import gluon_dynbatch as gdb


@contextmanager
def numpy_semantics():
    """Switch NumPy's semantics on in the body."""
    npx.set_np()
    try:
        yield
    finally:
        npx.reset_np()


def train(net, samples, args):
    """Train a network on pairs of inputs and a label, one sample at a time as the program says."""
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    for epoch in range(args.epochs):
        with autograd.record(), gdb.batching(args.analysis_budget) as batch:
            losses = [loss_fn(net(*inputs), label).sum() for inputs, label in samples]
        autograd.backward(losses)
        trainer.step(len(losses))
        loss = np.mean([loss.item() for loss in losses])
        print(f"epoch {epoch}: loss {loss:.3f}; {batch.report.flushes[-1].line}")
    parameters = net.collect_params().values()
    gdb.testing.check_against_loop(lambda inputs, _: net(*inputs), samples[:16], parameters)
    print("values and gradients equal those of the loop")


def compare(net, samples):
    """Score all samples one by one and as padded arrays, with lengths: the same values."""
    alone = gdb.map(lambda inputs, _: net(*inputs), samples)
    alone = np.concatenate([scores.asnumpy() for scores in alone])
    inputs, labels = zip(*samples)
    padded = net.padded(*(array for column in zip(*inputs) for array in pad(column)))
    np.testing.assert_allclose(alone, padded.asnumpy(), rtol=1e-3, atol=1e-4)
    right = np.mean(alone.argmax(axis=1) == np.concatenate([label.asnumpy() for label in labels]))
    print(f"right: {right:.2f}; the padded form with masks has the same values")


def pad(sentences):
    """Return sentences as one array, and their lengths."""
    lengths = [len(words) for words in sentences]
    rows = [np.pad(x.asnumpy(), (0, max(lengths) - n)) for x, n in zip(sentences, lengths)]
    return mx.np.array(rows, dtype="int32"), mx.np.array(lengths, dtype="float32")
