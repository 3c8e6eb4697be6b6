"""Programs with ``mx.np`` and ``mx.npx`` work as those with ``mx.nd`` do."""

import operator
import threading
from functools import reduce

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, npx
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.record.lazy import LazyNDArray, LazyNumPy
from gluon_dynbatch.run.gradient import record_function
from gluon_dynbatch.testing import check_against_loop
from tests.cells import cell
from tests.common import FIXED, SCOPES, same, semantics

pytestmark = pytest.mark.filterwarnings("ignore:.*has been renamed:DeprecationWarning")
mnp = mx.np
WIDTH = 4
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


@pytest.fixture(autouse=True)
def numpy():
    """As after ``npx.set_np()``, and back again, also when a test fails."""
    with semantics("np"):
        yield


class Step(gdb.DynamicHybridBlock):
    """A gated recurrent step with operators of `mx.np` and `mx.npx`."""

    def __init__(self):
        super().__init__()
        self.gates = nn.Dense(3 * WIDTH, in_units=2 * WIDTH)

    def hybrid_forward(self, F, x, h):
        update, reset, new = F.np.split(self.gates(F.np.concatenate([x, h], axis=1)), 3, axis=1)
        update, new = F.npx.sigmoid(update), F.np.tanh(new * F.npx.sigmoid(reset))
        return update * h + (1 - update) * new


