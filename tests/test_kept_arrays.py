"""Arrays that live on after a flush: their gradients, writes to them, and the memory they take."""

from __future__ import annotations

import gc

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gluon_dynbatch as gdb
from tests.cells import WIDTH
from tests.common import FIXED, arrays, loop_and_scope
from tests.test_fibers import Wrong, same_as_loop, step, vectors

__all__ = ["step"]


# Gradients


@given(count=st.integers(1, 6), seed=st.integers(0, 99), concurrency=st.none() | st.integers(1, 3))
def test_gradients_pass_through_many_flushes(step, count, seed, concurrency):
    """Arrays of earlier flushes are read whole and in part, by several calls, or not at all."""
    samples = vectors(count, seed)
    for x in samples:
        x.attach_grad()
    variables = [*samples, *(p.data() for p in step.collect_params().values())]

    def fn(x):
        h = c = x
        total = mx.nd.zeros((1, WIDTH))
        for _ in range(5):
            scores, h, c = step(x, h, c)
            action = int(scores.argmax(axis=1).asscalar())
            if action == 0:
                total = total + h * scores[:, :1]
            elif action == 1:
                x = h + c.reshape((-1,)).reshape((1, WIDTH))
            elif scores.asnumpy()[0, 0] > 0:
                h = h.detach() * 2 + h
        return (total * scores.sum() + h).sum()

    def run(scope):
        with mx.autograd.record(), scope as batch:
            losses = batch.map(fn, samples, concurrency=concurrency) if batch else map(fn, samples)
            losses = list(losses)
        mx.autograd.backward(losses)
        return losses, [v.grad for v in variables]

    loop_and_scope(run, **FIXED)


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


def test_a_state_that_all_samples_share_has_a_gradient(step):
    """It is passed as it is, not copied row by row."""
    (x,) = arrays((3, WIDTH))
    samples = vectors(4)

    def run(scope):
        with mx.autograd.record(), scope as batch:
            memory = mx.nd.tanh(x)
            if batch is not None:
                batch.flush()
            losses = [(mx.nd.dot(one, memory, transpose_b=True) ** 2).sum() for one in samples]
        mx.autograd.backward(losses)
        return x.grad

    loop_and_scope(run, **FIXED)


# Values


def test_a_kept_array_is_written_to(step):
    """Calls recorded before the write use the old values, later ones the new."""
    x = vectors(1)[0]
    with gdb.batching(**FIXED) as batch:
        h = x * 2
        batch.flush()
        before = h + 1
        h[:] = 5
        after = h + 1
    np.testing.assert_allclose(before.asnumpy(), x.asnumpy() * 2 + 1, 1e-6)
    assert (after.asnumpy() == 6).all() and (h.asnumpy() == 5).all()


def test_views_of_a_kept_array_share_its_memory():
    with gdb.batching(**FIXED) as batch:
        h = mx.nd.ones((3, 2)) * 2
        batch.flush()
        row = h[1]
        row[:] = 7
        total = h.sum()
    assert h.asnumpy().tolist() == [[2, 2], [7, 7], [2, 2]] and total.asscalar() == 22


def test_kept_arrays_outlive_their_scope():
    with pytest.raises(Wrong), gdb.batching(**FIXED) as batch:
        h = mx.nd.ones((1, 2)) * 3
        batch.flush()
        raise Wrong
    del batch
    gc.collect()
    assert h.asnumpy().tolist() == [[3, 3]] and (h + 1).asnumpy().tolist() == [[4, 4]]


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
