"""Very deep, very many, very few: programs at the ends of the scale."""

from __future__ import annotations

import sys
import threading
from typing import Any, Callable, List

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.cells import array, attached, cell, equal
from tests.common import ALL, FIXED, output_of

DEPTH = 5_000


STEP = cell(lambda F, state, x: F.tanh(state * 0.5 + x))


def run_chain(x: mx.nd.NDArray, depth: int) -> mx.nd.NDArray:
    state = x
    for _ in range(depth):
        state = STEP(state, x)
    return state


class Recursion(gdb.DynamicHybridBlock):
    """Goes down a chain by calling itself, as blocks for trees do."""

    def forward(self, x: mx.nd.NDArray, depth: int) -> mx.nd.NDArray:
        return STEP(self(x, depth - 1), x) if depth else x


def chain(values: np.ndarray, depth: int) -> np.ndarray:
    state = values
    for _ in range(depth):
        state = np.tanh(state * np.float32(0.5) + values)
    return state


def with_deep_stack(work: Callable[[], Any], depth: int) -> Any:
    """Call `work` in a thread whose stack holds this many calls of Python functions."""
    results: List[Any] = []
    limit, size = sys.getrecursionlimit(), threading.stack_size(256 << 20)
    sys.setrecursionlimit(depth)
    try:
        thread = threading.Thread(target=lambda: results.append(work()))
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(size)
    (result,) = results
    return result


@pytest.mark.parametrize(
    "options",
    [
        {"granularity": "operator", "policy": "agenda"},
        {"granularity": "block", "policy": "search"},
    ],
    ids=lambda options: options["granularity"],
)
def test_recursion_deep_down(options):
    """A level takes ``__call__``, ``forward`` and what Python puts between, as it does eagerly."""
    net = Recursion()
    net.hybridize()
    samples = [array(1, 2), array(1, 2, seed=1)]
    with_deep_stack(lambda: gdb.map(lambda x: net(x, 3), samples), 200)

    def run() -> Any:
        with gdb.batching(**options) as batch:
            outputs = [net(x, DEPTH) for x in samples]
        return outputs, batch.report

    outputs, report = with_deep_stack(run, 3 * DEPTH + 200)
    assert report.nodes == 2 * DEPTH
    assert report.launches == DEPTH
    equal(outputs, [chain(x.asnumpy(), DEPTH) for x in samples], 1e-4, 1e-5)


def test_too_deep_recursion_is_the_users_own():
    net = Recursion()
    net.hybridize()
    with pytest.raises(RecursionError), gdb.batching(**FIXED):
        net(array(1, 2), DEPTH)
    with gdb.batching(**FIXED):
        y = net(array(1, 2), 3)
    np.testing.assert_allclose(y.asnumpy(), chain(array(1, 2).asnumpy(), 3), 1e-5)


def test_long_chain_backward():
    """Gradients come back through thousands of launches without recursion."""
    samples = attached([array(1, 2), array(1, 2, seed=1)])
    with autograd.record(), gdb.batching(**FIXED) as batch:
        outputs = [run_chain(x, DEPTH) for x in samples]
    autograd.backward(outputs)
    assert batch.report.launches == DEPTH
    for x in samples:
        values = x.asnumpy().astype("float64")
        state, slope = values, np.ones_like(values)
        for _ in range(DEPTH):
            state = np.tanh(state * 0.5 + values)
            slope = (1 - state**2) * (0.5 * slope + 1)
        np.testing.assert_allclose(x.grad.asnumpy(), slope, 1e-3)


@ALL
def test_very_many_calls(granularity):
    samples = [array(1, 2, seed=i) for i in range(50)]
    with gdb.batching(granularity=granularity, policy="depth") as batch:
        outputs = [run_chain(samples[number % 50], 4) for number in range(15_000)]
    assert batch.report.nodes == 60_000
    assert batch.report.launches == 4
    got = mx.nd.concat(*outputs[-50:], dim=0).asnumpy()
    np.testing.assert_allclose(got, chain(np.concatenate([x.asnumpy() for x in samples]), 4), 1e-5)


