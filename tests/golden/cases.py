"""The programs whose plans are here, to be read."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import mxnet as mx
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from tests.cells import (
    WIDTH,
    Attention,
    Binary,
    ChildSum,
    Output,
    TreeNet,
    Unary,
    complete,
    inputs,
    ready,
    tree,
)

#: What a case runs, for one sample each, with the options of the scope.
Case = Tuple[Callable[[Any], Any], Any, Dict[str, Any]]


def chains() -> Case:
    a = ready(Unary(prefix="a_"))

    def fn(sample):
        length, x = sample
        for _ in range(length):
            x = a(x)
        return x

    return fn, list(zip((1, 3, 2), inputs(3))), {"granularity": "block"}


def trees() -> Case:
    a, join = ready(Unary(prefix="leaf_")), ready(Binary(prefix="join_"))
    x, y = inputs(2)
    return lambda s: tree(a, join, s), [complete(2, x), ((x, y), y)], {"granularity": "block"}


def sums() -> Case:
    """Per-child work of one and two children merges; the sum of the children is an operand."""
    net = TreeNet(ready(ChildSum(prefix="child_sum_")))
    net.hybridize()
    shapes = [[[[]] * n] * n for n in (1, 2)]
    return lambda s: net(*s), list(zip(shapes, inputs(2))), {"granularity": "operator"}


def hoisted() -> Case:
    """The input projection of all steps of all sequences runs first."""
    cell = ready(gdb.convert(rnn.LSTMCell(WIDTH, input_size=WIDTH, prefix="lstm_")))
    start = [mx.nd.zeros((1, WIDTH)), mx.nd.zeros((1, WIDTH))]

    def fn(steps):
        states = start
        for x in steps:
            out, states = cell(x, states)
        return out

    xs = inputs(3)
    return fn, [xs[:2], xs[2:]], {"granularity": "operator"}


def shared() -> Case:
    """A matrix that all samples read is passed as it is; one that each has is stacked."""
    a, lookup, own = (
        ready(Unary(prefix="a_")),
        ready(Attention(prefix="lookup_")),
        ready(Attention(prefix="own_")),
    )
    memory = mx.nd.ones((3, WIDTH))

    def fn(x):
        rows = mx.nd.concat(x, a(x), dim=0)
        return lookup(a(x), memory) + own(x, rows)

    return fn, inputs(3), {"granularity": "block"}


def mixed() -> Case:
    """Rows of one operand that lie in arenas of different widths."""
    a = ready(Unary(prefix="a_"))
    wide = ready(gdb.convert(nn.Dense(2 * WIDTH, in_units=WIDTH, prefix="wide_")))

    def fn(sample):
        kind, x = sample
        if kind == "half":
            return a(wide(x).reshape((2, WIDTH))[1:2])
        return a(a(x))

    return fn, list(zip(("half", "whole", "half"), inputs(3))), {"granularity": "block"}


def alone() -> Case:
    a, output = ready(Unary(prefix="a_")), ready(Output(prefix="output_"))
    return lambda x: output(a(x)), inputs(2), {"granularity": "block"}


def limited() -> Case:
    a = ready(Unary(prefix="a_"))
    rows = [mx.nd.ones((n, WIDTH)) for n in (2, 1, 3, 1)]
    return a, rows, {"granularity": "block", "max_rows": 3}


def graphs() -> Case:
    """Three samples of one shape share a launch per call; the fourth shares none."""
    a, join = ready(Unary(prefix="leaf_")), ready(Binary(prefix="join_"))
    xs = inputs(4)
    samples = [complete(1, x) for x in xs[:3]] + [xs[3]]
    return lambda s: tree(a, join, s), samples, {"granularity": "graph"}


def by_agenda() -> Case:
    a, b = ready(Unary(prefix="a_")), ready(Unary(prefix="b_"))

    def fn(sample):
        cells, x = sample
        for cell in cells:
            x = cell(x)
        return x

    return (
        fn,
        list(zip(([a, b, a], [b, a, b]), inputs(2))),
        {"granularity": "block", "policy": "agenda"},
    )


CASES: Dict[str, Callable[[], Case]] = {
    made.__name__: made
    for made in (chains, trees, sums, hoisted, shared, mixed, alone, limited, graphs, by_agenda)
}
