"""What `gdb.map` gives to a function, and what it refuses."""

from __future__ import annotations

import functools

import pytest
from mxnet import gluon

import gluon_dynbatch as gdb
from tests.cells import array, equal, ready
from tests.common import refused

PAIRS = [(array(1, 4, seed=i), array(1, 4, seed=i + 3)) for i in range(3)]


class Cell(gdb.DynamicHybridBlock):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(1, 4), init="ones")

    def hybrid_forward(self, F, left, right, weight):
        return F.tanh(left * weight) - right


class Plain(gluon.HybridBlock):
    def hybrid_forward(self, F, left, right):
        return F.tanh(left) - right


class Dynamic(gdb.DynamicHybridBlock):
    def __init__(self):
        super().__init__()
        self.cell = Cell()

    def forward(self, left, right, times=2):
        for _ in range(times):
            left = self.cell(left, right)
        return left


class Called(gluon.Block):
    def __call__(self, left, right):
        return super().__call__([left, right])

    def forward(self, both):
        return both[0] * both[1]


class Object:
    def __call__(self, left, right):
        return left.exp() + right


TWO = [
    lambda left, right: left * 2 + right,
    functools.partial(lambda scale, left, right: left * scale + right, 3),
    Object(),
    Object().__call__,
]
BLOCKS = [Cell, Plain, Dynamic, Called, lambda: gdb.convert(Plain()), gluon.loss.L2Loss]


@pytest.mark.parametrize("fn", [*TWO, *[lambda make=make: ready(make()) for make in BLOCKS]])
def test_tuples_for_a_function_of_several_arguments(fn):
    if getattr(fn, "__defaults__", None):
        fn = fn()
    wanted = [fn(*pair) for pair in PAIRS]
    equal(gdb.map(fn, PAIRS), wanted)


def test_tuples_of_several_lengths():
    block = ready(Dynamic())
    samples = [PAIRS[0], (*PAIRS[1], 3)]
    equal(gdb.map(block, samples), [block(*sample) for sample in samples])


@pytest.mark.parametrize(
    "fn",
    [lambda pair: pair, lambda pair, more=None: pair, lambda *pairs: pairs[0], tuple, len],
)
def test_what_takes_one_argument_gets_the_tuple(fn):
    assert gdb.map(fn, PAIRS) == [fn(pair) for pair in PAIRS]


@pytest.mark.parametrize(
    "fn, sample, told",
    [
        (lambda a, b: a, PAIRS[0][0], "(a, b), and a sample is NDArray"),
        (lambda a, b: a, (1, 2, 3), "(a, b), and a sample is a tuple of 3"),
        (lambda a, b: a, list(PAIRS[0]), "(a, b), and a sample is list"),
        (Cell(), (*PAIRS[0], 1), "(left, right), and a sample is a tuple of 3"),
        (Dynamic(), PAIRS[0] * 2, "(left, right, times=2), and a sample is a tuple of 4"),
        (lambda: 0, PAIRS[0], "()"),
    ],
)
def test_a_sample_that_does_not_fit(fn, sample, told):
    with refused(gdb.ArgumentError, told, "map(lambda sample"):
        gdb.map(fn, [sample])  # wrong


def yielding(x):
    yield x


async def waiting(x):
    return x


async def streaming(x):
    yield x


class Yielding(gdb.DynamicHybridBlock):
    def forward(self, x):
        yield x


class YieldingCell(gdb.DynamicHybridBlock):
    def hybrid_forward(self, F, x):
        yield x


class YieldingObject:
    def __call__(self, x):
        yield x


@pytest.mark.parametrize("samples", [[], [array(1, 4)]])
@pytest.mark.parametrize(
    "fn, kind",
    [
        (yielding, "a generator"),
        (functools.partial(yielding), "a generator"),
        (YieldingObject(), "a generator"),
        (Yielding(), "a generator"),
        (YieldingCell(), "a generator"),
        (waiting, "a coroutine"),
        (streaming, "an asynchronous generator"),
    ],
)
def test_functions_that_would_not_run(fn, kind, samples):
    with refused(gdb.ArgumentError, f"returns {kind}"):
        gdb.map(fn, samples)  # wrong


@pytest.mark.parametrize("fn", [yielding, waiting, streaming])
def test_a_function_that_returns_what_would_not_run(fn):
    with refused(gdb.ArgumentError, "returns a"):
        gdb.map(lambda x: fn(x), [array(1, 4)])  # wrong
