"""Launches read long rows where they are, although they lie apart."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.native import executing
from gluon_dynbatch.testing import check_against_loop
from tests.cells import equal, ready
from tests.depth import examples

#: Maps of at least 4096 bytes, and fewer.
SIDES = 12, 5


class Filtered(gdb.DynamicHybridBlock):
    """A residual block."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2D(8, 3, padding=1, in_channels=8, activation="relu")
        self.second = nn.Conv2D(8, 3, padding=1, in_channels=8)

    def hybrid_forward(self, F, x):
        return F.relu(x + self.second(self.first(x)))


class Joined(gdb.DynamicHybridBlock):
    """Reads two operands and a shared one, and gives two results."""

    def hybrid_forward(self, F, x, y, shift):
        return F.broadcast_add(x * F.sigmoid(y), shift), F.tanh(x - y)


class Network(gdb.DynamicHybridBlock):
    """Runs a program: each step is the number of a cell, and of two earlier results."""

    def __init__(self):
        super().__init__()
        self.cells = [Filtered(), Filtered(), Joined()]
        for cell in self.cells:
            self.register_child(cell)

    def forward(self, x, shift, program):
        results = [x]
        for cell, left, right in program:
            operands = [results[number % len(results)] for number in (left, right)]
            if cell == 2:
                results += self.cells[2](*operands, shift)
            else:
                results.append(self.cells[cell](operands[0]))
        return results[-1]


STEPS = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3))
PROGRAMS = st.lists(st.lists(STEPS, min_size=1, max_size=5), min_size=2, max_size=7)


@examples(13)
@given(st.sampled_from(SIDES), PROGRAMS, st.sampled_from(["operator", "block"]))
def test_results_and_gradients_equal_the_loop(side, programs, granularity):
    """In inference, where rows are not put together, and in training, where they are."""
    net, rng = ready(Network(), 0.3), np.random.RandomState(len(programs))
    shift = mx.nd.array(rng.normal(size=(1, 8, 1, 1)))
    samples = [
        (mx.nd.array(rng.normal(size=(1, 8, side, side))), shift, program) for program in programs
    ]
    wanted = [net(*sample) for sample in samples]
    equal(gdb.map(net, samples, granularity=granularity), wanted, 1e-4, 1e-5)
    check_against_loop(
        lambda sample: net(*sample), samples, net.collect_params(), granularity=granularity
    )


@pytest.mark.parametrize("granularity", ["operator", "block"])
def test_bits_depend_neither_on_threads_nor_on_other_rows(granularity):
    """What a thread makes of a kernel serves rows of this kernel only, wherever they are."""
    net, rng = ready(Network(), 0.3), np.random.RandomState(5)
    shift = mx.nd.array(rng.normal(size=(1, 8, 1, 1)))
    programs = [[tuple(rng.randint(0, 3, 3)) for _ in range(4)] for _ in range(40)]
    samples = [(mx.nd.array(rng.normal(size=(1, 8, 12, 12))), shift, each) for each in programs]
    wanted = [gdb.map(net, [sample], granularity=granularity)[0].asnumpy() for sample in samples]
    try:
        for threads in (1, 2, 5):
            executing.use_threads(threads, threads)
            got = gdb.map(net, samples, granularity=granularity)
            same = [each.asnumpy().tobytes() == other.tobytes() for each, other in zip(got, wanted)]
            assert all(same), f"{threads} threads"
    finally:
        executing.use_threads(1)
