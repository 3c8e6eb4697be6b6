"""Decomposable attention in mx.np decides what a sentence says about another: no masks.

A. Parikh, O. Täckström, D. Das, J. Uszkoreit: A Decomposable Attention Model for Natural Language
Inference, EMNLP 2016, arXiv:1606.01933.
"""

import mxnet as mx
import numpy as np
from mxnet import npx
from mxnet.gluon import nn

import arguments
import gluon_dynbatch as gdb
from numpy_training import compare, numpy_semantics, train

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

    def padded(self, premises, lengths_a, hypotheses, lengths_b):
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
    pair = tuple(mx.np.array(words, dtype="int32") for words in (premise, hypothesis))
    return pair, mx.np.array([label], dtype="int32")


def main(argv=None):
    """Train for some epochs, then compare with the loop and with the padded form."""
    args = arguments.read(__doc__, argv, epochs=10)
    with numpy_semantics():
        rng = np.random.RandomState(0)
        samples = [make_sample(rng) for _ in range(48)]
        net = Inference(16, 16)
        train(net, samples, args)
        compare(net, samples)


if __name__ == "__main__":
    main()
