"""Rules at work in scopes: losses, fused layers, draws, small and empty arrays."""

from __future__ import annotations

from typing import Any, Callable, Dict

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd

import gluon_dynbatch as gdb
from tests.cells import cell
from tests.common import ALL as LEVELS

DRAWS: Dict[str, Callable[[Any, Any], Any]] = {
    "Dropout": lambda F, x: F.Dropout(x, p=0.5),
    "Dropout of ones": lambda F, x: F.Dropout(F.ones_like(x), p=0.5),
    "normal_like": lambda F, x: F.random.normal_like(x),
    "sample_uniform": lambda F, x: F.sample_uniform(x, x + 1),
    "normal of a shape": lambda F, x: x + F.random.normal(shape=(1, 32)),
}


@LEVELS
@pytest.mark.parametrize("name", sorted(DRAWS))
def test_equal_samples_draw_their_own(name: str, granularity: str) -> None:
    """The same array goes through the same call twice and more; no two results are one."""
    net = cell(DRAWS[name])
    x = nd.ones((1, 32))
    with autograd.train_mode(), gdb.batching(granularity=granularity) as batch:
        outputs = [net(x) for _ in range(6)]
    found = np.concatenate([out.asnumpy() for out in outputs])
    assert len(np.unique(found, axis=0)) == 6
    assert bool(batch.report.alone) == (name == "normal of a shape")


@LEVELS
def test_a_seed_repeats_the_draws(granularity: str) -> None:
    net = cell(DRAWS["Dropout"])
    found = []
    for _ in range(2):
        mx.random.seed(7)
        with autograd.train_mode(), gdb.batching(granularity=granularity, policy="depth"):
            outputs = [net(nd.ones((n, 32))) for n in (1, 2, 1)]
        found.append(np.concatenate([out.asnumpy() for out in outputs]))
    np.testing.assert_array_equal(*found)


@LEVELS
def test_empty_arrays(granularity: str) -> None:
    """Under NumPy's shapes an array may be empty: recording says so at the user's line."""
    double = cell(lambda F, x: x * 2)
    said = r"shape \(0, 3\) is empty\n  at: .*test_scopes.py"
    with mx.util.np_shape(), gdb.batching(granularity=granularity):
        full = double(nd.ones((2, 3)))
        with pytest.raises(gdb.ShapeError, match=said):
            double(nd.zeros((0, 3)))
    np.testing.assert_array_equal(full.asnumpy(), np.full((2, 3), 2))
