"""Programs that make arrays in a scope: values, gradients, shared memory, launches."""

import contextlib
import gc
import pickle
import threading
import tracemalloc

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.native import recording
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.testing import check_against_loop
from tests import inside
from tests.cells import WIDTH, attached, cell, dense
from tests.common import FIXED, SCOPES, by_mxnets_operators, host, same
from tests.depth import examples
from tests.test_lazy import VALUES
from tests.test_made_arrays import outcome
from tests.test_trace_once import x


def embedding(size=WIDTH):
    block = nn.Embedding(10, size)
    block.initialize()
    block.hybridize()
    return block


def lookups(net, numbers):
    """Make an array per number, and a matrix; read each of them twice."""
    total, matrix = 0, mx.nd.array(np.eye(WIDTH) + 1)
    for number in numbers:
        word = mx.nd.array([number], dtype="int32")
        row = net(word) + mx.nd.array([[number] * WIDTH])
        total = mx.nd.dot(row, matrix) * mx.nd.full((1, WIDTH), number) + total
        total = total + net(word) * mx.nd.arange(WIDTH).reshape((1, -1))
    return total


@pytest.mark.parametrize("options", [*SCOPES, {}])
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=5))
@examples(4)
def test_programs_equal_the_loop(options, samples):
    net = embedding()
    params = net.collect_params()
    check_against_loop(lambda numbers: lookups(net, numbers), samples, params, **options)


@pytest.mark.parametrize("options", SCOPES)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.sampled_from([1, 0.1, -2]))
@examples(3)
def test_sizes_that_mxnet_infers(options, rows, step):
    """A cell may leave sizes of zeros and lengths of ranges to MXNet, in the middle of a call."""

    def forward(F, x):
        last = F.arange(start=1, stop=None, step=step, repeat=2, infer_range=True)
        first = F.arange(start=3, stop=None, step=step, infer_range=True)
        flat = x.reshape((-1,)) * (F.zeros_like(x.reshape((-1,))) + last)
        numbers = (F.zeros_like(x.sum(axis=1)) + first).reshape((-1, 1))
        return F.concat(F.broadcast_mul(x, numbers), flat.reshape((-1, 4)), F.ones((0, 2)), dim=1)

    net = cell(forward)
    samples = attached([mx.nd.array(np.arange(4 * n).reshape((n, 4)) + 1) for n in rows])
    check_against_loop(net, samples, **options)


def test_launches_do_not_depend_on_the_number_of_arrays():
    net = embedding()
    for _ in range(2):
        numbers = [n % 10 for n in range(64)]
        batch = check_against_loop(lambda n: net(mx.nd.array([n])), numbers, **FIXED)
        assert batch.report.launches == 1 and len(batch.report.flushes) == 1
    assert batch.report.flushes[0].cached, "the plan does not depend on the values"


@pytest.mark.parametrize("options", SCOPES)
@pytest.mark.parametrize("apply", [
    lambda h, w: mx.nd.dot(h, w),
    lambda h, w: mx.nd.FullyConnected(h, w, num_hidden=WIDTH, no_bias=True),
    lambda h, w: mx.nd.linalg.gemm2(h, w), lambda h, w: mx.nd.concat(h, w, dim=0),
    lambda h, w: mx.nd.take(w, mx.nd.BlockGrad(3 * h[0])) + h,
    lambda h, w: mx.nd.Embedding(mx.nd.BlockGrad(3 * h[0] ** 2), w, WIDTH, WIDTH),
])  # fmt: skip
@pytest.mark.parametrize("runs", [by_mxnets_operators, contextlib.nullcontext])
def test_one_array_that_all_calls_share(apply, options, runs):
    """It lies between others in the buffer of the scope."""
    net = cell(lambda F, x: F.tanh(x))
    matrix = np.random.normal(size=(WIDTH, WIDTH))

    def fn(samples):
        first, shared = mx.nd.array([[1] * WIDTH]), mx.nd.array(matrix)
        return [apply(net(sample) * first, shared) for sample in samples]

    samples = [attached([x(i) for i in range(5)])]
    with runs():
        check_against_loop(fn, samples, **options)


CONTEXTS = mx.cpu(), mx.cpu(1), mx.cpu_pinned(0), mx.Context("cpu_shared", 0)


def test_arrays_of_many_sizes_and_types(monkeypatch):
    inside.limit(monkeypatch, "elements of a small chunk", 8)
    inside.limit(monkeypatch, "elements of a large chunk", 32)
    net = cell(lambda F, x: F.tanh(x))

    def fn(seed):
        random, results = np.random.RandomState(seed), []
        for dtype in ("float32", "float64", "int32", "uint8") * 3:
            values = random.randint(0, 9, size=(random.randint(1, 9), random.randint(1, 9)))
            for context in CONTEXTS:
                made = mx.nd.array(values, context, dtype)
                results.append(net(made) if dtype.startswith("float") else made + made)
                results.append(made[-1])
        return results

    for options in (FIXED, {**FIXED, "debug": True}):
        check_against_loop(fn, range(3), **options)


