"""NaN and infinity: as in the loop, and in no sample but their own."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.misuse.common import array

BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
GRANULARITIES = ["block", "operator", "graph"]


def positive_or_log(y: mx.nd.NDArray) -> mx.nd.NDArray:
    return mx.nd.where(y > 0, y, mx.nd.log(y))


#: What each of several samples does; the second, of which the array is bad, does less or more.
PROGRAMS: Dict[str, Callable[[Any, int, mx.nd.NDArray], mx.nd.NDArray]] = {
    "two layers": lambda f, i, x: f(f(x)),
    "sums of several lengths": lambda f, i, x: f(mx.nd.add_n(*[f(x * k) for k in range(i + 1)])),
    "maximum of several rows": lambda f, i, x: mx.nd.max(
        mx.nd.concat(*[f(x * k) for k in range(i + 1)], dim=0), axis=0
    ),
    "columns": lambda f, i, x: f(x)[:, i % 3 : i % 3 + 1] * x[:, :1],
    "rows": lambda f, i, x: f(mx.nd.concat(x, x * 2, dim=0))[i % 2],
    "many readers": lambda f, i, x: mx.nd.add_n(*[f(x) * k for k in range(14 if i - 1 else 2)]),
    "pick": lambda f, i, x: mx.nd.pick(f(x), mx.nd.array([i])),
    "take": lambda f, i, x: mx.nd.take(f(x), mx.nd.array([0])) * 2,
    "one_hot": lambda f, i, x: f(x) * mx.nd.one_hot(mx.nd.array([i]), 4),
    "where": lambda f, i, x: positive_or_log(f(x)),
    "mask": lambda f, i, x: mx.nd.SequenceMask(
        mx.nd.stack(f(x), x, f(x * 2)), mx.nd.array([1 + i % 2]), True
    ),
    "pad": lambda f, i, x: mx.nd.pad(
        f(x).reshape((1, 1, 1, 4)), mode="constant", pad_width=(0, 0, 0, 0, 0, 0, 1, 1)
    ),
    "softmax": lambda f, i, x: mx.nd.softmax(f(x)),
    "norm": lambda f, i, x: mx.nd.L2Normalization(f(x)),
    "product": lambda f, i, x: mx.nd.dot(f(x), f(x * 2), transpose_b=True),
    "clip": lambda f, i, x: mx.nd.clip(f(x), -0.5, 0.5),
    "sort": lambda f, i, x: mx.nd.maximum(f(x), x).max(axis=1),
}


@pytest.fixture
def cell() -> gdb.DynamicHybridBlock:
    class Cell(gdb.DynamicHybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.dense = mx.gluon.nn.Dense(4, in_units=4)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.LeakyReLU(self.dense(x), slope=0.5)

    block = Cell()
    block.initialize(mx.init.Uniform(1))
    block.hybridize()
    return block


def samples_with(bad: float) -> List[mx.nd.NDArray]:
    samples = [array(1, 4, seed=i) for i in range(4)]
    samples[1][0, 2] = bad
    for x in samples:
        x.attach_grad()
    return samples


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_bad_sample_among_good_ones(cell, program, bad, granularity):
    samples = samples_with(bad)
    numbered = list(enumerate(samples))
    gdb.testing.check_against_loop(
        lambda sample: program(cell, *sample),
        numbered,
        cell.collect_params().values(),
        granularity=granularity,
        policy="depth",
    )
    for number in (0, 2, 3):
        assert np.isfinite(samples[number].grad.asnumpy()).all()


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_bad_rows_of_a_table_that_nobody_reads(cell, granularity):
    """Looking rows up must not be a product with zeros."""
    table = gdb.convert(mx.gluon.nn.Embedding(6, 4))
    table.initialize()
    table.hybridize()
    table.weight.data()[4] = np.nan
    table.weight.data()[5] = np.inf
    gdb.testing.check_against_loop(
        lambda word: cell(table(mx.nd.array([word]))),
        [0, 1, 2, 3, 1],
        [table.weight, *cell.collect_params().values()],
        granularity=granularity,
    )
    assert np.isfinite(table.weight.grad().asnumpy()).all()


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_bad_values_in_a_result_that_nobody_uses(cell, bad, granularity):
    """The rows of the others are not touched by what runs beside them."""

    def run(sample: Any) -> Any:
        number, x = sample
        y = cell(x)
        if number == 1:
            cell(y * bad)
            return y
        return cell(y)

    samples = [array(1, 4, seed=i) for i in range(4)]
    for x in samples:
        x.attach_grad()
    gdb.testing.check_against_loop(
        run,
        list(enumerate(samples)),
        cell.collect_params().values(),
        granularity=granularity,
        policy="depth",
    )


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_infinite_derivative_of_a_result_that_nobody_uses(cell, granularity):
    """The loop never goes backward through the logarithm of zero that the second sample drops."""

    def run(sample: Any) -> Any:
        number, x = sample
        y = cell(x)
        logarithm = mx.nd.log(y * y if number != 1 else y * 0)
        return y if number == 1 else logarithm

    samples = [array(1, 4, seed=i) for i in range(4)]
    gdb.testing.check_against_loop(
        run,
        list(enumerate(samples)),
        cell.collect_params().values(),
        granularity=granularity,
        policy="depth",
    )


def test_overflow_of_some_samples(cell):
    samples = [array(1, 4, seed=i) * 10.0 ** (9 * i) for i in range(5)]
    with autograd.pause():
        wanted = [mx.nd.exp(cell(x)) * cell(x) for x in samples]
        got = gdb.map(lambda x: mx.nd.exp(cell(x)) * cell(x), samples)
    for a, b in zip(got, wanted):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), 1e-4)
    assert np.isfinite(wanted[0].asnumpy()).all() and not np.isfinite(wanted[-1].asnumpy()).all()
