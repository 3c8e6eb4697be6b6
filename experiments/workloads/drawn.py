"""Models on random inputs; the label is the argmax of an input's first few elements.

- A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): each sample runs two of many equal
  layers, and adds up their weighted results. The experts of a sample are an input (here random), as
  in Suarez, Zhu 2017, so that a minibatch calls most of them with a few rows each.
- Adaptive computation time (Graves 2016, arXiv:1603.08983): a cell runs on the same input until the
  sum of its halting scores reaches the sample's threshold. Each step depends on the value of the
  step before, so that no two calls can run together.
"""

import mxnet as mx
import numpy as np
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb

from .base import Sample, labelling

CHOSEN, CLASSES = 2, 4
THRESHOLDS, MAX_STEPS = (0.5, 2.0), 6


class Experts(gdb.DynamicHybridBlock):
    """Scores of all classes for one input."""

    def __init__(self, experts, embedding_size=64, hidden_size=64):
        super().__init__()
        self.share = nn.Dense(CHOSEN, in_units=embedding_size)
        self.experts = [nn.Dense(hidden_size, in_units=embedding_size, activation="relu")
                        for _ in range(experts)]  # fmt: skip
        for expert in self.experts:  # indexing a Sequential lists all its children
            self.register_child(expert)
        self.score = nn.Dense(CLASSES, in_units=hidden_size)

    def forward(self, x, experts):
        """Map an input, shape (1, embedding_size), to scores, shape (1, CLASSES)."""
        shares = mx.nd.softmax(self.share(x))  # (1, CHOSEN)
        terms = [shares[:, i : i + 1] * self.experts[number](x) for i, number in enumerate(experts)]
        return self.score(mx.nd.add_n(*terms))


class Ponderer(nn.Block):
    """Scores of all classes for one input."""

    def __init__(self, embedding_size=32, hidden_size=64):
        super().__init__()
        self.cell = rnn.GRUCell(hidden_size, input_size=embedding_size)
        self.halt = nn.Dense(1, in_units=hidden_size, activation="sigmoid")
        self.score = nn.Dense(CLASSES, in_units=hidden_size)

    def forward(self, x, threshold):
        """Map an input, shape (1, embedding_size), to scores, shape (1, CLASSES)."""
        states = self.cell.begin_state(batch_size=1)
        terms, total = [], 0.0
        while total < threshold and len(terms) < MAX_STEPS:
            h, states = self.cell(x, states)
            share = self.halt(h)  # (1, 1)
            total += share.asscalar()
            terms.append(share * h)
        return self.score(mx.nd.add_n(*terms))


def _workload(name, title, model, size, limit, seed, draw):
    """Make a workload on random inputs of this size; `draw` gives each sample's second input."""
    rng, samples = np.random.RandomState(seed), []
    for _ in range(limit):
        x, second = rng.normal(size=size), draw(rng)
        samples.append(Sample((mx.nd.array([x]), second), mx.nd.array([x[:CLASSES].argmax()])))
    return labelling(name, title, "inputs", samples, model)


def mixture(name, limit=None, seed=1, **sizes):
    """Make a mixture of experts; its name ends with their number."""
    experts = int(name[len("experts") :])
    model, title = Experts(experts, **sizes), f"mixture of {experts} experts"
    size = model.share.weight.shape[1]

    def draw(rng):
        return tuple(rng.choice(experts, CHOSEN, replace=False).tolist())

    workload = _workload(name, title, model, size, limit or 4096, seed, draw)
    for expert in model.experts:  # Gluon compiles each in its first call, which is not timed
        expert(workload.samples[0].inputs[0])
    return workload


def pondering(limit=None, seed=1, **sizes):
    """Make a network with adaptive computation time."""
    model = Ponderer(**sizes)
    return _workload("reads", "adaptive computation", model, model.cell._input_size, limit or 1024,
                     seed, lambda rng: rng.uniform(*THRESHOLDS))  # fmt: skip
