"""Arrays that live on after a flush: their gradients, writes to them, and the memory they take."""

from __future__ import annotations

import mxnet as mx
import pytest

import gluon_dynbatch as gdb
from tests.cells import WIDTH
from tests.common import FIXED, arrays, loop_and_scope
from tests.test_fibers import same_as_loop, step, vectors

__all__ = ["step"]


# Gradients


@pytest.mark.parametrize("retain", [False, True])
def test_backward_within_the_scope_and_after_it(step, retain):
    x = vectors(1)[0]
    x.attach_grad()

    def run(scope):
        with mx.autograd.record(), scope as batch:
            h = step(x, x, x)[1]
            if batch is not None:
                batch.flush()
            first = (h * h).sum()
            float(first.asscalar())
            second = (h[:, 1:3] * first).sum()
            second.backward(retain_graph=True)
            found = [x.grad.asnumpy()]
            if retain:
                second.backward()
                found.append(x.grad.asnumpy())
        return [*found, h, second]

    loop_and_scope(run, **FIXED)


def test_parts_of_an_array_that_nobody_holds_have_its_gradient(step):
    (x,) = arrays((4, WIDTH))

    def run(scope):
        with mx.autograd.record(), scope as batch:
            h = mx.nd.tanh(x)
            first, last = h[:1], h[2:]
            del h
            if batch is not None:
                batch.flush()
            loss = (first * 2).sum() + (last[1:] * 3).sum()
        mx.autograd.backward([loss, first])
        return [x.grad, loss, first, last]

    loop_and_scope(run, 1e-5, 1e-6, **FIXED)


# Values


def test_memory_of_a_long_stream_is_bounded(monkeypatch):
    monkeypatch.setattr("gluon_dynbatch.scope.MOST_KEPT", 20_000)
    held = []
    with gdb.batching(**FIXED) as batch:
        for number in range(50):
            many = [mx.nd.ones((1, 100)) * (number + i) for i in range(8)]
            held.append(many[0])
            batch.flush()
            del many
        assert sum(one.bytes for one in batch._still_kept()) <= 20_000
    assert [h.asnumpy()[0, 0] for h in held] == list(range(50))


def test_nothing_is_taken_out_before_somebody_asks(step, monkeypatch):
    monkeypatch.setattr("gluon_dynbatch.run.keep.take_out", None)

    def fn(x):
        h = c = x
        for _ in range(3):
            scores, h, c = step(x, h, c)
            scores.sum().asscalar()
        return float(h.sum().asscalar())

    same_as_loop(fn, vectors(3))
