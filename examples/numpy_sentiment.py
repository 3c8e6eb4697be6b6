"""Classify sentences with a bidirectional LSTM in mx.np: one by one, and padded to compare."""

import mxnet as mx
import numpy as np
from mxnet import gluon, npx
from mxnet.gluon import nn

import arguments
import gluon_dynbatch as gdb
from numpy_training import compare, numpy_semantics, train

WORDS, POSITIVE = 50, 8  # words 1 to 8 are positive, 9 to 16 negative; 0 is padding


class Sentiment(gdb.DynamicHybridBlock):
    """Reads a sentence in both directions, and scores it from the first and the last states."""

    def __init__(self, size, hidden):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, size)
        self.encoder = gluon.rnn.LSTM(hidden, bidirectional=True, input_size=size)
        self.score = nn.Dense(2, in_units=4 * hidden)

    def forward(self, words):
        """Score one sentence of any length: (length,) -> (1, 2)."""
        vectors = mx.np.expand_dims(self.embedding(words), 1)
        outputs, _ = self.encoder(vectors, self.encoder.begin_state(1))
        return self.score(mx.np.concatenate([outputs[0], outputs[-1]], axis=1))

    def padded(self, sentences, lengths):
        """Score padded sentences, by a layer for each direction.

        One layer for both would read the padding first in the backward direction.
        """
        count, longest = sentences.shape
        steps, rows, ends = mx.np.arange(longest).reshape(-1, 1), mx.np.arange(count), lengths - 1
        # Words are reversed before the padding, so that padding is last here, too.
        at = rows * longest + mx.np.maximum(ends - steps, 0)
        backwards = mx.np.take(sentences.reshape(-1), at, mode="clip")
        states = []
        for words, side in ((sentences.T, "l"), (backwards, "r")):
            read = self.read(self.embedding(words), side)  # (longest, count, hidden)
            flat = read.reshape(longest * count, -1)
            states.append((read[0], mx.np.take(flat, ends * count + rows, 0, mode="clip")))
        (first, end), (end_back, first_back) = states
        return self.score(mx.np.concatenate([first, first_back, end, end_back], axis=1))

    def read(self, vectors, side):
        """Read vectors, (length, sentences, size), with the layer of one direction."""
        names = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
        arrays = [getattr(self.encoder, f"{side}0_{name}").data().reshape(-1) for name in names]
        hidden = self.encoder._hidden_size
        start = mx.np.zeros((1, vectors.shape[1], hidden))
        return npx.rnn(vectors, mx.np.concatenate(arrays), start, start, mode="lstm",
                       state_size=hidden, num_layers=1)  # fmt: skip


def make_sample(rng):
    """Draw a sentence, and whether it has more positive words than negative ones."""
    words = rng.randint(1, WORDS, size=rng.randint(3, 15))
    label = (words <= POSITIVE).sum() > ((words > POSITIVE) & (words <= 2 * POSITIVE)).sum()
    return (mx.np.array(words, dtype="int32"),), mx.np.array([label], dtype="int32")


def main(argv=None):
    """Train for some epochs, then compare with the loop and with padded sentences."""
    args = arguments.read(__doc__, argv, epochs=10)
    with numpy_semantics():
        rng = np.random.RandomState(0)
        samples = [make_sample(rng) for _ in range(64)]
        net = Sentiment(16, 16)
        train(net, samples, args)
        compare(net, samples)


if __name__ == "__main__":
    main()
