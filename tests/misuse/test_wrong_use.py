"""Options, scopes, blocks and gradients used wrongly; see also ``tests/test_bad_input.py``.

A line that must be named carries the comment ``# wrong``.
"""

# ruff: noqa: F811, SIM117 - Python 3.8 has no brackets around the items of a with statement.
from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Type

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.run import gradient
from gluon_dynbatch.scope import BUDGET_VARIABLE, RUNTIME
from tests.misuse.refusals import array, cell, dense, net, refused, user_frame, works

__all__ = ["net"]

# Arrays whose scope failed


def stale(net: gdb.DynamicHybridBlock) -> mx.nd.NDArray:
    with contextlib.suppress(KeyError), gdb.batching():
        y = net(array(1, 4)) + 1
        raise KeyError("my own")
    return y


def test_value_of_a_failed_scope(net):
    y = stale(net)
    assert y.shape == (1, 3)
    with refused(gdb.StaleArrayError, "KeyError", "my own"):
        y.asnumpy()  # wrong


@pytest.mark.parametrize(
    "use",
    [
        str,
        lambda y: y + 1,
        lambda y: y[0],
        lambda y: y[:, 1],
        lambda y: y.copy(),
        lambda y: float(y[0, 0]),
    ],
)
def test_any_use_of_an_array_of_a_failed_scope(net, use):
    y = stale(net)
    with pytest.raises(gdb.StaleArrayError, match="my own"):
        use(y)


def test_array_of_a_failed_scope_in_the_next_scope(net):
    y = stale(net)
    with refused(gdb.StaleArrayError, "my own"), gdb.batching():
        net(array(1, 4))
        net(mx.nd.concat(y, array(1, 1), dim=1))  # wrong


def test_values_computed_before_the_scope_failed_stay(net):
    x = array(1, 4)
    wanted = net(x).asnumpy()
    with contextlib.suppress(KeyError), gdb.batching() as batch:
        flushed = net(x)
        batch.flush()
        asked_for = net(x)
        asked_for.asnumpy()
        raise KeyError
    for y in (flushed, asked_for):
        np.testing.assert_allclose(y.asnumpy(), wanted, 1e-5, 1e-6)


# Options

BAD_BUDGETS = [-1, -0.5, float("nan"), "fast", "-2", "nan", "", True, np.bool_(False), [1], b"1"]
BAD_NAMES = ["node", "", None, 3, ["block"]]
BAD_LIMITS = [0, -1, 1.5, True, "3", float("nan")]


@contextlib.contextmanager
def option_refused(kind: Type[BaseException], *texts: str) -> Iterator[None]:
    """Expect an error at the marked line; options are not recorded calls, so no line is named."""
    with pytest.raises(kind) as caught:
        yield
    assert isinstance(caught.value, gdb.DynBatchError) and isinstance(caught.value, ValueError)
    assert user_frame(caught.value).line.endswith("# wrong")
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("budget", BAD_BUDGETS, ids=repr)
def test_bad_budget(net, budget):
    with option_refused(gdb.BudgetError, repr(budget), "0 or more", '"auto"', "None"):
        gdb.batching(analysis_budget=budget)  # wrong
    with option_refused(gdb.BudgetError, repr(budget)):
        net.hybridize(analysis_budget=budget)  # wrong
    net.hybridize()


@pytest.mark.parametrize("field", ["milliseconds", "visits"])
@pytest.mark.parametrize("limit", [-1, float("nan"), True, "3"], ids=repr)
def test_bad_limit_of_a_budget(field, limit):
    with option_refused(gdb.BudgetError, field, repr(limit)):
        gdb.Budget(**{field: limit})  # wrong


@pytest.mark.parametrize("value", ["fast", "-1", "nan", ""])
def test_bad_budget_in_the_environment(net, monkeypatch, value):
    monkeypatch.setenv(BUDGET_VARIABLE, value)
    with pytest.raises(gdb.BudgetError) as caught, gdb.batching():
        net(array(1, 4))
    assert BUDGET_VARIABLE in str(caught.value) and repr(value) in str(caught.value)
    monkeypatch.delenv(BUDGET_VARIABLE)


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_unknown_granularity(net, name):
    valid = "'auto', 'graph', 'block', 'operator'"
    with option_refused(gdb.OptionError, "granularity", repr(name), valid):
        gdb.batching(granularity=name)  # wrong
    with option_refused(gdb.OptionError, "granularity", valid):
        net.hybridize(granularity=name)  # wrong
    with option_refused(gdb.OptionError, "granularity", valid):
        gdb.map(net, [array(1, 4)], granularity=name)  # wrong
    net.hybridize()


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_unknown_policy(net, name):
    valid = "'auto', 'depth', 'agenda', 'search'"
    with option_refused(gdb.OptionError, "policy", repr(name), valid):
        gdb.batching(policy=name)  # wrong
    with option_refused(gdb.OptionError, "policy", valid):
        net.hybridize(policy=name)  # wrong
    net.hybridize()


@pytest.mark.parametrize("limit", BAD_LIMITS, ids=repr)
def test_bad_max_rows(limit):
    with option_refused(gdb.OptionError, "max_rows", repr(limit), "at least 1", "None"):
        gdb.batching(max_rows=limit)  # wrong


