"""Decomposable attention in mx.np decides what a sentence says about another: no masks.

A. Parikh, O. Täckström, D. Das, J. Uszkoreit: A Decomposable Attention Model for Natural Language
Inference, EMNLP 2016, arXiv:1606.01933.
"""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, npx
from mxnet.gluon import nn

import arguments
import gluon_dynbatch as gdb

WORDS, MASKED = 40, -1e6


def perceptron(inputs, hidden):
    """Return two layers that treat each word by itself."""
    net = nn.HybridSequential()
    net.add(nn.Dense(hidden, activation="relu", flatten=False, in_units=inputs))
    net.add(nn.Dense(hidden, activation="relu", flatten=False, in_units=hidden))
    return net


class Inference(gdb.DynamicHybridBlock):
    """Aligns the words of a premise and a hypothesis, compares them, and adds up."""

    def __init__(self, size, hidden):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, size)
        self.attend, self.compare = perceptron(size, hidden), perceptron(2 * size, hidden)
        self.decide = perceptron(2 * hidden, hidden)
        self.score = nn.Dense(3, in_units=hidden)

    def forward(self, premise, hypothesis):
        """Score one pair of sentences of any lengths: (length,), (length,) -> (1, 3)."""
        a, b = self.embedding(premise), self.embedding(hypothesis)
        scores = mx.np.dot(self.attend(a), self.attend(b).T)
        for_a = mx.np.dot(npx.softmax(scores, axis=1), b)
        for_b = mx.np.dot(npx.softmax(scores.T, axis=1), a)
        total_a = self.compare(mx.np.concatenate([a, for_a], axis=1)).sum(axis=0, keepdims=True)
        total_b = self.compare(mx.np.concatenate([b, for_b], axis=1)).sum(axis=0, keepdims=True)
        return self.score(self.decide(mx.np.concatenate([total_a, total_b], axis=1)))

    def padded(self, premises, hypotheses, lengths_a, lengths_b):
        """Score a minibatch of padded pairs: the same network, with masks at each step."""
        a, b = self.embedding(premises), self.embedding(hypotheses)
        mask_a, mask_b = (
            (mx.np.arange(x.shape[1]).reshape(1, -1) < n.reshape(-1, 1)).astype("float32")
            for x, n in ((a, lengths_a), (b, lengths_b))
        )
        scores = npx.batch_dot(self.attend(a), self.attend(b), transpose_b=True)
        to_b = npx.softmax(scores + (1 - mask_b).reshape(len(a), 1, -1) * MASKED, axis=2)
        to_a = npx.softmax(
            scores.transpose(0, 2, 1) + (1 - mask_a).reshape(len(a), 1, -1) * MASKED, axis=2
        )
        pairs = (a, npx.batch_dot(to_b, b), mask_a), (b, npx.batch_dot(to_a, a), mask_b)
        totals = [
            (self.compare(mx.np.concatenate([x, y], axis=2)) * mask.reshape(*mask.shape, 1)).sum(1)
            for x, y, mask in pairs
        ]
        return self.score(self.decide(mx.np.concatenate(totals, axis=1)))


def make_sample(rng):
    """Draw a pair: the hypothesis repeats words of the premise, has none of them, or some."""
    label, premise = rng.randint(3), rng.randint(1, WORDS, size=rng.randint(3, 12))
    others = np.setdiff1d(np.arange(1, WORDS), premise)
    size = rng.randint(2, 6)
    hypothesis = rng.choice(premise if label == 0 else others, size=size)
    if label == 2:
        hypothesis[0] = premise[0]
    return [mx.np.array(words, dtype="int32") for words in (premise, hypothesis)], label


def pad(sentences):
    """Return sentences as one array, and their lengths."""
    lengths = [len(words) for words in sentences]
    rows = [np.pad(x.asnumpy(), (0, max(lengths) - n)) for x, n in zip(sentences, lengths)]
    return mx.np.array(rows, dtype="int32"), mx.np.array(lengths, dtype="float32")


def main(argv=None):
    """Train for some epochs, then compare with the loop and with the padded form."""
    args = arguments.read(__doc__, argv, epochs=10)
    npx.set_np()
    try:
        train(args)
    finally:
        npx.reset_np()


def train(args):
    """Train a network, one pair of sentences at a time as far as the program says."""
    rng = np.random.RandomState(0)
    samples = [make_sample(rng) for _ in range(48)]
    net, loss_fn = Inference(16, 16), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    for epoch in range(args.epochs):
        with autograd.record(), gdb.batching(args.analysis_budget) as batch:
            losses = [loss_fn(net(*pair), mx.np.array([label])).sum() for pair, label in samples]
        autograd.backward(losses)
        trainer.step(len(losses))
        loss = np.mean([loss.item() for loss in losses])
        print(f"epoch {epoch}: loss {loss:.3f}; {batch.report.flushes[-1].line}")
    pairs = [tuple(pair) for pair, _ in samples]
    gdb.testing.check_against_loop(net, pairs[:8], net.collect_params().values())
    print("values and gradients equal those of the loop")
    (premises, lengths_a), (hypotheses, lengths_b) = map(pad, zip(*pairs))
    with_masks = net.padded(premises, hypotheses, lengths_a, lengths_b).asnumpy()
    alone = np.concatenate([scores.asnumpy() for scores in gdb.map(net, pairs)])
    np.testing.assert_allclose(alone, with_masks, rtol=1e-3, atol=1e-4)
    print("and values those of the padded form with masks")


if __name__ == "__main__":
    main()
