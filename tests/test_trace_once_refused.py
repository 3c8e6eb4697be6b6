"""Blocks with ``trace_once``: calls that are not kept as pieces, and when pieces become invalid."""

import contextlib
import random
import threading
from typing import NamedTuple

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.record.state import STATE
from gluon_dynbatch.report.advice import keeping
from tests.cells import WIDTH, dense
from tests.common import FIXED, in_thread, named_lines
from tests.test_trace_once import RUNS, Node, chain, scope, traced, x


class Extended(NamedTuple("Extended", [("first", int)])):
    """A tuple with attributes."""


NET, FOREIGN, ELSEWHERE = dense(WIDTH), x(8), []
with gdb.batching(**FIXED):
    MADE = mx.nd.array([2.0])


def not_kept(block, *samples, because):
    for _ in range(2):
        account = scope(block, list(samples))
        assert account.known == 0
        reasons = [refusal.reason for refusal in account.refused]
        assert any(because in reason for reason in reasons), reasons
        assert all(refusal.where.filename.endswith(".py") for refusal in account.refused)
        assert all(keeping(refusal.reason) for refusal in account.refused), "each has a remedy"


def reading(block, x):
    h = block.net(x)
    return chain(block, h, 1 + int(h.asnumpy()[0, 0] > 0))


def flushing(block, x):
    h = block.net(x)
    if STATE.batch is not None:
        STATE.batch.flush()
    return block.net(h)


def write(block, x):
    h = block.net(x)
    h[:] = 1
    return block.net(h)


def mark(block, x, node):
    node.array = block.net(x)
    return node.array


def grow(block, x, items):
    items.append(1)
    return chain(block, x, len(items))


def ignoring(block, x, thing):
    return block.net(x)


#: What a block does with an array, the reported reason, and what makes its second argument.
NOT_KEPT = [
    (lambda b, x: chain(b, x, 1 + int(x.asnumpy()[0, 0] > 0)), "reads a value"),
    (reading, "reads a value"),
    (lambda b, x: b.inner(b.net(x)), "reads a value"),
    (lambda b, x: b.net(x) * x[0, 0].asscalar(), "reads a value"),
    (flushing, "flushes the scope"),
    (lambda b, x: b.net(x) + mx.nd._internal._arange(start=0, stop=WIDTH), "calls arange"),
    (lambda b, x: [mx.nd.zeros((1, 1)).handle, b.net(x)][1], "memory of an array that it makes"),
    (lambda b, x: (b.net(x), mx.nd.zeros((2, WIDTH))[0:1]), "returns a part of an array"),
    (lambda b, x: b.net(x) + 0 * mx.nd.random.uniform(shape=(1, WIDTH)), "runs at once"),
    (lambda b, x: [x.__setitem__(slice(None), 1), b.net(x)][1], "writes to an array"),
    (lambda b, x: [mx.nd.ones((1, WIDTH), out=b.mask), b.net(x)][1], "writes to an array"),
    (lambda b, x: b.net(x) + mx.nd.array(np.ones((1 << 15, WIDTH)))[0:1], "makes a large"),
    (lambda b, x: b.net(x) + mx.nd.array(x), "copies an array"),
    (lambda b, x, made: b.net(x) * made.asnumpy()[0], "reads a value", lambda: MADE),
    (lambda b, x: chain(b, x, random.randint(1, 1) or 1), "drawn in Python"),
    (lambda b, x: b.net(x) * (0 * np.random.uniform() + 1), "drawn in Python"),
    # Every second of these is a number that the draw before has left.
    (lambda b, x: b.net(x) * (0 * random.gauss(0, 1) + 1), "drawn in Python"),
    (lambda b, x: b.net(x) * (0 * np.random.normal() + 1), "drawn in Python"),
    (lambda b, x: [ELSEWHERE.append(b.net(x)), b.net(x)][1], "held elsewhere"),
    (lambda b, x: [setattr(b, "last", b.net(x)), b.last][1], "changes an attribute"),
    (lambda b, x: [setattr(b, "calls", vars(b).get("calls", 0) + 1), b.net(x)][1],
     "changes an attribute"),
    (lambda b, x: NET(x), "no attribute of the block"),
    (lambda b, x: b.net(x) * FOREIGN, "neither an argument"),
    (lambda b, x: (b.net(x), FOREIGN), "no call recorded"),
    (lambda b, x: (y := b.net(x), y.detach()), "cut from the gradient graph"),
    (mark, "changes its arguments", lambda: Node(1)),
    (ignoring, "whose changes cannot be noticed", random.Random),
    (ignoring, "whose changes cannot be noticed", lambda: iter([1, 2])),
]  # fmt: skip


