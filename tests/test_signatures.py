"""What must not be merged, and what need not be told apart."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from gluon_dynbatch.testing import check_against_loop
from tests.cells import (
    WIDTH,
    Attention,
    Binary,
    Unary,
    attached,
    cell,
    equal,
    inputs,
    launches,
    ready,
    widths,
)

A, B = ready(Unary(prefix="signatures_a_")), ready(Unary(prefix="signatures_b_"))


def test_two_cells_with_equal_weights_are_two_cells():
    for granularity in GRANULARITIES:
        assert launches(lambda s: s[0](s[1]), list(zip([A, B, A, B], inputs(4))), granularity) == 2


def test_types_tell_calls_apart():
    """Another dtype is another launch; another number or length of rows is not."""
    net = gdb.convert(nn.HybridSequential())
    net.add(gdb.convert(nn.LeakyReLU(0.1)))
    ready(net)
    shapes = [(1, 3), (2, 3), (5, 3), (1, 4), (1, 3)]
    samples = [mx.nd.ones(shape) for shape in shapes] + [mx.nd.ones((1, 3), dtype="float64")]
    for granularity in ("block", "operator"):
        assert launches(net, samples, granularity) == 2


def test_numbers_tell_calls_apart():
    """2 and -1 are two programs, and so are 0.0 and -0.0."""
    net = cell(lambda F, x, factor: x * factor)
    factors = [2, -1, 2, -1, 0.0, -0.0, 2]
    for granularity in GRANULARITIES:
        assert launches(lambda s: net(*s), list(zip(inputs(7), factors)), granularity) == 4


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_modes_tell_calls_apart(granularity):
    """Calls under pause() keep no gradient, so they run apart from recorded ones."""
    x = inputs(1)[0]
    with autograd.record(), gdb.batching(granularity=granularity, analysis_budget=None) as batch:
        kept = [A(x), A(x * 2)]
        with autograd.pause():
            cut = [A(x), A(x * 2), A(x)]
    assert batch.report.launches == 2
    np.testing.assert_allclose(kept[1].asnumpy(), cut[1].asnumpy(), 1e-5)


def test_a_memory_that_all_samples_read_is_one_operand():
    """Queries are joined along rows; the one memory is passed as it is."""
    net = ready(Attention())
    memory = mx.nd.array(np.random.RandomState(1).uniform(-1, 1, (5, WIDTH)))
    for granularity in GRANULARITIES:
        assert launches(lambda x: net(x, memory), inputs(6), granularity) == 1
    with gdb.batching(granularity="block") as batch:
        outputs = [net(x, memory) for x in inputs(6)]
    assert "external" in str(batch.plan)
    assert len(outputs) == 6


def test_two_memories():
    """Of the samples' own they are stacked, one launch; as trained weights they are two weights."""
    net = ready(Attention())
    random = np.random.RandomState(1)
    memories = [mx.nd.array(random.uniform(-1, 1, (5, WIDTH))) for _ in range(2)]
    samples = [(x, memories[i % 2]) for i, x in enumerate(inputs(6))]
    assert launches(lambda s: net(*s), samples, "block") == 1
    for memory in memories:
        memory.attach_grad()
    assert launches(lambda s: net(*s), samples, "block") == 2


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_a_row_that_all_samples_read_is_a_row_of_each(granularity):
    """A common begin state, also a variable, does not make a call another one."""
    join, common = ready(Binary()), attached(inputs(1))[0]
    found = set()
    for states in (inputs(3), [common] * 3, [common.detach()] * 3, attached(inputs(3))):
        with gdb.batching(granularity=granularity, policy="depth") as batch:
            kept = [join(x, state) for x, state in zip(inputs(3), states)]
        assert widths(batch) == [len(kept)]
        found.add(batch.plan.launches[0].segment)
    assert len(found) == 1


def test_views_are_free():
    """Rows, slices and reshapes of a lazy array are no calls at all."""
    xs = [mx.nd.ones((3, WIDTH)), mx.nd.ones((5, WIDTH))]

    def fn(x):
        h = A(x)
        return [A(h[i : i + 1]) for i in range(len(x))] + [
            A(h[1].reshape((1, -1))),
            A(h.reshape((-1, WIDTH))),
        ]

    batch = check_against_loop(fn, xs, granularity="block", analysis_budget=None)
    assert batch.report.nodes == 2 + 3 + 5 + 2 + 2
    assert widths(batch) == [2, 12]


def test_equal_zeros_are_one_value():
    """Initial states made inside the scope take no memory and no launch per sample."""
    with gdb.batching(granularity="block") as batch:
        outputs = [A(mx.nd.zeros((1, WIDTH))) for _ in range(5)]
    assert widths(batch) == [5]
    assert len(batch.plan.fills[0].externals) == 1
    assert len({y.asnumpy().tobytes() for y in outputs}) == 1


class Part(gdb.DynamicHybridBlock):
    """One half of the columns of its argument, or of a product with its weight."""

    def __init__(self, which, product, **kwargs):
        super().__init__(**kwargs)
        self.which, self.product = which, product
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(4, 4))

    def hybrid_forward(self, F, x, weight):
        if self.product:
            x = F.FullyConnected(x, weight, num_hidden=4, no_bias=True)
        return F.split(x, num_outputs=2, axis=1)[self.which]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_other_halves_of_one_product(dtype, granularity):
    """Nothing but the half differs, so the two are no equal calls."""
    product = dtype == "float32"
    first = Part(0, product, prefix="part_")
    second = Part(1, product, prefix="part_", params=first.params)
    first.initialize(mx.init.Uniform(1))
    for part in (first, second):
        part.hybridize()
    x = mx.nd.arange(4).reshape((1, 4)).astype(dtype)
    with gdb.batching(granularity=granularity, policy="depth"):
        got = [first(x), second(x), first(x + 1)]
    equal(got, [first(x), second(x), first(x + 1)], 1e-5, 0)
