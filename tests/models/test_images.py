"""Convolutional nets on images of different sizes."""

from __future__ import annotations

import mxnet as mx
from mxnet.gluon import nn

from tests.models.common import check, ready


def test_small_convolutional_net():
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(3, 3, in_channels=2, activation="relu"),
        nn.MaxPool2D(2),
        nn.Conv2D(4, 2, in_channels=3),
        nn.GlobalAvgPool2D(),
        nn.Flatten(),
        nn.Dense(2, in_units=4),
    )
    ready(net)
    samples = [mx.nd.random.uniform(-1, 1, (n, 2, 8, 8)) for n in (1, 2, 1)]
    samples += [mx.nd.random.uniform(-1, 1, (1, 2, 10, 8))]
    for x in samples:
        x.attach_grad()
    batch = check(net, samples, net)
    assert batch.report.alone == [] and batch.report.launches <= 4, (
        "images of one size run together"
    )
