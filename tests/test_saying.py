"""What strict=True and debug=True say about calls that run at once and about hidden writes."""

# ruff: noqa: SIM117 - Python 3.8 has no brackets around the items of a with statement.
from __future__ import annotations

import json
import sys
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from tests.cells import dense


@pytest.fixture
def net() -> Any:
    return dense(prefix="scorer_")


def shared_memory(shape: Any = (1, 4)) -> Any:
    """Return an array and the NumPy array that has its memory."""
    values = np.ones(shape, dtype=np.float32)
    array = mx.nd.from_numpy(values, zero_copy=True)
    # MXNet wants nobody to write to it, and relies on nobody doing so.
    values.flags.writeable = True
    return array, values


def test_debug_finds_a_write_that_goes_past_mxnet(net):
    x, values = shared_memory()
    with pytest.raises(gdb.MismatchError, match=r"an array of shape \(1, 4\) .* written") as caught:
        with gdb.batching(debug=True):
            first = net(mx.nd.zeros((1, 4)))
            line = sys._getframe().f_lineno + 1
            second = net(x)
            values[:] = 7
    assert f"{__file__}:{line} in " in str(caught.value)
    with pytest.raises(gdb.StaleArrayError):
        second.asnumpy()
    assert first.shape == (1, 3)


def test_debug_finds_such_a_write_into_a_parameter(net):
    weight, values = shared_memory((3, 4))
    net.weight._data[0] = weight
    with pytest.raises(gdb.MismatchError, match=r"parameter 'scorer_weight' of shape \(3, 4\)"):
        with gdb.batching(debug=True):
            y = net(mx.nd.ones((1, 4)))
            values[:] = 5
            assert y.shape == (1, 3)


def test_debug_accepts_writes_that_wait_and_writes_between_flushes(net):
    x, values = shared_memory()
    other = mx.nd.ones((1, 4))
    view = other[0:1]
    wanted = [net(x).asnumpy(), net(other).asnumpy(), net(x * 7).asnumpy()]
    with gdb.batching(debug=True) as batch:
        first, second = net(x), net(other)
        view[:] = 5
        batch.flush()
        values[:] = 7
        third = net(x)
    for y, value in zip((first, second, third), wanted):
        np.testing.assert_allclose(y.asnumpy(), value, 1e-5)


def test_nothing_is_watched_without_debug(net):
    with gdb.batching() as batch:
        assert batch._recorder.watch is None
        assert net(mx.nd.ones((1, 4))).shape == (1, 3)


def run_immediate(net: Any, **options: Any) -> gdb.Batch:
    with gdb.batching(**options) as batch:
        for _ in range(3):
            scores = net(mx.nd.ones((2, 4)))
            mx.nd.batch_take(scores, mx.nd.array([0, 1], dtype="int32"))  # at once
    return batch


def test_operators_that_run_at_once_are_named(net):
    batch = run_immediate(net)
    (alone,) = batch.report.alone
    assert (alone.name, alone.calls) == ("batch_take", 3)
    assert "operator batch_take run at once" in alone.reason
    with open(__file__, encoding="utf-8") as file:
        assert file.read().splitlines()[alone.where.line - 1].endswith("# at once")
    assert "ran alone   3 x batch_take" in str(batch.report)
    assert json.loads(batch.report.to_json())["immediate"][0]["calls"] == 3


def test_strict_refuses_operators_that_run_at_once(net):
    with pytest.raises(gdb.NotMergedError, match="operator batch_take run at once") as caught:
        run_immediate(net, strict=True)
    assert f"at: {__file__}:" in str(caught.value)
