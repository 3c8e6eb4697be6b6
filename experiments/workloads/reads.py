"""A network that thinks until it is sure: each value is read before the next step is begun.

Adaptive computation time (Graves 2016, arXiv:1603.08983): a cell runs on the same input until its
halting scores add up to the sample's patience. What runs next depends on values just computed, so
that no two calls can ever run together.
"""

from __future__ import annotations

from typing import List, Optional

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn, rnn

from .base import Sample, Workload, labelling

CLASSES = 4
PATIENCE = (0.5, 2.0)
MOST_STEPS = 6


class Ponderer(gluon.Block):
    """Scores of all classes for one input."""

    def __init__(self, embedding_size: int = 32, hidden_size: int = 64) -> None:
        super().__init__()
        with self.name_scope():
            self.cell = rnn.GRUCell(hidden_size, input_size=embedding_size)
            self.halt = nn.Dense(1, in_units=hidden_size, activation="sigmoid")
            self.score = nn.Dense(CLASSES, in_units=hidden_size)

    def forward(self, x: mx.nd.NDArray, patience: float) -> mx.nd.NDArray:
        """Map an input, shape (1, embedding_size), to scores, shape (1, CLASSES)."""
        return self.score(mx.nd.add_n(*self.think(x, patience)))

    def think(self, x: mx.nd.NDArray, patience: float) -> List[mx.nd.NDArray]:
        """Return what each step adds to the final state, shape (1, hidden_size) each."""
        states = self.cell.begin_state(batch_size=1)
        thoughts: List[mx.nd.NDArray] = []
        total = 0.0
        while total < patience and len(thoughts) < MOST_STEPS:
            h, states = self.cell(x, states)
            share = self.halt(h)  # (1, 1)
            total += share.asscalar()
            thoughts.append(share * h)
        return thoughts


def pondering(limit: Optional[int] = None, seed: int = 1, **sizes: int) -> Workload:
    """Put the model on random inputs, whose label is their largest value of the first few."""
    model = Ponderer(**sizes)
    rng = np.random.RandomState(seed)
    samples = []
    for _ in range(limit or 1024):
        x = rng.normal(size=model.cell._input_size)
        label = mx.nd.array([x[:CLASSES].argmax()])
        samples.append(Sample((mx.nd.array([x]), rng.uniform(*PATIENCE)), label))
    return labelling("reads", "adaptive computation, random inputs", "inputs", samples, model)
