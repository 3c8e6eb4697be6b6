"""Scopes: nesting, options, what they record, and that they leave nothing behind."""

# ruff: noqa: SIM117 - Python 3.8 has no brackets around the items of a with statement.

import contextlib
import gc
import logging
import sys
import threading
import weakref

import mxnet as mx
import pytest
from mxnet import autograd
from mxnet.base import _LIB
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.options import BUDGET_VARIABLE
from gluon_dynbatch.record.intercept import FOR_GOOD, OPEN, WAITS, replace_for_good
from gluon_dynbatch.record.lazy import LazyNDArray
from gluon_dynbatch.record.state import STATE
from tests.cells import array, dense, equal
from tests.common import FIXED, ROOT, SAMPLES
from tests.inside import arenas_of


def test_scope_entered_again_and_within_itself(net):
    """The report describes the last entry; values of all entries stay, even after failures."""
    batch = gdb.batching(granularity="block")
    results = []
    for count in (2, 3, 4):
        with batch:
            results.append([net(x) for x in SAMPLES[:count]])
            with batch as inner:
                results[-1].append(net(SAMPLES[1]))
            with contextlib.suppress(KeyError), gdb.batching():
                results[-1].append(net(SAMPLES[2]))
                raise KeyError
        assert inner is batch
        assert (batch.report.nodes, batch.report.launches) == (count + 2, 1)
        with contextlib.suppress(KeyError), batch:
            net(SAMPLES[0])
            raise KeyError
    for count, got in zip((2, 3, 4), results):
        equal(got, [net(x) for x in (*SAMPLES[:count], *SAMPLES[1:3])])


ENDINGS = {
    "as it should": lambda batch: None,
    "with an error": lambda batch: {}["on purpose"],
    "after a flush": lambda batch: batch.flush(),
    "after a map": lambda batch: batch.map(lambda x: x * float((x + 1).sum().asscalar()), SAMPLES),
    "within another": lambda batch: gdb.batching().__enter__(),
}


@pytest.mark.parametrize("options", [FIXED, {}, {"debug": True}], ids=str)
@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_open_scope_is_freed_when_it_closes(net, recording, ending, options):
    """No cycle keeps it until the collector runs, and no handle and no array refers to it."""
    mode, batch = autograd.record if recording else autograd.pause, gdb.batching(**options)
    gc.disable()
    try:
        for _ in range(2):
            with contextlib.suppress(KeyError), mode(), batch:
                opened = weakref.ref(STATE.scope)
                kept = [net(x) for x in SAMPLES]
                ENDINGS[ending](batch)
            assert STATE.scope is None and opened() is None
            if ending != "with an error":
                equal(kept, [net(x) for x in SAMPLES])
    finally:
        gc.enable()


def test_a_handle_works_until_its_scope_closes(net):
    """The scope is open until the last statement in it ends, and not only the handle's own."""
    batch, inner = gdb.batching(**FIXED), gdb.batching()
    report = batch.report
    with contextlib.ExitStack() as last:
        with batch:
            assert last.enter_context(inner) is batch
            first = net(SAMPLES[0])
        assert not first.pending
        second = net(SAMPLES[1])
        batch.flush()
        assert not second.pending
        equal(batch.map(net, SAMPLES), [net(x) for x in SAMPLES])
    assert batch.report is report and len(report.flushes) == 3 and inner.report.nodes == 0
    batch.flush()
    with pytest.raises(gdb.ScopeError, match="not open"):
        batch.map(net, SAMPLES)


@pytest.mark.parametrize("make, recorded", [(lambda block: block, (11, 2)), (gdb.convert, (17, 3))])
def test_blocks_that_are_not_hybridized_are_recorded_as_operators(net, make, recorded):
    """They are recorded if they read an array of the scope; otherwise they run at once."""
    block = make(nn.Dense(2, in_units=3, activation="tanh"))
    block.initialize()
    ordinary = array(1, 3)
    with gdb.batching(granularity="block") as batch:
        got = [block(net(x)) for x in SAMPLES]
        from_zeros = block(mx.nd.zeros((1, 3)))
        at_once = block(ordinary)
        total = mx.nd.add_n(*SAMPLES)
    assert all(type(y) is LazyNDArray for y in (*got, from_zeros))
    assert type(at_once) is type(total) is mx.nd.NDArray
    # Five calls of the net, and six of Gluon's own block, or else of FullyConnected and of
    # Activation; one launch each.
    assert (batch.report.nodes, batch.report.launches) == recorded
    equal(got, [block(net(x)) for x in SAMPLES])


def test_empty_samples(net):
    def run(sample):
        total = mx.nd.zeros((1, 3))
        for x in sample:
            total = total + net(x)
        return total

    samples = [[], SAMPLES[:2], [], SAMPLES[:1], []]
    gdb.testing.check_against_loop(run, samples)
    equal(gdb.map(run, samples), [run(s) for s in samples])
    assert gdb.map(lambda sample: None, samples) == [None] * 5
    assert gdb.map(run, []) == []


