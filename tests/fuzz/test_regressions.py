"""Bugs that random programs have found, each as a minimal program."""

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests.cells import Apply, array, attached, cell, equal, ready
from tests.common import ALL, by_mxnets_operators, loop_and_scope
from tests.test_backward import Signs


def rows(dtype="float32"):
    return attached([array(k, 4, dtype=dtype) for k in (1, 2, 3)])


WEIGHTS = mx.nd.ones((1, 2))
(SHARED,) = attached([array(2, 2)])

#: By name: a cell, samples, each a list of arguments, and options; comments say what failed.
CELLS = {
    # MXNet refused to differentiate the launch, as one of its results has no gradient.
    "a result without a gradient beside one with": (
        lambda F, x, y: (F.BlockGrad(y), x), [[x, mx.nd.ones((1, 2))] for x in rows()],
    ),
    # The gradient of `h` is the head gradient: MXNet aliases it and does not write its buffer.
    "a sum with an argument": (
        lambda F, x, h: F.tanh(x) + h, [[x, y] for x, y in zip(rows(), rows())],
    ),
    # The merged call used an operator that supports single and double precision only.
    "diagonals in half precision": (
        lambda F, x: F.diag(x, k=-1), [[x] for x in attached([array(2, dtype="float16")] * 3)],
    ),
    # By default, MXNet removes amp_cast from symbols that it saves.
    "amp_cast": (
        lambda F, x, w: F.dot(F.amp_cast(x, dtype="float32"), w),
        [[mx.nd.array([[k]], dtype="float16"), WEIGHTS] for k in range(3)],
    ),
    # Launches do not read the array; its gradient buffer was never written.
    "an array of which only the shape is used": (
        lambda F, x, y: F.reshape_like(x, F.tanh(y)), [[x, y] for x, y in zip(rows(), rows())],
    ),
    # Kernels were more exact than MXNet, whose constants have single precision.
    "gelu in double precision": (
        lambda F, x: F.LeakyReLU(x * 0.5, act_type="gelu"), [[x] for x in rows("float64")],
    ),
    # MXNet cannot accumulate the gradient of a mean: the next launch overwrote it.
    "the gradient of a shared array": (
        lambda F, x, w: F.broadcast_mul(x, F.reshape(F.mean(w, axis=1), (1, 2))),
        [[array(n, 2), SHARED] for n in (1, 2, 3)], {"max_rows": 1},
    ),
}  # fmt: skip


@ALL
@pytest.mark.parametrize("steps", [nullcontext, by_mxnets_operators])
@pytest.mark.parametrize("name", CELLS)
def test_cells(name, steps, granularity):
    """The loop is imperative, as MXNet's hybridized loop fails on some cells."""
    fn, samples, *more = CELLS[name]
    options = {"granularity": granularity, **dict(*more)}
    hybridized, plain = cell(fn), Apply(fn)
    calls = iter([plain] * len(samples) + [hybridized] * len(samples))
    with steps():
        check_against_loop(lambda s: next(calls)(*s), samples, **options)


@ALL
def test_a_result_that_depends_on_parameters_only(granularity):
    """Its flush has nothing for native code to do, and failed without a program."""

    class Constant(Signs):
        def hybrid_forward(self, F, x, w):
            return F.tanh(w)

    net = ready(Constant())
    check_against_loop(net, [array(1, 2)], net.collect_params(), granularity=granularity)


@ALL
@pytest.mark.parametrize("budget", [None, 0])
def test_a_variance_without_its_mean(budget, granularity):
    """MXNet reads memory that was never written, so the loop is no reference."""
    net = cell(lambda F, x: F.moments(x, axes=(1,), keepdims=True)[1])
    samples = [mx.nd.random.normal(shape=(k + 1, 2, 2)) for k in range(3)]
    with gdb.batching(granularity=granularity, analysis_budget=budget):
        results = [net(x) for x in samples]
    equal(results, [x.asnumpy().var(1, keepdims=True) for x in samples], 1e-4, 1e-5)


@ALL
@pytest.mark.parametrize("calls", [1, 2])
def test_an_index_with_a_gradient(calls, granularity):
    """MXNet failed to accumulate it, unnoticed in a thread; the result of the index is unread."""
    net = cell(lambda F, x, w, index: (F.take(w, index, axis=-1, mode="wrap"), F.dot(x, w)))
    table, index = mx.nd.ones((2, 4)), mx.nd.array([0, 1])

    def run(scope):
        for x in (table, index):
            x.attach_grad("add")
            x.grad[:] = 0.25
        with autograd.record(), scope:
            results = [net(mx.nd.ones((1, 2)), table, index)[1] for _ in range(calls)]
        autograd.backward(results)
        return [table.grad, index.grad]

    wanted, _ = loop_and_scope(run, granularity=granularity)
    np.testing.assert_allclose(wanted[0], 0.25 + calls)


def test_debug_allows_a_cast_the_tolerance_of_its_operand():
    """It reported rounding in single precision as a wrong double."""
    net = cell(lambda F, x: F.cast(F.tanh(F.exp(x)), dtype="float64"))
    samples = [mx.nd.random.normal(shape=(1 + k, 40)) for k in range(8)]
    with gdb.batching(granularity="block", debug=True):
        results = [net(x) for x in samples]
    assert {y.dtype for y in results} == {np.float64}


