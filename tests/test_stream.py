"""`imap`: streams of samples, minibatch by minibatch."""

from __future__ import annotations

import itertools

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.stream import Stream
from tests.cells import inputs, ready


@pytest.fixture(scope="module")
def net():
    return ready(gdb.convert(nn.Dense(2, in_units=3, activation="tanh")), 1)


def arrays(count):
    return inputs(count, 3)


@given(count=st.integers(0, 9), size=st.integers(1, 4), prefetch=st.integers(0, 3))
def test_results_come_in_order(net, count, size, prefetch):
    samples = arrays(count)
    found = gdb.imap(net, samples, batch_size=size, prefetch=prefetch)
    assert len(found) == count
    for x, y in itertools.zip_longest(samples, found):
        np.testing.assert_allclose(y.asnumpy(), net(x).asnumpy(), 1e-5, 1e-6)


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_a_stream_without_end_is_read_as_far_as_needed(net, prefetch):
    taken = []

    def endless():
        for number in itertools.count():
            taken.append(number)
            yield mx.nd.ones((1, 3)) * number

    found = gdb.imap(net, endless(), batch_size=4, prefetch=prefetch)
    for number in range(9):
        next(found)
        assert len(taken) == 4 * (number // 4 + 1 + prefetch)
    with pytest.raises(TypeError, match="no length"):
        len(found)


def test_one_minibatch_is_handed_over_before_the_first_result(net, monkeypatch):
    """Its work is in the engine while the next one is recorded."""
    order = []
    run = Stream._run
    monkeypatch.setattr(Stream, "_run", lambda self: order.append("run") or run(self))
    for _ in gdb.imap(net, arrays(6), batch_size=2):
        order.append("result")
    assert order[:3] == ["run", "run", "result"] and order.count("run") == 4


def test_an_exception_stands_in_the_place_of_its_result(net):
    def fn(number):
        y = net(mx.nd.ones((1, 3)) * number)
        if number in (1, 4):
            raise ValueError(number)
        return float(y.sum().asscalar())

    found, got = gdb.imap(fn, range(6), batch_size=3), []
    for _ in range(6):
        try:
            got.append(next(found))
        except ValueError as error:
            assert f"sample {error.args[0]} of imap" in str(error.__cause__)
            assert __file__ in str(error.__cause__)
            got.append(None)
    assert [one is None for one in got] == [False, True, False, False, True, False]
    with pytest.raises(StopIteration):
        next(found)


def test_what_the_samples_end_with_comes_last(net):
    def failing():
        yield from arrays(3)
        raise OSError("the file is gone")

    found = gdb.imap(net, failing(), batch_size=2)
    assert [next(found).shape for _ in range(3)] == [(1, 2)] * 3
    with pytest.raises(OSError, match="the file is gone"):
        next(found)


def test_tuples_are_several_arguments():
    pairs = [(mx.nd.ones((1,)) * i, mx.nd.ones((1,))) for i in range(3)]
    assert [y.asscalar() for y in gdb.imap(lambda a, b: a + b, pairs)] == [1, 2, 3]
    assert [y.asscalar() for y in gdb.imap(lambda pair: pair[0], pairs)] == [0, 1, 2]


def test_wrong_options(net):
    for wrong in ({"batch_size": 0}, {"prefetch": -1}, {"granularity": "word"}):
        with pytest.raises(gdb.OptionError):
            gdb.imap(net, [], **wrong)
    with pytest.raises(gdb.ArgumentError):
        gdb.imap(lambda x: (yield x), [])
