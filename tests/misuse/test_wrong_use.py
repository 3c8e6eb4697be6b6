"""Options, scopes, blocks and gradients used wrongly; see also ``tests/test_bad_input.py``.

A line that must be named carries the comment ``# wrong``.
"""

# ruff: noqa: F811, SIM117 - Python 3.8 has no brackets around the items of a with statement.
from __future__ import annotations

import contextlib
from typing import Iterator, List, Type

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.options import BUDGET_VARIABLE
from gluon_dynbatch.run import gradient
from gluon_dynbatch.scope import RUNTIME
from tests.cells import array, cell, dense, equal
from tests.common import FIXED, refused, user_frame, works
from tests.common import unharmed as net

__all__ = ["net"]

# Arrays whose scope failed


@pytest.mark.parametrize("use", [str, lambda y: y[:, 1], lambda y: float(y[0, 0])])
def test_array_of_a_failed_scope(net, use):
    """Neither a use nor the next scope gets a value; what was computed before stays."""
    x = array(1, 4)
    wanted = net(x)
    with contextlib.suppress(KeyError), gdb.batching() as batch:
        flushed = net(x)
        batch.flush()
        asked_for = net(x)
        asked_for.asnumpy()
        y = net(x) + 1
        raise KeyError("my own")
    assert y.shape == (1, 3)
    with refused(gdb.StaleArrayError, "KeyError", "my own"):
        y.asnumpy()  # wrong
    with pytest.raises(gdb.StaleArrayError, match="my own"):
        use(y)
    with refused(gdb.StaleArrayError, "my own"), gdb.batching():
        net(x)
        net(mx.nd.concat(y, array(1, 1), dim=1))  # wrong
    equal([flushed, asked_for], [wanted] * 2)


# Options


@contextlib.contextmanager
def option_refused(kind: Type[BaseException], *texts: str) -> Iterator[None]:
    """Expect an error at the marked line; options are not recorded calls, so no line is named."""
    with pytest.raises(kind) as caught:
        yield
    assert isinstance(caught.value, gdb.DynBatchError) and isinstance(caught.value, ValueError)
    assert user_frame(caught.value).line.endswith("# wrong")
    for text in texts:
        assert text in str(caught.value)


