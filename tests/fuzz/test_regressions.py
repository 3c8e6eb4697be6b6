"""What random programs have found, each as small as it became."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, List

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.scope import GRANULARITIES

ALL = pytest.mark.parametrize("granularity", GRANULARITIES)


class AmpCast(gdb.DynamicHybridBlock):
    """MXNet leaves amp_cast out of symbols that it saves, unless it is told not to."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(1, in_units=2)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.dense(F.amp_cast(x, dtype="float32"))


@ALL
def test_amp_cast_in_a_cell(granularity: str) -> None:
    net = AmpCast()
    net.initialize()
    net.hybridize()
    samples = [mx.nd.array([[1, k]], dtype="float16") for k in range(3)]
    batch = gdb.testing.check_against_loop(
        net, samples, net.collect_params().values(), granularity=granularity
    )
    assert batch.report.launches == 1


class Unread(gdb.DynamicHybridBlock):
    """The result that nobody reads needs an index; MXNet cannot add to an index's gradient."""

    def hybrid_forward(self, F: Any, x: Any, table: Any, index: Any) -> Any:
        return F.take(table, index, axis=-1, mode="wrap"), F.dot(x, table)


@ALL
@pytest.mark.parametrize("calls", [1, 2])
def test_an_index_with_a_gradient(calls: int, granularity: str) -> None:
    """The backward pass asked MXNet for it, which failed in a thread that nobody waited for."""
    net = Unread()
    net.hybridize()
    table, index = mx.nd.ones((2, 4)), mx.nd.array([0, 1])
    found: List[List[np.ndarray]] = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity)):
        for array in (table, index):
            array.attach_grad("add")
            array.grad[:] = 0.25
        with autograd.record(), scope:
            results = [net(mx.nd.ones((1, 2)), table, index)[1] for _ in range(calls)]
        autograd.backward(results)
        found.append([table.grad.asnumpy(), index.grad.asnumpy()])
    np.testing.assert_allclose(found[0][0], 0.25 + calls)
    for wanted, got in zip(*found):
        np.testing.assert_array_equal(wanted, got)


class Blocked(gdb.DynamicHybridBlock):
    """One of the results does not depend on any variable."""

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        return F.BlockGrad(y), x


@ALL
def test_a_result_without_a_gradient_beside_one_with(granularity: str) -> None:
    """MXNet refused to differentiate the former, and with it the whole launch."""
    net = Blocked()
    net.hybridize()
    samples = [[mx.nd.ones((1, 3)) * k, mx.nd.ones((1, 2))] for k in range(3)]
    for sample in samples:
        sample[0].attach_grad()
    gdb.testing.check_against_loop(lambda s: net(*s), samples, granularity=granularity)


class Widened(gdb.DynamicHybridBlock):
    """A sum in single precision, cast to double."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.cast(F.tanh(F.exp(x)), dtype="float64")


def test_debug_expects_no_more_of_a_cast_than_of_what_was_cast() -> None:
    """It took the last bit of a number in single precision for a wrong value."""
    net = Widened()
    net.hybridize()
    samples = [mx.nd.random.normal(shape=(1 + k, 40)) for k in range(8)]
    with gdb.batching(debug=True, granularity="block"):
        results = [net(x) for x in samples]
    assert {y.dtype for y in results} == {np.float64}


@ALL
@pytest.mark.parametrize("train_mode", [False, True])
def test_batch_norm_as_an_operator(train_mode: bool, granularity: str) -> None:
    """Its moving statistics are arrays of the user's; they were taken for parameters."""
    found = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity)):
        ones, zeros, mean, var = (mx.nd.ones(3) * k for k in (1, 0, 0.5, 2))
        samples = [mx.nd.arange(6 * (k + 1)).reshape((-1, 3)) for k in range(3)]
        for x in samples:
            x.attach_grad()
        with autograd.record(train_mode=train_mode), scope:
            results = [mx.nd.BatchNorm(mx.nd.relu(x) * 2, ones, zeros, mean, var) for x in samples]
            results = [mx.nd.BatchNorm(y * 1, ones, zeros, mean, var) for y in results]
        autograd.backward(results, train_mode=train_mode)
        arrays = [*results, mean, var, *(x.grad for x in samples)]
        found.append([array.asnumpy() for array in arrays])
    for wanted, got in zip(*found):
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)


