"""The states of a scope, as its thread sees them."""

from __future__ import annotations

from typing import Any, List

import mxnet as mx
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch import scope
from gluon_dynbatch.record.state import STATE
from tests.cells import dense

FIXED = {"granularity": "block", "policy": "depth"}
CLOSED, AT_ONCE, RECORDING, AT_WORK = "closed", "at once", "recording", "at work"
X = mx.nd.ones((1, 4))


def state() -> str:
    if STATE.batch is None:
        assert STATE.recorder is None and not STATE.at_once
        return CLOSED
    assert STATE.recorder is None or not STATE.at_once
    return AT_ONCE if STATE.at_once else AT_WORK if STATE.recorder is None else RECORDING


class Spy(gdb.DynamicHybridBlock):
    """Notes the state whenever it is traced, or fails."""

    def __init__(self, seen: List[Any], fails: bool = False):
        super().__init__()
        self._seen, self._fails = seen, fails
        self.hybridize()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        self._seen.append(state())
        if self._fails:
            raise ZeroDivisionError
        return F.relu(x)


@pytest.fixture
def flushing(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """Give the states in which flushes run."""
    seen: List[str] = []
    run = scope.Flush.run
    monkeypatch.setattr(scope.Flush, "run", lambda flush: [seen.append(state()), run(flush)])
    return seen


def test_from_closed_to_closed(flushing):
    traced: List[str] = []
    spy = Spy(traced)
    assert state() is CLOSED
    with gdb.batching(**FIXED) as batch:
        assert state() is RECORDING
        y = spy(X)
        assert state() is RECORDING
        y.asnumpy()
        with gdb.batching():
            spy(X)
        batch.flush()
        assert state() is RECORDING and STATE.batch is batch
    assert state() is CLOSED
    assert traced == [AT_WORK] and flushing == [AT_WORK] * len(flushing) and len(flushing) >= 2
    batch.flush()
    assert len(flushing) == len(batch.report.flushes) + 1  # the last had nothing to do


def test_calls_at_once_come_before_recording():
    """As many as in scopes before, opened at the same place."""
    net = dense()
    for calls in (1, 1, 1, 1, 100):
        with gdb.batching() as batch:
            first = state()
            batch.flush()
            assert state() is first
            for _ in range(calls):
                y = net(X)
            last = state()
            y.asnumpy()
            assert state() is last
    assert first is AT_ONCE and last is RECORDING
    assert 0 < batch.report.at_once < 100
    assert state() is CLOSED
