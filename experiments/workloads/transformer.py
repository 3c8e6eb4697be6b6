"""A tagger of words that is a transformer's encoder, on sentences of different lengths.

Vaswani et al. 2017 (arXiv:1706.03762): multi-head attention and two layers per word, each followed
by a sum and a layer normalization; sines and cosines tell positions. Sentences and tags are those
of the BiLSTM tagger.
"""

import math

import numpy as np
from mxnet.gluon import nn

import gluon_dynbatch as gdb

from .base import labelling
from .front import front
from .sequences import encoded, read_wikiner

HEADS, LAYERS, LONGEST = 4, 2, 1024


class Attention(nn.HybridBlock):
    """Attention of every word to all words, with several heads; (T, size) to (T, size)."""

    def __init__(self, size, heads):
        super().__init__()
        self.heads, self.width = heads, size // heads
        self.project = nn.Dense(3 * size, in_units=size, flatten=False)
        self.join = nn.Dense(size, in_units=size, flatten=False)

    def hybrid_forward(self, F, x):  # noqa: D102
        F = front(F)
        queries, keys, values = (
            part.reshape((-1, self.heads, self.width)).transpose((1, 0, 2))  # (heads, T, width)
            for part in F.split(self.project(x), num_outputs=3, axis=1)
        )
        scores = F.batch_dot(queries, keys, transpose_b=True) / math.sqrt(self.width)
        read = F.batch_dot(F.softmax(scores), values).transpose((1, 0, 2))
        return self.join(read.reshape((-1, self.heads * self.width)))


class Layer(nn.HybridBlock):
    """A layer of the encoder; it maps (T, size), the words of one sentence, to (T, size)."""

    def __init__(self, size, hidden_size, heads):
        super().__init__()
        self.attention = Attention(size, heads)
        self.first = nn.Dense(hidden_size, in_units=size, flatten=False, activation="relu")
        self.second = nn.Dense(size, in_units=hidden_size, flatten=False)
        self.norms = [nn.LayerNorm(in_channels=size) for _ in range(2)]
        for norm in self.norms:
            self.register_child(norm)

    def hybrid_forward(self, F, x):  # noqa: D102
        return self.transform(x, self.attention(x))

    def transform(self, x, attended):
        """Do all but the attention, word by word."""
        x = self.norms[0](x + attended)
        return self.norms[1](x + self.second(self.first(x)))


class TransformerTagger(gdb.DynamicHybridBlock):
    """Scores of all tags for every word of one sentence."""

    def __init__(self, vocab_size, tags, embedding_size=64, hidden_size=128, layers=LAYERS):
        super().__init__()
        self.scale = math.sqrt(embedding_size)
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.positions = self.params.get_constant("positions", waves(embedding_size))
        heads = math.gcd(embedding_size, HEADS)
        self.layers = [Layer(embedding_size, hidden_size, heads) for _ in range(layers)]
        for layer in self.layers:
            self.register_child(layer)
        self.score = nn.Dense(tags, in_units=embedding_size, flatten=False)

    def forward(self, words):
        """Map word indices, shape (T,), to scores, shape (T, tags)."""
        places = self.positions.data()[: len(words)]
        x = self.embedding(words) * self.scale + places
        for layer in self.layers:
            x = layer(x)
        return self.score(x)


def waves(size):
    """Return vectors of positions, shape (LONGEST, size): sines and cosines of many lengths."""
    exponents = 2 * (np.arange(size) // 2) / size
    angles = np.arange(LONGEST)[:, None] / 10000**exponents
    return np.where(np.arange(size) % 2, np.cos(angles), np.sin(angles)).astype(np.float32)


def attending(wikiner=None, limit=None, **sizes):
    """Make the tagger with the sentences of WikiNER, or of the built-in corpus."""
    samples, *counts = encoded(read_wikiner(wikiner, limit))
    model = TransformerTagger(*counts, **sizes)
    title, frozen = "transformer tagger", ["embedding"]
    return labelling("transformer", title, "sentences", samples, model, frozen, "words")