BUDGETS = [-1, -0.5, float("nan"), "fast", "-2", "nan", "", True, np.bool_(False), [1], b"1", 1j]
NAMES = ["node", "", None, 3, ["block"]]
#: By option: the error, what it says beside the value, and wrong values.
WRONG = {
    "analysis_budget": (gdb.BudgetError, ["0 or more", '"auto"', "None"], BUDGETS),
    "granularity": (gdb.OptionError, ["'auto', 'graph', 'block', 'operator'"], NAMES),
    "policy": (gdb.OptionError, ["'auto', 'depth', 'agenda', 'search'"], NAMES),
    "max_rows": (gdb.OptionError, ["at least 1", "None"], [0, -1, 1.5, True, "3", float("nan")]),
    "strict": (gdb.OptionError, ["True or False"], ["yes", 1, None, []]),
    "debug": (gdb.OptionError, ["True or False"], ["no", 0]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_value_of_an_option(name):
    kind, told, values = WRONG[name]
    for value in values:
        with option_refused(kind, repr(value), *told):
            gdb.batching(**{name: value})  # wrong
        with option_refused(kind, repr(value), *told):
            gdb.map(dense(), [array(1, 4)], **{name: value})  # wrong
        if name in ("analysis_budget", "granularity", "policy"):
            with option_refused(kind, repr(value), *told):
                dense().hybridize(**{name: value})  # wrong


#: Of which none is a limit, neither of milliseconds nor of visits.
NO_LIMITS = [-1, float("nan"), True, "3"]


@pytest.mark.parametrize(
    "field, limit",
    [("visits", 1.5), *((f, x) for f in ("milliseconds", "visits") for x in NO_LIMITS)],
)
def test_wrong_limit_of_a_budget(field, limit):
    with option_refused(gdb.BudgetError, field, repr(limit)):
        gdb.Budget(**{field: limit})  # wrong


@pytest.mark.parametrize("value", ["fast", "-1", "nan", ""])
def test_wrong_budget_in_the_environment(monkeypatch, value):
    monkeypatch.setenv(BUDGET_VARIABLE, value)
    with pytest.raises(gdb.BudgetError) as caught, gdb.batching():
        dense()(array(1, 4))
    assert BUDGET_VARIABLE in str(caught.value) and repr(value) in str(caught.value)


def test_an_option_that_does_not_exist():
    with pytest.raises(TypeError, match="budget"):
        gdb.batching(budget=3)


# Strict scopes

UNSUPPORTED = {
    "in a cell": ("the_cell", cell(lambda F, x: F.LinearRegressionOutput(x, x))),
    "operator": ("LinearRegressionOutput", lambda y: mx.nd.LinearRegressionOutput(y, y)),  # wrong
}


@pytest.mark.parametrize("granularity", ["block", "operator"])
@pytest.mark.parametrize("name, call", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_strict_refuses_what_has_no_rule(net, name, call, granularity):
    texts = ("3 calls", f"block: {name}", "Output", "strict=False")
    with refused(gdb.NotMergedError, *texts, late=True):
        with gdb.batching(strict=True, granularity=granularity):
            for _ in range(3):
                y = net(array(1, 4))
                call(y)  # wrong


def test_strict_accepts_what_can_be_merged(net):
    with gdb.batching(strict=True) as batch:
        got = [mx.nd.relu(net(array(1, 4) * i)) for i in range(3)]
    assert batch.report.alone == [] and len({y.shape for y in got}) == 1


# Scopes


def test_other_settings_than_those_of_a_scope_that_a_generator_holds_open(net):
    def leak():
        with gdb.batching():
            yield net(array(1, 4))

    generator = leak()
    next(generator)
    there = f"opened at {__file__}:{leak.__code__.co_firstlineno + 1}, has None"
    with refused(gdb.ScopeError, "max_rows=3", there):
        with gdb.batching(max_rows=3):  # wrong
            net(array(1, 4))
    generator.close()


@pytest.mark.parametrize(
    "inner",
    [
        {"granularity": "operator"}, {"policy": "search"}, {"analysis_budget": 3}, {"max_rows": 7},
        {"strict": True}, {"debug": True},
    ],
    ids=str,
)  # fmt: skip
def test_nested_scope_with_other_settings(net, inner):
    """The outer scope goes on where the error is caught."""
    (name,) = (n.replace("analysis_", "") for n in inner)
    options = {"analysis_budget": gdb.Budget(visits=99), "max_rows": 9}
    with gdb.batching(granularity="block", policy="depth", **options) as batch:
        first = net(array(1, 4))
        with refused(gdb.ScopeError, name, "outer scope"):
            with gdb.batching(**inner):  # wrong
                net(array(1, 4))
        second = net(array(1, 4))
    assert batch.report.launches == 1
    equal([first], [second])


# Blocks


@pytest.mark.parametrize("known", [{"in_units": 4}, {}], ids=["shape known", "shape deferred"])
def test_block_that_is_not_initialised(net, known):
    block = gdb.convert(nn.Dense(3, prefix="other_", **known))
    block.hybridize()
    with refused(gdb.UninitializedError, "other_weight", "initialize()"), gdb.batching():
        net(array(1, 4))
        block(array(1, 4))  # wrong
    block.initialize()
    with gdb.batching():
        got = block(array(1, 4))
    equal([got], [block(array(1, 4))])


@pytest.mark.parametrize("thing", [3, None, nn.Dense, lambda x: x, mx.nd.ones(2)])
def test_convert_takes_blocks_only(thing):
    told = f"convert takes a Gluon block.*{type(thing).__name__}"
    with pytest.raises(TypeError, match=told) as caught:
        gdb.convert(thing)  # wrong
    assert user_frame(caught.value).line.endswith("# wrong")


@pytest.mark.parametrize("compiled", [False, True], ids=["first scope", "later scope"])
def test_a_launch_that_fails_names_the_line_of_the_call(net, monkeypatch, compiled):
    """What MXNet says reaches the user.  Compiled pieces are shared between scopes, lines not."""

    def fail(segment):
        raise mx.MXNetError("out of memory, say")

    with monkeypatch.context() as patch:
        patch.setattr(RUNTIME.dispatcher, "native", False)
        if compiled:
            with gdb.batching():
                net(array(1, 4))
        patch.setattr(RUNTIME.dispatcher, "executable", fail)
        with refused(gdb.LaunchError, "out of memory, say", "block: the_dense", late=True):
            with gdb.batching():
                y = net(array(1, 4))  # wrong
    with pytest.raises(gdb.StaleArrayError, match="LaunchError"):
        y.asnumpy()


# Gradients


def recorded_losses(block: gdb.DynamicHybridBlock) -> List[mx.nd.NDArray]:
    with autograd.record(), gdb.batching(**FIXED):
        return [(block(array(1, 4) * i) ** 2).sum() for i in range(3)]


def test_backward_twice():
    block = dense()
    losses = recorded_losses(block)
    autograd.backward(losses)
    once = block.weight.grad().asnumpy()
    with pytest.raises(RuntimeError, match="retain_graph|once"):
        autograd.backward(losses)
    np.testing.assert_array_equal(block.weight.grad().asnumpy(), once)
    works(block)


def test_backward_sample_by_sample():
    """The plain loop allows it; a scope refuses the second one in words of its own."""
    block = dense()
    block.collect_params().setattr("grad_req", "add")
    losses = recorded_losses(block)
    losses[0].backward()
    with refused(gdb.GradientError, "once", late=True):
        losses[1].backward()  # wrong


def test_backward_of_what_was_not_recorded():
    block = dense()
    with gdb.batching():
        loss = block(array(1, 4)).sum()
    with pytest.raises(RuntimeError, match="record"):
        loss.backward()
    works(block)


@pytest.mark.parametrize("inside", [False, True])
def test_second_order_gradient_is_refused(inside, monkeypatch):
    """A gradient penalty must not be left out in silence, be it of the first scope of a process."""
    alive = gradient._ALIVE
    monkeypatch.setattr(gradient, "_ALIVE", {})
    block = dense()
    x = array(1, 4)
    x.attach_grad()
    x.grad[:] = 7
    with autograd.record():
        scope = gdb.batching()
        with scope if inside else contextlib.nullcontext():
            with scope:
                loss = (block(x) ** 2).sum()
            with refused(gdb.GradientError, "gradients of gradients"):
                autograd.grad(loss, x, create_graph=True, retain_graph=True)  # wrong
    np.testing.assert_array_equal(x.grad.asnumpy(), 7)
    loss.backward()
    assert np.abs(x.grad.asnumpy()).max() < 7
    works(block)
    # MXNet still holds addresses of what is in there.
    alive.update(gradient._ALIVE)
