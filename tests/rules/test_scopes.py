"""Random operators in scopes."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from tests.cells import attached, cell, equal
from tests.common import ALL
from tests.fuzz.operators import function

from .all_cases import EVERY

RANDOM = [c for c in EVERY if c.random and c.stack]


@pytest.mark.parametrize("c", RANDOM, ids=[f"{i}-{c.op}" for i, c in enumerate(RANDOM)])
def test_merged_calls_of_equal_arrays_draw_different_numbers(c, monkeypatch):
    # With oneDNN, the fused RNN of MXNet 1.9.1 ignores its dropout.
    monkeypatch.setenv("MXNET_USE_MKLDNN_RNN", "0")
    net, rng = cell(function(c.op, c.attrs)), np.random.default_rng(0)
    arrays = list(zip([a.draw(rng, 2) for a in c.inputs], c.stack))
    for granularity in GRANULARITIES:
        with autograd.train_mode(), gdb.batching(granularity=granularity) as batch:
            outputs = [net(*(a.copy() if p == "B" else a for a, p in arrays)) for _ in range(30)]
        first = [out if isinstance(out, nd.NDArray) else out[0] for out in outputs]
        assert len({out.asnumpy().tobytes() for out in first}) > 1 and batch.report.alone == []


#: Operators that draw an array of a given shape, and only for an array.
OF_SHAPE = {
    "uniform": {}, "normal": {"loc": 2, "scale": 3}, "exponential": {"lam": 2},
    "poisson": {"lam": 9}, "gamma": {"alpha": 9}, "negative_binomial": {"k": 9, "p": 0.2},
    "generalized_negative_binomial": {"mu": 9},
}  # fmt: skip


@ALL
@pytest.mark.parametrize("name, attrs", OF_SHAPE.items(), ids=OF_SHAPE)
def test_draws_of_a_fixed_shape_merge(name, attrs, granularity):
    """Each call has its own, with the distribution, the shape and the type of the operator."""
    kinds = [((1, 32), {"dtype": "float32"}), ((2, 1, 3), {"dtype": "float64"}), ((7,), {})]

    def draw(F, x, index):
        arrays = [getattr(F, f"random_{name}")(shape=s, **t, **attrs) for s, t in kinds]
        return (F.sqrt(x), F.one_hot(index, 3), *arrays)

    net, samples = cell(draw), attached([nd.ones((1, 32)) * k for k in range(40)])
    mx.random.seed(3)
    with autograd.record(), gdb.batching(granularity=granularity, policy="depth") as batch:
        outputs = [net(x * 1, nd.array([1], dtype="int32")) for x in samples]
    assert not batch.report.alone and batch.report.launches < 40
    for k, (shape, options) in enumerate(kinds):
        drawn = np.stack([out[2 + k].asnumpy() for out in outputs])
        assert drawn.shape == (40, *shape) and drawn.dtype == options.get("dtype", "float32")
        assert len(np.unique(drawn.reshape((40, -1)), axis=0)) == 40
        plain = getattr(nd, f"random_{name}")(shape=4000, **attrs).asnumpy()
        assert abs(drawn.mean() - plain.mean()) < 5 * plain.std() / np.sqrt(drawn.size)
    autograd.backward([out[0] for out in outputs])
    equal([x.grad for x in samples[1:]], [0.5 / np.sqrt(x.asnumpy()) for x in samples[1:]])


@ALL
def test_draws_of_integers_of_a_fixed_shape_run_one_by_one(granularity):
    """No operator draws them for an array."""
    net = cell(lambda F, x: x + F.cast(F.random.randint(0, 9, shape=(1, 32)), "float32"))
    x = nd.ones((1, 32))
    with gdb.batching(granularity=granularity) as batch:
        outputs = [net(x * 1) for _ in range(6)]
    assert len({out.asnumpy().tobytes() for out in outputs}) == 6 and batch.report.alone


@ALL
def test_a_seed_repeats_the_draws(granularity):
    net = cell(lambda F, x: F.Dropout(x, p=0.5))
    samples, runs = attached([nd.ones((n, 32)) for n in (1, 2, 1)]), []
    for _ in range(2):
        mx.random.seed(7)
        with autograd.record(), gdb.batching(granularity=granularity, policy="depth"):
            outputs = [net(x) for x in samples]
        autograd.backward(outputs)
        equal([x.grad for x in samples], outputs)  # the gradient has the mask of the result
        runs.append(np.concatenate([out.asnumpy() for out in outputs]))
        assert len(np.unique(runs[-1], axis=0)) == 4
    np.testing.assert_array_equal(*runs)
