"""Layers of gluon.nn and gluon.contrib.nn."""

from functools import partial

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import contrib, nn

from tests.cells import WIDTH, cell
from tests.common import ALL, LENGTHS, arrays, check, loop_and_scope, prepared, several


def images(axes):
    """Return shapes of minibatches of images of two sizes, with two channels."""
    size = (7, 6, 5)[:axes]
    return [(n, 2, *size) for n in (1, 3, 2)] + [(1, 2, *(k - 1 for k in size))]


VECTORS = [(n, WIDTH) for n in LENGTHS]


def rows(*shape):
    return [(n, *shape) for n in LENGTHS]


#: By class: a constructor, and the shapes of the samples.
LAYERS = {
    **{kind.__name__: (kind, VECTORS)
       for kind in (nn.ELU, nn.GELU, nn.LayerNorm, nn.PReLU, nn.SELU, nn.Swish)},
    "Activation": (lambda: nn.Activation("tanh"), VECTORS),
    "Dense": (lambda: nn.Dense(3), VECTORS),
    "Dense, flattened": (lambda: nn.Dense(3), rows(3, 2)),
    "Dense, not flattened": (lambda: nn.Dense(3, flatten=False), rows(3, 2)),
    "Dropout": (lambda: nn.Dropout(0.0), VECTORS),
    "Flatten": (nn.Flatten, images(2)[:3]),
    "GroupNorm": (lambda: nn.GroupNorm(2), rows(4, 3)),
    "HybridLambda": (lambda: nn.HybridLambda("tanh"), VECTORS),
    "HybridSequential": (
        lambda: several(nn.HybridSequential, nn.Dense(5), nn.LayerNorm(), nn.Flatten()), VECTORS,
    ),
    "InstanceNorm": (nn.InstanceNorm, images(2)[:3]),
    "LeakyReLU": (lambda: nn.LeakyReLU(0.1), VECTORS),
    "ReflectionPad2D": (lambda: nn.ReflectionPad2D(1), images(2)[:3]),
    "HybridConcurrent": (
        lambda: several(partial(contrib.nn.HybridConcurrent, axis=1), nn.Dense(2), nn.Dense(3)),
        VECTORS,
    ),
    # By itself, it would get no gradient in stock Gluon.
    "Identity": (lambda: several(nn.HybridSequential, contrib.nn.Identity(), nn.Dense(3)), VECTORS),
    "PixelShuffle1D": (lambda: contrib.nn.PixelShuffle1D(2), rows(4, 3)),
    "PixelShuffle2D": (lambda: contrib.nn.PixelShuffle2D((2, 1)), rows(4, 3, 2)),
    "PixelShuffle3D": (lambda: contrib.nn.PixelShuffle3D((2, 1, 2)), rows(4, 2, 3, 2)),
}  # fmt: skip
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
#: Plain Blocks, whose parts are recorded: a constructor, and the number of calls.
PLAIN = {
    "Sequential": (lambda: several(nn.Sequential, nn.Dense(3), nn.Lambda("tanh")), 2),
    "Lambda": (lambda: several(nn.Sequential, nn.Dense(3), nn.Lambda(lambda x: (x * 2).tanh())), 3),
    "Concurrent": (
        lambda: several(partial(contrib.nn.Concurrent, axis=1), nn.Dense(2), nn.Lambda("sigmoid")),
        2,
    ),
}
CASES = {
    **{name: (make, VECTORS, True, calls) for name, (make, calls) in PLAIN.items()},
    **{f"{name}, {kind}": (make, shapes, kind == "converted", 1)
       for name, (make, shapes) in LAYERS.items() for kind in ("converted", "stock")},
    **{f"{axes}-D {name}": (partial(make, axes), images(axes), True, 2)
       for name, make in SPATIAL.items() for axes in (1, 2, 3)},
    "DeformableConvolution": (lambda: contrib.cnn.DeformableConvolution(3, kernel_size=2),
                              [(1, 2, 5, 6), (2, 2, 5, 6), (1, 2, 5, 6)], True, 1),
}  # fmt: skip


@pytest.mark.parametrize("make, shapes, converted, launches", CASES.values(), ids=CASES)
def test_layers_equal_the_loop(make, shapes, converted, launches):
    """Samples with different numbers of rows share a launch, but images of different sizes do not.

    With native steps, they do.
    """
    net = prepared(make(), converted)
    samples = arrays(*shapes)
    net(samples[0])
    if isinstance(net, (nn.Conv1D, nn.Conv2D)) or "Global" in type(net).__name__:
        check(net, samples, net, launches=1, granularities=("block", "operator"))
        check(net, samples, net, launches=launches, granularities=("graph",))
    else:
        check(net, samples, net, launches=launches)


@pytest.mark.parametrize("make, shapes", LAYERS.values(), ids=LAYERS)
def test_stock_layers_that_are_not_hybridized_are_one_call_each(make, shapes):
    """Each is recorded as one call."""
    net, double = make(), cell(lambda F, x: x * 2)
    net.initialize()
    samples = arrays(*shapes)
    net(samples[0])
    batch = check(lambda x: net(double(x)), samples, net, granularities=["block"])
    assert batch.report.nodes == 2 * len(samples)


@ALL
def test_sparse_gradients_of_an_embedding_equal_the_loop(granularity):
    """Train for three steps; the gradient of the table has the rows that were read."""

    def run(scope):
        net = several(nn.HybridSequential, nn.Embedding(9, WIDTH, sparse_grad=True),
                      nn.Dense(3, in_units=WIDTH, flatten=False))  # fmt: skip
        trainer = gluon.Trainer(prepared(net).collect_params(), "sgd", {"learning_rate": 0.1})
        for step in range(3):
            with autograd.record(), scope:
                outputs = [net(mx.nd.array(np.arange(n + step))) for n in (2, 3, 2)]
            autograd.backward(outputs)
            gradient = net[0].weight.list_grad()[0]
            assert gradient.stype == "row_sparse"
            assert gradient.indices.asnumpy().tolist() == list(range(3 + step))
            trainer.step(3)
        return [p.data() for p in net.collect_params().values()]

    loop_and_scope(run, granularity=granularity)