def test_large_arrays_and_large_constants():
    net = cell(lambda F, x: F.tanh(x))
    many = recording.MOST_VALUES // 4

    def fn(number):
        small, large = (mx.nd.array(np.full((many + more,), number)) for more in (0, 1))
        zeros = mx.nd.zeros((2, many))
        part = net(zeros[1]) + net(mx.nd.full((2, many), number)[0])
        return net(small)[-3:], net(large)[-3:], part[:3]

    check_against_loop(fn, range(3), **FIXED)


# Memory, gradients


WHAT = ["make", "zeros", "part", "flat", "detach", "write", "write row", "add", "call", "read"]
NUMBERS = st.integers(0, 99)
OPERATIONS = st.lists(st.tuples(st.sampled_from(WHAT), NUMBERS, NUMBERS), min_size=2, max_size=25)


def run(operations, net):
    """Run operations on arrays of shape (2, WIDTH) or parts of them; return all values."""
    arrays, results = [mx.nd.array(np.ones((2, WIDTH)))], []
    for what, number, which in operations:
        array = arrays[which % len(arrays)]
        if what == "make":
            arrays.append(mx.nd.array([[number] * WIDTH, [which] * WIDTH]))
        elif what == "zeros":
            arrays.append(mx.nd.zeros((2, WIDTH)))
        elif what == "part":
            arrays.append(array[number % array.shape[0] :])
        elif what == "flat":
            arrays.append(array.reshape((-1,)).reshape(array.shape))
        elif what == "detach":
            arrays.append(array.detach())
        elif what == "write":
            array[:] = number
        elif what == "write row":
            array[number % array.shape[0]] = mx.nd.array([which] * WIDTH)
        elif what == "add":
            array += number
        elif what == "call":
            results.append(net(array))
        else:
            results.append(array.asnumpy())
    return [host(array) for array in (*arrays, *results)]


@given(operations=OPERATIONS)
@examples(30)
def test_arrays_share_memory_as_without_a_scope(operations):
    net = dense(WIDTH)
    wanted = run(operations, net)
    with gdb.batching(**FIXED):
        got = run(operations, net)
    for one, other in zip(got, wanted):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_write_computes_nothing():
    """The calls before it have the old values, those after it the new ones."""
    net = cell(lambda F, x: x * 2)
    with gdb.batching(**FIXED) as batch:
        made = mx.nd.array([[1.0]])
        before, part = net(made), made[0]
        made[:] = 5
        part += 1
        after = net(made), net(part)
        assert not batch.report.flushes and made.asnumpy() == 6
    assert (before.asscalar(), *(a.asscalar() for a in after)) == (2, 12, 12)


def test_reading_computes_nothing_and_gives_a_copy():
    net = cell(lambda F, x: x * 2)
    with gdb.batching(**FIXED) as batch:
        made = mx.nd.array(VALUES)
        pending = net(made)
        values, row = made.asnumpy(), made[1][2].asnumpy()
        assert made[3, 2, 1].asscalar() == VALUES[3, 2, 1] and pending.pending
        np.testing.assert_array_equal(row, VALUES[1, 2])
        values[:] = 0
        np.testing.assert_array_equal(made.asnumpy(), VALUES)
        assert not batch.report.flushes
    same(pending, 2 * VALUES)


CASTS = [[-1.5, 200.7, 0], [3, -4, 300], [True, False], [1e-8, 3e9], [float("nan")], [0.1]]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", np.int32, "int64", "uint8"])
@pytest.mark.parametrize("values", CASTS, ids=str)
def test_casts(values, dtype):
    """Whole numbers that fit, and fractions, are those of MXNet, without a flush."""
    for source in ("float32", "float64", "int32"):
        values = [0] if source == "int32" and values != values else values
        with np.errstate(invalid="ignore"):
            given = np.array(values).astype(source)
        plain = mx.nd.array(given, dtype=source)
        wanted = outcome(lambda plain=plain: plain.astype(dtype))
        with gdb.batching(**FIXED) as batch:
            pending = cell(lambda F, x: x * 2)(mx.nd.ones((1,)))
            made = mx.nd.array(given, dtype=source)
            got = outcome(lambda made=made: made.astype(dtype))
            assert made.astype(source, copy=False) is made
            copied = made.copy()
            copied[:] = 5
            assert not batch.report.flushes and pending.pending
        assert got == wanted and repr(made.asnumpy()) == repr(given)


def test_the_source_is_copied():
    values = np.ones((1, WIDTH), "float32")
    with gdb.batching(**FIXED):
        made = mx.nd.array(values)
        values[:] = 3
        doubled = cell(lambda F, x: x * 2)(made)
    assert (doubled.asnumpy() == 2).all() and (made.asnumpy() == 1).all()


