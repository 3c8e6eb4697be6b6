"""Layers of gluon.nn and gluon.contrib.nn."""

from __future__ import annotations

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.batch import GRANULARITIES
from tests.models.common import LENGTHS, WIDTH, check, ragged, ready
from tests.test_launches import inputs

SEQUENTIAL = {
    "dense": lambda: [nn.Dense(3, in_units=WIDTH)],
    "two dense": lambda: [
        nn.Dense(5, in_units=WIDTH, activation="relu"),
        nn.Dense(2, in_units=5, flatten=False),
    ],
    "activations": lambda: [
        nn.Activation("softrelu"),
        nn.LeakyReLU(0.1),
        nn.ELU(),
        nn.SELU(),
        nn.GELU(),
        nn.Swish(),
    ],
    "prelu": lambda: [nn.PReLU()],
    "layer norm": lambda: [nn.LayerNorm(in_channels=WIDTH), nn.Dense(2, in_units=WIDTH)],
    "lambda": lambda: [nn.HybridLambda("tanh"), nn.HybridLambda(lambda F, x: F.square(x) + 1)],
    "flatten": lambda: [nn.Flatten(), nn.Dense(2, in_units=WIDTH)],
    "deferred shapes": lambda: [nn.Dense(5), nn.LayerNorm(), nn.Dense(2)],
}


@pytest.mark.parametrize("converted", [True, False], ids=["converted", "stock"])
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential(name, converted):
    """A sequence of layers is one call, one row or many; stock blocks are recorded as well."""
    net = nn.HybridSequential()
    net.add(*SEQUENTIAL[name]())
    ready(net, converted)
    net(mx.nd.ones((2, WIDTH)))
    batch = check(net, ragged(), net)
    assert batch.report.launches == 1 and batch.report.alone == []


def test_dense_keeps_or_flattens_axes():
    for flatten, units in ((True, 6), (False, 2)):
        net = ready(nn.Dense(3, in_units=units, flatten=flatten))
        samples = [mx.nd.random.uniform(shape=(n, 3, 2)) for n in (1, 4, 2)]
        assert check(net, samples, net).report.launches == 1


def test_embedding():
    net = ready(nn.Embedding(9, WIDTH))
    samples = [
        mx.nd.array(np.arange(n) % 9, dtype=dtype)
        for dtype in ("int32", "float32")
        for n in LENGTHS
    ]
    batch = check(net, samples, net)
    assert batch.report.launches == 2, "one launch for each dtype of indices"


@pytest.mark.parametrize("converted", [True, False], ids=["converted", "stock"])
def test_words_that_are_reshaped_before_they_are_embedded(converted):
    """Nothing on the way to an index gets a gradient, and MXNet fails if it is asked for one."""
    net = nn.HybridSequential()
    net.add(nn.HybridLambda(lambda F, x: F.reshape(x * 1, (-1, 2))), nn.Embedding(9, WIDTH))
    ready(net, converted)
    samples = [mx.nd.array(np.arange(2 * n) % 9) for n in LENGTHS]
    check(net, samples, net)


def train_sparse(scope):
    """Take three steps with a table whose gradient has the rows that were read."""
    net = nn.HybridSequential()
    net.add(nn.Embedding(9, WIDTH, sparse_grad=True), nn.Dense(3, in_units=WIDTH, flatten=False))
    ready(net)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    rows = []
    for step in range(3):
        samples = [mx.nd.array(np.arange(n + step)) for n in (2, 3, 2)]
        with autograd.record(), scope:
            outputs = [net(x) for x in samples]
        autograd.backward(outputs)
        gradient = net[0].weight.list_grad()[0]
        assert gradient.stype == "row_sparse"
        rows.append(gradient.indices.asnumpy().tolist())
        trainer.step(3)
    return rows, [p.data().asnumpy() for p in net.collect_params().values()]


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_sparse_gradients_of_an_embedding(granularity):
    rows, wanted = train_sparse(nullcontext())
    rows_too, got = train_sparse(gdb.batching(granularity=granularity))
    assert rows == rows_too == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    for a, b in zip(wanted, got):
        np.testing.assert_allclose(b, a, 1e-5, 1e-6)


def test_dropout_in_prediction_is_the_identity():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=WIDTH), nn.Dropout(0.9), nn.Dense(2, in_units=3))
    ready(net)
    wanted = [net(x).asnumpy() for x in inputs(4)]
    with gdb.batching() as batch:
        outputs = [net(x) for x in inputs(4)]
    assert batch.report.launches == 1
    np.testing.assert_allclose(
        np.concatenate([y.asnumpy() for y in outputs]), np.concatenate(wanted), 1e-5
    )
