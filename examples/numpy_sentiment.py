"""Classify sentences with a bidirectional LSTM in mx.np: one by one, and padded to compare."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, npx
from mxnet.gluon import nn

import arguments
import gluon_dynbatch as gdb

WORDS, POSITIVE = 50, 8  # words 1 to 8 are positive, 9 to 16 negative; 0 is padding


class Sentiment(gdb.DynamicHybridBlock):
    """Reads a sentence in both directions, and scores two classes from both final states.

    It takes one sentence of any length, or a minibatch of sentences of one length.
    """

    def __init__(self, size, hidden):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, size)
        self.encoder = gluon.rnn.LSTM(hidden, bidirectional=True, input_size=size)
        self.score = nn.Dense(2, in_units=4 * hidden)

    def forward(self, words):
        """Score sentences: (sentences, length) -> (sentences, 2)."""
        states = self.encoder.begin_state(len(words))
        outputs, _ = self.encoder(self.embedding(words.T), states)
        return self.score(mx.np.concatenate([outputs[0], outputs[-1]], axis=1))


def make_sample(rng):
    """Draw a sentence, and whether it has more positive words than negative ones."""
    words = rng.randint(1, WORDS, size=(1, rng.randint(3, 15)))
    label = (words <= POSITIVE).sum() > ((words > POSITIVE) & (words <= 2 * POSITIVE)).sum()
    return mx.np.array(words, dtype="int32"), mx.np.array([label], dtype="int32")


def padded(net, samples):
    """Score all sentences as one array, to which zeros are appended: not quite the same network."""
    longest = max(words.shape[1] for words, _ in samples)
    arrays = (words.asnumpy() for words, _ in samples)
    rows = [np.pad(x, ((0, 0), (0, longest - x.shape[1]))) for x in arrays]
    return net(mx.np.array(np.concatenate(rows), dtype="int32"))


def main(argv=None):
    """Train for some epochs, then compare with the loop and with padded sentences."""
    args = arguments.read(__doc__, argv, epochs=10)
    npx.set_np()
    try:
        train(args)
    finally:
        npx.reset_np()


def train(args):
    """Train a network, one sentence at a time as far as the program says."""
    rng = np.random.RandomState(0)
    samples = [make_sample(rng) for _ in range(64)]
    net, loss_fn = Sentiment(16, 16), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    for epoch in range(args.epochs):
        with autograd.record(), gdb.batching(args.analysis_budget) as batch:
            losses = [loss_fn(net(words), label).sum() for words, label in samples]
        autograd.backward(losses)
        trainer.step(len(losses))
        loss = np.mean([loss.item() for loss in losses])
        print(f"epoch {epoch}: loss {loss:.3f}; {batch.report.flushes[-1].line}")
    sentences = [words for words, _ in samples[:16]]
    gdb.testing.check_against_loop(net, sentences, net.collect_params().values())
    print("values and gradients equal those of the loop")
    right = [
        np.mean([scores.argmax().item() == label.item() for scores, (_, label) in pairs])
        for pairs in (zip(results, samples) for results in (gdb.map(net, [x for x, _ in samples]),
                                                            padded(net, samples)))
    ]  # fmt: skip
    print(f"right: {right[0]:.2f}, with padded sentences {right[1]:.2f}")


if __name__ == "__main__":
    main()
