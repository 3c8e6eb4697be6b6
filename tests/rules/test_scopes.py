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


@ALL
def test_draws_of_a_fixed_shape_run_one_by_one(granularity):
    net = cell(lambda F, x: x + F.random.normal(shape=(1, 32)))
    with gdb.batching(granularity=granularity) as batch:
        outputs = [net(nd.ones((1, 32))) for _ in range(6)]
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