class Reader(gdb.DynamicHybridBlock):
    """Reads words one by one, attends to them, and scores three classes."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, WIDTH)
        self.step, self.score = Step(), nn.Dense(3, in_units=2 * WIDTH)

    def forward(self, words):
        vectors, h = self.embedding(words), mnp.zeros((1, WIDTH))
        for i in range(len(words)):
            h = self.step(vectors[i : i + 1], h)
        weights = npx.softmax(mnp.dot(h, vectors.T) / WIDTH**0.5)
        return self.score(mnp.concatenate([h, mnp.dot(weights, vectors)], axis=1))


def words(*sizes):
    rng = np.random.RandomState(0)
    return [mnp.array(rng.randint(0, 10, size=size), dtype="int32") for size in sizes]


def reader(**options):
    net = Reader()
    net.initialize(mx.init.Xavier())
    net.hybridize(**options)
    return net


SAMPLES = [3, 5, 2, 4]


def losses(net, samples, summed):
    found = [LOSS(net(x), mnp.array([len(x) % 3])) for x in samples]
    return [loss.sum() for loss in found] if summed else found


@pytest.mark.parametrize("options", [*SCOPES, {}], ids=str)
@pytest.mark.parametrize("summed", [False, True])
def test_values_and_gradients_are_those_of_the_loop(options, summed):
    net, samples = reader(), words(*SAMPLES)
    gradients = []
    for scope in (None, gdb.batching(**options)):
        with autograd.record():
            if scope is None:
                results = wanted = losses(net, samples, summed)
            else:
                with scope:
                    results = losses(net, samples, summed)
                    assert {type(x) for x in results} == {LazyNumPy}
                    assert {x.shape for x in results} == ({()} if summed else {(1,)})
        autograd.backward(results)
        gradients.append([p.grad().asnumpy() for p in net.collect_params().values()])
    same([x.asnumpy() for x in results], [x.asnumpy() for x in wanted])
    for got, expected in zip(gradients[1], gradients[0]):
        np.testing.assert_allclose(got, expected, 1e-4, 1e-5)
    assert not scope.report.alone


def test_both_fronts_need_as_many_launches():
    counts = []
    for front in ("nd", "np"):
        with semantics(front):
            array = mx.np.array if front == "np" else mx.nd.array
            net = cell(lambda F, x, y: (x + y) * 2 - x / y)
            with gdb.batching(**FIXED) as batch:
                for size in (1, 2, 3):
                    x = array(np.ones((size, 3), "float32"))
                    y = net(net(x, x), x)
                    (y[0:1] * 2 + 1 - y[0:1]).sum()
        counts.append((batch.report.nodes, batch.report.launches))
    assert counts[0] == counts[1]


def test_calls_of_both_fronts_share_launches():
    double = cell(lambda F, x: x * 2)
    with gdb.batching(**FIXED) as batch:
        x = double(mnp.ones((1, 3)))
        results = [x + x, x.as_nd_ndarray() + x.as_nd_ndarray()]
        assert [type(y) for y in results] == [LazyNumPy, LazyNDArray]
    assert batch.report.launches == 2 and batch.report.nodes == 3
    same(results, [np.full((1, 3), 4, "float32")] * 2)


CHOICES = {
    "a number": lambda F, x: F.np.where(x > 0, x, x * -3),
    "an array": lambda F, x: F.np.where(F.np.greater_equal(x, x * x), x, x * -3),
    "a factor": lambda F, x: x * (x < 0.5) + F.np.logical_not(x),
}


@pytest.mark.parametrize("name", CHOICES)
def test_comparisons_in_blocks_have_native_steps(name):
    """So arrays of several sizes share a launch, as with `mx.nd`, whose comparisons give floats."""
    twice, choose = cell(lambda F, x: x * 2), cell(CHOICES[name])
    samples = [mnp.array(np.random.RandomState(n).randn(2, n), dtype="float32") for n in (2, 4, 3)]
    check_against_loop(lambda x: choose(twice(x)), samples)
    with gdb.batching(**FIXED) as batch:
        results = [choose(twice(x)) for x in samples]
    assert batch.report.launches == 2 and len(results) == 3
    assert not any(isinstance(reason, str) for reason in batch.plan.kernels)


def test_training_with_a_trainer():
    trained = []
    for scope in (None, gdb.batching()):
        mx.random.seed(3)
        net, samples = reader(), words(*SAMPLES)
        trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
        for _ in range(3):
            with autograd.record():
                if scope is None:
                    results = losses(net, samples, True)
                else:
                    with scope:
                        results = losses(net, samples, True)
            autograd.backward(results)
            trainer.step(len(samples))
        trained.append([p.data().asnumpy() for p in net.collect_params().values()])
    for got, expected in zip(*trained):
        np.testing.assert_allclose(got, expected, 1e-3, 1e-4)


def until_small(net, x):
    """Read values to decide how often to call a cell."""
    vectors, h, steps = net.embedding(x), mnp.zeros((1, WIDTH)), 0
    while float(mnp.abs(h).sum()) < 1.5 and steps < 6:
        h, steps = net.step(vectors[steps % len(x)][None], h), steps + 1
        if (h > 0.9).any():
            break
    return steps, h, h.argmax(axis=1).item()


def test_samples_that_read_values_wait_for_one_flush():
    net, samples = reader(), words(*SAMPLES)
    wanted = [until_small(net, x) for x in samples]
    with gdb.batching(**FIXED) as batch:
        got = batch.map(lambda x: until_small(net, x), samples)
    same(got, wanted)
    assert len(batch.report.flushes) < 3 * max(steps for steps, *_ in wanted) + 3


def test_semantics_belong_to_the_sample():
    def program(x):
        with mx.util.np_array(False), mx.util.np_shape(False):
            value = mx.nd.tanh(x.as_nd_ndarray() * 1).sum().asscalar()
            assert not mx.util.is_np_shape() and not mx.util.is_np_array()
        assert mx.util.is_np_shape() and mx.util.is_np_array()
        return value + x.sum().item()

    samples = [mnp.full((1, 3), i) for i in range(3)]
    assert gdb.map(program, samples) == pytest.approx([program(x) for x in samples])


def test_map_imap_and_traced_blocks():
    net, samples = reader(), words(*SAMPLES)
    wanted = [net(x) for x in samples]
    same(gdb.map(net, samples, debug=True), wanted)
    same(list(gdb.imap(net, iter(samples), 3)), wanted)
    net.hybridize(trace_once=True)
    for _ in range(2):
        with gdb.batching(**FIXED) as batch:
            results = [net(x) for x in samples]
            assert {type(y) for y in results} == {LazyNumPy}
        same(results, wanted)
    assert batch.report.traced.known == len(samples)
    check_against_loop(net, samples)


def test_requests_have_the_semantics_of_the_thread_that_made_the_batcher():
    net, samples = reader(), words(*SAMPLES)
    wanted = [net(x).asnumpy() for x in samples]
    with gdb.RequestBatcher(net) as batcher:
        futures = [batcher.submit(x.asnumpy()) for x in samples]
        same([future.result() for future in futures], wanted)


def test_semantics_belong_to_the_thread():
    net, results = cell(lambda F, x: x * 2), []

    def work():
        with gdb.batching(**FIXED):
            results.append(net(mx.nd.ones((1, 2))))

    thread = threading.Thread(target=work)
    with gdb.batching(**FIXED):
        mine = net(mnp.ones((1, 2)))
        thread.start()
        thread.join()
    assert isinstance(mine, LazyNumPy) and type(results[0]) is LazyNDArray


def test_constants_and_numbers():
    net = cell(lambda F, x: x * 2)
    with gdb.batching(**FIXED) as batch:
        results = [net(mnp.ones((1, 2))) + i / 7 for i in range(4)]
        results += [mnp.zeros((2, 3)) + 1, mnp.ones(()) * 2, mnp.full((2,), 3.0)[0]]
    assert batch.report.launches == 4
    same(results[4:], [np.ones((2, 3), "float32"), np.full((), 2, "float32"),
                       np.full((), 3, "float32")])  # fmt: skip


def changed(x):
    y = x.reshape_view(-1)
    y[0] = 5
    return x


def with_gradient(x):
    x.attach_grad()
    with autograd.record():
        y = (x * x).sum()
    y.backward()
    return x.grad


#: Arrays that a program makes, and what it does with them.
MADE = [
    lambda: mnp.zeros((2, 3)), lambda: mnp.ones((2, 3), dtype="int32"), lambda: mnp.zeros(()),
    lambda: mnp.ones((), dtype="float64"), lambda: mnp.full((2, 1), 3.0), lambda: mnp.arange(4),
    lambda: mnp.eye(2), lambda: mnp.array([[1, 2]]), lambda: mnp.array(2.5), lambda: mnp.zeros(3),
]  # fmt: skip
USES = [
    lambda x: x, lambda x: x.copy(), lambda x: x.detach(), lambda x: x.astype("float64"),
    lambda x: x[()], lambda x: x.T, lambda x: x.as_nd_ndarray().as_np_ndarray(),
    lambda x: x.reshape(-1), changed, lambda x: (changed(x.detach()), x)[1], lambda x: x + 1,
    lambda x: changed(x.copy()) * x, lambda x: mnp.sum(x) + x, lambda x: x.asnumpy().sum() + x,
    lambda x: x.detach().reshape_view(-1)[0] * 2, lambda x: mnp.array(x.tolist()), with_gradient,
    lambda x: 1 - x.as_nd_ndarray(), lambda x: x.reshape_view(-1)[:1] + x,
]  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("make", MADE)
def test_arrays_made_in_a_scope(make, use):
    wanted = use(make())
    with gdb.batching(policy="depth"):
        results = [use(make()) for _ in range(2)]
        inside = results[0].asnumpy()
    same([inside, *results], [wanted.asnumpy()] * 3)
    for result in results:
        assert result.shape == wanted.shape and result.dtype == wanted.dtype
        assert isinstance(result, mnp.ndarray) == isinstance(wanted, mnp.ndarray)


def test_equal_arrays_that_traced_blocks_make():
    net = Making()
    net.hybridize(trace_once=True)
    for _ in range(2):
        with gdb.batching(**FIXED) as batch:
            results = [net(mnp.full((1, 2), i)) for i in range(3)]
        for i, (product, zeros, one) in enumerate(results):
            wanted = np.full((1, 2), i + 1), np.zeros((1, 2)), np.ones(())
            same([product, zeros, one], [array.astype("float32") for array in wanted])
            assert {type(y) for y in (product, zeros, one)} == {LazyNumPy}
    assert batch.report.traced.known == 3


class Making(gdb.DynamicHybridBlock):
    """Returns arrays that it makes."""

    def forward(self, x):
        one = mnp.ones(())
        return x + one, mnp.zeros((1, 2)), one


def test_arrays_without_axes_get_gradients():
    s, x = mnp.array(2.0), mnp.array(3.0)
    gradients = []
    for scope in (None, gdb.batching(**FIXED)):
        for array in (s, x):
            array.attach_grad()
        with autograd.record():
            if scope is None:
                results = [(mnp.ones((2,)) * s * x * i).sum() + x for i in range(3)]
            else:
                with scope:
                    one = cell(lambda F, x: x * 1)(mnp.ones((2,)))
                    results = [(one * s * x * i).sum() + x for i in range(3)]
        autograd.backward(results)
        gradients.append([s.grad.item(), x.grad.item()])
    assert gradients[0] == gradients[1] == [18.0, 15.0]


@pytest.mark.parametrize("source", [
    2.5, 3, True, [[1, 2], [3, 4]], np.arange(3), np.float64(0.1), np.ones((2, 0)), [[]], (),
    np.array([True, False]), np.full((2,), 7, "int8"), np.ones((1, 2), "float16"),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [None, "float64", "int32", "bool", np.float16])
def test_arrays_of_numbers(source, dtype):
    """They have the types and values of MXNet's, and take no flush."""
    net, wanted = cell(lambda F, x: x * 2), mnp.array(source, dtype=dtype)
    with gdb.batching(**FIXED) as batch:
        pending, made = net(mnp.ones((1, 2))), mnp.array(source, dtype=dtype)
        read, shape = made.asnumpy(), made.shape
        assert pending.pending and isinstance(made, mnp.ndarray) and not batch.report.flushes
        changed = mnp.array(source, dtype=dtype)
        if changed.size:
            changed[()] = 1
        results = [made, made.copy(), changed, mnp.zeros_like(made)]
    same(read, wanted.asnumpy())
    same(results[:2], [wanted.asnumpy()] * 2)
    same(results[2:], [np.ones(shape, wanted.dtype), np.zeros(shape, wanted.dtype)])
    for result in results:
        assert result.shape == wanted.shape and result.dtype == wanted.dtype


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e40])
def test_numbers_that_no_integer_has(front, number):
    """Kernels of integers leave them to MXNet."""
    array = (mnp if front == "np" else mx.nd).array
    net = cell(lambda F, x: (x > number, x == number, x != number))
    x = array([[1, 2]], dtype="int32")
    with gdb.batching(policy="depth") as batch:
        got = net(net(x)[0].astype("int32") + x)
    same(got, net(net(x)[0].astype("int32") + x))
    assert batch.report.nodes


