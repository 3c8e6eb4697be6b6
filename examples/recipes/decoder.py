"""A decoder with attention: trained on given words, then fed its own."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb

START, END = 0, 1


class Attention(gluon.HybridBlock):  # a cell: one look at a memory of any length
    def __init__(self, words, size):
        super().__init__()
        self.mix = nn.Dense(size, in_units=2 * size, activation="tanh")
        self.score = nn.Dense(words, in_units=size)

    def hybrid_forward(self, F, state, memory):  # (1, size), (length, size) -> (1, words)
        weights = F.softmax(F.dot(state, memory, transpose_b=True))
        return self.score(self.mix(F.concat(F.dot(weights, memory), state, dim=1)))


class Translator(gluon.Block):
    def __init__(self, words, size):
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.encoder = rnn.LSTMCell(size, input_size=size)
        self.decoder = rnn.LSTMCell(size, input_size=size)
        self.attention = Attention(words, size)

    def forward(self, source, target=None):  # (length,) -> scores (steps, words), words
        vectors, word, scores, found = self.embedding(source), START, [], []
        rows = [vectors[i : i + 1] for i in range(len(source))]
        encoded, states = self.encoder.unroll(len(rows), rows)
        memory = mx.nd.concat(*encoded, dim=0)
        while word != END and len(found) < 12:
            output, states = self.decoder(self.embedding(mx.nd.array([word])), states)
            scores.append(self.attention(output, memory))
            # In training, the word is given; otherwise, it is read, and steers the program.
            word = target[len(found)] if target else int(scores[-1].argmax(axis=1).asscalar())
            found.append(word)
        return mx.nd.concat(*scores, dim=0), found


rng = np.random.RandomState(1)
sources = [mx.nd.array(rng.randint(2, 20, n)) for n in rng.randint(2, 10, size=64)]
samples = [(source, [*map(int, source.asnumpy()[::-1]), END]) for source in sources]
net, loss_fn = gdb.convert(Translator(words=20, size=32)), gluon.loss.SoftmaxCELoss()
net.initialize(mx.init.Xavier())
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
for _ in range(10):
    with autograd.record(), gdb.batching() as batch:
        losses = [loss_fn(net(s, t)[0], mx.nd.array(t)).sum() for s, t in samples]
    autograd.backward(losses)
    trainer.step(len(losses))
with gdb.batching() as decoding:
    found = decoding.map(net, sources)
print(batch.report, decoding.report, sep="\n\n")
