"""A scope leaves nothing behind, and everything that a program may do with scopes works."""

# ruff: noqa: F811, SIM117 - Python 3.8 has no brackets around the items of a with statement.
from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, List

import mxnet as mx
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.options import BUDGET_VARIABLE
from gluon_dynbatch.record.lazy import LazyNDArray
from gluon_dynbatch.record.recorder import STATE
from tests.cells import array, equal
from tests.common import SAMPLES, net, nothing_is_left_behind, originals_are_back

__all__ = ["net", "nothing_is_left_behind"]


# What a scope leaves behind


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, StopIteration])
def test_exception_leaves_nothing_behind(net, kind):
    with pytest.raises(kind), autograd.record(), gdb.batching():
        net(SAMPLES[0])
        assert STATE.recorder is not None and not originals_are_back()
        raise kind
    assert STATE.batch is None and STATE.recorder is None and originals_are_back()
    assert not autograd.is_recording()


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_mode_is_that_of_the_user(net, recording, training):
    modes = [autograd.record(train_mode=training) if recording else autograd.predict_mode()]
    if training and not recording:
        modes = [autograd.train_mode()]
    with modes[0]:
        with gdb.batching() as batch:
            net(SAMPLES[0])
            batch.flush()
            assert (autograd.is_recording(), autograd.is_training()) == (recording, training)
            with autograd.pause():
                net(SAMPLES[1]).asnumpy()
                assert not autograd.is_recording()
            net(SAMPLES[2])
        assert (autograd.is_recording(), autograd.is_training()) == (recording, training)


# Scopes in a program


def test_scope_entered_again(net):
    """The report is that of the last time; values of all times stay, whatever failed between."""
    batch = gdb.batching(granularity="block")
    results = []
    for count in (2, 3, 4):
        with batch:
            results.append([net(x) for x in SAMPLES[:count]])
        assert batch.report.nodes == count
        with contextlib.suppress(KeyError), batch:
            net(SAMPLES[0])
            raise KeyError
    for count, got in zip((2, 3, 4), results):
        equal(got, [net(x) for x in SAMPLES[:count]])


def test_scope_entered_within_itself(net):
    batch = gdb.batching(granularity="block")
    with batch:
        first = net(SAMPLES[0])
        with batch as inner:
            second = net(SAMPLES[1])
        assert inner is batch
        third = net(SAMPLES[2])
    assert batch.report.launches == 1
    equal([first, second, third], [net(x) for x in SAMPLES[:3]])


def test_exception_in_an_inner_scope_that_is_caught(net):
    with gdb.batching():
        first = net(SAMPLES[0])
        with contextlib.suppress(KeyError), gdb.batching():
            second = net(SAMPLES[1])
            raise KeyError
        third = net(SAMPLES[2])
    equal([first, second, third], [net(x) for x in SAMPLES[:3]])


def test_scope_without_hybridized_calls(net):
    net.hybridize(False)
    with gdb.batching() as batch:
        got = [net(x) for x in SAMPLES]
        total = mx.nd.add_n(*SAMPLES)
    assert batch.report.nodes == 0 and type(total) is mx.nd.NDArray
    equal(got, [net(x) for x in SAMPLES])


@pytest.mark.parametrize("make, recorded", [(lambda block: block, (11, 2)), (gdb.convert, (17, 3))])
def test_blocks_that_are_not_hybridized_are_the_operators_in_them(net, make, recorded):
    """Recorded where they get what was recorded or made in the scope; else they run at once."""
    block = make(nn.Dense(2, in_units=3, activation="tanh"))
    block.initialize()
    with gdb.batching(granularity="block") as batch:
        got = [block(net(x)) for x in SAMPLES]
        begun = block(mx.nd.zeros((1, 3)))
        at_once = block(array(1, 3))
    assert all(type(y) is LazyNDArray for y in (*got, begun)) and type(at_once) is mx.nd.NDArray
    # Five calls of the net, and six of Gluon's own block, or else of FullyConnected and of
    # Activation; one launch each.
    assert (batch.report.nodes, batch.report.launches) == recorded
    equal(got, [block(net(x)) for x in SAMPLES])


def test_flush_with_nothing_pending(net):
    with gdb.batching() as batch:
        batch.flush()
        net(SAMPLES[0]).asnumpy()
        batch.flush()
        batch.flush()
    batch.flush()
    assert len(batch.report.flushes) == 1