#: What operators of ``mx.nd`` do to a sum, which has no axes.
OF_ND = [
    lambda x: x + 1,
    mx.nd.BlockGrad,
    lambda x: x * x,
    lambda x: mx.nd.broadcast_mul(x, x.as_np_ndarray().as_nd_ndarray()),
]


@pytest.mark.parametrize("trace_once", [False, True])
@pytest.mark.parametrize("use", OF_ND)
def test_operators_of_nd_give_arrays_without_axes(use, trace_once):
    class Traced(gdb.DynamicHybridBlock):
        def forward(self, x):
            return use(mnp.sum(unary(x)).as_nd_ndarray()).as_np_ndarray()

    unary, net, samples = cell(lambda F, x: F.np.tanh(x)), Traced(), words(*SAMPLES)
    net.hybridize(trace_once=trace_once)
    wanted = [net(x).asnumpy() for x in samples]
    for _ in range(2):
        with mx.autograd.record(), gdb.batching(**FIXED):
            results = [net(x) for x in samples]
        assert all(y.shape == y.asnumpy().shape == () for y in results)
        same(results, wanted)


def test_writes_are_seen():
    net, x = cell(lambda F, x: x * 2), mnp.ones((1, 2))
    with autograd.record(), gdb.batching(**FIXED):
        before = net(x)
        x[:] = 5
        after = net(x)
        x.attach_grad()
        last = net(x)
    last.backward()
    same([before, after, x.grad], [np.full((1, 2), n, "float32") for n in (2, 10, 2)])


