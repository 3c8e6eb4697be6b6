"""Samples of `map` that read values: results, flushes, state per thread, and exceptions."""

import contextvars
import traceback

import greenlet
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.testing import check_against_loop
from tests import inside
from tests.cells import WIDTH, attached, cell, equal, inputs, ready
from tests.common import FIXED, by_mxnets_operators, interpreter_with, loop_and_scope
from tests.depth import examples
from tests.inside import arenas_of
from tests.test_threads import in_threads


@pytest.fixture(scope="module")
def step():
    """Return a step of a recurrent net, which also scores the next actions."""
    lstm, out = rnn.LSTMCell(WIDTH, input_size=WIDTH), nn.Dense(3, in_units=WIDTH)

    def run(F, x, h, c):
        h, (_, c) = lstm(x, [h, c])
        return out(h), h, c

    return ready(cell(run, lstm, out), 1)


def walker(step):
    """Return a program whose length and path depend on computed values."""

    def walk(x):
        h = c = mx.nd.zeros((1, WIDTH))
        for _ in range(6):
            scores, h, c = step(x, h, c)
            action = int(scores.argmax(axis=1).asscalar())
            if action == 0:
                break
            x = h if action == 1 else c
        return h

    return walk


@given(
    count=st.integers(1, 9),
    seed=st.integers(0, 99),
    concurrency=st.none() | st.integers(1, 4),
    options=st.sampled_from([{}, FIXED, {"granularity": "operator"}, {"debug": True}]),
)
@examples(13)
def test_values_and_gradients_of_programs_steered_by_values(
    step, count, seed, concurrency, options
):
    """Calls read arrays of earlier flushes, whole or in part, several times or never."""
    samples = attached(inputs(count, seed=seed))
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
            else:
                break
        return (total * scores.sum() + h).sum()

    def run(scope):
        with mx.autograd.record(), scope as batch:
            losses = batch.map(fn, samples, concurrency=concurrency) if batch else map(fn, samples)
            losses = list(losses)
        mx.autograd.backward(losses)
        return losses, [v.grad for v in variables]

    loop_and_scope(run, **options)


def test_one_flush_serves_all_waiting_samples(step):
    walk, samples, lengths = walker(step), inputs(8), []
    for x in samples:
        with gdb.batching(**FIXED) as batch:
            walk(x)
        lengths.append(sum(batch.report.forced.values()))
    with gdb.batching(**FIXED) as batch:
        batch.map(walk, samples)
    served = [flush.waiting for flush in batch.report.flushes if flush.waiting]
    assert served == [sum(n > i for n in lengths) for i in range(max(lengths))]
    assert max(lengths) > min(lengths), "all samples have one length"
    assert batch.report.launches <= 2 * max(lengths)  # step and argmax


def test_new_samples_start_as_others_finish(step):
    walk = walker(step)
    running, counts = set(), []

    def fn(number):
        running.add(number)
        counts.append(len(running))
        result = walk(inputs(20)[number])
        running.discard(number)
        return result

    with gdb.batching(**FIXED) as batch:
        batch.map(fn, range(20), concurrency=4)
    assert max(counts) == 4
    waiting = [flush.waiting for flush in batch.report.flushes]
    assert waiting.count(4) > len(waiting) // 2


def test_an_iterable_that_reads_values(step):
    """It runs in the fiber that asks for the next sample; no other fiber can run meanwhile."""
    walk = walker(step)

    def dependent():
        x = inputs(1)[0]
        for _ in range(5):
            yield x
            x = x * float(step(x, x, x)[0].sum().asscalar())

    wanted = [walk(x) for x in dependent()]
    equal(gdb.map(walk, dependent(), concurrency=2, **FIXED), wanted, 1e-4, 1e-5)


def test_mxnets_state_per_thread_belongs_to_the_sample(step):
    """Autograd records half of the samples, and only they get gradients."""
    variable = contextvars.ContextVar("variable", default=None)
    samples, zero = attached(inputs(4)), mx.nd.zeros((1, WIDTH))

    def state():
        return mx.current_context(), mx.AttrScope._current.value.get(None), variable.get()

    def fn(number):
        variable.set(number)
        recorded = bool(number % 2)
        mode = mx.autograd.record() if recorded else mx.autograd.predict_mode()
        with mode, mx.cpu(number), mx.AttrScope(__mark__=str(number)):
            scores, h, c = step(samples[number], zero, zero)
            for _ in range(3):
                scores = scores + float(scores.sum().asscalar())
                assert mx.autograd.is_recording() == mx.autograd.is_training() == recorded
                context, attributes, value = state()
                assert context == mx.cpu(number) and value == number
                assert attributes["__mark__"] == str(number)
                with mx.autograd.pause():
                    (h + 1).sum().asscalar()
                    assert not mx.autograd.is_recording()
            return (h * c + scores.sum()).sum()

    before = state()
    with gdb.batching(**FIXED) as batch:
        losses = batch.map(fn, range(4))
    assert before == state() and not mx.autograd.is_recording()
    mx.autograd.backward(losses[1::2])
    assert [bool(x.grad.asnumpy().any()) for x in samples] == [False, True, False, True]


def test_idle_fibers_carry_nothing_over_to_the_next_map(step):
    variable = contextvars.ContextVar("variable", default=None)
    seen, called = [], []

    def fn(x):
        seen.append(variable.get())
        variable.set(x)
        return step(x, x, x)[0].argmax(axis=1).asscalar()

    gdb.map(fn, inputs(3))
    with interpreter_with("profile", lambda frame, event, _: called.append((frame.f_code, event))):
        gdb.map(fn, inputs(3))
    assert called.count((fn.__code__, "call")) == 3 and seen == [None] * 6


