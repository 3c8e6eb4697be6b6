"""The programs whose plans are here, to be read."""

import mxnet as mx
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from tests.cells import (
    WIDTH,
    Attention,
    ChildSum,
    Output,
    TreeNet,
    binary,
    chain,
    complete,
    inputs,
    ready,
    tree,
    unary,
)

BLOCK = {"granularity": "block"}
A, LEAF, JOIN = (
    ready(kind(prefix=f"{name}_"))
    for kind, name in ((unary, "a"), (unary, "leaf"), (binary, "join"))
)


def run_chain(sample):
    return chain(*sample)


def run_tree(shape):
    return tree(LEAF, JOIN, shape)


def chains():
    return run_chain, list(zip(([A], [A] * 3, [A] * 2), inputs(3))), BLOCK


def trees():
    x, y = inputs(2)
    return run_tree, [complete(2, x), ((x, y), y)], BLOCK


def sums():
    """Per-child work of one and two children merges; the sum of the children is an operand."""
    net = TreeNet(ready(ChildSum(prefix="child_sum_")))
    net.hybridize()
    shapes = [[[[]] * n] * n for n in (1, 2)]
    return lambda s: net(*s), list(zip(shapes, inputs(2))), {"granularity": "operator"}


def hoisted():
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


def shared():
    """A matrix that all samples read is passed as it is; one that each has is stacked."""
    lookup, own = ready(Attention(prefix="lookup_")), ready(Attention(prefix="own_"))
    memory = mx.nd.ones((3, WIDTH))

    def fn(x):
        rows = mx.nd.concat(x, A(x), dim=0)
        return lookup(A(x), memory) + own(x, rows)

    return fn, inputs(3), BLOCK


def mixed():
    """Rows of one operand that lie in arenas of different widths."""
    wide = ready(gdb.convert(nn.Dense(2 * WIDTH, in_units=WIDTH, prefix="wide_")))

    def fn(sample):
        kind, x = sample
        if kind == "half":
            return A(wide(x).reshape((2, WIDTH))[1:2])
        return A(A(x))

    return fn, list(zip(("half", "whole", "half"), inputs(3))), BLOCK


def alone():
    output = ready(Output(prefix="output_"))
    return lambda x: output(A(x)), inputs(2), BLOCK


def limited():
    rows = [mx.nd.ones((n, WIDTH)) for n in (2, 1, 3, 1)]
    return A, rows, {**BLOCK, "max_rows": 3}


def graphs():
    """Three samples of one shape share a launch per call; the fourth shares none."""
    *xs, last = inputs(4)
    return run_tree, [*(complete(1, x) for x in xs), last], {"granularity": "graph"}


def by_agenda():
    b = ready(unary(prefix="b_"))
    return run_chain, list(zip(([A, b, A], [b, A, b]), inputs(2))), {**BLOCK, "policy": "agenda"}


#: What makes a case: what is run for one sample, samples, and the options of the scope.
CASES = {
    made.__name__: made
    for made in (chains, trees, sums, hoisted, shared, mixed, alone, limited, graphs, by_agenda)
}
