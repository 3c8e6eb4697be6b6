"""Convolutional nets on images of different sizes."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import contrib, model_zoo

import gluon_dynbatch as gdb
from tests.common import arrays, check, prepared

#: By name in the zoo: more options, and heights and widths of the images.
ZOO = {
    "squeezenet1.1": ({}, [(224, 224), (224, 224)]),
    "mobilenet0.25": ({}, [(32, 32), (32, 64), (32, 32)]),
    "mobilenetv2_0.25": ({}, [(32, 32), (32, 64), (32, 32)]),
    "resnet18_v1": ({"thumbnail": True}, [(16, 16), (16, 24), (16, 16)]),
    "resnet18_v2": ({"thumbnail": True}, [(16, 16), (16, 24), (16, 16)]),
}


def from_zoo(name):
    options, sizes = ZOO[name]
    net = gdb.convert(model_zoo.vision.get_model(name, classes=3, **options))
    mx.random.seed(5)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    samples = arrays(*[(1, 3, *size) for size in sizes])
    net(samples[0])
    return net, samples, len(set(sizes))


@pytest.mark.parametrize("name", ZOO)
def test_model_zoo_in_prediction(name):
    """One launch for each size of image."""
    net, samples, sizes = from_zoo(name)
    wanted = [net(x).asnumpy() for x in samples]
    with gdb.batching(granularity="block", analysis_budget=None) as batch:
        got = [net(x) for x in samples]
    assert batch.report.alone == [] and batch.report.launches == sizes
    for a, b in zip(wanted, got):
        np.testing.assert_allclose(b.asnumpy(), a, 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("name", "granularity"), [("mobilenet0.25", "block"), ("mobilenet0.25", "operator")]
)
def test_model_zoo_in_training(name, granularity):
    """Normalisation sees one sample; cut into pieces, what lies in between still merges.

    In double precision: normalising few values magnifies rounding, layer by layer.
    """
    net, samples, sizes = from_zoo(name)
    net.cast("float64")
    samples = arrays(*[x.shape for x in samples], dtype="float64")
    options = {"granularity": granularity, "analysis_budget": None}
    batch = gdb.testing.check_against_loop(net, samples, net.collect_params().values(), **options)
    (alone,) = batch.report.alone
    assert alone.name == net.name and "BatchNorm in training mode" in alone.reason
    if granularity == "block":
        assert batch.report.launches == alone.calls == len(samples)
    else:
        merged = batch.report.launches - alone.calls
        (flush,) = batch.report.flushes
        assert flush.largest_width == 2 and merged > sizes


def test_deformable_convolution():
    net = prepared(contrib.cnn.DeformableConvolution(3, kernel_size=2))
    samples = arrays((1, 2, 5, 6), (2, 2, 5, 6), (1, 2, 5, 6))
    net(samples[0])
    check(net, samples, net, launches=1)
