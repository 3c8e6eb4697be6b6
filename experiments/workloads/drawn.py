"""Models on random inputs, whose label is their largest value of the first few.

- A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): each sample runs two of many equal
  layers, and mixes what they say. Which ones is given (here drawn), as in Suarez, Zhu 2017, so that
  a minibatch calls most of them with a few rows each.
- A network that thinks until it is sure, adaptive computation time (Graves 2016, arXiv:1603.08983):
  a cell runs on the same input until its halting scores add up to the sample's patience. What runs
  next depends on values just computed, so that no two calls can ever run together.
"""

import mxnet as mx
import numpy as np
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb

from .base import Sample, labelling

CHOSEN, CLASSES = 2, 4
PATIENCE, MOST_STEPS = (0.5, 2.0), 6


class Experts(gdb.DynamicHybridBlock):
    """Scores of all classes for one input."""

    def __init__(self, experts, embedding_size=64, hidden_size=64):
        super().__init__()
        self.share = nn.Dense(CHOSEN, in_units=embedding_size)
        self.experts = [nn.Dense(hidden_size, in_units=embedding_size, activation="relu")
                        for _ in range(experts)]  # fmt: skip
        for expert in self.experts:  # a Sequential makes a list of all to find one
            self.register_child(expert)
        self.score = nn.Dense(CLASSES, in_units=hidden_size)

    def forward(self, x, experts):
        """Map an input, shape (1, embedding_size), to scores, shape (1, CLASSES)."""
        shares = mx.nd.softmax(self.share(x))  # (1, CHOSEN)
        said = [shares[:, i : i + 1] * self.experts[number](x) for i, number in enumerate(experts)]
        return self.score(mx.nd.add_n(*said))


class Ponderer(nn.Block):
    """Scores of all classes for one input."""

    def __init__(self, embedding_size=32, hidden_size=64):
        super().__init__()
        self.cell = rnn.GRUCell(hidden_size, input_size=embedding_size)
        self.halt = nn.Dense(1, in_units=hidden_size, activation="sigmoid")
        self.score = nn.Dense(CLASSES, in_units=hidden_size)

    def forward(self, x, patience):
        """Map an input, shape (1, embedding_size), to scores, shape (1, CLASSES)."""
        return self.score(mx.nd.add_n(*self.think(x, patience)))

    def think(self, x, patience):
        """Return what each step adds to the final state, shape (1, hidden_size) each."""
        states = self.cell.begin_state(batch_size=1)
        thoughts, total = [], 0.0
        while total < patience and len(thoughts) < MOST_STEPS:
            h, states = self.cell(x, states)
            share = self.halt(h)  # (1, 1)
            total += share.asscalar()
            thoughts.append(share * h)
        return thoughts


def _workload(name, title, model, size, limit, seed, draw):
    """Put a model on random inputs of this size, with what else a sample has."""
    rng, samples = np.random.RandomState(seed), []
    for _ in range(limit):
        x, drawn = rng.normal(size=size), draw(rng)
        samples.append(Sample((mx.nd.array([x]), drawn), mx.nd.array([x[:CLASSES].argmax()])))
    return labelling(name, title, "inputs", samples, model)


def mixture(name, limit=None, seed=1, **sizes):
    """Make a mixture of experts; the figures at the end of its name say how many."""
    experts = int(name[len("experts") :])
    model, title = Experts(experts, **sizes), f"mixture of {experts} experts"
    made = _workload(name, title, model, model.share.weight.shape[1], limit or 4096, seed,
                     lambda rng: tuple(rng.choice(experts, CHOSEN, False).tolist()))  # fmt: skip
    for expert in model.experts:  # Gluon compiles each when it is first called: in no turn
        expert(made.samples[0].inputs[0])
    return made


def pondering(limit=None, seed=1, **sizes):
    """Make a network that thinks until it is sure."""
    model = Ponderer(**sizes)
    return _workload("reads", "adaptive computation", model, model.cell._input_size, limit or 1024,
                     seed, lambda rng: rng.uniform(*PATIENCE))  # fmt: skip
