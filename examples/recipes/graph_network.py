"""A graph network: three rounds of messages along the edges of a graph, for graphs of any size."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb


class Round(gluon.HybridBlock):  # a cell: one round of messages in one graph
    def __init__(self, size):
        super().__init__()
        self.message = nn.Dense(size, in_units=2 * size, activation="relu", flatten=False)
        self.update = nn.Dense(size, in_units=2 * size, activation="tanh", flatten=False)

    def hybrid_forward(self, F, states, source, target):
        ends = F.concat(F.take(states, source), F.take(states, target), dim=1)
        nodes = F.contrib.arange_like(states, axis=0)
        leads_to = F.broadcast_equal(F.expand_dims(target, axis=1), F.expand_dims(nodes, axis=0))
        received = F.dot(leads_to, self.message(ends), transpose_a=True)
        return self.update(F.concat(states, received, dim=1))


class Network(gluon.HybridBlock):
    def __init__(self, kinds, size):
        super().__init__()
        self.embedding = nn.Embedding(kinds, size)
        self.rounds = [Round(size) for _ in range(3)]
        for layer in self.rounds:
            self.register_child(layer)
        self.score = nn.Dense(2, in_units=size, flatten=False)

    def hybrid_forward(self, F, kinds, source, target):  # (nodes,), (edges,), (edges,) -> (1, 2)
        states = self.embedding(kinds)
        for layer in self.rounds:
            states = layer(states, source, target)
        return self.score(F.mean(states, axis=0, keepdims=True))


def graph(rng):  # a random tree; is its number of nodes even?
    count = rng.randint(5, 25)
    ends = np.array([(node, rng.randint(node)) for node in range(1, count)])
    source, target = np.concatenate([ends, ends[:, ::-1]]).T
    arrays = [mx.nd.array(x) for x in (rng.randint(0, 12, count), source, target)]
    return tuple(arrays), mx.nd.array([count % 2])


samples = [graph(np.random.RandomState(seed)) for seed in range(64)]
net, loss_fn = Network(kinds=12, size=16), gluon.loss.SoftmaxCrossEntropyLoss()
net.initialize(mx.init.Xavier())
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
for _ in range(10):
    with autograd.record(), gdb.batching() as batch:
        losses = [loss_fn(net(*inputs), label) for inputs, label in samples]
    autograd.backward(losses)
    trainer.step(len(losses))
print(batch.report)