@pytest.mark.parametrize("name", ["strict", "debug"])
@pytest.mark.parametrize("value", ["yes", "no", 1, None, []], ids=repr)
def test_a_switch_that_is_neither_true_nor_false(name, value):
    with option_refused(gdb.OptionError, name, repr(value), "True or False"):
        gdb.batching(**{name: value})  # wrong


def test_an_option_that_does_not_exist():
    with pytest.raises(TypeError, match="budget"):
        gdb.batching(budget=3)


# Strict scopes


class Doubling(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("dynbatch_test_doubling")
class DoublingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Doubling()


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_strict_refuses_what_has_no_rule(net, granularity):
    block = cell(lambda F, x: F.LinearRegressionOutput(x, x))
    with refused(
        gdb.NotMergedError, "3 calls", "block: the_cell", "Output", "strict=False", late=True
    ):
        with gdb.batching(strict=True, granularity=granularity):
            for _ in range(3):
                y = net(array(1, 4))
                block(y)  # wrong


def test_strict_refuses_an_operator_without_rule(net):
    with refused(gdb.NotMergedError, "3 calls", "block: LinearRegressionOutput", late=True):
        with gdb.batching(strict=True):
            for _ in range(3):
                y = net(array(1, 4))
                mx.nd.LinearRegressionOutput(y, y)  # wrong


def test_without_strict_the_same_runs_alone_and_is_named(net):
    samples = [array(1, 4) * i for i in range(3)]
    with gdb.batching() as batch:
        got = [mx.nd.Custom(net(x), op_type="dynbatch_test_doubling") for x in samples]
    for x, y in zip(samples, got):
        np.testing.assert_allclose(y.asnumpy(), 2 * net(x).asnumpy(), 1e-5, 1e-6)
    (alone,) = batch.report.alone
    assert (alone.name, alone.calls) == ("Custom", 3) and "Custom" in alone.reason


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
        {"granularity": "operator"},
        {"policy": "search"},
        {"analysis_budget": 3},
        {"max_rows": 7},
        {"strict": True},
        {"debug": True},
    ],
    ids=str,
)
def test_nested_scope_with_other_settings(net, inner):
    (name,) = (n.replace("analysis_", "") for n in inner)
    with refused(gdb.ScopeError, name, "outer scope"):
        with gdb.batching(granularity="block", policy="depth", analysis_budget=2, max_rows=9):
            net(array(1, 4))
            with gdb.batching(**inner):  # wrong
                net(array(1, 4))


def test_nested_scope_with_other_settings_that_is_caught(net):
    with gdb.batching(granularity="block") as batch:
        first = net(array(1, 4))
        with pytest.raises(gdb.ScopeError), gdb.batching(granularity="operator"):
            pass
        second = net(array(1, 4))
    assert batch.report.launches == 1
    np.testing.assert_allclose(first.asnumpy(), second.asnumpy(), 1e-6)


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
    np.testing.assert_allclose(got.asnumpy(), block(array(1, 4)).asnumpy(), 1e-5, 1e-6)


@pytest.mark.parametrize("thing", [3, None, nn.Dense, lambda x: x])
def test_convert_takes_blocks_only(thing):
    with pytest.raises(TypeError, match=type(thing).__name__) as caught:
        gdb.convert(thing)  # wrong
    assert user_frame(caught.value).line.endswith("# wrong")


# While a flush runs


def test_a_launch_that_fails_names_the_line_of_the_call(net, monkeypatch):
    """What MXNet says reaches the user, and the scope after that one works."""

    def fail(segment):
        raise mx.MXNetError("out of memory, say")

    with monkeypatch.context() as patch:
        patch.setattr(RUNTIME.dispatcher, "executable", fail)
        with refused(gdb.LaunchError, "out of memory, say", "block: the_dense", late=True):
            with gdb.batching():
                y = net(array(1, 4))  # wrong
    with pytest.raises(gdb.StaleArrayError, match="LaunchError"):
        y.asnumpy()


def test_a_launch_that_fails_names_the_line_of_this_scope(net, monkeypatch):
    """Compiled pieces are shared between scopes, lines are not."""
    with gdb.batching():
        net(array(1, 4))

    def fail(segment):
        raise mx.MXNetError("out of memory, say")

    with monkeypatch.context() as patch:
        patch.setattr(RUNTIME.dispatcher, "executable", fail)
        with refused(gdb.LaunchError, "block: the_dense", late=True), gdb.batching():
            net(array(1, 4))  # wrong


# Gradients


def recorded_losses(block: gdb.DynamicHybridBlock, **options: Any) -> List[mx.nd.NDArray]:
    with autograd.record(), gdb.batching(**options):
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


def test_backward_twice_with_a_retained_graph():
    block = dense()
    losses = recorded_losses(block)
    autograd.backward(losses, retain_graph=True)
    once = block.weight.grad().asnumpy()
    autograd.backward(losses)
    np.testing.assert_array_equal(block.weight.grad().asnumpy(), once)


def test_backward_sample_by_sample_says_what_to_do_or_works():
    """The plain loop allows it; a scope may refuse, but then in words of its own."""
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
