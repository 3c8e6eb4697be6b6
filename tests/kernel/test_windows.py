"""Convolutions along one axis with kernels larger than their data, and pooling of whole maps."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests.cells import attached, ready
from tests.depth import examples

OPTIONS = {"granularity": "operator", "policy": "depth"}


def maps(shapes, dtype="float32"):
    """Return arrays on a line with few different values, so that maxima are equal."""
    draw = np.random.RandomState(len(shapes)).randint
    return attached([mx.nd.array(draw(-2, 3, shape), dtype=dtype) for shape in shapes])


def prepared(block, sample, dtype="float32"):
    block = ready(gdb.convert(block))
    block.cast(dtype)
    block(sample)
    block.hybridize()
    return block


@st.composite
def convolutions(draw):
    """Draw the attributes of a convolution, and lengths of data on which it has a result."""
    number = lambda low, high: draw(st.integers(low, high))  # noqa: E731
    attrs = {"kernel_size": number(1, 4), "strides": number(1, 3), "padding": number(0, 4)}
    attrs.update(dilation=number(1, 2), use_bias=draw(st.booleans()))
    reach = (attrs["kernel_size"] - 1) * attrs["dilation"] + 1
    shortest = max(1, reach - 2 * attrs["padding"])
    lengths = [shortest + number(0, 5) for _ in range(3)]
    return attrs, lengths, number(1, 2), number(1, 9), number(20, 40)


@examples(20)
@given(convolutions(), st.sampled_from(["float32", "float64"]))
def test_convolutions_of_any_lengths_equal_the_loop(drawn, dtype):
    attrs, lengths, images, channels, filters = drawn
    samples = maps([(images, channels, length) for length in lengths], dtype)
    net = prepared(nn.Conv1D(filters, in_channels=channels, **attrs), samples[0], dtype)
    batch = check_against_loop(net, samples, net.collect_params(), **OPTIONS)
    assert batch.report.launches == 1


class Reader(gdb.DynamicHybridBlock):
    """Reads words: convolutions with several kernels, and the largest value of each map."""

    def __init__(self, kernels, flat, **kwargs):
        super().__init__(**kwargs)
        self.embedding = nn.Embedding(20, 12)
        self.flat = flat
        self.convolutions = nn.HybridSequential()
        for size in kernels:
            conv = nn.Conv2D(30, (size, 12)) if flat else nn.Conv1D(30, size, padding=1)
            self.convolutions.add(conv)
        self.pool = nn.GlobalMaxPool2D() if flat else nn.GlobalMaxPool1D()
        self.dense = nn.Dense(2)

    def forward(self, words):
        rows = self.embedding(words)
        maps = rows.expand_dims(0) if self.flat else rows.swapaxes(1, 2)
        pooled = [self.pool(conv(maps)).reshape((1, -1)) for conv in self.convolutions]
        return self.dense(mx.nd.concat(*pooled, dim=1))


@pytest.mark.parametrize("flat", [False, True])
def test_readers_of_ragged_text_take_the_launches_of_equal_text(flat):
    """Also where words repeat, so that maxima are equal."""
    draw = np.random.RandomState(0).randint
    net = prepared(Reader((2, 3), flat), mx.nd.ones((1, 6)))
    launches = []
    for lengths in ((4, 7, 5, 12), (6, 6, 6, 6)):
        samples = [mx.nd.array(draw(0, 4, (1, n))) for n in lengths]
        batch = check_against_loop(net, samples, net.collect_params(), **OPTIONS)
        launches.append(batch.report.launches)
        assert not batch.report.split
    assert launches[0] == launches[1]


@pytest.mark.parametrize("kind", [nn.GlobalMaxPool1D, nn.GlobalAvgPool1D, nn.GlobalMaxPool2D])
def test_whole_maps_of_all_sizes_are_reduced_in_one_launch(kind):
    net = prepared(kind(), mx.nd.ones((1, 1, 1, 1)[: 3 + ("2D" in kind.__name__)]))
    sizes = [(2, 3, 4), (2, 3, 2), (2, 3, 40)] if "1D" in kind.__name__ else [
        (1, 3, 2, 4), (1, 3, 3, 3), (1, 3, 1, 5)]  # fmt: skip
    batch = check_against_loop(net, maps(sizes), **OPTIONS)
    assert batch.report.launches == 1
