"""Integers in kernels equal MXNet's bit for bit, also where no float holds them."""

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from tests.cells import cell
from tests.common import FIXED

from .test_operators import outcomes, run

MXNET_DRAWS = False

#: Expressions of integers `x` and `y`.
OF_INTEGERS = [
    "x + y", "x - y", "x * y", "x + 3", "5 - x", "x * 7", "-x", "x + y + x",
    "F.maximum(x, y)", "F.minimum(x, y)", "F.maximum(x, 1)", "x > y", "x >= 2", "x == y",
    "F.broadcast_logical_and(x, y)", "F.logical_not(x)", "F.where(x, y, x)", "F.clip(x, -3, 4)",
    "F.sign(x)", "x.slice_axis(axis=1, begin=1, end=3)", "F.concat(x, y * 2, dim=1)",
    "F.broadcast_add(x, y.slice_axis(axis=1, begin=0, end=1))", "F.reverse(x, axis=1)",
    "F.transpose(F.reshape(x, (0, 2, -1)), (0, 2, 1))", "F.tile(x, (1, 2))", "F.add_n(x, y, x)",
    "F.take(x, F.cast(y, dtype='int32'), axis=1)", "F.broadcast_mod(x, y * y + 1)", "x % 3",
    "F.cast(x, dtype='int32')", "F.cast(x, dtype='int64')", "F.cast(x, dtype='float64')",
    "F.cast(x + y, dtype='int32') * 2", "F.one_hot(x, depth=4, dtype='int32')",
    "F.where(x > y, F.cast(x, dtype='float32'), F.cast(y, dtype='float32'))", "x / 3",
    "F.BlockGrad(x) + y", "F.zeros_like(x) + 1",
    "F.cast(F.cast(x, dtype='float64'), dtype='int64')",
]  # fmt: skip


def exact(function, samples):
    """Compare a cell with MXNet's operators, bit for bit, without gradients."""
    net = cell(function)
    wanted = [net(*sample) for sample in samples]
    with gdb.batching(**FIXED) as batch:
        got = [net(*sample) for sample in samples]
    for a, b in zip(got, wanted):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
    assert not any(isinstance(kernels, str) for kernels in batch.plan.kernels), batch.plan.kernels


def rows_of(dtype):
    """Return rows of small numbers, large ones, and some that no float of their size holds."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    rng, large = np.random.RandomState(0), [least, least + 1, most, 4097, 2**24 + 1]
    large += [2**53 + 1, -(2**53) - 1] if dtype == "int64" else []
    for k in range(6):
        mixed = [*rng.randint(-5, 5, 4), *rng.choice(large, 4), *rng.randint(least, most, 4)]
        yield mx.nd.array(np.array([mixed[k:] + mixed[:k]], dtype), dtype=dtype)


@pytest.mark.parametrize("text", OF_INTEGERS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_equal_mxnet(text, dtype):
    arrays = list(rows_of(dtype))
    exact(eval(f"lambda F, x, y: {text}"), list(zip(arrays[:3], arrays[3:])))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_become_integers_as_in_mxnet(dtype, source):
    values = [0.5, -0.5, 1.5, -1.5, 2**24 + 1, -(2**31), 3e9, -3e9, 1e20, np.inf, -np.inf, np.nan]
    samples = [[mx.nd.array([values[k:] + values[:k]], dtype=source)] for k in range(3)]
    exact(lambda F, x: F.cast(x * 2, dtype=dtype) + 1, samples)


def test_gradients_through_integers_equal_mxnet():
    def function(F, x):
        return F.cast(-(F.cast(x, dtype="int32") * 3 - 1), dtype="float32") * 2.5 + x

    samples = [[mx.nd.array([[k, 2.7, -3]])] for k in range(3)]
    for (x,) in samples:
        x.attach_grad()
    assert outcomes(run(function, samples)) == (1, set())


@pytest.mark.parametrize(
    "text, reason",
    [
        ("x + 0.5", "a number is not in int32"),
        ("x * 2**40", "a number is not in int32"),
        ("F.sum(x, axis=1)", "int32 has no native steps"),
        ("F.exp(x)", "int32 has no native steps for exp"),
        ("F.abs(x)", "int32 has no native steps for abs"),
        ("x / 3", "int32 has no native steps for div"),
    ],
)
def test_other_functions_of_integers_run_in_mxnet(text, reason):
    samples = [[mx.nd.array([[k, 2, 3]], dtype="int32")] for k in range(3)]
    count, reasons = outcomes(run(eval(f"lambda F, x: {text}"), samples))
    assert not count and all(reason in text for text in reasons)


def test_integers_that_no_float_holds_choose_the_right_rows():
    """Indices are calculated from integers beyond 2 ** 53."""
    start = 2**53 + 1

    def sample(k):
        index = np.array([start + k, start, start + 2], np.int64)
        return mx.nd.array(np.arange(9).reshape(3, 3) + k), mx.nd.array(index, dtype="int64")

    def function(F, h, i):
        return F.take(h, F.broadcast_sub(i, i.slice_axis(axis=0, begin=1, end=2)))

    exact(function, [sample(k) for k in range(3)])
