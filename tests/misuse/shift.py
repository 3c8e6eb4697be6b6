"""Lazy arrays of known values, and the real arrays that they are compared with."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb

SHAPE = (4, 3, 2)


class Shift(gdb.DynamicHybridBlock):
    """Adds a number, so that its results are lazy arrays of known values."""

    def hybrid_forward(self, F, x, by):
        return x + by


@pytest.fixture(scope="module")
def shift() -> Shift:
    block = Shift()
    block.hybridize()
    return block


def values(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).uniform(-1, 1, shape or SHAPE).astype("float32")


def real(*shape: int) -> mx.nd.NDArray:
    return mx.nd.array(values(*shape) + 1)


def host(result: Any) -> Any:
    """Turn whatever a use gives into something that can be compared."""
    if isinstance(result, mx.nd.NDArray):
        return result.asnumpy()
    if isinstance(result, (list, tuple)):
        return [host(item) for item in result]
    return result


def same(got: Any, wanted: Any) -> None:
    got, wanted = host(got), host(wanted)
    if isinstance(wanted, list):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted):
            same(a, b)
    elif isinstance(wanted, np.ndarray):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)
    else:
        assert got == wanted and type(got) is type(wanted)


def check_use(shift: Shift, use: Callable[[Any], Any], *shape: int) -> None:
    """Compare a use while the value is pending, after a flush, and after the scope."""
    wanted = use(real(*shape))
    with gdb.batching(policy="depth") as batch:
        pending = use(shift(mx.nd.array(values(*shape)), 1))
        flushed = shift(mx.nd.array(values(*shape)), 1)
        later = shift(mx.nd.array(values(*shape)), 1)
        batch.flush()
        assert not flushed.pending
        flushed = use(flushed)
        in_scope = host(flushed)
    same(pending, wanted)
    same(in_scope, wanted)
    same(flushed, wanted)
    same(use(later), wanted)
