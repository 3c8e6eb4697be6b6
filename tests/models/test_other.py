"""Losses, batch normalisation, and convolutional networks of Gluon."""

from itertools import permutations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import contrib, loss, model_zoo, nn

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, attached, equal
from tests.common import (
    ALL,
    SCOPES,
    arrays,
    check,
    leaves,
    loop_and_scope,
    prepared,
    ragged,
    several,
)

CLASSES = 3
RANDOM = np.random.RandomState(4)
#: Arguments of losses beside the prediction, by kind; each has one row.
LABELS = {
    "like": lambda: RANDOM.uniform(0, 1, (1, CLASSES)),
    "binary": lambda: RANDOM.randint(0, 2, (1, CLASSES)),
    "class": lambda: RANDOM.randint(0, CLASSES, (1,)),
    "distribution": lambda: np.array([[0.2, 0.5, 0.3]]),
    "sign": lambda: RANDOM.choice([-1, 1], (1, CLASSES)),
    "pair": lambda: RANDOM.choice([-1, 1], (1,)),
    "weight": lambda: RANDOM.uniform(0, 1, (1, 1)),
}
#: By name: a constructor, and the kinds of the arguments.
LOSSES = {
    "L2Loss": (lambda: loss.L2Loss(weight=0.5), "like"),
    "L2Loss, weighted": (loss.L2Loss, "like weight"),
    "L1Loss": (loss.L1Loss, "like"),
    "HuberLoss": (loss.HuberLoss, "like"),
    "SigmoidBCELoss": (loss.SigmoidBCELoss, "binary"),
    "SigmoidBCELoss, weighted": (loss.SigmoidBCELoss, "binary weight like"),
    "SoftmaxCELoss": (loss.SoftmaxCELoss, "class"),
    "SoftmaxCELoss, weighted": (loss.SoftmaxCELoss, "class weight"),
    "SoftmaxCELoss, dense": (lambda: loss.SoftmaxCELoss(sparse_label=False), "binary"),
    "KLDivLoss": (lambda: loss.KLDivLoss(from_logits=False), "distribution"),
    "KLDivLoss, log": (loss.KLDivLoss, "distribution"),
    "HingeLoss": (loss.HingeLoss, "sign"),
    "SquaredHingeLoss": (loss.SquaredHingeLoss, "sign"),
    "LogisticLoss": (loss.LogisticLoss, "sign"),
    "LogisticLoss, binary": (lambda: loss.LogisticLoss(label_format="binary"), "binary"),
    "TripletLoss": (loss.TripletLoss, "like like"),
    "PoissonNLLLoss": (loss.PoissonNLLLoss, "like"),
    "CosineEmbeddingLoss": (loss.CosineEmbeddingLoss, "like pair"),
}


