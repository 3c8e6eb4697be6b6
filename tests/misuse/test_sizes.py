"""Very deep programs, calls with many arrays, and the memory of many flushes."""

import contextlib
import sys
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.cells import array, attached, cell, equal, ready
from tests.common import ALL, FIXED, in_thread, interpreter_with
from tests.forks import output_of
from tests.inside import limit_results
from tests.misuse.test_failures import Interrupt

DEPTH = 5_000
STEP = cell(lambda F, state, x: F.tanh(state * 0.5 + x))


class Recursion(gdb.DynamicHybridBlock):
    def forward(self, x, depth):
        return STEP(self(x, depth - 1), x) if depth else x


def chain_and_slope(x):
    values = x.asnumpy().astype("float64")
    state, slope = values, np.ones_like(values)
    for _ in range(DEPTH):
        state = np.tanh(state * 0.5 + values)
        slope = (1 - state**2) * (0.5 * slope + 1)
    return state, slope


def with_deep_stack(work, depth):
    """Call `work` in a thread whose stack has room for `depth` calls of Python functions."""
    size = threading.stack_size(256 << 20)
    try:
        with interpreter_with("recursionlimit", depth):
            return in_thread(work)
    finally:
        threading.stack_size(size)


@pytest.mark.parametrize("options", [("operator", "agenda"), ("block", "search")])
def test_deep_recursion_works_as_without_a_scope(options):
    """A level takes ``__call__``, ``forward`` and what Python adds, as without a scope.

    The backward pass does not recurse.
    """
    net = Recursion()
    net.hybridize()
    samples = attached([array(1, 2), array(1, 2, seed=1)])
    with_deep_stack(lambda: gdb.map(lambda x: net(x, 3), samples), 200)

    def run():
        with autograd.record(), gdb.batching(None, *options) as batch:
            outputs = [net(x, DEPTH) for x in samples]
        return outputs, batch.report

    with pytest.raises(RecursionError), gdb.batching(**FIXED):
        net(samples[0], DEPTH)
    outputs, report = with_deep_stack(run, 3 * DEPTH + 200)
    assert report.nodes == 2 * DEPTH
    assert report.launches == DEPTH
    autograd.backward(outputs)
    for x, output in zip(samples, outputs):
        state, slope = chain_and_slope(x)
        np.testing.assert_allclose(output.asnumpy(), state, 1e-4, 1e-5)
        np.testing.assert_allclose(x.grad.asnumpy(), slope, 1e-3)


def wide_cell():
    """Return a cell of any number of children, with a product for each."""
    down = mx.gluon.nn.Dense(2, in_units=2, flatten=False)

    def head(F, x, children):
        return x + F.add_n(*[F.tanh(down(child) + x) * child for child in children])

    return ready(cell(head, down))


LIBRARY = [module for name, module in sys.modules.items() if name.split(".")[0] == gdb.__name__]


@ALL
def test_work_is_linear_in_the_arrays_of_a_call(granularity):
    """From recording to gradients, including the trace, counted in Python instructions."""

    def count(children):
        net = wide_cell()

        def run():
            with autograd.record(), gdb.batching(granularity=granularity, policy="depth"):
                losses = [
                    net(array(1, 2), [array(1, 2, seed=i) for i in range(children)]).sum()
                    for _ in range(2)
                ]
            autograd.backward(losses)

        with Interrupt(0, LIBRARY) as counter:
            run()
        return counter.seen

    count(2)
    assert count(80) < 2.2 * count(40)


MEMORY = """
    def status(field):
        mx.nd.waitall()
        with open("/proc/self/status") as file:
            return 1024 * int(file.read().split(field + ":")[1].split()[0])

    def print_growth(net):
        data = [mx.nd.random.normal(shape=(1, {wide})) for _ in range(4)]

        def train(steps, **options):
            for step in range(steps):
                with mx.autograd.record(), gdb.batching(**options):
                    losses = []
                    for x in data[step % 3 :]:
                        for _ in range(1 + step % 4):
                            x = net(x)
                        losses.append(x.sum())
                mx.autograd.backward(losses)
                # So that memory does not hold the arrays of pending work.
                net.gamma.grad().wait_to_read()

        for options in {{}}, dict(granularity="operator", policy="depth"):
            train(40, **options)
            before = status("VmRSS")
            train(160, **options)
            print("bytes", status("VmRSS") - before)

    def print_peaks(net):
        # Native steps hold only a block of rows of the inner array.
        gdb.scope.RUNTIME.dispatcher.kernels.native = False
        samples = [mx.nd.ones((1, 4)) for _ in range({count})]
        gdb.map(net, samples[:2], granularity="block", policy="depth")
        before = status("VmHWM")
        for rows in 64, None:
            gdb.map(net, samples, granularity="block", policy="depth", max_rows=rows)
            print("bytes", status("VmHWM") - before)

    print_growth(ready(gdb.convert(mx.gluon.nn.LayerNorm(in_channels={wide}))))
    up, down = mx.gluon.nn.Dense({rows}, in_units=4), mx.gluon.nn.Dense(4, in_units={rows})
    print_peaks(ready(cell(lambda F, x: down(F.exp(up(x))), up, down)))
"""


def test_memory_does_not_grow_and_max_rows_limits_its_peak():
    """Over hundreds of flushes, of twelve kinds, and for a large array within a launch."""
    wide, rows, count = 4096, 1 << 13, 2048
    lines = output_of(MEMORY.format(wide=wide, rows=rows, count=count)).splitlines()
    *growth, limited, unlimited = (int(line[6:]) for line in lines if line.startswith("bytes"))
    # Less than the arrays of twenty flushes: per sample, on average 2.5 calls, each with a value,
    # two gradients and a copy.
    assert len(growth) == 2 and max(growth) < 20 * (wide * 4 * 4 * 10)
    inner_array = rows * count * 4
    assert unlimited > inner_array
    # A few launches may run at the same time, each with an array or two of 64 rows.
    assert limited < inner_array / 4


@pytest.mark.parametrize("limit, calls", [(8 * 100 * 4, 6), (8 * 100 * 4 - 1, 4)])
def test_calls_with_large_results_run_at_once(monkeypatch, limit, calls):
    limit_results(monkeypatch, limit)
    double, shrink = cell(lambda F, x: 2 * x), cell(lambda F, x: F.sum(x * x, axis=1))
    grow = cell(lambda F, x: F.repeat(x, 25, axis=1))
    samples, found = attached([array(8, 4) for _ in range(2)]), []
    for scope in (contextlib.nullcontext(), gdb.batching(**FIXED)):
        with autograd.record(), scope:
            results = [shrink(grow(double(x))) for x in samples]
        autograd.backward(results)
        found.append([y.asnumpy() for y in (*results, *(x.grad for x in samples))])
    equal(*found)
    assert scope.report.nodes == calls
