"""``debug=True`` and ``strict=True``."""

# ruff: noqa: SIM117 - Python 3.8 has no brackets around the items of a with statement.
from __future__ import annotations

import dataclasses
import sys
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch import rules
from gluon_dynbatch.run.execute import Execution
from tests.misuse.common import array

SAMPLES = [array(1, 4) * i for i in range(1, 6)]


def break_rule(monkeypatch: Any, op: str) -> None:
    """Make the rewrites of an operator wrong: a scalar attribute is changed."""
    for layout in ("rows", "stack"):
        right = getattr(rules, layout)

        def wrong(site: Any, right: Any = right) -> Any:
            answer = right(site)
            if site.op != op or isinstance(answer, rules.Refusal):
                return answer
            steps = tuple(
                step._replace(attrs={**step.attrs, "scalar": "99"}) if step.op == op else step
                for step in answer.steps
            )
            if hasattr(answer, "_replace"):
                return answer._replace(steps=steps)
            return dataclasses.replace(answer, steps=steps)

        monkeypatch.setattr(rules, layout, wrong)


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_debug_finds_a_wrong_rule(net, monkeypatch, granularity):
    class Cell(gdb.DynamicHybridBlock):
        def hybrid_forward(self, F, x):
            return x * 3

    block = Cell(prefix="tripling_")
    block.hybridize()
    break_rule(monkeypatch, "_mul_scalar")
    with pytest.raises(gdb.MismatchError, match=r"block: tripling") as caught:
        with gdb.batching(debug=True, granularity=granularity):
            got = [net(x) for x in SAMPLES]
            line = sys._getframe().f_lineno + 1
            got = [block(y) for y in got]
    assert f"{__file__}:{line} in " in str(caught.value)
    with gdb.batching(granularity=granularity):
        got = [block(net(x)) for x in SAMPLES]
    assert not np.allclose(got[0].asnumpy(), 3 * net(SAMPLES[0]).asnumpy())


def test_debug_checks_each_launch_before_the_next(net, monkeypatch):
    """The launch that differs is the last to run."""
    ran, launch = [], Execution._launch

    def counted(self, number, one):
        if self._checks is not None:
            ran.append(number)
        launch(self, number, one)

    monkeypatch.setattr(Execution, "_launch", counted)
    break_rule(monkeypatch, "_mul_scalar")
    with pytest.raises(gdb.MismatchError, match="in launch 1 than alone"):
        with gdb.batching(debug=True, granularity="block", policy="depth"):
            got = [net(x) * 3 for x in SAMPLES]
            got = [mx.nd.relu(y) for y in got]
    assert ran == [0, 1]


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_debug_accepts_what_is_right(net, granularity):
    def run(x):
        return mx.nd.softmax(net(x) * 2) + net(x[:, ::-1])

    batch = gdb.testing.check_against_loop(
        run, SAMPLES, net.collect_params().values(), debug=True, granularity=granularity
    )
    assert batch.report.nodes == 5 * 5


def test_debug_accepts_random_numbers(net):
    with autograd.train_mode(), gdb.batching(debug=True):
        got = [mx.nd.Dropout(net(x), p=0.5) * 2 for x in SAMPLES]
    assert {y.shape for y in got} == {(1, 3)}


def test_strict_is_the_scopes_own(net):
    batch_norm = gdb.convert(nn.BatchNorm(in_channels=3))
    batch_norm.initialize()
    batch_norm.hybridize()
    with pytest.raises(gdb.NotMergedError, match="BatchNorm"), autograd.train_mode():
        with gdb.batching(strict=True):
            _ = [batch_norm(net(x)) for x in SAMPLES]
    with autograd.train_mode(), gdb.batching() as batch:
        got = [batch_norm(net(x)) for x in SAMPLES]
    assert batch.report.alone[0].calls == len(got)