@pytest.mark.parametrize("fn, because, more", [(*row, None)[:3] for row in NOT_KEPT])
def test_calls_that_are_not_kept(fn, because, more):
    block = traced(fn, mask=x(7), inner=traced(reading))
    not_kept(block, *[(x(i), *([more()] if more else [])) for i in (1, 2)], because=because)
    ELSEWHERE.clear()


@pytest.mark.parametrize(
    "fn, more, because",
    [
        (write, (), "writes to an array"), (grow, ([1],), "changes its arguments"),
        (lambda block, x: {block.net(x)}, (), "it returns an object of type set"),
    ],
)  # fmt: skip
def test_calls_that_are_not_kept_and_differ_from_the_loop(fn, more, because):
    block = traced(fn)
    for _ in range(2):
        with gdb.batching(**FIXED) as batch:
            (got,) = {block(x(), *more)} if fn in (write, grow) else block(x())
        (refusal,) = batch.report.traced.refused
        assert because in refusal.reason and got.shape == (1, WIDTH)


def linked(count):
    node = None
    for _ in range(count):
        node, following = Node(1), node
        node.next = following
    return node


@pytest.mark.parametrize("wrap", [lambda v: (v,), lambda v: {0: [v]}, Node])
def test_arguments_that_are_nested_deep(wrap):
    """Keys are written without recursion, so the stack of a thread may be small."""

    def nested(count):
        value = 1
        for _ in range(count):
            value = wrap(value)
        return value

    block = traced(ignoring)
    assert in_small_thread(lambda: run_twice(block, nested(5_000)).known) == 1
    (refusal,) = run_twice(block, nested(101_000)).refused
    assert "an argument is nested too deep" in refusal.reason


def in_small_thread(work):
    """Return the result of a function, run in a thread with the stack of a small server."""
    before = threading.stack_size(256 << 10)
    try:
        return in_thread(work)
    finally:
        threading.stack_size(before)


def test_arguments_that_contain_themselves():
    block, ring = traced(ignoring), [1]
    ring.append(ring)
    assert run_twice(block, ring).known == 1
    endless = Extended((1,))
    endless.itself = endless
    assert run_twice(block, endless).known == 1


def run_twice(block, nest):
    """Return the report of two calls with an argument that flattening would not take."""
    with gdb.batching(**FIXED) as batch:
        results = [block(x(i), nest) for i in range(2)]
    for i, result in enumerate(results):
        np.testing.assert_allclose(result.asnumpy(), block.net(x(i)).asnumpy(), 1e-5, 1e-6)
    return batch.report.traced


def test_a_random_number_generator_in_the_block():
    block = traced(lambda block, x: block.net(x) * (block.rng.rand() > -1))
    block.rng = np.random.RandomState(0)
    not_kept(block, (x(),), because="an attribute is of type RandomState")


