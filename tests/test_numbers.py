"""Numbers that differ from call to call: they are data, and share a launch."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.record import recorder
from gluon_dynbatch.record.operators import OF_NUMBERS
from gluon_dynbatch.scope import RUNTIME
from gluon_dynbatch.testing import check_against_loop

OPTIONS = {"granularity": "operator", "policy": "depth"}
CELL = gdb.convert(nn.HybridLambda("tanh"))
CELL.hybridize()


def drawn(shape=(2, 3), dtype="float32", count=7, ctx=None):
    """Samples of an array and a number."""
    arrays = [mx.nd.array(np.random.normal(size=shape), ctx, dtype) for _ in range(count)]
    for array in arrays:
        array.attach_grad()
    return [(array, float(number)) for array, number in zip(arrays, np.random.rand(count) + 0.5)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_operators(name, dtype):
    operator = getattr(mx.nd._internal, name)

    def fn(x, number):
        return operator(CELL(x) + 1.5, scalar=number)

    for options in (OPTIONS, {**OPTIONS, "debug": True}, {"granularity": "graph"}, OPTIONS):
        shape = (np.random.randint(1, 4), 3)
        batch = check_against_loop(fn, drawn(shape, dtype), **options)
    assert batch.report.launches == 3, "after the first one, numbers are known to differ"
    known = set(RUNTIME.library.operators)
    check_against_loop(fn, drawn(shape, dtype))
    assert set(RUNTIME.library.operators) == known, "numbers are not kept"


def test_a_number_that_is_the_same_belongs_to_the_operator():
    samples = [(x, 0.5) for x, _ in drawn()]
    for _ in range(2):
        batch = check_against_loop(lambda x, number: CELL(x) * number, samples, **OPTIONS)
    assert "_mul_scalar" in str(batch.plan) and "broadcast_mul" not in str(batch.plan)


@pytest.mark.parametrize("ctx", [mx.cpu(), mx.cpu(1)])
def test_many_numbers_in_several_flushes(ctx, monkeypatch):
    monkeypatch.setattr(recorder, "AT_ONCE", 3)

    def fn(x, number):
        for _ in range(2):
            x = CELL(x) * number
            number += float(x.sum().asscalar())
        return x * number

    for _ in range(2):
        check_against_loop(fn, drawn(ctx=ctx))


def test_in_traced_blocks_numbers_are_arguments():
    class Scaled(gdb.DynamicHybridBlock):
        def forward(self, x, number):
            return CELL(x) * number

    net = Scaled()
    net.hybridize(trace_once=True)
    for debug in (False, True):
        check_against_loop(net, drawn(), debug=debug)