ONES, ZEROS = mx.nd.ones(3), mx.nd.zeros(3)
NORMS = {
    "operator": lambda x, *moving: mx.nd.BatchNorm(
        mx.nd.BatchNorm(mx.nd.relu(x) * 2, ONES, ZEROS, *moving) * 1, ONES, ZEROS, *moving
    ),
    # MXNet crashed, as the statistics were results of a reshape.
    "operator with new parameters": lambda x, *moving: mx.nd.BatchNorm(
        x, mx.nd.ones(3), mx.nd.zeros(3), *moving, fix_gamma=False
    ),
    "cell": cell(
        lambda F, x, mean, var: F.BatchNorm(
            2 * x, F.ones_like(mean), F.zeros_like(mean), mean, var, fix_gamma=False
        )
    ),
}


@ALL
@pytest.mark.parametrize("train_mode", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_running_statistics_that_are_not_parameters(name, train_mode, granularity):
    """They were treated as parameters, or their update was lost and the backward pass failed."""

    def run(scope):
        mean, var = mx.nd.ones(3) * 0.5, mx.nd.ones(3) * 2
        samples = attached([mx.nd.arange(6 * (k + 1)).reshape((-1, 3)) for k in range(3)])
        with autograd.record(train_mode=train_mode), scope:
            results = [NORMS[name](x, mean, var) for x in samples]
            losses = [(y * y * x).sum() for x, y in zip(samples, results)]
        autograd.backward(losses, train_mode=train_mode)
        return [results, mean, var, [x.grad for x in samples]]

    loop_and_scope(run, 1e-4, 1e-4, granularity=granularity)


@ALL
def test_a_cell_that_mxnet_cannot_compile(granularity):
    """It has an operator without a gradient; the launch failed.  Now the call runs at once."""
    net = cell(lambda F, x: F.shuffle(F.BlockGrad(x * 2)) * 0 + x)
    relu = cell(lambda F, x: F.relu(x))
    samples = [mx.nd.ones((2, 3)) * k for k in range(3)]
    with gdb.batching(granularity=granularity) as batch:
        results = [net(relu(x)) for x in samples]
    equal(results, samples)
    assert [row.name for row in batch.report.alone] == ["shuffle"]


def test_a_scale_that_is_a_running_mean():
    """MXNet has no gradient for it, and refused a backward pass without any other variable."""
    net = cell(lambda F, x, w: F.BatchNorm(F.tile(x, 2), w, w, w, w, use_global_stats=True))

    def run(scope):
        (scale,) = attached([mx.nd.ones(4)])
        with autograd.record(train_mode=False):
            with scope:
                results = [net(array(n, 2), scale) for n in (1, 2, 3)]
            total = mx.nd.add_n(*[y.sum() for y in results]) * attached([mx.nd.ones(1)])[0]
        total.backward()
        return [total, scale.grad]

    loop_and_scope(run, granularity="operator")


#: Advanced indices, of an array and row numbers.
KEYS = {
    "rows": lambda x, i: x[i],
    "rows and columns": lambda x, i: x[i, 1:],
    "elements": lambda x, i: x[i, i],
    "of an array of no scope": lambda x, i: mx.nd.arange(12).reshape((4, 3))[i] * x[0],
}
#: Outside of a scope, the package does not see how a plain array is indexed: see docs/limits.md.
PLACES = [(name, after) for after in (False, True) for name in list(KEYS)[: 4 - after]]


@ALL
@pytest.mark.parametrize("name, after", PLACES)
def test_an_index_that_a_scope_has_computed(name, after, granularity):
    """MXNet crashed: it made zeros of the index as its gradient, but no longer had the index."""
    net, samples = cell(lambda F, x: F.tanh(x) * 2), attached([array(n, 3) for n in (1, 2, 3)])

    def run(scope):
        with autograd.record():
            with scope:
                lazy = [net(x) for x in samples]
                rows = [mx.nd.argmax(x, axis=1) * 0 for x in lazy]
                results = [] if after else list(map(KEYS[name], lazy, rows))
            results = results or list(map(KEYS[name], lazy, rows))
            losses = [y.sum() for y in results]
        autograd.backward(losses)
        return [*results, *(x.grad for x in samples)]

    loop_and_scope(run, granularity=granularity)


#: Operators that read only the shape of their last operand.
LIKE = {
    "reshape_like": lambda F, x, w: F.reshape_like(x, w),
    "broadcast_like": lambda F, x, w: F.broadcast_like(x.slice_axis(axis=1, begin=0, end=1), w),
    "slice_like": lambda F, x, w: F.slice_like(x, w, axes=(1,)),
}


@ALL
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("fn", LIKE.values(), ids=LIKE)
def test_a_parameter_that_is_read_for_its_shape(fn, dtype, granularity):
    """What MXNet's operators run is then in no graph of MXNet's."""

    class Like(gdb.DynamicHybridBlock):
        def __init__(self):
            super().__init__(prefix="like_")
            self.shape = self.params.get("shape", shape=(1, 4))

        def hybrid_forward(self, F, x, shape):
            return fn(F, x, shape)

    net = Like()
    net.initialize()
    net.cast(dtype)
    net.hybridize()

    def run(scope):
        (factor,) = attached([mx.nd.ones((1, 1), dtype=dtype) * 3])
        with autograd.record(), scope:
            results = [net(array(1, 4).astype(dtype)) for _ in range(3)]
            losses = [mx.nd.broadcast_mul(y, factor).sum() for y in results]
        autograd.backward(losses)
        return [*losses, factor.grad, net.shape.grad()]

    loop_and_scope(run, granularity=granularity)
