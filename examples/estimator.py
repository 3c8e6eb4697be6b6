"""Train on samples of different lengths with Gluon's Estimator: a batch processor opens scopes."""

import logging

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.estimator import BatchProcessor, Estimator

import arguments
import gluon_dynbatch as gdb


class Ragged(BatchProcessor):
    """Runs each minibatch, a list of samples and an array of labels, in a scope."""

    def fit_batch(self, estimator, train_batch, batch_axis=0):  # noqa: D102
        with autograd.record():
            results = self.evaluate_batch(estimator, train_batch)
        autograd.backward(results[-1])
        return results

    def evaluate_batch(self, estimator, val_batch, batch_axis=0):  # noqa: D102
        samples, labels = val_batch
        with gdb.batching():
            scores = mx.nd.concat(*[estimator.net(sample) for sample in samples], dim=0)
            loss = estimator.loss(scores, labels)
        return samples, [labels], [scores], [loss]


class Pooling(gluon.Block):
    """Scores a sample, shape (n, size), by a sum over its rows; returns shape (1, 2)."""

    def __init__(self, size, hidden):
        super().__init__()
        self.each = nn.Dense(hidden, activation="relu", in_units=size)
        self.score = nn.Dense(2, in_units=hidden)

    def forward(self, rows):  # noqa: D102
        return self.score(self.each(rows).sum(axis=0, keepdims=True))


def make_sample(rng):
    """Draw a set of points, and the label: whether most are far from the origin."""
    points = rng.normal(size=(rng.randint(1, 20), 2))
    far = (points**2).sum(axis=1) > 2
    return mx.nd.array(points), float(2 * far.sum() > len(far))


def main(argv=None):
    """Fit and validate, then compare values and gradients with those of the loop."""
    args = arguments.read(__doc__, argv, epochs=5)
    samples = [make_sample(np.random.RandomState(seed)) for seed in range(320)]

    def together(chosen):
        return [points for points, _ in chosen], mx.nd.array([label for _, label in chosen])

    parts = samples[:256], samples[256:]
    loaders = [gluon.data.DataLoader(part, 64, batchify_fn=together) for part in parts]
    net = gdb.convert(Pooling(2, 16))
    net.initialize(mx.init.Xavier())
    net.hybridize(analysis_budget=args.analysis_budget)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})
    loss_fn, accuracy = gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy()
    estimator = Estimator(net, loss_fn, accuracy, trainer=trainer, batch_processor=Ragged())
    estimator.logger.setLevel(logging.WARNING)
    estimator.fit(*loaders, epochs=args.epochs)
    for metric in estimator.train_metrics + estimator.val_metrics:
        print("{}: {:.3f}".format(*metric.get()))
    gdb.testing.check_against_loop(lambda s: net(s[0]), samples, net.collect_params().values())
    print("values and gradients equal those of the loop")


if __name__ == "__main__":
    main()