def test_empty_arrays_run_at_once():
    net = cell(lambda F, x: x * 2)
    with gdb.batching(**FIXED) as batch:
        y = net(mnp.ones((3, 2)))
        results = [net(y[:0]), mnp.concatenate([y[3:], y]), mnp.zeros((0, 2)) + 1]
    same(results, [np.zeros((0, 2), "float32"), np.full((3, 2), 2, "float32"),
                   np.zeros((0, 2), "float32")])  # fmt: skip
    assert "an array is empty" in str(batch.report.alone)


def test_blocks_with_parameters_without_axes_are_recorded_by_operator():
    class Scaled(gdb.DynamicHybridBlock):
        def __init__(self):
            super().__init__()
            self.scale = self.params.get("scale", shape=(), init=mx.init.Uniform())

        def hybrid_forward(self, F, x, scale):
            return F.np.exp(x) * scale, scale * 2

    net, before = Scaled(), cell(lambda F, x: x * 2)
    net.initialize()
    net.hybridize()
    samples = [mnp.ones((n, 2)) for n in (1, 2, 2)]
    gdb.testing.check_against_loop(lambda x: net(before(x)), samples, net.collect_params(), **FIXED)
    with gdb.batching(**FIXED) as batch:
        [net(before(x)) for x in samples]
    assert batch.report.nodes > len(samples)  # not only those of `before`


