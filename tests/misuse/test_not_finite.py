"""NaN and infinity are those of the loop, and do not spread to other samples."""

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from tests.cells import array, attached, cell, equal
from tests.common import ALL, by_mxnets_operators, prepared
from tests.depth import rotate


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


@pytest.mark.parametrize("name, granularity", rotate(PROGRAMS, GRANULARITIES))
def test_a_sample_that_is_not_finite_does_not_change_others(layer, name, granularity):
    """Only it and the gradients of parameters, which all samples share, are not finite."""
    program = PROGRAMS[name]
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
def test_an_unused_result_that_is_not_finite_changes_nothing(layer, program, steps, granularity):
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


#: NaN and infinity of one program are neighbours, so they meet both, and two granularities.
STEPS = [nullcontext, by_mxnets_operators]


@pytest.mark.parametrize("name, granularity, steps", rotate(OMITTED, GRANULARITIES, STEPS))
def test_losses_that_are_left_out_add_nothing(layer, name, granularity, steps):
    """Their samples add nothing to the gradients of shared parameters."""
    program, bad = OMITTED[name]
    samples, options = samples_with(bad), {"granularity": granularity}
    with steps():
        (_, wanted), (_, got) = run_both(layer, lambda s: program(layer, *s), samples, 1, **options)
    assert not bad or all(np.isfinite(gradient).all() for gradient in wanted)
    equal(got[: len(got) if bad else 2], wanted[: len(wanted) if bad else 2], 1e-4)


@pytest.mark.parametrize("steps", [nullcontext, by_mxnets_operators])
def test_losses_that_are_left_out_after_several_flushes(layer, steps):
    """The first flush gets no gradient for the sample, whose loss is computed by the second one."""

    def run(sample):
        x = layer(mx.nd.sqrt(mx.nd.square(layer(sample[1]) * (sample[0] != 1))))
        if sample[0] == 3:
            x.asnumpy()  # with all that is pending
        return x

    def program(samples, omitted):
        middles = [run(sample) for sample in enumerate(samples)]
        losses = [layer(x * x).sum() for x in middles]
        return [y for i, y in enumerate(losses) if i != omitted]

    outcomes = []
    arrays = [p.data() for p in layer.collect_params().values()]
    samples = attached([array(1, 4, seed=i) for i in range(4)])
    for scope in (nullcontext(), gdb.batching(policy="depth")):
        with steps(), autograd.record(), scope:
            losses = program(samples, 1)
        autograd.backward(losses)
        outcomes.append([x.grad.asnumpy() for x in arrays])
    assert len(scope.report.flushes) == 2
    equal(outcomes[1], outcomes[0], 1e-4)
    assert all(np.isfinite(gradient).all() for gradient in outcomes[1])


def test_a_second_pass_may_start_from_the_losses_that_the_first_left_out(layer):
    """Each starts from other results of a retained graph; or from an array outside of the scope."""
    samples = attached([array(1, 4, seed=i) for i in range(4)])

    def gradients(heads):
        for x in samples:
            x.grad[:] = 0
        autograd.backward(heads, retain_graph=True)
        return [x.grad.asnumpy() for x in samples]

    outcomes = []
    for scope in (nullcontext(), gdb.batching(policy="depth")):
        with by_mxnets_operators(), autograd.record(), scope:
            results = [layer(layer(x)).sum() for x in samples]
        outcomes.append(gradients(results[:1]) + gradients(results[1:3]))
        with autograd.record():
            total = results[0] + 2 * results[3]
        outcomes[-1] += gradients([total])
    equal(outcomes[1], outcomes[0], 1e-4)


def test_losses_added_up_outside_of_the_scope(layer):
    """Native steps leave out the others; a launch of MXNet's operators gets only the right rows."""
    for steps in (nullcontext, by_mxnets_operators):
        samples = samples_with(np.inf)
        with steps(), autograd.record():
            with gdb.batching(policy="depth"):
                losses = [mx.nd.square(layer(x)).sum() for x in samples]
            total = losses[0] + losses[2] + losses[3]
        total.backward()
        assert all(np.isfinite(samples[i].grad.asnumpy()).all() for i in (0, 2, 3))
        finite = [np.isfinite(p.grad().asnumpy()).all() for p in layer.collect_params().values()]
        assert all(finite) or steps is by_mxnets_operators


def test_a_backward_pass_waits_for_no_value(layer, monkeypatch):
    """Neither with launches of MXNet's operators, nor with losses left out, nor in parts."""
    root = cell(lambda F, x: F.Dropout(x, 0.5))
    waits = []
    for name in ("asnumpy", "wait_to_read", "asscalar"):
        monkeypatch.setattr(mx.nd.NDArray, name, lambda self, name=name: waits.append(name))
    with autograd.record(), gdb.batching(granularity="block") as batch:
        samples = samples_with(0.5)
        middles = [root(layer(x)) for x in samples]
        batch.flush()
        losses = [layer(x).sum() for x in middles]
    autograd.backward(losses[:3])
    mx.nd.waitall()
    monkeypatch.undo()
    assert not waits and len(batch.report.flushes) == 2
    assert np.abs(samples[0].grad.asnumpy()).max() > 0 and not samples[3].grad.asnumpy().any()


def test_losses_that_are_left_out_after_dropout(layer):
    """Rows of the omitted sample get zeros, as the launch cannot be recorded again."""
    root = cell(lambda F, x: F.Dropout(F.sqrt(F.square(x)), 0.5))

    def run(sample):
        return layer(root(layer(sample[1]) * (sample[0] != 1)))

    _, (_, got) = run_both(layer, run, samples_with(0.5), 1, granularity="block")
    assert all(np.isfinite(gradient).all() for gradient in got)
    assert np.abs(got[0]).max() > 0


#: Functions whose gradient MXNet replaces by zero, or multiplies with zero, out of a range.
RANGES = {
    "clip": lambda x: mx.nd.clip(x, -0.5, 0.5),
    "hard_sigmoid": lambda x: mx.nd.hard_sigmoid(x, alpha=1.0),
    "relu": mx.nd.relu,
    "activation": lambda x: mx.nd.Activation(x, act_type="relu"),
    "maximum": lambda x: mx.nd.maximum(x, 0),
    "smooth_l1": lambda x: mx.nd.smooth_l1(x, scalar=1.0),
}


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_head_gradients_that_are_not_finite_go_where_they_go_in_the_loop(name, bad):
    values = np.array([[-2, -0.5, 0, 0.5, 0.7, np.nan, 3, -0.2]])
    outcomes = []
    for scope in (nullcontext(), gdb.batching(policy="depth")):
        arrays = attached([mx.nd.array(values + k, dtype="float64") for k in range(2)])
        with autograd.record(), scope:
            results = [RANGES[name](x * 1) for x in arrays]
        autograd.backward(results, [mx.nd.full((1, 8), bad, dtype="float64")] * 2)
        outcomes.append([*results, *(x.grad for x in arrays)])
    equal(outcomes[1], outcomes[0])
