"""Numbers that scopes draw have the distributions of MXNet's operators.  Seeds are fixed."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from scipy import stats

import gluon_dynbatch as gdb
from tests.cells import attached, cell
from tests.common import FIXED
from tests.test_draws import is_native, values


def draws(fn, count=40, shape=(5, 100), seed=11, **options):
    """Return what calls of a cell draw, shape (count, *shape)."""
    net = cell(fn)
    mx.random.seed(seed)
    with autograd.train_mode(), gdb.batching(**{**FIXED, **options}) as batch:
        results = [net(mx.nd.ones(shape)) for _ in range(count)]
    assert is_native(batch)
    return np.stack(values(results))


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5, 0.9])
def test_masks_have_their_rate_and_are_independent(rate):
    masks = draws(lambda F, x: F.Dropout(x, p=rate))
    kept = np.float32(1) - np.float32(rate)
    assert np.unique(masks).tolist() == [0, np.float32(1) / kept]
    zeros = masks == 0
    # The numbers of zeros in samples, rows and columns are those of independent draws.
    for axes in ((1, 2), (0, 2), (0, 1), (0, 1, 2)):
        counts = np.atleast_1d(zeros.sum(axis=axes))
        distribution = stats.binom(zeros.size // counts.size, rate)
        least = min(distribution.cdf(counts).min(), distribution.sf(counts - 1).min())
        assert least * counts.size > 0.001
    # So are those in pairs of them.
    for axis in range(3):
        a, b = (np.take(zeros, range(k, zeros.shape[axis] - 1 + k), axis) for k in (0, 1))
        both = (a & b).mean() - rate**2
        assert abs(both) < 4.5 * np.sqrt(rate**2 * (1 - rate**2) / a.size)


DISTRIBUTIONS = {
    "uniform_like": (lambda F, x: F.random.uniform_like(x, -2, 3), stats.uniform(-2, 5)),
    "normal_like": (lambda F, x: F.random.normal_like(x, 4, 0.5), stats.norm(4, 0.5)),
    "exponential_like": (lambda F, x: F.random.exponential_like(x, 3), stats.expon(scale=1 / 3)),
    "uniform": (lambda F, x: F.random.uniform(x, x * 3), stats.uniform(1, 2)),
    "normal": (lambda F, x: F.random.normal(x * 2, x * 3), stats.norm(2, 3)),
    "sample_exponential": (lambda F, x: F.sample_exponential(x * 2), stats.expon(scale=1 / 2)),
}


@pytest.mark.parametrize("fn, wanted", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_numbers_have_the_distributions_of_mxnet(fn, wanted):
    drawn = draws(fn)
    assert stats.kstest(drawn.ravel(), wanted.cdf).pvalue > 0.01
    for axis in range(3):
        a, b = (np.take(drawn, range(k, drawn.shape[axis] - 1 + k), axis) for k in (0, 1))
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * np.sqrt(a.size) < 4.5


def test_each_sample_draws_by_its_own_parameters():
    net = cell(lambda F, mean: F.sample_normal(mean, F.ones_like(mean), shape=(500,)))
    means = attached([mx.nd.array([[k, -k]]) for k in range(6)])
    mx.random.seed(0)
    with autograd.record(), gdb.batching(**FIXED) as batch:
        results = [net(mean * 1) for mean in means]
    assert is_native(batch)
    for k, y in enumerate(results):
        assert y.shape == (1, 2, 500)
        assert (np.abs(y.asnumpy().mean(axis=2) - [[k, -k]]) < 0.2).all()
    autograd.backward(results)  # no gradient flows to parameters of distributions
    assert not any(mean.grad.asnumpy().any() for mean in means)


PROBABILITIES = np.array([0.1, 0.2, 0.7, 0], np.float32)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_indices_have_their_probabilities(shape, dtype):
    """The gradient of a logarithm is that of the loop for the same index."""
    net = cell(lambda F, x: F.sample_multinomial(x, shape=shape, get_prob=True, dtype=dtype))
    rows = np.stack([PROBABILITIES, PROBABILITIES[::-1]])
    samples = attached([mx.nd.array(rows) for _ in range(500)])
    mx.random.seed(1)
    with autograd.record(), gdb.batching(**FIXED) as batch:
        results = [net(x * 1) for x in samples]
    assert is_native(batch) == (dtype == "float32") and batch.report.launches == 1
    autograd.backward([logarithm for _, logarithm in results])
    drawn = np.stack(values(y for y, _ in results))
    assert drawn.shape == (500, 2, *shape) and drawn.dtype == dtype
    drawn = drawn.reshape((500, 2, -1)).astype(int)
    for row, order in ((0, 1), (1, -1)):
        counts = np.bincount(drawn[:, row].ravel(), minlength=4)[::order]
        wanted = PROBABILITIES[:3] * counts.sum()
        assert counts[3] == 0 and ((counts[:3] - wanted) ** 2 / wanted).sum() < 12  # chi-squared
    for x, (_, logarithm), chosen in zip(samples, results, drawn):
        p = np.take_along_axis(rows, chosen, 1)
        np.testing.assert_allclose(logarithm.asnumpy().reshape(p.shape), np.log(p), 1e-5, 1e-6)
        gradient = np.stack([np.bincount(c, 1 / q, 4) for c, q in zip(chosen, p)])
        np.testing.assert_allclose(x.grad.asnumpy(), gradient, 1e-5)
