"""Losses of gluon.loss."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import loss, nn

import gluon_dynbatch as gdb
from tests.cells import WIDTH
from tests.common import arrays, check, prepared

CLASSES = 3
RANDOM = np.random.RandomState(4)
#: What a loss takes beside the prediction, by kind; each of one row.
LABELS = {
    "like": lambda: RANDOM.uniform(0, 1, (1, CLASSES)),
    "binary": lambda: RANDOM.randint(0, 2, (1, CLASSES)),
    "class": lambda: RANDOM.randint(0, CLASSES, (1,)),
    "distribution": lambda: np.array([[0.2, 0.5, 0.3]]),
    "sign": lambda: RANDOM.choice([-1, 1], (1, CLASSES)),
    "pair": lambda: RANDOM.choice([-1, 1], (1,)),
    "weight": lambda: RANDOM.uniform(0, 1, (1, 1)),
}
#: By class and case: a loss, and what it takes.
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


def converted(made):
    gdb.convert(made)
    made.hybridize()
    return made


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    """One launch for the predictions and one for the losses, where these are two calls."""
    make, kinds = LOSSES[name]
    measure = converted(make())
    net = prepared(nn.Dense(CLASSES, in_units=WIDTH))
    samples = [
        (x, *(mx.nd.array(LABELS[kind]()) for kind in kinds.split()))
        for x in arrays(*[(1, WIDTH)] * 5)
    ]
    batch = check(lambda sample: measure(net(sample[0]), *sample[1:]), samples, net)
    assert batch.report.alone == [] and batch.report.launches == 2


@pytest.mark.parametrize("lengths", [False, True], ids=["all", "lengths"])
@pytest.mark.parametrize("layout", ["NTC", "TNC"])
def test_ctc(layout, lengths):
    measure = converted(loss.CTCLoss(layout=layout))
    net = prepared(nn.Dense(CLASSES + 2, in_units=WIDTH, flatten=False))
    label = np.array([[1, 2, -1]])

    def fn(x):
        made = net(x) if layout == "NTC" else net(x).swapaxes(0, 1)
        sizes = [mx.nd.array([x.shape[1]]), mx.nd.array([2])] if lengths else []
        return measure(made, mx.nd.array(label), *sizes)

    batch = check(fn, arrays((1, 5, WIDTH), (1, 6, WIDTH), (1, 5, WIDTH)), net)
    assert batch.report.alone == [] and batch.report.launches < batch.report.nodes


def test_a_loss_that_gluon_cannot_hybridize():
    """It looks at shapes: run as Python, operator by operator."""
    measure = gdb.convert(loss.SDMLLoss())
    net = prepared(nn.Dense(CLASSES, in_units=WIDTH))
    samples = arrays((3, WIDTH), (3, WIDTH), (2, WIDTH))
    batch = check(lambda x: measure(net(x), net(x * 2)), samples, net)
    assert batch.report.alone == [] and batch.report.launches < batch.report.nodes
    measure.hybridize()
    with pytest.raises(gdb.CellError, match="cannot be traced with symbols"), gdb.batching():
        measure(net(samples[0]), net(samples[1]))


def test_every_loss_is_tested():
    same = {"SigmoidBinaryCrossEntropyLoss", "SoftmaxCrossEntropyLoss", "Loss"}
    tested = {name.split(",")[0] for name in LOSSES} | {"CTCLoss", "SDMLLoss"} | same
    assert set(loss.__all__) == tested
