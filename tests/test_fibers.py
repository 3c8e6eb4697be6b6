"""Samples that read values: what `map` gives them, and what it leaves as it was."""

from __future__ import annotations

import contextvars
import sys
import traceback

import greenlet
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.fibers import Fiber, current
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH
from tests.common import FIXED, in_thread, refused
from tests.test_threads import in_threads


class Step(gdb.DynamicHybridBlock):
    """One step of a recurrent net, and scores of what to do next."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.cell = rnn.LSTMCell(WIDTH, input_size=WIDTH)
            self.out = nn.Dense(3, in_units=WIDTH)

    def hybrid_forward(self, F, x, h, c):
        h, (_, c) = self.cell(x, [h, c])
        return self.out(h), h, c


@pytest.fixture(scope="module")
def step():
    mx.random.seed(5)
    made = Step()
    made.initialize(mx.init.Uniform(1))
    made.hybridize()
    return made


def vectors(count, seed=0):
    draw = np.random.RandomState(seed)
    return [mx.nd.array(draw.uniform(-1, 1, (1, WIDTH))) for _ in range(count)]


def same_as_loop(fn, samples):
    """Compare numbers that programs return."""
    wanted = [fn(x) for x in samples]
    np.testing.assert_allclose(gdb.map(fn, samples, **FIXED), wanted, 1e-4)


def walker(step, most=6):
    """Return a program whose length and path are decided by computed values."""

    def walk(x):
        h, c = mx.nd.zeros((1, WIDTH)), mx.nd.zeros((1, WIDTH))
        total = mx.nd.zeros((1, WIDTH))
        for _ in range(most):
            scores, h, c = step(x, h, c)
            action = int(scores.argmax(axis=1).asscalar())
            if action == 0:
                break
            x = h if action == 1 else c
            total = total + x
        return total, h

    return walk


def reads_of(walk, x):
    """Return how often a walk asks for a value."""
    with gdb.batching(**FIXED) as batch:
        walk(x)
    return sum(batch.report.forced.values())


@given(count=st.integers(1, 9), concurrency=st.none() | st.integers(1, 4), seed=st.integers(0, 99))
def test_programs_steered_by_values_equal_the_loop(step, count, concurrency, seed):
    walk, samples = walker(step), vectors(count, seed)
    wanted = [[a.asnumpy() for a in walk(x)] for x in samples]
    got = gdb.map(walk, samples, concurrency=concurrency, **FIXED)
    for one, other in zip(wanted, got):
        for a, b in zip(one, other):
            np.testing.assert_allclose(a, b.asnumpy(), 1e-5, 1e-6)


@pytest.mark.parametrize("options", [{}, FIXED, {"granularity": "operator"}, {"debug": True}])
def test_values_and_gradients(step, options):
    def fn(x):
        scores, h, c = step(x, mx.nd.zeros((1, WIDTH)), mx.nd.zeros((1, WIDTH)))
        if scores.max().asscalar() > 0.1:
            h = h * scores.sum()
        return (h * c).sum() + scores

    samples = vectors(7)
    for x in samples:
        x.attach_grad()
    check_against_loop(fn, samples, step.collect_params().values(), **options)


def test_one_flush_serves_all_that_wait(step):
    walk, samples = walker(step), vectors(8)
    lengths = [reads_of(walk, x) for x in samples]
    with gdb.batching(**FIXED) as batch:
        batch.map(walk, samples)
    served = [flush.waiting for flush in batch.report.flushes if flush.waiting]
    assert served == [sum(n > i for n in lengths) for i in range(max(lengths))]
    assert max(lengths) > min(lengths), "all samples go the same way"
    assert batch.report.launches <= 3 * max(lengths)  # step, argmax and a sum


def test_samples_take_the_places_of_finished_ones(step):
    walk = walker(step)
    under_way, most = set(), []

    def fn(number):
        under_way.add(number)
        most.append(len(under_way))
        result = walk(vectors(20)[number])
        under_way.discard(number)
        return result

    with gdb.batching(**FIXED) as batch:
        batch.map(fn, range(20), concurrency=4)
    assert max(most) == 4
    waiting = [flush.waiting for flush in batch.report.flushes]
    assert waiting.count(4) > len(waiting) // 2


def test_samples_may_come_without_end(step):
    def coming():
        for number in range(1000):
            if number == 30:
                raise StopAsyncIteration("the source fails")
            yield vectors(1)[0]

    with pytest.raises(StopAsyncIteration):
        gdb.map(walker(step), coming(), concurrency=3)
    assert current() is None


def test_samples_that_read_values_when_they_are_made(step):
    """They are asked for by whoever comes first; nobody else can go on meanwhile."""
    walk = walker(step)

    def coming():
        x = vectors(1)[0]
        for _ in range(5):
            yield x
            x = x * float(step(x, x, x)[0].sum().asscalar())

    wanted = [walk(x)[1].asnumpy() for x in coming()]
    got = [h.asnumpy() for _, h in gdb.map(walk, coming(), concurrency=2, **FIXED)]
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)


def test_samples_that_never_wait_are_one_fiber(step, monkeypatch):
    made = []
    begin = Fiber.__init__
    monkeypatch.setattr(
        Fiber, "__init__", lambda self, crew: made.append(self) or begin(self, crew)
    )
    gdb.map(lambda x: step(x, x, x)[0], vectors(20))
    assert len(made) == 1


# What belongs to a sample


def test_what_mxnet_keeps_per_thread_belongs_to_the_sample(step):
    variable = contextvars.ContextVar("variable", default=None)

    def fn(number):
        variable.set(number)
        h = vectors(1)[0]
        with mx.autograd.record(train_mode=bool(number % 2)), mx.cpu(number), mx.AttrScope(
            mark=str(number)
        ), mx.name.Prefix(f"p{number}_"), step.name_scope():
            for _ in range(3):
                assert float((h * 1).sum().asscalar()) == pytest.approx(h.asnumpy().sum(), 1e-3)
                assert mx.autograd.is_recording()
                assert mx.autograd.is_training() == bool(number % 2)
                assert mx.current_context() == mx.cpu(number)
                assert mx.AttrScope._current.value.get(None)["mark"] == str(number)
                assert variable.get() == number
                with mx.autograd.pause():
                    (h + 1).sum().asscalar()
                    assert not mx.autograd.is_recording()
        return number

    def with_lazy(number):
        with gdb.batching():
            return fn(number)

    before = mx.current_context(), mx.AttrScope._current.value.get(None), variable.get()
    assert gdb.map(with_lazy, range(4)) == [0, 1, 2, 3]
    assert before == (mx.current_context(), mx.AttrScope._current.value.get(None), variable.get())
    assert not mx.autograd.is_recording()


def test_modes_are_switched_with_samples(step):
    """Half of the samples are recorded for a backward pass, and only they get gradients."""
    zero = mx.nd.zeros((1, WIDTH))
    samples = vectors(4)
    for x in samples:
        x.attach_grad()

    def fn(pair):
        number, x = pair
        with mx.autograd.record() if number % 2 else mx.autograd.predict_mode():
            scores, h, c = step(x, zero, zero)
            float(scores.sum().asscalar())
            return (h * c).sum()

    with gdb.batching(**FIXED) as batch:
        losses = batch.map(lambda pair: fn(pair), list(enumerate(samples)))
    mx.autograd.backward(losses[1::2])
    moved = [bool(x.grad.asnumpy().any()) for x in samples]
    assert moved == [False, True, False, True]


# Exceptions


class Wrong(Exception):
    pass


def failing(step, bad):
    def fn(number):
        scores, h, _ = step(vectors(9)[number], *vectors(2))
        scores.sum().asscalar()
        if number in bad:
            raise Wrong(number)
        return h

    return fn


def test_an_exception_names_its_sample(step):
    with pytest.raises(Wrong) as caught:
        gdb.map(failing(step, {3}), range(5))
    assert isinstance(caught.value.__cause__, gdb.SampleError)
    assert "sample 3" in str(caught.value.__cause__) and __file__ in str(caught.value.__cause__)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert any(frame.name == "fn" and frame.filename == __file__ for frame in frames)


def test_exceptions_may_stand_among_the_results(step):
    got = gdb.map(failing(step, {1, 4}), range(5), on_error="return")
    assert [type(one) is Wrong for one in got] == [False, True, False, False, True]
    wanted = failing(step, ())(0)
    np.testing.assert_allclose(got[0].asnumpy(), wanted.asnumpy(), 1e-5, 1e-6)


def test_what_computing_fails_with_reaches_all_that_wait():
    """One launch computes all samples, and one of them has no Cholesky factor."""

    def fn(number):
        matrix = mx.nd.ones((1, 2, 2)) * -1 if number == 2 else mx.nd.eye(2).reshape((1, 2, 2))
        lazy = mx.nd.zeros((1, 2, 2)) + matrix
        return mx.nd.linalg.potrf(lazy).sum().asscalar()

    got = gdb.map(fn, range(4), on_error="return", **FIXED)
    assert [type(one) for one in got] == [gdb.LaunchError] * 4
    with pytest.raises(gdb.LaunchError) as caught:
        gdb.map(fn, range(4), **FIXED)
    assert isinstance(caught.value.__cause__, (gdb.SampleError, mx.MXNetError))
    assert gdb.map(fn, range(2), **FIXED) == [2, 2]


def test_the_others_end_and_clean_up(step):
    cleaned = []

    def fn(number):
        try:
            step(*vectors(3))[0].sum().asscalar()
            if number == 2:
                raise Wrong
            step(*vectors(3))[0].sum().asscalar()
        finally:
            if number > 2:
                with pytest.raises(greenlet.GreenletExit):
                    step(*vectors(3))[0].sum().asscalar()
            cleaned.append(number)

    with pytest.raises(Wrong):
        gdb.map(fn, range(5))
    assert sorted(cleaned) == [0, 1, 2, 3, 4]
    with gdb.batching() as batch:
        step(*vectors(3))
    assert batch.report.nodes == 1


def test_an_interrupt_ends_all(step):
    def fn(number):
        step(*vectors(3))[0].sum().asscalar()
        if number == 1:
            raise KeyboardInterrupt
        step(*vectors(3))[0].sum().asscalar()

    for on_error in ("raise", "return"):
        with pytest.raises(KeyboardInterrupt):
            gdb.map(fn, range(3), on_error=on_error)
    assert current() is None and not mx.autograd.is_recording()


def test_wrong_options(step):
    with pytest.raises(gdb.OptionError, match="on_error"):
        gdb.map(step, [], on_error="ignore")
    with pytest.raises(gdb.OptionError, match="concurrency"):
        gdb.map(step, [], concurrency=0)
    batch = gdb.batching()
    with refused(gdb.ScopeError, "not open"):
        batch.map(step, [])  # wrong


# Fibers within fibers, threads, generators, recursion


def test_maps_within_maps(step):
    def inner(x):
        scores, h, c = step(x, *vectors(2))
        return h if scores.max().asscalar() > 0 else c

    def outer(number):
        parts = gdb.map(inner, vectors(3, number))
        return float(mx.nd.add_n(*parts).sum().asscalar())

    wanted = [
        sum(float(inner(x).sum().asscalar()) for x in vectors(3, number)) for number in range(4)
    ]
    with gdb.batching(**FIXED) as batch:
        got = batch.map(outer, range(4))
    np.testing.assert_allclose(got, wanted, 1e-4)
    assert len(batch.report.flushes) == 2 and batch.report.flushes[0].nodes >= 12


def test_generators_within_a_sample(step):
    def states(x):
        h = c = x
        for _ in range(3):
            scores, h, c = step(x, h, c)
            yield float(scores.sum().asscalar())

    same_as_loop(lambda x: list(states(x)), vectors(4))


def test_threads_within_a_sample(step):
    def fn(x):
        other = in_thread(lambda: step(x, x, x)[0].asnumpy())
        return other, step(x, x, x)[0].asnumpy()

    for other, own in gdb.map(fn, vectors(3)):
        np.testing.assert_allclose(other, own, 1e-5, 1e-6)


def test_maps_in_many_threads(step):
    walk, samples = walker(step), vectors(6)
    wanted = [walk(x)[1].asnumpy() for x in samples]

    def work(number):
        got = [h.asnumpy() for _, h in gdb.map(walk, samples)]
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)

    in_threads(work, 3)


def test_deep_recursion(step):
    def down(x, depth):
        if depth == 0:
            return step(x, x, x)[0].sum().asscalar()
        return down(x, depth - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        same_as_loop(lambda x: down(x, 5000), vectors(3))
    finally:
        sys.setrecursionlimit(limit)
