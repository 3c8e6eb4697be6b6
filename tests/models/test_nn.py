"""Layers of gluon.nn and gluon.contrib.nn."""

from __future__ import annotations

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import contrib, nn

import gluon_dynbatch as gdb
from gluon_dynbatch.scope import GRANULARITIES
from tests.cells import inputs
from tests.models.common import LENGTHS, WIDTH, arrays, check, ragged, ready

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


CHANNELS, HEIGHT, WIDE, DEEP = 2, 7, 6, 5


def image(axes):
    """Shapes of images with different numbers of rows, and one of another size."""
    size = (HEIGHT, WIDE, DEEP)[:axes]
    return [(n, CHANNELS, *size) for n in (1, 3, 2)] + [(1, CHANNELS, *(k - 1 for k in size))]


def several(kind, *layers):
    net = kind()
    net.add(*layers)
    return net


VECTORS = [(n, WIDTH) for n in LENGTHS]
#: By class: how to make it, and the shapes of the samples.
LAYERS = {
    "Activation": (lambda: nn.Activation("tanh"), VECTORS),
    "Dense": (lambda: nn.Dense(3), VECTORS),
    "Dropout": (lambda: nn.Dropout(0.0), VECTORS),
    "ELU": (nn.ELU, VECTORS),
    "Flatten": (nn.Flatten, image(2)[:3]),
    "GELU": (nn.GELU, VECTORS),
    "GroupNorm": (lambda: nn.GroupNorm(2), [(n, 4, 3) for n in LENGTHS]),
    "HybridLambda": (lambda: nn.HybridLambda("tanh"), VECTORS),
    "HybridSequential": (lambda: several(nn.HybridSequential, nn.Dense(3)), VECTORS),
    "InstanceNorm": (nn.InstanceNorm, image(2)[:3]),
    "LayerNorm": (nn.LayerNorm, VECTORS),
    "LeakyReLU": (lambda: nn.LeakyReLU(0.1), VECTORS),
    "PReLU": (nn.PReLU, VECTORS),
    "ReflectionPad2D": (lambda: nn.ReflectionPad2D(1), image(2)[:3]),
    "SELU": (nn.SELU, VECTORS),
    "Swish": (nn.Swish, VECTORS),
    "HybridConcurrent": (
        lambda: several(
            lambda: contrib.nn.HybridConcurrent(axis=1),
            nn.Dense(2),
            contrib.nn.Identity(),
            nn.Dense(3),
        ),
        VECTORS,
    ),
    # Alone, stock Gluon would give it no gradient at all.
    "Identity": (lambda: several(nn.HybridSequential, contrib.nn.Identity(), nn.Dense(3)), VECTORS),
    "PixelShuffle1D": (lambda: contrib.nn.PixelShuffle1D(2), [(n, 4, 3) for n in LENGTHS]),
    "PixelShuffle2D": (lambda: contrib.nn.PixelShuffle2D((2, 1)), [(n, 4, 3, 2) for n in LENGTHS]),
    "PixelShuffle3D": (
        lambda: contrib.nn.PixelShuffle3D((2, 1, 2)),
        [(n, 4, 2, 3, 2) for n in LENGTHS],
    ),
}


