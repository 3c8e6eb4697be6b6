"""Train a binary Tree-LSTM (Tai et al. 2015, arXiv:1503.00075), written for one tree."""

import random

import mxnet as mx
from mxnet import autograd, gluon

import arguments
import gluon_dynbatch as gdb


class TreeCell(gdb.DynamicHybridBlock):
    """Joins the states h and c of two subtrees, shape (1, hidden) each."""

    def __init__(self, hidden):
        super().__init__()
        self.gates = gluon.nn.Dense(5 * hidden, in_units=2 * hidden)

    def hybrid_forward(self, F, left, right):  # noqa: D102
        gates = self.gates(F.concat(left[0], right[0], dim=1))
        i, o, f, g, u = F.split(gates, num_outputs=5, axis=1)
        c = F.sigmoid(i) * F.tanh(u) + F.sigmoid(f) * left[1] + F.sigmoid(g) * right[1]
        return F.sigmoid(o) * F.tanh(c), c


class TreeLSTM(gdb.DynamicHybridBlock):
    """Scores a sentence; a tree is the position of a word or a pair of trees."""

    def __init__(self, words, hidden):
        super().__init__()
        self.embedding = gluon.nn.Embedding(words, hidden)
        self.cell = TreeCell(hidden)
        self.score = gluon.nn.Dense(2, in_units=hidden)

    def forward(self, words, tree):  # noqa: D102
        vectors = self.embedding(words)  # (T, hidden)

        def state(tree):
            if isinstance(tree, int):
                return (vectors[tree : tree + 1],) * 2
            return self.cell(state(tree[0]), state(tree[1]))

        return self.score(state(tree)[0])  # (1, 2)


def make_sample(rng):
    """Draw words, a tree over them, and the label: whether their mean is above 9.5."""
    words = [rng.randrange(20) for _ in range(rng.randrange(3, 16))]
    trees = list(range(len(words)))
    while len(trees) > 1:
        i = rng.randrange(len(trees) - 1)
        trees[i : i + 2] = [tuple(trees[i : i + 2])]
    return mx.nd.array(words), trees[0], mx.nd.array([sum(words) > 9.5 * len(words)])


def main(argv=None):
    """Train for some epochs, then compare values and gradients with those of the loop."""
    args = arguments.read(__doc__, argv, epochs=16)
    samples = [make_sample(random.Random(seed)) for seed in range(256)]
    net, loss_fn = TreeLSTM(words=20, hidden=32), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    for epoch in range(args.epochs):
        with autograd.record(), gdb.batching(args.analysis_budget) as batch:
            losses = [loss_fn(net(words, tree), label) for words, tree, label in samples]
        autograd.backward(losses)
        trainer.step(len(losses))
        loss = mx.nd.concat(*losses, dim=0).mean().asscalar()
        print(f"epoch {epoch}: loss {loss:.3f}; {batch.report.flushes[-1].line}")
    gdb.testing.check_against_loop(lambda s: net(*s[:2]), samples, net.collect_params().values())
    print("values and gradients equal those of the loop")


if __name__ == "__main__":
    main()
