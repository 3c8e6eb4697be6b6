"""Message passing on graphs of the size of molecules (Gilmer et al. 2017, arXiv:1704.01212).

Each layer gathers the states of both ends of every edge, computes a message, and adds up the
messages at the node that an edge leads to. `molecules` gathers by index, `molecules-onehot` by
products with one-hot rows, which grow with nodes times edges. Graphs are random: a tree, as bonds
of a molecule nearly are, with a few more edges; the label says whether their number is even.
"""

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb

from .base import Sample, labelling

KINDS, LAYERS, NODES, RINGS = 12, 3, (5, 25), 4


class Layer(gluon.HybridBlock):
    """New states of all nodes of a graph, shape (nodes, size)."""

    def __init__(self, size, onehot):
        super().__init__()
        self._onehot = onehot
        self.message = nn.Dense(size, in_units=2 * size, activation="relu", flatten=False)
        self.update = nn.Dense(size, in_units=2 * size, activation="tanh", flatten=False)

    def hybrid_forward(self, F, states, source, target):  # noqa: D102
        if self._onehot:
            ends = F.dot(source, states), F.dot(target, states)
            leads_to = target
        else:
            ends = F.take(states, source), F.take(states, target)
            nodes = F.expand_dims(F.contrib.arange_like(states, axis=0), axis=0)
            leads_to = F.broadcast_equal(F.expand_dims(target, axis=1), nodes)
        messages = self.message(F.concat(*ends, dim=1))
        total = F.dot(leads_to, messages, transpose_a=True)
        return self.update(F.concat(states, total, dim=1))


class Network(gdb.DynamicHybridBlock):
    """Scores of both classes for one graph."""

    def __init__(self, onehot, embedding_size=32, hidden_size=32):
        super().__init__()
        del embedding_size  # kinds of nodes are embedded in states
        self.embedding = nn.Embedding(KINDS, hidden_size)
        self.layers = nn.HybridSequential()
        self.layers.add(*(Layer(hidden_size, onehot) for _ in range(LAYERS)))
        self.score = nn.Dense(2, in_units=hidden_size)

    def forward(self, kinds, source, target):
        """Map nodes, shape (nodes,), and both ends of all edges to scores, shape (1, 2)."""
        states = self.embedding(kinds)
        for layer in self.layers:
            states = layer(states, source, target)
        return self.score(mx.nd.mean(states, axis=0, keepdims=True))


def _graph(rng):
    """Return the number of nodes and the edges of a graph, each in both directions."""
    count = rng.randint(*NODES)
    tree = [(node, rng.randint(node)) for node in range(1, count)]
    rings = [tuple(rng.choice(count, 2, replace=False)) for _ in range(rng.randint(RINGS))]
    edges = np.array(tree + rings)
    return count, np.concatenate([edges, edges[:, ::-1]]).T


def messages(name, limit=None, seed=1, **sizes):
    """Make a graph network, which gathers by index or by products with one-hot rows."""
    onehot = name == "molecules-onehot"
    rng, samples = np.random.RandomState(seed), []
    for _ in range(limit or 2048):
        count, ends = _graph(rng)
        kinds, label = rng.randint(0, KINDS, count), len(ends[0]) // 2 % 2
        arrays = [mx.nd.array(np.eye(count)[end] if onehot else end) for end in ends]
        samples.append(Sample((mx.nd.array(kinds), *arrays), mx.nd.array([label])))
    title = f"graph network{', products with one-hot rows' * onehot}"
    return labelling(name, title, "graphs", samples, Network(onehot, **sizes))