class Flat(gdb.DynamicHybridBlock):
    """A head with any number of children, each with a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.down = mx.gluon.nn.Dense(2, in_units=2, flatten=False)

    def hybrid_forward(self, F, x, children):
        return x + F.add_n(*[F.tanh(self.down(child) + x) * child for child in children])


def instructions(work: Callable[[], Any]) -> int:
    """Count the instructions of Python's that the library runs in `work`."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return seen

    def entered(frame: Any, event: str, argument: Any) -> Any:
        if not frame.f_globals.get("__name__", "").startswith("gluon_dynbatch"):
            return None
        frame.f_trace_opcodes = True
        return seen

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@ALL
def test_work_grows_no_faster_than_the_arrays_of_a_call(granularity):
    """Twice the children, twice the work, from the first look at a call to its gradients."""

    def count(children: int) -> int:
        net = Flat()
        net.initialize()
        net.hybridize()

        def run() -> None:
            with autograd.record(), gdb.batching(granularity=granularity, policy="depth"):
                losses = [
                    net(array(1, 2), [array(1, 2, seed=i) for i in range(children)]).sum()
                    for _ in range(2)
                ]
            autograd.backward(losses)

        return instructions(run)

    count(2)
    assert count(80) < 2.2 * count(40)


# Results nobody asks for


@ALL
@pytest.mark.parametrize("count", [0, 1])
def test_smallest_minibatches(net, granularity, count):
    samples = attached([array(1, 4, seed=i) for i in range(count)])
    for policy in ("depth", "agenda", "search"):
        gdb.testing.check_against_loop(
            lambda x: mx.nd.tanh(net(x)),
            samples,
            net.collect_params().values(),
            granularity=granularity,
            policy=policy,
        )


# Memory

LEVEL = """
    import os
    import mxnet as mx
    import gluon_dynbatch as gdb

    def resident():
        mx.nd.waitall()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    class Scale(gdb.DynamicHybridBlock):
        def __init__(self):
            super().__init__()
            self.weight = self.params.get("weight", shape=(1, {wide}))

        def hybrid_forward(self, F, x, weight):
            return F.tanh(x * weight)

    net = Scale()
    net.initialize()
    net.hybridize()
    data = [mx.nd.random.normal(shape=(1, {wide})) for _ in range({count})]

    def turns(number, **options):
        for turn in range(number):
            with mx.autograd.record(), gdb.batching(**options):
                losses = []
                for x in data[turn % 3 :]:
                    for _ in range(1 + turn % 4):
                        x = net(x)
                    losses.append(x.sum())
            mx.autograd.backward(losses)
            # Else memory holds whatever is queued.
            net.weight.grad().wait_to_read()

    for options in {{}}, dict(granularity="operator", policy="depth"):
        turns(40, **options)
        before = resident()
        turns(200, **options)
        print("grown", resident() - before)
"""


def test_flushes_leave_memory_level():
    """Hundreds of flushes, of twelve kinds; less stays than the arrays of twenty of them."""
    wide, count = 4096, 4
    told = output_of(LEVEL.format(wide=wide, count=count)).splitlines()
    grown = [int(line.split()[1]) for line in told if line.startswith("grown")]
    # Per sample: on average 2.5 calls, each with a value, two gradients and a copy.
    assert len(grown) == 2 and max(grown) < 20 * (wide * count * 4 * 10)


PEAK = """
    import mxnet as mx
    import gluon_dynbatch as gdb

    def peak():
        mx.nd.waitall()
        with open("/proc/self/status") as file:
            return 1024 * int(file.read().split("VmHWM:")[1].split()[0])

    class Wide(gdb.DynamicHybridBlock):
        def __init__(self):
            super().__init__()
            self.up = mx.gluon.nn.Dense({wide}, in_units=4)
            self.down = mx.gluon.nn.Dense(4, in_units={wide})

        def hybrid_forward(self, F, x):
            return self.down(F.exp(self.up(x)))

    # Native steps never hold more than a block of such rows.
    gdb.scope.RUNTIME.dispatcher.native = False
    net = Wide()
    net.initialize()
    net.hybridize()
    samples = [mx.nd.ones((1, 4)) for _ in range({count})]
    gdb.map(net, samples[:2], granularity="block", policy="depth")
    before = peak()
    for rows in 64, None:
        gdb.map(net, samples, granularity="block", policy="depth", max_rows=rows)
        print("peak", peak() - before)
"""


def test_max_rows_bounds_the_peak():
    """Within a launch every row takes `wide` numbers, which no arena holds."""
    wide, count = 1 << 13, 2048
    all_at_once = wide * count * 4
    told = output_of(PEAK.format(wide=wide, count=count)).splitlines()
    bound, free = (int(line.split()[1]) for line in told if line.startswith("peak"))
    assert free > all_at_once
    # A few launches may run at the same time, each with an array or two of 64 rows.
    assert bound < all_at_once / 4
