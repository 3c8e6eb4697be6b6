"""A pointer network (Vinyals et al. 2015, arXiv:1506.03134): sort numbers by pointing at them."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb


class Pointer(gluon.HybridBlock):  # a cell: a score for each position
    def __init__(self, size):
        super().__init__()
        self.query = nn.Dense(size, in_units=size, use_bias=False)
        self.score = nn.Dense(1, in_units=size, use_bias=False, flatten=False)

    def hybrid_forward(self, F, state, keys):  # (1, size), (length, size) -> (1, length)
        scores = self.score(F.tanh(F.broadcast_add(keys, self.query(state))))
        return F.log_softmax(F.transpose(scores))


class Sorter(gluon.Block):
    def __init__(self, size):
        super().__init__()
        self.encoder = rnn.LSTMCell(size, input_size=1)
        self.decoder = rnn.LSTMCell(size, input_size=1)
        self.keys = nn.Dense(size, in_units=size, use_bias=False, flatten=False)
        self.pointer = Pointer(size)

    def forward(self, numbers, order=None):  # (length, 1) -> log probabilities, positions
        rows = [numbers[i : i + 1] for i in range(len(numbers))]
        encoded, states = self.encoder.unroll(len(rows), rows)
        keys = self.keys(mx.nd.concat(*encoded, dim=0))
        fed, scores, found = mx.nd.zeros((1, 1)), [], []
        for step in range(len(rows)):
            output, states = self.decoder(fed, states)
            scores.append(self.pointer(output, keys))
            # In training, the position is known; otherwise, it is read, and steers the program.
            position = order[step] if order else int(scores[-1].argmax(axis=1).asscalar())
            fed = rows[position]
            found.append(position)
        return mx.nd.concat(*[row[:, i] for row, i in zip(scores, found)], dim=0), found


rng = np.random.RandomState(1)
lists = [mx.nd.array(rng.rand(n, 1)) for n in rng.randint(3, 9, size=64)]
samples = [(x, [int(i) for i in x.asnumpy()[:, 0].argsort()]) for x in lists]
net = gdb.convert(Sorter(32))
net.initialize(mx.init.Xavier())
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
for _ in range(10):
    with autograd.record(), gdb.batching() as batch:
        losses = [-net(*sample)[0].sum() for sample in samples]
    autograd.backward(losses)
    trainer.step(len(losses))
with gdb.batching() as decoding:
    found = decoding.map(net, lists)
print(batch.report, decoding.report, sep="\n\n")