def test_without_numpy_shapes_calls_run_at_once():
    net = cell(lambda F, x: x * 2)
    with gdb.batching(**FIXED) as batch:
        y = net(mnp.ones((1, 2)))
        with mx.util.np_array(False), mx.util.np_shape(False):
            assert type(mnp.tanh(y)) is mnp.ndarray
    assert "set_np" in str(batch.report.alone)


def test_advice_for_lists_of_several_lengths_names_functions_of_numpy():
    """A sum that does not begin with the number of Python's ``sum`` is one of other arrays."""
    nets = [
        cell(lambda F, arrays: F.np.tanh(reduce(operator.add, arrays))),
        cell(lambda F, arrays: F.np.tanh(sum(arrays))),
        cell(lambda F, arrays: F.np.tanh(arrays[0])),
    ]
    samples = [[mnp.ones((1, 2)) * i] * count for i, count in enumerate((1, 2, 3, 3))]
    joined = [[mnp.concatenate(arrays)] for arrays in samples]
    reports = []
    for net, given in zip(nets, (samples, samples, joined)):
        with gdb.batching(granularity="operator", policy="depth") as batch:
            results = [net(arrays) for arrays in given]
        same(results, [net(arrays).asnumpy() for arrays in given])
        reports.append(batch.report)
    advice = "with mx.np.concatenate(..., axis=0) or mx.np.stack(..., axis=0), or add them up in "
    assert advice + "the block, with Python's sum(arrays)" in str(reports[0].split)
    assert [report.launches for report in reports] == [3, 1, 1]
    assert not reports[1].split and not reports[2].split


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
def test_dtypes_are_of_the_class_that_mxnet_gives(dtype):
    """Before and after they are computed; `mx.np` gives ``np.dtype``, and `mx.nd` its type."""
    x = mnp.ones((1, 2), dtype=dtype)
    with gdb.batching(**FIXED):
        y = cell(lambda F, x: F.np.concatenate([x, x]))(x)
        z = y[:1].as_nd_ndarray()
        assert isinstance(y, LazyNumPy)
        assert (type(y.dtype), y.dtype.name) == (type(x.dtype), dtype)
    assert (y.dtype, z.dtype) == (x.dtype, x.as_nd_ndarray().dtype)
    assert type(z.dtype) is type(x.as_nd_ndarray().dtype)


@pytest.mark.parametrize("options", SCOPES)
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4)])
def test_the_trace_of_any_diagonal_equals_the_loop(shape, options):
    """It may be empty: MXNet's operators for the parts of it refuse that."""
    samples = [mnp.random.normal(size=shape) for _ in range(3)]
    for sample in samples:
        sample.attach_grad()
    for offset in range(-3, 4):
        net = cell(lambda F, x, offset=offset: F.np.trace(F.np.tanh(x), offset=offset))
        check_against_loop(net, samples, **options)


class Passed:
    """A function of MXNet's tape, whose gradient is not yet where MXNet wants it."""

    def __init__(self, x):
        self.inputs = [x]

    def starts(self, heads):
        return False

    def reached(self):
        return None

    def backward(self, head_gradients, requests, training):
        return head_gradients


def test_gradients_without_axes_arrive():
    """MXNet's thread of backward passes does not know that arrays may have none."""
    x = mnp.array(3.0)
    x.attach_grad()
    y = x.copy()
    record_function([x], [y], Passed(x))
    with autograd.record():
        z = y * 5
    z.backward()
    assert x.grad.item() == 5