def test_samples_with_nothing_to_do(net):
    def run(sample: List[mx.nd.NDArray]) -> Any:
        total = mx.nd.zeros((1, 3))
        for x in sample:
            total = total + net(x)
        return total

    samples = [[], SAMPLES[:2], [], SAMPLES[:1], []]
    gdb.testing.check_against_loop(run, samples)
    equal(gdb.map(run, samples), [run(s) for s in samples])
    assert gdb.map(lambda sample: None, samples) == [None] * 5
    assert gdb.map(run, []) == []


# Defaults


def budget_of(net: gdb.DynamicHybridBlock, **options: Any) -> str:
    with gdb.batching(**options) as batch:
        net(SAMPLES[0])
    return batch.report.flushes[0].budget


def test_budget_from_the_environment(net, monkeypatch):
    assert budget_of(net) == "unlimited"
    monkeypatch.setenv(BUDGET_VARIABLE, "2.5")
    assert budget_of(net) == "2.5 ms"
    assert budget_of(net, analysis_budget=7) == "7 ms"
    assert budget_of(net, analysis_budget=None) == "unlimited"
    monkeypatch.setenv(BUDGET_VARIABLE, "none")
    assert budget_of(net) == "unlimited"
    monkeypatch.setenv(BUDGET_VARIABLE, "0")
    assert budget_of(net) == "0 ms"
    net.hybridize(analysis_budget=5)
    assert budget_of(net) == "5 ms"
    monkeypatch.delenv(BUDGET_VARIABLE)
    net.hybridize()
    assert budget_of(net) == "unlimited", "the last hybridize counts"


@pytest.mark.parametrize("scopes", [{}, {"policy": "search"}])
def test_defaults_from_hybridize(net, scopes):
    net.hybridize(analysis_budget=3, granularity="block", policy="agenda")
    with gdb.batching(**scopes) as batch:
        got = [net(x) for x in SAMPLES]
    (flush,) = batch.report.flushes
    wanted = ("block", scopes.get("policy", "agenda"), "3 ms")
    assert (flush.granularity, flush.policy, flush.budget) == wanted
    equal(got, [net(x) for x in SAMPLES])


# What a user can see


def test_one_line_per_flush_in_the_log(net, caplog):
    with caplog.at_level(logging.DEBUG, "gluon_dynbatch"), gdb.batching(
        granularity="block", policy="depth"
    ) as b:
        net(SAMPLES[0]).asnumpy()
        net(SAMPLES[1])
    assert [(r.levelname, r.name) for r in caplog.records] == [("DEBUG", "gluon_dynbatch")] * 2
    assert caplog.messages == [flush.line for flush in b.report.flushes]
    assert caplog.messages[0].startswith("1 calls -> 1 launches (block by depth, plan ")
    caplog.clear()
    with caplog.at_level(logging.INFO), gdb.batching():
        net(SAMPLES[0])
    assert caplog.messages == []


@pytest.mark.parametrize("recording", [False, True])
def test_leaving_a_scope_waits_for_nothing(net, monkeypatch, recording):
    """MXNet runs on while the user records the next minibatch; its own threads may wait.

    What a scope reads has been computed: parameters, which are waited for once, too.
    """
    with gdb.batching():
        net(SAMPLES[0])
    waits, user = [], threading.get_ident()
    for owner, name in (
        (mx.nd.NDArray, "wait_to_read"), (mx.nd.NDArray, "asnumpy"), (mx.nd.NDArray, "asscalar"),
        (mx.nd, "waitall"), (mx.nd.ndarray, "waitall"),
    ):  # fmt: skip
        real = getattr(owner, name)

        def counted(*args: Any, real: Any = real, name: str = name) -> Any:
            if threading.get_ident() == user:
                waits.append(name)
            return real(*args)

        monkeypatch.setattr(owner, name, counted)
    with autograd.record() if recording else contextlib.nullcontext():
        with gdb.batching(granularity="block", policy="depth") as batch:
            got = [net(x) for x in SAMPLES]
    assert waits == [] and batch.report.forced == {}
    if recording:
        autograd.backward(got)
        assert waits == []
    got[0].asnumpy()
    assert "asnumpy" in waits