def test_the_report_names_the_line_that_raises_or_reads_a_value():
    def fail(block, x, fails):
        h = block.net(x)
        if fails == "raises":
            raise KeyError("no")  # wrong
        if fails == "reads" and h.asnumpy().sum() > 100:  # wrong
            return h
        return block.net(h)

    block = traced(fail)
    for fails, because in (("raises", "KeyError"), ("reads", "reads a value")):
        for _ in range(2):
            with gdb.batching(**FIXED) as batch:
                with contextlib.suppress(KeyError):
                    block(x(), fails)
                block(x(), None)
            (refusal,) = batch.report.traced.refused
            assert because in refusal.reason and "# wrong" in named_lines(str(refusal.where))[0]
            assert str(refusal.where) in str(batch.report)
        assert batch.report.traced.known == 1


def test_after_many_refusals_calls_are_not_traced():
    block = traced(lambda b, x: b.net(x) + mx.nd.array(x))
    account = scope(block, [(x(),)] * 40)
    assert account.new < 40 and sum(r.calls for r in account.refused) == 40


def scaled(block, x, times):
    for scale in block.scales:
        x = block.net(x) * scale * block.scale * block.more["a"]
    return chain(block, x, times)


#: A change of the block, and how many of two calls are traced again after it.
CHANGES = [
    (lambda block: setattr(block, "scale", 3.0), 1),
    (lambda block: block.scales.append(2.0), 1),
    (lambda block: block.scales.__setitem__(0, 2.0), 1),
    (lambda block: block.more.update(a=2.0), 1),
    (lambda block: vars(block).update(scale=5.0), 1),
    (lambda block: setattr(block, "net", dense(WIDTH, scale=0.3)), 1),
    (lambda block: block.net.hybridize(), 1),
    (lambda block: block.net.hybridize(False), 1),
    (lambda block: block.hybridize(trace_once=True), 1),
    (lambda block: block.net.weight.set_data(block.net.weight.data() * 2), 0),
    (lambda block: block.net.collect_params().setattr("grad_req", "null"), 0),
]


@pytest.mark.parametrize("change, new", CHANGES)
def test_a_block_that_has_changed(change, new):
    block = traced(scaled, scale=1.0, scales=[1.0], more={"a": 1.0})
    samples = [(x(i), 2) for i in range(2)]
    scope(block, samples)
    assert scope(block, samples).known == 2
    change(block)
    account = scope(block, samples)
    assert (account.new, account.known) == (new, 2 - new)


def test_a_former_value_of_an_attribute_finds_its_pieces():
    block = traced(scaled, scale=1.0, scales=[1.0], more={"a": 1.0})
    for scale, known in ((1.0, 0), (2.0, 0), (1.0, 1)):
        block.scale = scale
        assert scope(block, [(x(), 1)]).known == known


def test_a_cast_block():
    block = traced(lambda block, x: mx.nd.dot(block.net(x), block.net.weight.data()))
    scope(block, [(x(),)] * 2)
    block.cast("float64")
    account = scope(block, [(x().astype("float64"),)] * 2)
    assert (account.new, account.known) == (1, 1)
    block.net.bias.cast("float64")


def test_hooks_run_each_time():
    block = traced(chain)
    seen = []
    scope(block, [(x(), 1)])
    handle = block.net.register_forward_hook(lambda *_: seen.append(1))
    account = scope(block, [(x(), 1)] * 2)
    assert account.known == 0 and "hooks" in account.refused[0].reason
    seen.clear()
    with gdb.batching(**FIXED):
        block(x(), 3)
    assert len(seen) == 3
    handle.detach()
    assert scope(block, [(x(), 1)]).known == 1


def test_debug_runs_forward_each_time_and_reports_hidden_dependences():
    times = [1]
    block = traced(lambda block, x: chain(block, x, times[0]))
    RUNS.clear()
    for debug in (False, True, True):
        with gdb.batching(**FIXED, debug=debug):
            block(x())
    assert len(RUNS) == 3
    times[0] = 2
    with pytest.raises(gdb.MismatchError, match="other calls"), gdb.batching(**FIXED, debug=True):
        block(x())
