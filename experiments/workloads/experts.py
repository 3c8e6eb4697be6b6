"""A mixture of experts: each sample runs two of many equal layers, and mixes what they say.

Shazeer et al. 2017 (arXiv:1701.06538). Which experts a sample runs is given (here drawn), as in
Suarez, Zhu 2017, so that a minibatch calls most of them with a few rows each.
"""

from __future__ import annotations

from typing import Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

from .base import Sample, Workload, labelling

CHOSEN, CLASSES, SAMPLES = 2, 4, 4096


class Experts(gluon.Block):
    """Scores of all classes for one input."""

    def __init__(self, experts: int, embedding_size: int = 64, hidden_size: int = 64) -> None:
        super().__init__()
        with self.name_scope():
            self.share = nn.Dense(CHOSEN, in_units=embedding_size)
            self.experts = nn.HybridSequential()
            for _ in range(experts):
                self.experts.add(nn.Dense(hidden_size, in_units=embedding_size, activation="relu"))
            self.score = nn.Dense(CLASSES, in_units=hidden_size)

    def forward(self, x: mx.nd.NDArray, experts: Tuple[int, ...]) -> mx.nd.NDArray:
        """Map an input, shape (1, embedding_size), to scores, shape (1, CLASSES)."""
        shares = mx.nd.softmax(self.share(x))  # (1, CHOSEN)
        said = [shares[:, i : i + 1] * self.experts[number](x) for i, number in enumerate(experts)]
        return self.score(mx.nd.add_n(*said))


def mixture(experts: int, limit: Optional[int] = None, seed: int = 1, **sizes: int) -> Workload:
    """Put so many experts on random inputs, whose label is their largest value of the first few."""
    model = Experts(experts, **sizes)
    rng = np.random.RandomState(seed)
    size = model.share.weight.shape[1]
    samples = []
    for _ in range(limit or SAMPLES):
        x = rng.normal(size=size)
        chosen = tuple(rng.choice(experts, CHOSEN, replace=False).tolist())
        label = mx.nd.array([x[:CLASSES].argmax()])
        samples.append(Sample((mx.nd.array([x]), chosen), label))
    title = f"mixture of {experts} experts, random inputs"
    return labelling(f"experts{experts}", title, "inputs", samples, model)