@pytest.mark.parametrize("converted", [True, False], ids=["converted", "stock"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, converted):
    """Samples with different numbers of rows run in one launch."""
    make, shapes = LAYERS[name]
    net = ready(make(), converted)
    samples = arrays(*shapes)
    net(samples[0])
    check(net, samples, net, launches=1)


SPATIAL = {
    "Conv": lambda axes: getattr(nn, f"Conv{axes}D")(3, 3, strides=2, padding=1),
    "Conv, dilated groups": lambda axes: getattr(nn, f"Conv{axes}D")(
        4, 2, dilation=2, groups=2, use_bias=False, activation="relu"
    ),
    "MaxPool": lambda axes: getattr(nn, f"MaxPool{axes}D")(2, ceil_mode=True),
    "AvgPool": lambda axes: getattr(nn, f"AvgPool{axes}D")(2, padding=1, count_include_pad=False),
    "GlobalMaxPool": lambda axes: getattr(nn, f"GlobalMaxPool{axes}D")(),
    "GlobalAvgPool": lambda axes: getattr(nn, f"GlobalAvgPool{axes}D")(),
}


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", SPATIAL)
def test_spatial_layers(name, axes):
    """One launch for each size."""
    net = ready(SPATIAL[name](axes))
    samples = arrays(*image(axes))
    net(samples[0])
    check(net, samples, net, launches=2)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_transposed_convolutions(axes, granularity):
    """Against samples that go backward one by one.

    MXNet's own loop fails as soon as two of them share the backward pass, "could not execute a
    primitive": oneDNN cannot add up the gradients of a deconvolution's weights.
    """
    kind = getattr(nn, f"Conv{axes}DTranspose")
    net = ready(kind(3, 2, strides=2, padding=1, output_padding=1, in_channels=CHANNELS))
    samples, parameters = arrays(*image(axes)), list(net.collect_params().values())
    wanted, wanted_gradients = [], [0] * len(parameters)
    for x in samples:
        with autograd.record():
            wanted.append(net(x))
        wanted[-1].backward(wanted[-1])
        wanted_gradients.append(x.grad.asnumpy())
        for i, parameter in enumerate(parameters):
            wanted_gradients[i] = wanted_gradients[i] + parameter.grad().asnumpy()
    with autograd.record(), gdb.batching(granularity=granularity, analysis_budget=None) as batch:
        got = [net(x) for x in samples]
    autograd.backward(got, wanted)
    got_gradients = [p.grad() for p in parameters] + [x.grad for x in samples]
    assert batch.report.launches == 2 and batch.report.alone == []
    for a, b in zip(wanted + wanted_gradients, got + got_gradients):
        a = a.asnumpy() if isinstance(a, mx.nd.NDArray) else a
        np.testing.assert_allclose(b.asnumpy(), a, 1e-4, 1e-5)


class Through(nn.Block):
    """A dense layer in front of plain blocks, so that these get lazy arrays."""

    def __init__(self, *rest):
        super().__init__()
        self.first = nn.Dense(WIDTH)
        self.rest = nn.Sequential()
        self.rest.add(*rest)

    def forward(self, x):
        return self.rest(self.first(x))


PLAIN = {
    "Sequential": lambda: several(nn.Sequential, nn.Dense(3), nn.Lambda("tanh")),
    "Lambda": lambda: nn.Lambda(lambda x: (x * 2).tanh()),
    "Concurrent": lambda: several(
        lambda: contrib.nn.Concurrent(axis=1), nn.Dense(2), nn.Lambda("sigmoid")
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_blocks(name):
    """They are entered; what they call is recorded."""
    net = ready(Through(PLAIN[name]()))
    samples = arrays(*VECTORS)
    net(samples[0])
    batch = check(net, samples, net)
    assert batch.report.alone == [] and batch.report.nodes == len(samples) * batch.report.launches


def test_every_layer_is_tested():
    """Embedding and normalisation have tests of their own; the rest names its reason."""
    elsewhere = {"Embedding", "BatchNorm", "SyncBatchNorm", "SparseEmbedding", "ReflectionPad2D"}
    without_kernel = {"BatchNormReLU"}  # MXNet: "only supports MKL-DNN Backend"
    spatial = {f"{name.split(',')[0]}{axes}D" for name in SPATIAL for axes in (1, 2, 3)}
    transposed = {f"Conv{axes}DTranspose" for axes in (1, 2, 3)}
    tested = set(LAYERS) | set(PLAIN) | spatial | transposed | elsewhere | without_kernel
    names = {*nn.basic_layers.__all__, *nn.conv_layers.__all__, *nn.activations.__all__}
    assert names | set(contrib.nn.__all__) == tested


def test_a_sparse_table_runs_at_once():
    """It is a plain block that calls an operator, and nothing before it is recorded."""
    net = contrib.nn.SparseEmbedding(9, WIDTH)
    net.initialize()
    gluon.Trainer(net.collect_params(), "sgd")
    words = [mx.nd.array(np.arange(n)) for n in (2, 3)]
    found = []
    for scope in (nullcontext(), gdb.batching()):
        with autograd.record(), scope:
            outputs = [net(x) for x in words]
        autograd.backward(outputs)
        found.append([*outputs, net.weight.list_grad()[0]])
    for a, b in zip(*found):
        np.testing.assert_array_equal(b.asnumpy(), a.asnumpy())
    assert scope.report.nodes == 0


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_dropout_draws_for_each_sample(granularity):
    """Merged, and every sample gets its own mask, which is that of its gradient too."""
    net = ready(nn.Dropout(0.5))
    samples = [mx.nd.ones((n, 64)) for n in LENGTHS]
    for x in samples:
        x.attach_grad()
    with autograd.record(), gdb.batching(granularity=granularity) as batch:
        outputs = [net(x) for x in samples]
    autograd.backward(outputs)
    masks = np.concatenate([y.asnumpy() for y in outputs])
    assert batch.report.launches == 1 and set(np.unique(masks)) == {0, 2}
    assert len({row.tobytes() for row in masks}) == sum(LENGTHS)
    for x, y in zip(samples, outputs):
        np.testing.assert_array_equal(x.grad.asnumpy(), y.asnumpy())


def test_shapes_may_be_left_open_until_the_scope():
    """The first call of all is a recorded one."""
    net = several(nn.HybridSequential, nn.Dense(5), nn.LayerNorm(), nn.Dense(2))
    ready(net)
    samples = ragged()
    with gdb.batching() as batch:
        got = [net(x) for x in samples]
    assert batch.report.nodes == len(samples)
    for x, y in zip(samples, got):
        np.testing.assert_allclose(y.asnumpy(), net(x).asnumpy(), 1e-4, 1e-5)


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

    class Pairs(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, WIDTH)

        def hybrid_forward(self, F, words):
            rows = self.table(F.reshape(words * 1, (-1, 2))).mean(axis=1)
            return F.broadcast_add(rows, words.mean())

    net = ready(Pairs(), converted)
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