# Exceptions


def test_an_exception_names_its_sample_or_becomes_its_result(step):
    def fn(number):
        scores, h, _ = step(inputs(9)[number], *inputs(2))
        scores.sum().asscalar()
        if number in bad:
            raise KeyError(number)
        return h

    bad = (1, 4)
    got = gdb.map(fn, range(5), on_error="return")
    assert [type(result) is KeyError for result in got] == [False, True, False, False, True]
    equal([got[0]], [fn(0)])
    with pytest.raises(KeyError) as caught:
        gdb.map(fn, range(5))
    assert isinstance(caught.value.__cause__, gdb.SampleError)
    assert "sample 1" in str(caught.value.__cause__) and __file__ in str(caught.value.__cause__)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert any(frame.name == "fn" and frame.filename == __file__ for frame in frames)


@pytest.mark.parametrize("on_error", ["raise", "return"])
@pytest.mark.parametrize("kind, where", [(KeyboardInterrupt, "fn"), (OSError, "samples")])
def test_an_interrupt_or_a_failing_iterable_ends_the_map(step, kind, where, on_error):
    def samples():
        yield from range(3)
        if where == "samples":
            raise kind

    def fn(number):
        step(*inputs(3))[0].sum().asscalar()
        if where == "fn" and number == 1:
            raise kind
        step(*inputs(3))[0].sum().asscalar()

    with pytest.raises(kind):
        gdb.map(fn, samples(), concurrency=2, on_error=on_error)
    assert greenlet.getcurrent().parent is None and not mx.autograd.is_recording()


def test_the_error_of_a_flush_reaches_all_waiting_samples():
    """One launch computes all samples, and one matrix has no Cholesky factor."""

    def fn(number):
        matrix = mx.nd.ones((1, 2, 2)) * -1 if number == 2 else mx.nd.eye(2).reshape((1, 2, 2))
        lazy = mx.nd.zeros((1, 2, 2)) + matrix
        return mx.nd.linalg.potrf(lazy).sum().asscalar()

    got = gdb.map(fn, range(4), on_error="return", **FIXED)
    assert [type(result) for result in got] == [gdb.LaunchError] * 4
    with pytest.raises(gdb.LaunchError) as caught:
        gdb.map(fn, range(4), **FIXED)
    assert isinstance(caught.value.__cause__, (gdb.SampleError, mx.MXNetError))
    assert gdb.map(fn, range(2), **FIXED) == [2, 2]


def test_after_an_exception_other_samples_clean_up(step):
    cleaned = []

    def fn(number):
        try:
            step(*inputs(3))[0].sum().asscalar()
            if number == 2:
                raise KeyError
            step(*inputs(3))[0].sum().asscalar()
        finally:
            if number > 2:
                with pytest.raises(greenlet.GreenletExit):
                    step(*inputs(3))[0].sum().asscalar()
            cleaned.append(number)

    with pytest.raises(KeyError):
        gdb.map(fn, range(5))
    assert sorted(cleaned) == [0, 1, 2, 3, 4]
    with gdb.batching() as batch:
        step(*inputs(3))
    assert batch.report.nodes == 1


def test_maps_within_maps(step):
    def inner(x):
        scores, h, c = step(x, *inputs(2))
        return h if scores.max().asscalar() > 0 else c

    def outer(number):
        parts = gdb.map(inner, inputs(3, seed=number))
        return float(mx.nd.add_n(*parts).sum().asscalar())

    wanted = [
        sum(float(inner(x).sum().asscalar()) for x in inputs(3, seed=number)) for number in range(4)
    ]
    with gdb.batching(**FIXED) as batch:
        got = batch.map(outer, range(4))
    np.testing.assert_allclose(got, wanted, 1e-4)
    assert len(batch.report.flushes) == 2 and batch.report.flushes[0].nodes >= 12


def test_maps_in_many_threads(step):
    walk, samples = walker(step), inputs(6)
    wanted = [walk(x) for x in samples]
    in_threads(lambda number: equal(gdb.map(walk, samples), wanted), 3)


def test_deep_recursion(step):
    def down(x, depth):
        if depth == 0:
            return step(x, x, x)[0].sum().asscalar()
        return down(x, depth - 1)

    with interpreter_with("recursionlimit", 20_000):
        wanted = [down(x, 5000) for x in inputs(3)]
        got = gdb.map(lambda x: down(x, 5000), inputs(3), **FIXED)
        np.testing.assert_allclose(got, wanted, 1e-4)


def test_memory_of_a_long_stream_is_bounded(monkeypatch):
    inside.limit(monkeypatch, "bytes of kept values", 20_000)
    held = []
    with gdb.batching(**FIXED) as batch:
        for number in range(50):
            many = [mx.nd.ones((1, 100)) * (number + i) for i in range(8)]
            held.append(many[0])
            batch.flush()
            del many
        assert sum(kept.bytes for kept in arenas_of(STATE.scope)) <= 20_000
    assert [h.asnumpy()[0, 0] for h in held] == list(range(50))


def test_an_array_of_an_earlier_flush_shared_by_calls_of_mxnets_operators(step):
    """It is an argument of several calls, and is read again afterwards."""
    product = cell(lambda F, x, matrix: F.dot(x, matrix))

    def fn(xs):
        rows = [step(x, x, x)[1] for x in xs]
        matrix = mx.nd.concat(*rows[:WIDTH], dim=0)
        rows[0].asnumpy()
        return [product(row, matrix) for row in rows] + [matrix * 2]

    with by_mxnets_operators():
        batch = check_against_loop(fn, [attached(inputs(5))], **FIXED)
    assert len(batch.report.flushes) == 2