class OneOperator(gdb.DynamicHybridBlock):
    """An operator on a parameter, whose gradients add up over calls."""

    def __init__(self, apply: Any, shape: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self._apply = apply
        with self.name_scope():
            self.w = self.params.get("w", shape=shape)

    def hybrid_forward(self, F: Any, x: Any, w: Any) -> Any:
        return F.broadcast_mul(x, row(F, self._apply(F, w)))


def row(F: Any, matrix: Any) -> Any:
    """Return what a result becomes a factor of the sample's array with."""
    return F.reshape(F.slice_axis(F.reshape(matrix, shape=(-1, 2)), axis=0, begin=0, end=1), (1, 2))


OVERWRITTEN = {
    "clip": ((1, 2), lambda F, w: F.clip(w, -2, 2)),
    "mean": ((2, 2), lambda F, w: F.mean(w, axis=1)),
    "flip": ((1, 2), lambda F, w: F.flip(w, axis=1)),
    "cumsum": ((1, 2), lambda F, w: F.cumsum(w, axis=1)),
    "gemm2": ((1, 2, 2), lambda F, w: F.linalg.gemm2(w, F.ones((1, 2, 2), dtype="float64"))),
    "inverse": ((1, 2, 2), lambda F, w: F.linalg.inverse(w)),
    "RNN": (
        (1, 1, 2),
        lambda F, w: F.RNN(
            w, F.ones(12, dtype="float64"), F.zeros((1, 1, 2), dtype="float64"), state_size=2,
            num_layers=1, mode="rnn_tanh",
        ),
    ),
}  # fmt: skip


@ALL
@pytest.mark.parametrize("op", OVERWRITTEN)
def test_gradients_of_a_parameter_that_mxnet_cannot_add_up(op: str, granularity: str) -> None:
    """They were overwritten by the next launch, lost, or refused."""
    shape, apply = OVERWRITTEN[op]
    net = OneOperator(apply, shape)
    net.initialize(mx.init.Uniform(0.4))
    net.cast("float64")
    net.w.set_data(net.w.data() + mx.nd.eye(2, dtype="float64")[: shape[-2]])
    net.hybridize()
    samples = [mx.nd.random.normal(shape=(n, 2), dtype="float64") for n in (1, 2, 3)]
    options = {"granularity": granularity, "max_rows": 1}
    gdb.testing.check_against_loop(net, samples, [net.w], **options)


class LikeAnother(gdb.DynamicHybridBlock):
    """Of one argument only the shape counts, which launches know without it."""

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        return F.reshape_like(x, F.tanh(y))


@ALL
def test_an_array_of_which_only_the_shape_counts(granularity: str) -> None:
    """Its gradient was what happened to be in memory."""
    net = LikeAnother()
    net.hybridize()
    pairs = [(mx.nd.ones((3, 4)), mx.nd.ones((3, 4))) for _ in range(2)]
    for pair in pairs:
        for array in pair:
            array.attach_grad()
            array.grad[:] = 5
    with autograd.record(), gdb.batching(granularity=granularity):
        results = [net(*pair) for pair in pairs]
    autograd.backward(results)
    for x, y in pairs:
        assert (x.grad.asnumpy() == 1).all() and (y.grad.asnumpy() == 0).all()


class OnDiagonals(gdb.DynamicHybridBlock):
    """A vector becomes a matrix."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.diag(x, k=-1)


@ALL
def test_diagonals_in_half_precision(granularity: str) -> None:
    """They were made with an operator that knows single and double precision only."""
    net = OnDiagonals()
    net.hybridize()
    samples = [mx.nd.ones(2, dtype="float16") * k for k in range(3)]
    for x in samples:
        x.attach_grad()
    batch = gdb.testing.check_against_loop(net, samples, granularity=granularity)
    assert batch.report.launches == 1


class SixDimensions(gdb.DynamicHybridBlock):
    """With a batch axis there would be seven."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.tanh(F.reshape(x, shape=(2, -1)))


@ALL
def test_arrays_of_six_dimensions(granularity: str) -> None:
    """MXNet cannot reshape arrays of seven; the launch failed."""
    net = SixDimensions()
    net.hybridize()
    samples = [mx.nd.ones((1, 2, 1, 2, 1, 2)) * k for k in range(3)]
    for x in samples:
        x.attach_grad()
    gdb.testing.check_against_loop(net, samples, granularity=granularity)


class Variance(gdb.DynamicHybridBlock):
    """Nobody reads the first result of ``moments``."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.moments(x, axes=(1,), keepdims=True)[1]


@ALL
@pytest.mark.parametrize("budget", [None, 0])
def test_a_variance_without_its_mean(budget: Any, granularity: str) -> None:
    """MXNet computes it from memory that was never written, also in a hybridized loop."""
    net = Variance()
    net.hybridize()
    samples = [mx.nd.random.normal(shape=(k + 1, 2, 2)) for k in range(3)]
    with gdb.batching(granularity=granularity, analysis_budget=budget):
        results = [net(x) for x in samples]
    for x, y in zip(samples, results):
        np.testing.assert_allclose(y.asnumpy(), x.asnumpy().var(1, keepdims=True), 1e-4, 1e-5)


class GivenStatistics(gdb.DynamicHybridBlock):
    """Running statistics are arguments, not parameters."""

    def hybrid_forward(self, F: Any, x: Any, mean: Any, var: Any) -> Any:
        ones, zeros = F.ones_like(mean), F.zeros_like(mean)
        return F.BatchNorm(2 * x, ones, zeros, mean, var, fix_gamma=False)


@ALL
def test_statistics_that_a_cell_is_given(granularity: str) -> None:
    """Their update was lost, and the backward pass failed."""
    net = GivenStatistics()
    net.hybridize()
    found = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity)):
        mean, var = mx.nd.ones(3) * 0.5, mx.nd.ones(3) * 2
        samples = [mx.nd.arange(6 * (k + 1)).reshape((-1, 3)) for k in range(3)]
        for x in samples:
            x.attach_grad()
        with autograd.record(), scope:
            results = [net(x, mean, var) for x in samples]
            losses = [(y * y * x).sum() for x, y in zip(samples, results)]
        autograd.backward(losses)
        arrays = [*results, mean, var, *(x.grad for x in samples)]
        found.append([array.asnumpy() for array in arrays])
    for wanted, got in zip(*found):
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)


class Shuffled(gdb.DynamicHybridBlock):
    """An operator that MXNet cannot compile, as it has no gradient."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.shuffle(F.BlockGrad(x * 2)) * 0 + x


@ALL
def test_a_cell_that_mxnet_cannot_compile(granularity: str) -> None:
    """The launch failed, far from the line; the operator alone runs at once."""
    net, before = Shuffled(), gdb.convert(nn.Activation("relu"))
    net.hybridize()
    before.hybridize()
    samples = [mx.nd.ones((2, 3)) * k for k in range(3)]
    with gdb.batching(granularity=granularity) as batch:
        results = [net(before(x)) for x in samples]
    for x, y in zip(samples, results):
        np.testing.assert_array_equal(y.asnumpy(), x.asnumpy())
    assert [row.name for row in batch.report.alone] == ["_shuffle"]


class Rectified(gdb.DynamicHybridBlock):
    """Numbers of words, say."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.relu(F.cast(x, dtype="int32"))


@ALL
def test_relu_of_integers(granularity: str) -> None:
    """It was replaced by a faster operator that takes floating-point numbers only."""
    net = Rectified()
    net.hybridize()
    samples = [mx.nd.array([[-1, k]]) for k in range(3)]
    gdb.testing.check_against_loop(net, samples, granularity=granularity)
