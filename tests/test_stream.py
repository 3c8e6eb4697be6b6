"""`imap`: streams of samples, minibatch by minibatch."""

from __future__ import annotations

import itertools

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.stream import Stream
from tests.cells import equal, inputs, ready
from tests.strategies import examples


@pytest.fixture(scope="module")
def net():
    return ready(gdb.convert(nn.Dense(2, in_units=3, activation="tanh")), 1)


@given(count=st.integers(0, 9), size=st.integers(1, 4), prefetch=st.integers(0, 3))
@examples(25)
def test_results_come_in_order(net, count, size, prefetch):
    samples = inputs(count, 3)
    found = gdb.imap(net, samples, batch_size=size, prefetch=prefetch)
    assert len(found) == count
    equal([*found], [net(x) for x in samples])


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
    for _ in gdb.imap(net, inputs(6, 3), batch_size=2):
        order.append("result")
    assert order[:3] == ["run", "run", "result"] and order.count("run") == 4


def test_exceptions_stand_in_their_places_and_what_the_samples_end_with_comes_last(net):
    def numbers():
        yield from range(6)
        raise OSError("the file is gone")

    def fn(number):
        y = net(mx.nd.ones((1, 3)) * number)
        if number in (1, 4):
            raise ValueError(number)
        return float(y.sum().asscalar())

    found = gdb.imap(fn, numbers(), batch_size=4)
    for number in range(6):
        if number not in (1, 4):
            assert type(next(found)) is float
            continue
        with pytest.raises(ValueError) as caught:
            next(found)
        assert f"sample {number} of imap" in str(caught.value.__cause__)
        assert __file__ in str(caught.value.__cause__)
    with pytest.raises(OSError, match="the file is gone"):
        next(found)