@pytest.mark.parametrize("scope", [True, False])
def test_an_array_that_gets_a_gradient(scope):
    net = dense(WIDTH)
    gradients = []
    options = gdb.batching(**FIXED) if scope else gdb.batching(analysis_budget=0)
    with autograd.record(), options as batch:
        made = [mx.nd.array([[i] * WIDTH]) for i in range(4)]
        unmarked = net(made[0])
        for array in made[:3]:
            array.attach_grad()
        results = [net(array * mx.nd.array([[2.0]])) for array in made]
        assert not batch.report.flushes
    autograd.backward([unmarked, *results])
    for array in made[:3]:
        gradients.append(array.grad.asnumpy())
    assert made[3].grad is None
    wanted = 2 * net.weight.data().asnumpy().sum(axis=0)
    np.testing.assert_allclose(gradients, [[wanted]] * 3, rtol=1e-5)


def test_an_array_is_its_own_after_the_scope():
    """It keeps its values, not those of the scope."""
    kept, net = [], dense(WIDTH)

    def scope():
        with gdb.batching(**FIXED):
            made = [mx.nd.array([[i] * WIDTH]) for i in range(2000)]
            kept.append(made[7])
            return [net(array) for array in made][7]

    same(net(mx.nd.array([[7] * WIDTH])), scope())
    gc.collect()
    tracemalloc.start()
    try:
        scope(), gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(5):
            scope()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 50_000, "an array takes some 100 bytes, all arrays of a scope 400,000"
    assert [array.asnumpy().tolist() for array in kept] == [[[7] * WIDTH]] * 7
    again = pickle.loads(pickle.dumps(kept[0]))
    assert type(again) is mx.nd.NDArray and again.asnumpy().tolist() == [[7] * WIDTH]


def test_an_array_of_one_scope_is_an_argument_in_others():
    net = embedding()
    with gdb.batching(**FIXED):
        word = mx.nd.array([3])
        rows = mx.nd.array([1, 2])
    for _ in range(2):
        with gdb.batching(**FIXED):
            results = [net(word), net(rows[1:]), net(mx.nd.array([3]))]
            STATE.batch.flush()
            results.append(net(word) + net(rows)[0])
        same(results[0], net(mx.nd.array([3])))
        same(results[1], net(mx.nd.array([2])))
        same(results[3], net(mx.nd.array([3])) + net(mx.nd.array([1])))


def test_threads_share_arrays():
    net, failures = embedding(), []
    with gdb.batching(**FIXED):
        words = [mx.nd.array([i]) for i in range(10)]
    wanted = net(mx.nd.array(np.arange(10))).asnumpy()

    def work():
        for _ in range(10):
            with gdb.batching(**FIXED):
                results = [net(word) for word in words]
            got = np.concatenate([result.asnumpy() for result in results])
            failures.extend([] if np.array_equal(got, wanted) else [got])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_samples_that_decode_greedily():
    """Each step makes an array of what the last one computed; one flush serves all samples."""
    net, score = embedding(), dense(10)

    def decode(word, steps):
        results = []
        for _ in range(steps):
            results.append(score(net(mx.nd.array([word], dtype="int32"))))
            word = int(results[-1].argmax(axis=1).asscalar())
        return mx.nd.concat(*results, dim=0), word

    samples = [(i % 10, 1 + i % 4) for i in range(8)]
    wanted = [decode(*sample) for sample in samples]
    with gdb.batching(**FIXED) as batch:
        got = batch.map(decode, samples)
    for (scores, word), (wanted_scores, wanted_word) in zip(got, wanted):
        same(scores, wanted_scores)
        assert word == wanted_word
    assert len(batch.report.flushes) <= 5


def test_memory_that_native_code_cannot_write(monkeypatch):
    """As on a GPU: MXNet makes each array, and numbers and zeros are arrays of MXNet."""
    inside.without_host_memory(monkeypatch, "constants")
    context = mx.cpu(7)  # of which native code knows no type yet
    net = cell(lambda F, x: F.tanh(x))

    def fn(number):
        made = mx.nd.array([[number, 2]], context)
        zeros = mx.nd.zeros((2, 2), context)
        h = net(made) * (0.5 + number) + net(zeros[1:]) + mx.nd.full((2, 2), number, context)[0]
        return h, made, zeros[0], zeros.astype("int32"), mx.nd.arange(2, ctx=context)

    for _ in range(2):
        check_against_loop(fn, [3, 1, 2], **FIXED)
    with gdb.batching(**FIXED):
        assert type(mx.nd.array([1], context)) is mx.nd.NDArray
        assert mx.nd.zeros((2, 2), context).asnumpy().tolist() == [[0, 0], [0, 0]]
