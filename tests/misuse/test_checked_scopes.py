"""``debug=True`` finds what differs and what was written unseen; ``strict=True`` refuses."""

# ruff: noqa: SIM117 - Python 3.8 has no brackets around the items of a with statement.
from __future__ import annotations

import json
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch import rules
from gluon_dynbatch.run.execute import Execution
from tests.cells import cell, equal
from tests.common import FIXED, SAMPLES, named_lines, refused
from tests.fuzz.test_fuzz import wrong_rule

GRANULARITIES = pytest.mark.parametrize("granularity", ["block", "operator"])


def break_rules(monkeypatch: Any, op: str, **attrs: str) -> None:
    for layout in ("rows", "stack"):
        monkeypatch.setattr(rules, layout, wrong_rule(getattr(rules, layout), op, attrs))


@GRANULARITIES
def test_debug_finds_a_wrong_rule(net, monkeypatch, granularity):
    block = cell(lambda F, x: x * 3)
    break_rules(monkeypatch, "_mul_scalar", scalar="99")
    with refused(gdb.MismatchError, "block: the_cell", late=True):
        with gdb.batching(debug=True, granularity=granularity):
            got = [net(x) for x in SAMPLES]
            got = [block(y) for y in got]  # wrong
    with gdb.batching(granularity=granularity):
        got = [block(net(x)) for x in SAMPLES]
    assert not np.allclose(got[0].asnumpy(), 3 * net(SAMPLES[0]).asnumpy())


def test_debug_checks_each_launch_before_the_next(net, monkeypatch):
    """The launch that differs is the last to run."""
    ran, run = [], Execution.push

    def counted(self, stretch):
        ran.append(stretch.launch)
        run(self, stretch)

    monkeypatch.setattr(Execution, "push", counted)
    break_rules(monkeypatch, "_mul_scalar", scalar="98")
    with pytest.raises(gdb.MismatchError, match="in launch 1 than alone"):
        with gdb.batching(debug=True, **FIXED):
            got = [
                net(x) * 3.0625 for x in SAMPLES
            ]  # traced with the wrong rule, and by no other test
            got = [mx.nd.relu(y) for y in got]
    assert ran == [0, 1]


def test_debug_accepts_random_numbers(net):
    with autograd.train_mode(), gdb.batching(debug=True):
        got = [mx.nd.Dropout(net(x), p=0.5) * 2 for x in SAMPLES]
    assert {y.shape for y in got} == {(1, 3)}


def shared_memory(shape: Any = (1, 4)) -> Any:
    """Return an array and the NumPy array that has its memory."""
    values = np.ones(shape, dtype=np.float32)
    array = mx.nd.from_numpy(values, zero_copy=True)
    # MXNet wants nobody to write to it, and relies on nobody doing so.
    values.flags.writeable = True
    return array, values


def test_debug_finds_a_write_that_goes_past_mxnet(net):
    x, values = shared_memory()
    with refused(gdb.MismatchError, "an array of shape (1, 4)", "was written to", late=True):
        with gdb.batching(debug=True):
            first = net(mx.nd.zeros((1, 4)))
            second = net(x)  # wrong
            values[:] = 7
    with pytest.raises(gdb.StaleArrayError):
        second.asnumpy()
    assert first.shape == (1, 3)


def test_debug_accepts_writes_that_wait_and_writes_between_flushes(net):
    x, values = shared_memory()
    other = mx.nd.ones((1, 4))
    view = other[0:1]
    wanted = [net(x), net(other), net(x * 7)]
    mx.nd.waitall()
    with gdb.batching(debug=True) as batch:
        first, second = net(x), net(other)
        view[:] = 5
        batch.flush()
        values[:] = 7
        third = net(x)
    equal([first, second, third], wanted)


# What does not merge

#: By name of a block or operator: a call, and where the report as JSON has it.
NOT_MERGED = {
    "the_cell": (cell(lambda F, x: F.LinearRegressionOutput(x, x)), "flushes"),
    "LinearRegressionOutput": (lambda y: mx.nd.LinearRegressionOutput(y, y), "flushes"),  # wrong
    "batch_take": (
        lambda y: mx.nd.batch_take(y, mx.nd.array([0], dtype="int32")),  # wrong
        "immediate",
    ),
}  # fmt: skip


@GRANULARITIES
@pytest.mark.parametrize("name", NOT_MERGED)
def test_strict_refuses_what_does_not_merge_and_the_report_names_it(net, name, granularity):
    call, place = NOT_MERGED[name]

    def run(**options: Any) -> gdb.Batch:
        with gdb.batching(granularity=granularity, **options) as batch:
            for _ in range(3):
                y = net(SAMPLES[0])
                call(y)  # wrong
        return batch

    report = run().report
    (told,) = report.alone
    assert (told.name.rstrip("0_"), told.calls) == (name, 3)
    assert named_lines(str(told.where))[0].endswith("# wrong")
    assert f"ran alone   3 x {told.name}" in str(report)
    assert json.loads(report.to_json())[place]
    texts = [f"operator {name} run at once"] if place == "immediate" else ["3 calls", name]
    with refused(gdb.NotMergedError, *texts, "strict=False", late=True):
        run(strict=True)
    with gdb.batching(strict=True) as batch:
        got = [mx.nd.relu(net(x)) for x in SAMPLES]
    assert batch.report.alone == [] and len(got) == len(SAMPLES)