AGENDA = {"analysis_budget": 3000, "granularity": "block", "policy": "agenda"}
#: Options of `hybridize`, the environment and the scope; and the options of the flush.  Budgets are
#: seconds long, as a busy machine may stop an analysis for milliseconds.
SETTINGS = [
    ({}, None, {}, ("operator", "depth", "unlimited")),
    ({}, None, {"granularity": "block"}, ("block", "depth", "unlimited")),
    ({}, None, {"policy": "search"}, ("operator", "search", "unlimited")),
    ({}, None, {"analysis_budget": gdb.Budget(visits=900)}, ("operator", "search", "900 visits")),
    ({}, None, {"analysis_budget": 0}, ("block", "depth", "0 ms")),
    ({}, "none", {}, ("operator", "search", "unlimited")),
    ({}, "0", {}, ("block", "depth", "0 ms")),
    ({}, "2500.5", {}, ("operator", "search", "2500.5 ms")),
    ({}, "2500.5", {"analysis_budget": 7000}, ("operator", "search", "7000 ms")),
    ({}, "2500.5", {"analysis_budget": None}, ("operator", "search", "unlimited")),
    ({"analysis_budget": 5000}, "2500.5", {}, ("operator", "search", "5000 ms")),
    (AGENDA, None, {}, ("block", "agenda", "3000 ms")),
    (AGENDA, None, {"policy": "search"}, ("block", "search", "3000 ms")),
]


@pytest.mark.parametrize("defaults, environment, options, used", SETTINGS)
def test_defaults_and_settings(net, monkeypatch, defaults, environment, options, used):
    """The last `hybridize` counts."""
    if environment:
        monkeypatch.setenv(BUDGET_VARIABLE, environment)
    net.hybridize(granularity="graph", analysis_budget=9)
    net.hybridize(**defaults)
    with gdb.batching(**options) as batch:
        got = [net(x) for x in SAMPLES * 8]
    (flush,) = batch.report.flushes
    assert (flush.granularity, flush.policy, flush.budget) == used
    assert flush.launches == (40 if flush.budget == "0 ms" else 1)
    equal(got, [net(x) for x in SAMPLES * 8])


def test_one_line_per_flush_in_the_log(net, caplog):
    with caplog.at_level(logging.DEBUG, "gluon_dynbatch"), gdb.batching(**FIXED) as b:
        net(SAMPLES[0]).asnumpy()
        net(SAMPLES[1])
    assert [(r.levelname, r.name) for r in caplog.records] == [("DEBUG", "gluon_dynbatch")] * 2
    assert caplog.messages == [f._replace(waiting_ms=0.0).line for f in b.report.flushes]
    assert caplog.messages[0].startswith("calls 1 in 1 launch; ")
    caplog.clear()
    with caplog.at_level(logging.INFO), gdb.batching():
        net(SAMPLES[0])
    assert caplog.messages == []


@pytest.mark.parametrize("recording", [False, True])
def test_leaving_a_scope_waits_for_nothing(net, monkeypatch, recording):
    """MXNet computes while the user records the next minibatch; only its own threads wait.

    Everything that the scope reads is computed before, also parameters.
    """
    with gdb.batching():
        net(SAMPLES[0])
    waits, user = [], threading.get_ident()
    for name in (*WAITS, "MXNDArrayWaitAll"):
        real = getattr(_LIB, name)

        def counted(*args, real=real, name=name):
            if threading.get_ident() == user:
                waits.append(name)
            return real(*args)

        monkeypatch.setattr(_LIB, name, counted)
    with autograd.record() if recording else contextlib.nullcontext():
        with gdb.batching(granularity="block", policy="depth") as batch:
            got = [net(x) for x in SAMPLES]
    assert waits == [] and batch.report.forced == {}
    if recording:
        autograd.backward(got)
        assert waits == []
    got[0].asnumpy()
    assert waits


def owners():
    """Yield MXNet's C library, its modules, and the classes in them."""
    yield _LIB
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "mxnet" and module is not None:
            yield module
            classes = (value for value in vars(module).values() if isinstance(value, type))
            yield from (kind for kind in classes if kind.__module__.startswith("mxnet"))


def replaced():
    """Return where MXNet has functions of this package instead of its own."""
    places = set()
    for owner in owners():
        for name, value in list(vars(owner).items()):
            home = getattr(value, "__globals__", {}).get("__name__") or type(value).__module__
            if home.split(".")[0] == "gluon_dynbatch":
                places.add((owner, name))
    return places


def listed(*tables):
    return {(hook.owner, hook.name) for table in tables for hook in table}


def test_without_a_scope_only_permanent_replacements_are_in_place():
    for_good = listed(FOR_GOOD)
    assert replaced() == for_good
    net, x = dense(), mx.nd.ones((1, 4))
    with gdb.batching(granularity="block", policy="depth"):
        with gdb.batching():
            net(x)
        assert replaced() == listed(OPEN, FOR_GOOD)
    assert replaced() == for_good
    with pytest.raises(ZeroDivisionError), gdb.batching():
        net(x)
        raise ZeroDivisionError
    assert replaced() == for_good
    with pytest.raises(KeyError):
        replace_for_good("waitall", lambda original: original)


def test_documents_give_the_numbers_of_replacements():
    good, others = len(FOR_GOOD), len(OPEN)
    for document in ("docs/limits.md", "docs/design/architecture.md"):
        text = " ".join((ROOT / document).read_text("utf-8").split())
        assert f"{others} functions of MXNet" in text, document
        assert f"{good} for good" in text, document


def test_arenas_are_freed_once_their_values_are_dropped_while_the_scope_is_open():
    """Each flush reads values of the one before: a scope must not keep all that it has computed."""
    cell = dense(4, 4, activation="tanh")
    with gdb.batching(policy="depth") as batch:
        h, alive = array(1, 4), []
        for _ in range(12):
            h = cell(h)
            h.asnumpy()
            alive.append(len(arenas_of(batch.scope)))
    assert len(batch.report.flushes) == 12 and max(alive) <= 2
