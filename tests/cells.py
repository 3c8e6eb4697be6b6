"""Cells whose calls tests count, programs over them, and how launches are counted."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop

WIDTH = 4


class Unary(gdb.DynamicHybridBlock):
    """One dense layer."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(WIDTH, in_units=WIDTH, activation="tanh")

    def hybrid_forward(self, F, x):
        return self.dense(x)


class Binary(gdb.DynamicHybridBlock):
    """Joins two values."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(WIDTH, in_units=2 * WIDTH, activation="tanh")

    def hybrid_forward(self, F, left, right):
        return self.dense(F.concat(left, right, dim=1))


class ChildSum(gdb.DynamicHybridBlock):
    """A child-sum Tree-LSTM (Tai, Socher, Manning 2015, arXiv:1503.00075), equations 2 to 8."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.input = nn.Dense(3 * WIDTH, in_units=WIDTH)
            self.hidden = nn.Dense(3 * WIDTH, in_units=WIDTH, use_bias=False)
            self.forget_input = nn.Dense(WIDTH, in_units=WIDTH)
            self.forget_hidden = nn.Dense(WIDTH, in_units=WIDTH, use_bias=False)

    def hybrid_forward(self, F, x, states, memories):
        gates = self.input(x)
        if states:
            gates = gates + self.hidden(F.add_n(*states))
        i, o, u = F.split(gates, num_outputs=3, axis=1)
        c = F.sigmoid(i) * F.tanh(u)
        if states:
            place = self.forget_input(x)
            c = c + F.add_n(
                *[F.sigmoid(place + self.forget_hidden(h)) * m for h, m in zip(states, memories)]
            )
        return F.sigmoid(o) * F.tanh(c), c


class Attention(gdb.DynamicHybridBlock):
    """One query over a memory of several rows."""

    def hybrid_forward(self, F, query, memory):
        return F.dot(F.softmax(F.dot(query, memory, transpose_b=True)), memory)


class TreeNet(gdb.DynamicHybridBlock):
    """A child-sum tree over word vectors: a node is a list of nodes."""

    def __init__(self, cell, **kwargs):
        super().__init__(**kwargs)
        self.cell = cell

    def forward(self, node, x):
        made = [self(child, x) for child in node]
        return self.cell(x, [h for h, _ in made], [m for _, m in made])


class Output(gdb.DynamicHybridBlock):
    """Its gradient ignores the head gradient, so unused samples would get one too."""

    def hybrid_forward(self, F, x):
        return F.SoftmaxOutput(F.tanh(x), F.argmax(x, axis=1))


def ready(block):
    mx.random.seed(1)
    block.initialize(mx.init.Uniform(0.7))
    block.hybridize()
    return block


def dense(**kwargs):
    """Make one dense layer of three units over four features, converted."""
    return ready(gdb.convert(nn.Dense(3, in_units=4, **kwargs)))


def inputs(count):
    random = np.random.RandomState(0)
    return [mx.nd.array(random.uniform(-1, 1, (1, WIDTH))) for _ in range(count)]


def chain(cells, x):
    for cell in cells:
        x = cell(x)
    return x


def tree(a, join, shape):
    """Run a binary tree: a leaf is an array, an inner node a pair."""
    if isinstance(shape, tuple):
        return join(tree(a, join, shape[0]), tree(a, join, shape[1]))
    return a(shape)


def complete(height, x):
    return x if not height else (complete(height - 1, x), complete(height - 1, x))


def widths(batch):
    return [len(launch.units) for launch in batch.plan.launches]


def launches(fn, samples, granularity, policy="depth", **options):
    """Run `fn` in a scope and return the number of launches, after comparing with the loop."""
    options.setdefault("analysis_budget", None)
    batch = check_against_loop(fn, samples, granularity=granularity, policy=policy, **options)
    assert batch.report.launches == len(batch.plan.launches) == batch.report.flushes[-1].launches
    assert sum(widths(batch)) == batch.plan.graph.dependencies.size
    return batch.report.launches
