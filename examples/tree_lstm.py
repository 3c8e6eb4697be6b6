"""Train a binary Tree-LSTM, written for one tree, on made-up sentences with parse trees.

The shape of the task is that of the Stanford Sentiment Treebank; the model is that of Tai, Socher,
Manning 2015 (arXiv:1503.00075), section 3.2.
"""

import argparse
import contextlib
import random
import time

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb


class TreeCell(gdb.DynamicHybridBlock):
    """Joins the states h and c of two subtrees, shape (1, hidden) each."""

    def __init__(self, hidden, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.gates = nn.Dense(5 * hidden, in_units=2 * hidden)

    def hybrid_forward(self, F, left, right):  # noqa: D102
        gates = self.gates(F.concat(left[0], right[0], dim=1))
        i, f, g, o, u = F.split(gates, num_outputs=5, axis=1)
        c = F.sigmoid(i) * F.tanh(u) + F.sigmoid(f) * left[1] + F.sigmoid(g) * right[1]
        return F.sigmoid(o) * F.tanh(c), c


class TreeLSTM(gdb.DynamicHybridBlock):
    """Scores a sentence; its tree is the position of a word or a pair of trees."""

    def __init__(self, words, hidden, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embedding = nn.Embedding(words, hidden)
            self.cell = TreeCell(hidden)
            self.score = nn.Dense(2, in_units=hidden)

    def forward(self, words, tree):  # noqa: D102
        vectors = self.embedding(words)  # (T, hidden)

        def state(tree):
            if isinstance(tree, int):
                leaf = vectors[tree : tree + 1]
                return leaf, leaf
            return self.cell(state(tree[0]), state(tree[1]))

        return self.score(state(tree)[0])  # (1, 2)


def make_sample(rng, words=20):
    """Draw a sentence, its tree, and its label: whether most of the words are "good" ones."""

    def grow(low, high):
        if high - low == 1:
            return low
        middle = rng.randrange(low + 1, high)
        return grow(low, middle), grow(middle, high)

    sentence = [rng.randrange(words) for _ in range(rng.randrange(3, 16, 2))]
    label = int(2 * sum(word >= words // 2 for word in sentence) > len(sentence))
    return mx.nd.array(sentence), grow(0, len(sentence)), mx.nd.array([label])


def main(argv=None):
    """Train, then run one minibatch with and without a scope."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--analysis-budget", default="auto", metavar="MS")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args(argv)
    mx.random.seed(1)
    rng = random.Random(1)
    samples = [make_sample(rng) for _ in range(args.samples)]
    net, loss_fn = TreeLSTM(20, 32), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    loss_fn.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    for epoch in range(args.epochs):
        total = 0.0
        for first in range(0, len(samples), 64):
            minibatch = samples[first : first + 64]
            with autograd.record(), gdb.batching(args.analysis_budget) as batch:
                losses = [loss_fn(net(words, tree), label) for words, tree, label in minibatch]
            autograd.backward(losses)
            trainer.step(len(losses))
            total += sum(loss.asscalar() for loss in losses)
        print(f"epoch {epoch}: loss {total / len(samples):.4f}; last minibatch {batch.report.nodes}"
              f" calls in {batch.report.launches} launches")
    results = {}
    for name, scope in (("loop", contextlib.nullcontext()), ("scope", gdb.batching())):
        started = time.perf_counter()
        with scope:
            scores = [net(words, tree) for words, tree, _ in samples]
        results[name] = mx.nd.concat(*scores, dim=0).asnumpy()
        print(f"{name:5} {len(samples) / (time.perf_counter() - started):6.0f} trees/s")
    print(f"largest difference {abs(results['loop'] - results['scope']).max():.1e}")


if __name__ == "__main__":
    main()
