"""Losses of gluon.loss."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.models.common import WIDTH, check, ready
from tests.test_launches import inputs

LOSSES = {
    "L2": (gluon.loss.L2Loss(), "like"),
    "L1": (gluon.loss.L1Loss(), "like"),
    "Huber": (gluon.loss.HuberLoss(), "like"),
    "SigmoidBCE": (gluon.loss.SigmoidBCELoss(), "binary"),
    "SoftmaxCE": (gluon.loss.SoftmaxCELoss(), "class"),
    "SoftmaxCE, dense labels": (gluon.loss.SoftmaxCELoss(sparse_label=False), "binary"),
    "KLDiv": (gluon.loss.KLDivLoss(from_logits=False), "distribution"),
    "Hinge": (gluon.loss.HingeLoss(), "sign"),
    "Logistic": (gluon.loss.LogisticLoss(), "sign"),
    "CosineEmbedding": (gluon.loss.CosineEmbeddingLoss(), "pair"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    loss, kind = LOSSES[name]
    gdb.convert(loss)
    loss.hybridize()
    net = ready(nn.Dense(3, in_units=WIDTH))
    random = np.random.RandomState(4)
    labels = {
        "like": lambda: random.uniform(-1, 1, (1, 3)),
        "binary": lambda: random.randint(0, 2, (1, 3)),
        "class": lambda: random.randint(0, 3, (1,)),
        "distribution": lambda: np.array([[0.2, 0.5, 0.3]]),
        "sign": lambda: random.choice([-1, 1], (1, 3)),
        "pair": lambda: random.choice([-1, 1], (1,)),
    }
    samples = [(x, mx.nd.array(labels[kind]())) for x in inputs(5)]

    def fn(sample):
        x, label = sample
        made = net(x)
        return loss(made, net(x * 2), label) if kind == "pair" else loss(made, label)

    batch = check(fn, samples, net)
    assert batch.report.alone == [] and batch.report.launches < len(samples)
