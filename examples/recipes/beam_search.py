"""Beam search: each sentence keeps its best translations, and asks for the next word of each."""

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb

START, END, BEAM, STEPS = 0, 1, 4, 10


class Decoder(gluon.Block):
    def __init__(self, words, size):
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.cell = rnn.LSTMCell(size, input_size=size)
        self.score = nn.Dense(words, in_units=size)

    def step(self, word, states):  # -> log probabilities (1, words), states
        output, states = self.cell(self.embedding(mx.nd.array([word])), states)
        return mx.nd.log_softmax(self.score(output)), states

    def forward(self, state):  # (1, size) -> the best words and their log probability
        beam = [(0.0, [START], [state, mx.nd.zeros_like(state)])]
        for _ in range(STEPS):
            ended = [each for each in beam if each[1][-1] == END]
            grown = [
                (total, words, *self.step(words[-1], states))
                for total, words, states in beam
                if words[-1] != END
            ]
            for total, words, scores, states in grown:  # all are recorded before one is read
                scores = scores.asnumpy()[0]
                for word in scores.argsort()[-BEAM:]:
                    ended.append((total + float(scores[word]), [*words, int(word)], states))
            beam = sorted(ended, key=lambda each: -each[0])[:BEAM]
        total, words, _ = beam[0]
        return words, total


rng = np.random.RandomState(1)
sentences = [mx.nd.array(rng.normal(size=(1, 32))) for _ in range(32)]
net = gdb.convert(Decoder(words=20, size=32))
net.initialize(mx.init.Normal(0.5))
net.hybridize()
with gdb.batching() as batch:
    translations = batch.map(net, sentences)
print(batch.report)
