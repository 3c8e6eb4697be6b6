"""NaN and infinity are those of the loop, and do not spread to other samples."""

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.cells import array, attached, cell, equal
from tests.common import ALL, by_mxnets_operators, prepared


def positive_or_log(y):
    return mx.nd.where(y > 0, y, mx.nd.log(y))


#: Programs of a layer, the number of a sample, and its array; the second array is not finite.
PROGRAMS = {
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
    "matrices": lambda f, i, x: mx.nd.dot(f(x).reshape((2, 2)), f(x * 2).reshape((2, 2))),
    "clip": lambda f, i, x: mx.nd.clip(f(x), -0.5, 0.5),
    "sort": lambda f, i, x: mx.nd.maximum(f(x), x).max(axis=1),
}


@pytest.fixture
def layer():
    """Return a layer from four features to four, with a gradient for negative values."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(4, in_units=4), mx.gluon.nn.LeakyReLU(0.5))
    return prepared(net, scale=1)


def run_both(layer, run, samples, omitted=-1, **options):
    """Run as a loop and in a scope; return results, and gradients of all losses but one."""
    outcomes = []
    arrays = [p.data() for p in layer.collect_params().values()] + list(samples)
    for scope in (nullcontext(), gdb.batching(policy="depth", **options)):
        for x in arrays:
            x.grad[:] = 0
        with autograd.record(), scope:
            results = [run(sample) for sample in enumerate(samples)]
            results = results if omitted < 0 else [y.sum() for y in results]
        autograd.backward([y for i, y in enumerate(results) if i != omitted])
        outcomes.append(([y.asnumpy() for y in results], [x.grad.asnumpy() for x in arrays]))
    return outcomes


def check(layer, run, samples, granularity):
    """Compare with the loop.

    Where a gradient in the loop is zero times infinity, that in a scope may be zero.
    """
    (values, wanted), (batched, got) = run_both(layer, run, samples, granularity=granularity)
    # oneDNN's softmax of several infinities has zeros beside NaN.
    for a, b in zip(values, batched):
        equal(b, np.where(np.isnan(b), np.nan, a))
        assert np.isnan(b).any() == np.isnan(a).any()
    for a, b in zip(wanted, got):
        equal(b[np.isfinite(a)], a[np.isfinite(a)])


def samples_with(bad):
    samples = [array(1, 4, seed=i) for i in range(4)]
    samples[1][0, 2] = bad
    return attached(samples)


@ALL
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_sample_that_is_not_finite_among_others(layer, program, granularity):
    """Only it and the gradients of parameters, which all samples share, are not finite."""
    for bad in (np.nan, np.inf, -np.inf):
        samples = samples_with(bad)
        check(layer, lambda sample: program(layer, *sample), samples, granularity)
        for number in (0, 2, 3):
            assert np.isfinite(samples[number].grad.asnumpy()).all()


#: The second sample does not use the last result, which is not finite, or whose derivative is
#: infinite; the loop has no backward pass through it.
UNUSED = {
    "NaN": lambda f, i, x: choose(f(x), f(f(x) * (np.nan if i == 1 else 1)), i),
    "infinite derivative": lambda f, i, x: choose(f(x), mx.nd.log(f(x) * f(x) * (i != 1)), i),
    # A lookup of rows must not be a product with zeros.
    "rows of a table": lambda f, i, x: f(mx.nd.take(TABLE, mx.nd.array([i])) + f(x)),
}  # fmt: skip
TABLE = mx.nd.array([*np.random.RandomState(0).uniform(-1, 1, (4, 4)), [np.nan] * 4, [np.inf] * 4])


def choose(y, result, i):
    return y if i == 1 else result


@ALL
@pytest.mark.parametrize("steps", [nullcontext, by_mxnets_operators])
@pytest.mark.parametrize("program", UNUSED.values(), ids=UNUSED)
def test_unused_result_that_is_not_finite(layer, program, steps, granularity):
    """It does not affect other rows of its launch."""
    TABLE.attach_grad()
    samples = samples_with(0.5)
    with steps():
        check(layer, lambda sample: program(layer, *sample), samples, granularity)
    assert all(np.isfinite(a.grad.asnumpy()).all() for a in (TABLE, *samples))


#: Programs, and an element of the second sample, whose loss is left out: it is not finite, or the
#: derivative is infinite, as that of a square root at zero.
OMITTED = {
    **{f"{name}, {bad}": (program, bad) for name, program in PROGRAMS.items()
       for bad in (np.nan, np.inf)},
    "finite": (lambda f, i, x: f(mx.nd.sqrt(mx.nd.relu(f(x * (i != 1))))), 0),
}  # fmt: skip


@ALL
@pytest.mark.parametrize("steps", [nullcontext, by_mxnets_operators])
@pytest.mark.parametrize("program, bad", OMITTED.values(), ids=OMITTED)
def test_losses_that_are_left_out(layer, program, bad, steps, granularity):
    """Their samples add nothing to the gradients of shared parameters."""
    samples, options = samples_with(bad), {"granularity": granularity}
    with steps():
        (_, wanted), (_, got) = run_both(layer, lambda s: program(layer, *s), samples, 1, **options)
    assert not bad or all(np.isfinite(gradient).all() for gradient in wanted)
    equal(got[: len(got) if bad else 2], wanted[: len(wanted) if bad else 2], 1e-4)


def test_losses_that_are_left_out_after_dropout(layer):
    """The second backward pass has the same masks; rows of the omitted sample get zeros."""
    root = cell(lambda F, x: F.Dropout(F.sqrt(F.square(x)), 0.5))

    def run(sample):
        return layer(root(layer(sample[1]) * (sample[0] != 1)))

    _, (_, got) = run_both(layer, run, samples_with(0.5), 1, granularity="block")
    assert all(np.isfinite(gradient).all() for gradient in got)
    assert np.abs(got[0]).max() > 0
