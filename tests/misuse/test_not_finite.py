"""NaN and infinity: as in the loop, and in no sample but their own."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, Dict, List

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.run import backward
from tests.misuse.common import array, output_of
from tests.strategies import assert_close, gradients, make_cells, tree_losses, zero_gradients

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


def gradients_without(left: int, run: Any, samples: Any, params: Any, **options: Any) -> Any:
    """Return all gradients of the losses but one, in the loop and in a scope."""
    found = []
    arrays = [*[p.data() for p in params], *samples]
    for scope in (nullcontext(), gdb.batching(policy="depth", **options)):
        for a in arrays:
            a.grad[:] = 0
        with autograd.record(), scope:
            losses = [run(sample).sum() for sample in enumerate(samples)]
        autograd.backward([loss for i, loss in enumerate(losses) if i != left])
        found.append([a.grad.asnumpy() for a in arrays])
    return found


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_losses_that_are_left_out(cell, program, bad, granularity):
    """Their samples add nothing to the gradients of parameters that all samples share."""
    wanted, got = gradients_without(
        1,
        lambda sample: program(cell, *sample),
        samples_with(bad),
        cell.collect_params().values(),
        granularity=granularity,
    )
    for a, b in zip(wanted, got):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(b, a, 1e-4, 1e-6)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_finite_loss_that_is_left_out(cell, granularity):
    """Its derivative is infinite, as that of a square root at zero."""
    samples = samples_with(0)
    wanted, got = gradients_without(
        1,
        lambda sample: cell(mx.nd.sqrt(mx.nd.relu(cell(sample[1] * (sample[0] != 1))))),
        samples,
        cell.collect_params().values(),
        granularity=granularity,
    )
    for a, b in zip(wanted[:2], got[:2]):
        np.testing.assert_allclose(b, a, 1e-4, 1e-6)


def test_losses_that_are_left_out_behind_dropout(cell):
    """What is drawn stays as it was; the rows of the sample that was left out get zeros."""
    dropout = gdb.convert(mx.gluon.nn.Dropout(0.5))
    dropout.hybridize()
    _, got = gradients_without(
        1,
        lambda sample: cell(dropout(cell(sample[1]))) / (sample[0] != 1),
        samples_with(np.inf),
        cell.collect_params().values(),
        granularity="block",
    )
    assert all(np.isfinite(gradient).all() for gradient in got)
    assert np.abs(got[0]).max() > 0


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_backward_pass_without_some_samples(granularity, monkeypatch):
    """With finite gradients it gives just the same; all of it is done here whatever they are."""
    asked = []
    monkeypatch.setattr(backward, "all_finite", lambda arrays: bool(asked.append(len(arrays))))
    net = make_cells()
    found = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity)):
        zero_gradients(net)
        with autograd.record(), scope:
            losses = tree_losses(net)
        autograd.backward(losses[1:3])
        found.append(gradients(net))
    assert_close(*found)
    assert len(asked) == 1


def test_nothing_is_looked_at_if_every_loss_gets_a_gradient(cell, monkeypatch):
    """Results that losses are made of may be held, too; there would be a price for looking."""
    monkeypatch.setattr(backward, "all_finite", lambda arrays: pytest.fail("looked at gradients"))
    held = []

    def run(sample: Any) -> Any:
        held.append(cell(sample[1]))
        return cell(held[-1])

    wanted, got = gradients_without(-1, run, samples_with(1), cell.collect_params().values())
    for a, b in zip(wanted, got):
        np.testing.assert_allclose(b, a, 1e-4, 1e-6)


SKIPPED = """
    import mxnet as mx, numpy as np, gluon_dynbatch as gdb

    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Embedding(9, 64), mx.gluon.nn.Dense(64, in_units=64, activation="relu"))
    net.add(mx.gluon.nn.Dense(1, in_units=64))
    for layer in net:
        gdb.convert(layer)
    net.initialize(mx.init.Uniform(1))
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    for step in range(6):
        with mx.autograd.record(), gdb.batching(granularity="block"):
            outputs = net[0](mx.nd.arange(9))
            rows = [net[2](net[1](outputs[i : i + 1] * (np.inf if i == step else 1)))
                    for i in range(9)]
            losses = [row.sum() for row in rows]
        mx.autograd.backward([loss for i, loss in enumerate(losses) if i != step])
        trainer.step(1)
    print(all(np.isfinite(p.data().asnumpy()).all() for p in net.collect_params().values()))
"""


def test_training_that_skips_bad_losses():
    """The optimizer's writes are queued at once, and wait for both of the backward passes."""
    assert output_of(SKIPPED).split()[-1] == "True"
