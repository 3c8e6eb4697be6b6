"""Where calls of a block go is known from the call before, as long as the block has not changed."""

import contextlib
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.record.lazy import LazyNDArray
from tests.cells import WIDTH, array, dense, equal, ready
from tests.common import FIXED

SEEN = []


class Scaled(gdb.DynamicHybridBlock):
    """A cell with a child."""

    def __init__(self):
        super().__init__()
        self.net = mx.gluon.nn.Dense(WIDTH, in_units=WIDTH)

    def hybrid_forward(self, F, x):
        return self.net(x) * 2


class Negative(Scaled):
    """The same, and what is done to its result; its ``forward`` is Python code."""

    def forward(self, x):
        return -super().forward(x)


class Twice(gdb.DynamicHybridBlock):
    """A dynamic block."""

    def __init__(self):
        super().__init__()
        self.net = mx.gluon.nn.Dense(WIDTH, in_units=WIDTH)

    def forward(self, x):
        return self.net(self.net(x))


def add_hook(block):
    block.register_forward_hook(lambda block, args, result: SEEN.append(result.shape))


def add_earlier_hook(block):
    block.register_forward_pre_hook(lambda block, args: SEEN.append(args[0].shape))


def add_operator_hook(block):
    block.register_op_hook(lambda *_: None)


def replace_child(block):
    block.net = dense(WIDTH, scale=0.3)


def change_class(block):
    block.__class__ = Negative


def cast_there_and_back(block):
    block.cast("float64")
    block.cast("float32")


def trace_once(block):
    block.hybridize(trace_once=True)


CHANGES = [
    add_hook, add_earlier_hook, replace_child, cast_there_and_back, trace_once,
    lambda block: block.hybridize(False), lambda block: block.hybridize(),
    lambda block: setattr(block, "number", 1),
]  # fmt: skip


CASES = [(class_, change) for class_ in (Scaled, Twice) for change in CHANGES]
CASES += [(Scaled, add_operator_hook), (Scaled, change_class)]


@pytest.mark.parametrize("class_, change", CASES)
@pytest.mark.parametrize("traced", [False, True], ids=["", "traced"])
def test_a_block_that_changes_between_known_calls(class_, change, traced):
    xs = [array(1, WIDTH, seed=k) for k in range(8)]

    def run(scope):
        block = ready(class_())
        if traced:
            block.hybridize(trace_once=True)
        SEEN.clear()
        with scope:  # with a lock, calls run at once
            results = [block(x) for x in xs[:4]]
            change(block)
            results += [block(x) for x in xs[4:]]
        return [result.asnumpy() for result in results], len(SEEN)

    (got, seen), (wanted, seen_at_once) = run(gdb.batching(**FIXED)), run(threading.Lock())
    assert seen == seen_at_once
    for result, right in zip(got, wanted):
        np.testing.assert_allclose(result, right, 1e-5, 1e-6)


def test_blocks_that_are_made_and_freed_in_turn():
    """A block may have the address of one that is known, and its attributes as well."""
    x = array(1, WIDTH)
    with gdb.batching(**FIXED):
        got, wanted = [], []
        for k in range(40):
            net = ready(gdb.convert(mx.gluon.nn.Dense(1 + k % 3, in_units=WIDTH)))
            got += [net(x), net(x)]
            wanted.append(net.weight.data().asnumpy() @ x.asnumpy()[0])
            del net
    for k, result in enumerate(got):
        np.testing.assert_allclose(result.asnumpy()[0], wanted[k // 2], 1e-5, 1e-6)


def test_threads_with_and_without_a_scope_call_a_block_in_turn():
    """Each call asks which scope its own thread has, whatever the call before has found."""
    net, x, turns = dense(WIDTH), array(1, WIDTH), threading.Barrier(2)
    wanted = net(x).asnumpy()

    def work(number):
        found = []
        for k in range(12):
            turns.wait()
            if k % 3 == number:
                with gdb.batching(**FIXED):
                    found += [(True, net(x)), (True, net(x))]
                    turns.wait()
                    found.append((True, net(x)))
            else:
                turns.wait()
                found.append((False, net(x)))
        return found

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(work, range(2)):
            for lazy, result in found:
                assert isinstance(result, LazyNDArray) == lazy
                np.testing.assert_allclose(result.asnumpy(), wanted, 1e-5, 1e-6)


def initialize_again(block):
    block.initialize(mx.init.Normal(1.0), force_reinit=True)


def set_values(block):
    block.net.weight.set_data(array(WIDTH, WIDTH))


def move(block):
    block.collect_params().reset_ctx(mx.cpu(0))


def cast_twice(block):
    block.cast("float64")
    block.cast("float32")


def read_parts(block):
    """Let parameters be parts of larger arrays, as those are that are made by hand."""
    for parameter in block.collect_params().values():
        rows = parameter.data().shape[0]
        whole = mx.nd.concat(parameter.data() - 1, parameter.data() * 2, dim=0)
        parameter._data = [whole[rows : 2 * rows]]


def read_on_two_devices(block):
    block.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])


def train_again(block):
    block.collect_params().setattr("grad_req", "null")
    block.collect_params().setattr("grad_req", "write")


CHANGES = [initialize_again, set_values, move, cast_twice, read_parts, train_again]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("change", [*CHANGES, read_on_two_devices])
def test_a_flush_reads_the_arrays_that_parameters_have_now(change, trains):
    """It knows where they were in the last one; also if an earlier flush has not run yet."""
    block, x = ready(Scaled()), array(1, WIDTH)

    def run(batch):
        with batch, mx.autograd.record(trains):
            return block(x)

    for _ in range(3):
        earlier, expected = run(gdb.batching(**FIXED)), run(contextlib.nullcontext())
        values = expected.asnumpy()
        if trains and change is not read_parts:
            earlier.backward()
            gradient = block.net.weight.grad(mx.cpu(0)).asnumpy()
            expected.backward()
            equal(gradient, block.net.weight.grad(mx.cpu(0)))
        change(block)
        equal(earlier, values)
        equal(run(gdb.batching(**FIXED)), run(contextlib.nullcontext()))


def test_arrays_that_parameters_had_before_are_freed():
    """A flush may run after them, but nothing keeps them once it has."""
    block, x, freed = ready(Scaled()), array(1, WIDTH), []
    for number in range(3):
        values = np.full((WIDTH, WIDTH), 0.5 + number, np.float32)
        weakref.finalize(values, freed.append, number)
        block.net.weight._data = [mx.nd.from_numpy(values, zero_copy=True)]
        del values
        with gdb.batching(**FIXED):
            result = block(x)
        block.net.weight._data = [mx.nd.ones((WIDTH, WIDTH))]
        expected = x.asnumpy() @ np.full((WIDTH, WIDTH), 0.5 + number, np.float32)
        equal(result, 2 * (expected + block.net.bias.data().asnumpy()))
        mx.nd.waitall()
    with gdb.batching(**FIXED):
        block(x)
    mx.nd.waitall()
    assert freed == [0, 1, 2]