@pytest.mark.parametrize("hybridized", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_the_loop(name, hybridized):
    """At "operator", the last granularity, predictions are one launch, and losses another."""
    make, kinds = LOSSES[name]
    loss_block = prepared(make(), convert=hybridized)
    loss_block.hybridize(hybridized)
    net = prepared(nn.Dense(CLASSES, in_units=WIDTH))
    samples = [
        (x, *(mx.nd.array(LABELS[kind]()) for kind in kinds.split()))
        for x in arrays(*[(1, WIDTH)] * 5)
    ]
    batch = check(lambda sample: loss_block(net(sample[0]), *sample[1:]), samples, net)
    assert batch.report.alone == [] and batch.report.launches == 2


def batch_norm():
    dense = nn.Dense(3, in_units=WIDTH, flatten=False)
    return prepared(several(nn.HybridSequential, dense, nn.BatchNorm(in_channels=3)))


@ALL
def test_running_statistics_move_once_per_sample(granularity):
    """In any order of the samples; a read right after ``backward`` sees them moved."""
    net, xs = batch_norm(), [x.detach() for x in ragged(lengths=(2, 3, 2, 4))]
    with autograd.record(), gdb.batching(granularity=granularity, analysis_budget=None):
        outputs = [net(x) for x in xs]
    autograd.backward(outputs, [y * 2 for y in outputs])
    moved = net[1].running_mean.data().asnumpy()
    mx.nd.waitall()
    np.testing.assert_array_equal(moved, net[1].running_mean.data().asnumpy())
    means = [net[0](x).mean(axis=0).asnumpy() for x in xs]
    weights = [0.1 * 0.9**i for i in range(len(means))]
    ends = [sum(w * mean for w, mean in zip(weights, order)) for order in permutations(means)]
    assert any(np.allclose(moved, end, 1e-3, 1e-5) for end in ends)


@pytest.mark.parametrize("options", SCOPES)
@pytest.mark.parametrize("mixed", [True, False])
def test_predictions_beside_training_read_statistics_from_before(options, mixed):
    """In the loop, running statistics move in the backward pass, after all predictions."""
    net, xs = batch_norm(), [x.detach() for x in ragged(lengths=(2, 3, 2, 4))]

    def both(x):
        trained = net(x)
        with autograd.predict_mode():
            return trained, net(trained[:, :1] * mx.nd.ones((1, WIDTH)) if mixed else x)

    def run():
        pairs = [both(x) for x in xs]
        return pairs if mixed else [*pairs, *map(both, xs)]

    with autograd.record():
        wanted = leaves(run())
        with gdb.batching(**options):
            got = leaves(run())
    equal(got, wanted)


@ALL
def test_batch_norm_in_training_equals_the_loop(granularity):
    """Each call normalises its own sample, of rows after a layer or of images."""
    for make, shape in ((batch_norm, (WIDTH,)), (lambda: batch_norm()[1], (3, 3, 3))):
        net = make()
        options = {"granularity": granularity, "analysis_budget": None}
        samples = arrays(*[(n, *shape) for n in (2, 3, 2)])
        parameters = net.collect_params().values()
        batch = check_against_loop(net, samples, parameters, **options)
        assert sum(row.calls for row in batch.report.alone) == len(samples)
        assert all("BatchNorm" in row.reason for row in batch.report.alone)


def test_synchronised_batch_norm_runs_alone_and_one_with_global_statistics_merges():
    net, samples = contrib.nn.SyncBatchNorm(in_channels=WIDTH, num_devices=1), ragged()
    (alone,) = check(prepared(net), samples, net).report.alone
    assert "contrib.SyncBatchNorm can't be merged" in alone.reason
    assert alone.calls == len(samples)
    net = prepared(nn.BatchNorm(in_channels=WIDTH, use_global_stats=True))
    check(net, samples, net, launches=1)


#: By name in the model zoo: heights and widths of the images, and options.
ZOO = {
    "squeezenet1.1": ([(224, 224), (224, 224)], {}),
    "mobilenetv2_0.25": ([(32, 32), (32, 64), (32, 32)], {}),
    "resnet18_v2": ([(16, 16), (16, 24), (16, 16)], {"thumbnail": True}),
}


@pytest.mark.parametrize("name", ZOO)
def test_models_of_the_zoo_equal_the_loop_in_prediction(name):
    """One launch for each size of image."""
    sizes, options = ZOO[name]
    net = prepared(model_zoo.vision.get_model(name, classes=3, **options), scale=0.1)
    samples = arrays(*[(1, 3, *size) for size in sizes])
    wanted = [net(x) for x in samples]
    with gdb.batching(granularity="block", analysis_budget=None) as batch:
        got = [net(x) for x in samples]
    assert batch.report.alone == [] and batch.report.launches == len(set(sizes))
    equal(got, wanted, 1e-4, 1e-5)


#: Blocks of MXNet's operators with blocks inside, and keywords that only symbols take.
NAMED = {
    "cond": lambda F, x, w: F.contrib.cond(
        F.sum(x) > 0, lambda: x * w, lambda: x * 3 * w, name="choice"
    ),
    "foreach": lambda F, x, w: F.contrib.foreach(
        lambda row, states: (row * w + states[0], [states[0] + row * w]),
        F.reshape(x, (3, 1)), [F.zeros((1,))], name="loop",
    )[0],
    "while_loop": lambda F, x, w: F.contrib.while_loop(
        cond=lambda i, s: i < 3, func=lambda i, s: (s * w, [i + 1, s * w]),
        loop_vars=[F.zeros((1,)), x], max_iterations=5, name="loop",
    )[1][1],
    "operators": lambda F, x, w: F.contrib.cond(
        F.sum(x, name="sum", attr={"__note__": "1"}) > 0,
        lambda: F.relu(x, name="relu") * w, lambda: F.tanh(x, name="tanh") * w,
    ),
}  # fmt: skip


class Named(mx.gluon.HybridBlock):
    def __init__(self, fn, shape):
        super().__init__()
        self._fn = fn
        self.w = self.params.get("w", shape=shape, init=mx.init.Constant(0.5))

    def hybrid_forward(self, F, x, w):
        return self._fn(F, x, w)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_keywords_that_only_symbols_take_are_allowed_in_cells(name, lazy):
    net = Named(NAMED[name], (1,) if name == "foreach" else (3,))
    net.initialize()
    net.hybridize()
    xs = attached([mx.nd.array(x) for x in np.random.uniform(-1, 1, (4, 3))])
    for convert in (False, True):
        if convert:
            gdb.convert(net)
        check(
            lambda x: net(x * 1 + mx.nd.zeros((3,)) if lazy else x),
            xs,
            net,
            granularities=["block"],
        )


CONTROL_FLOW = {
    "foreach": lambda F, x, **name: F.contrib.foreach(
        lambda a, s: (a * s, a + s), x, x.sum(axis=0), **name
    ),
    "while_loop": lambda F, x, **name: F.contrib.while_loop(
        lambda s: s.sum() < 1e9, lambda s: (s * 2, s + 1), [x], max_iterations=3, **name
    ),
    "cond": lambda F, x, **name: F.contrib.cond(x.sum() > 0, lambda: x * 2, lambda: x * 3, **name),
}


@pytest.mark.parametrize("given", [{}, {"name": "mine"}], ids=["no name", "name"])
@pytest.mark.parametrize("kind", CONTROL_FLOW)
def test_control_flow_may_have_a_name(kind, given):
    """Only its form for symbols takes one; a hybridized block runs as Python code in a scope."""

    class Flow(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return CONTROL_FLOW[kind](F, x, **given)

    net = Flow()
    net.hybridize()
    xs = arrays((2, 3), (2, 3))

    def run(scope):
        with scope:
            results = [net(x * 2) for x in xs]
        return leaves(results)

    loop_and_scope(run)
