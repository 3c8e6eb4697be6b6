"""An encoder and a decoder that attends to the encoder's states, step by step.

Luong, Pham, Manning 2015 (arXiv:1508.04025): dot attention, global, with input feeding. Sequences
of 4 to 20 random tokens are to be reversed; the decoder is fed the right tokens.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn, rnn

from .base import Workload, labelling
from .sequences import read, rows_of

TOKENS, START = 30, 30
LENGTHS = (4, 20)


class ReversedSample(NamedTuple):
    """Tokens to read, to be fed and to be predicted; shape (T,), each."""

    source: mx.nd.NDArray
    fed: mx.nd.NDArray
    target: mx.nd.NDArray


class Attention(gluon.HybridBlock):
    """What the decoder knows after a look at the memory: dot attention, then one layer."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        with self.name_scope():
            self.layer = nn.Dense(hidden_size, in_units=2 * hidden_size, activation="tanh")

    def hybrid_forward(self, F: Any, h: Any, memory: Any) -> Any:  # noqa: D102
        weights = F.softmax(F.dot(h, memory, transpose_b=True))  # (1, S)
        return self.layer(F.concat(F.dot(weights, memory), h, dim=1))  # (1, H)


class Translator(gluon.Block):
    """Scores of all tokens for every place of the target."""

    def __init__(self, embedding_size: int = 32, hidden_size: int = 64) -> None:
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(TOKENS + 1, embedding_size)
            self.encoder = rnn.LSTMCell(hidden_size, input_size=embedding_size)
            self.decoder = rnn.LSTMCell(hidden_size, input_size=embedding_size + hidden_size)
            self.attention = Attention(hidden_size)
            self.score = nn.Dense(TOKENS, in_units=hidden_size)

    def forward(self, source: mx.nd.NDArray, fed: mx.nd.NDArray) -> mx.nd.NDArray:
        """Map tokens, shapes (S,) and (T,), to scores, shape (T, TOKENS)."""
        encoded, states = read(self.encoder, rows_of(self.embedding(source)))
        memory = mx.nd.concat(*encoded, dim=0)  # (S, H)
        seen = [states[0]]
        for row in rows_of(self.embedding(fed)):
            h, states = self.decoder(mx.nd.concat(row, seen[-1], dim=1), states)
            seen.append(self.attention(h, memory))
        return self.score(mx.nd.concat(*seen[1:], dim=0))


def reversing(limit: Optional[int] = None, seed: int = 1, **sizes: int) -> Workload:
    """Put the model on random sequences."""
    rng = np.random.RandomState(seed)
    samples: List[ReversedSample] = []
    for _ in range(limit or 1024):
        source = rng.randint(TOKENS, size=rng.randint(LENGTHS[0], LENGTHS[1] + 1))
        target = source[::-1]
        fed = np.concatenate([[START], target[:-1]])
        arrays = [mx.nd.array(tokens, dtype="int32") for tokens in (source, fed, target)]
        samples.append(ReversedSample(*arrays))
    title = "seq2seq with attention, random sequences"
    return labelling("seq2seq", title, "sequences", samples, Translator(**sizes))
