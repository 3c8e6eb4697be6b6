"""Programs on all kinds of memory, with any number of flushes, give what the loop gives on cpu(0).

MXNet's own backward pass of hybridized blocks fails in pinned and shared memory.
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn, rnn
from mxnet.ndarray import register

import gluon_dynbatch as gdb
from gluon_dynbatch.cache import SizedCache
from gluon_dynbatch.kernel import express
from gluon_dynbatch.native import planning
from gluon_dynbatch.record.operators import operator_of
from gluon_dynbatch.run import buffers, keep, prepare
from gluon_dynbatch.scope import RUNTIME
from tests.cells import WIDTH, equal
from tests.common import FIXED
from tests.inside import gather

CONTEXTS = [mx.cpu(0), mx.cpu(1), mx.cpu_pinned(), mx.Context("cpu_shared", 0)]


class Join(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.left = nn.Dense(WIDTH, in_units=WIDTH, flatten=False)
        self.right = nn.Dense(WIDTH, in_units=WIDTH, flatten=False)

    def hybrid_forward(self, F, left, right):
        return F.tanh(self.left(left) + self.right(right))


class Net(nn.Block):
    def __init__(self):
        super().__init__()
        self.join, self.embedding = Join(), nn.Embedding(5, WIDTH)
        self.gru = rnn.GRUCell(WIDTH, input_size=WIDTH)

    def tree(self, node, leaves):
        if isinstance(node, int):
            return leaves[node]
        return self.join(*(self.tree(child, leaves) for child in node))


def trees(net, leaves, pause):
    for tree in [((0, 1), 2), (0, (1, (2, 3))), (1, 2)]:
        y = net.tree(tree, leaves)
        pause(y)
        yield net.tree(tree, leaves) + y


def recurrent(net, leaves, pause):
    for length in (1, 2, 3):
        states = [mx.nd.zeros((1, WIDTH), ctx=leaves[0].context)]
        for x in leaves[:length]:
            y, states = net.gru(x, states)
            pause(y)
        yield y * 2


def views(net, leaves, pause):
    y = net.join(leaves[0], leaves[1])
    pause(y)
    for x in leaves:
        halves = mx.nd.concat(y[:, :2], net.join(x, y)[:, 2:], dim=1)
        yield halves + y.reshape((2, -1)).reshape((1, -1))


def lookups(net, leaves, pause):
    for i, x in enumerate(leaves):
        found = net.embedding(mx.nd.array([i, (i + 1) % 5], ctx=x.context))
        pause(found)
        yield net.join(found[0:1], x) + mx.nd.sum(found, axis=0, keepdims=True)


def sums(net, leaves, pause):
    total = mx.nd.add_n(*map(net.join, leaves, leaves[1:]))
    pause(total)
    for i in range(3):
        yield total * i + mx.nd.softmax(mx.nd.cumsum(total, axis=1) + leaves[i])


PROGRAMS = [trees, recurrent, views, lookups, sums]


def make(context):
    net = Net()
    net.initialize(ctx=context)
    draw = np.random.RandomState(0).uniform
    for parameter in net.collect_params().values():
        parameter.set_data(mx.nd.array(draw(-1, 1, parameter.shape), ctx=context))
    net.hybridize()
    leaves = [mx.nd.array(draw(-1, 1, (1, WIDTH)), ctx=context) for _ in range(4)]
    for leaf in leaves:
        leaf.attach_grad()
    return net, leaves


def gradients(net, leaves):
    return [p.list_grad()[0] for p in net.collect_params().values()] + [x.grad for x in leaves]


def run(program, context, pause=lambda y: None):
    """Return values and gradients of a program."""
    net, leaves = make(context)
    with autograd.record():
        results = list(program(net, leaves, pause))
    return net, leaves, results


def finish(net, leaves, results):
    autograd.backward(results)
    return [array.asnumpy() for array in [*results, *gradients(net, leaves)]]


def pauses(batch):
    """Return ways to end a flush in the middle of a program."""
    return {
        "never": lambda y: None,
        "flush": lambda y: batch.flush(),
        "read": lambda y: y.asnumpy(),
    }


def check(program, context, pause, **options):
    wanted = finish(*run(program, mx.cpu(0)))
    with gdb.batching(**{**FIXED, **options}) as batch:
        outcome = run(program, context, pauses(batch)[pause])
    assert all(result.context == context for result in outcome[2])
    equal(finish(*outcome), wanted, 1e-4, 1e-5)
    return batch


@pytest.mark.parametrize("context", CONTEXTS[1:], ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_with_any_number_of_flushes_equal_the_loop(program, context):
    for pause, debug in [("never", False), ("flush", False), ("read", False), ("flush", True)]:
        check(program, context, pause, debug=debug, granularity="operator")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("native", [False, True])
def test_programs_out_of_reach_of_native_code_equal_the_loop(program, native, monkeypatch):
    """As on a GPU: MXNet's operators fill arenas, launch, and copy arrays out."""
    monkeypatch.setattr(RUNTIME, "plans", SizedCache(1 << 20))
    monkeypatch.setattr(RUNTIME.dispatcher.kernels, "native", native)
    for module in (express, prepare, buffers, keep)[0 if not native else 1 :]:
        monkeypatch.setattr(module, "in_host_memory", lambda context: False)
    for pause in ("never", "flush"):
        check(program, mx.cpu(0), pause)


def operators(monkeypatch, work):
    """Return the names of the operators of MXNet that `work` calls, in order."""
    names, original = [], register._imperative_invoke

    def invoke(handle, *args):
        names.append(operator_of(handle).name)
        return original(handle, *args)

    with monkeypatch.context() as patch:
        patch.setattr(register, "_imperative_invoke", invoke)
        work()
    return names


ADD, COPY, ZERO = planning.ADD, planning.COPY, planning.ZERO
#: Pieces of an operand of 12 elements, the arrays that they are of, and the operators for them.
PIECES = {
    "one": ([(COPY, 0, 0, 4, 12)], ["Concat"]),
    "one array": ([(COPY, 4, 0, 0, 8), (COPY, 0, 0, 12, 4)], ["take"]),
    "several arrays": ([(COPY, 4, 1, 0, 8), (COPY, 0, 0, 12, 4)], ["Concat"]),
    "gaps": ([(COPY, 4, 0, 0, 4), (ZERO, 0, 0, 0, 4), (ZERO, 8, 0, 0, 4)],
             ["take", "zeros_like", "where", "_copyto"]),
    "sums": ([(COPY, 0, 0, 0, 12), (ADD, 4, 0, 6, 6), (ADD, 4, 1, 2, 2)],
             ["Concat", "take", "zeros_like", "where", "add_n"]),
    "only zeros": ([(ZERO, 0, 0, 0, 12)], ["_zeros"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_mxnets_operators_gather_an_operand_at_once(name, dtype, monkeypatch):
    pieces, wanted = PIECES[name]
    arrays = [mx.nd.arange(1 + 30 * k, 21 + 30 * k, dtype=dtype) for k in range(2)]
    target, right = mx.nd.ones((3, 4), dtype=dtype) * 7, np.zeros(12, dtype)
    for action, start, number, first, count in pieces:
        stretch = arrays[number].asnumpy()[first : first + count]
        if action == ZERO:
            right[start : start + count] = 0
        else:
            right[start : start + count] += stretch

    def write():
        gather(target, arrays, np.array(pieces))

    called = [op for op in operators(monkeypatch, write) if op != "_plus_scalar"]
    np.testing.assert_array_equal(target.asnumpy().ravel(), right)
    assert called == wanted


def test_mxnets_operators_copy_results_out_at_once(monkeypatch):
    monkeypatch.setattr(buffers, "in_host_memory", lambda context: False)
    source, copies = mx.nd.arange(24).reshape((4, 6)), []
    starts, kinds = [6, 0, 9], [((3, 2), False)] * 3

    def copy():
        copies.extend(buffers.copy_out(source, kinds, np.array(starts), np.full(3, 6)))

    called = operators(monkeypatch, copy)
    for copy, first in zip(copies, starts):
        np.testing.assert_array_equal(copy.asnumpy().ravel(), np.arange(first, first + 6))
    assert called == ["take", "SliceChannel"]


@pytest.mark.parametrize("context", CONTEXTS[1:], ids=str)
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_samples_that_read_values_equal_the_loop_in_each_context(context, debug):
    """Gradients are those of the loop in ordinary memory."""

    def decode(net, x):
        y, total = x, 0
        for _ in range(4):
            y = net.join(y, x)
            if y.sum().asscalar() > 0:
                y = net.gru(y, [x])[0]
            total = total + y
        return total

    def outcome(context, apply):
        net, leaves = make(context)
        with autograd.record():
            results = apply(lambda x: decode(net, x), leaves)
        return finish(net, leaves, results)

    wanted = outcome(mx.cpu(0), lambda fn, samples: list(map(fn, samples)))
    equal(outcome(context, lambda *args: gdb.map(*args, debug=debug)), wanted, 1e-4, 1e-5)


@pytest.mark.parametrize("pause, debug", [("never", False), ("flush", True), ("read", False)])
def test_all_contexts_in_one_scope(pause, debug):
    wanted = [finish(*run(program, mx.cpu(0))) for program in PROGRAMS]
    with gdb.batching(**FIXED, debug=debug) as batch:
        outcomes = [
            [run(program, context, pauses(batch)[pause]) for context in CONTEXTS]
            for program in PROGRAMS
        ]
        heads = [y for row in outcomes for *_, results in row for y in results]
    autograd.backward(heads)
    for row, right in zip(outcomes, wanted):
        for net, leaves, results in row:
            got = [array.asnumpy() for array in [*results, *gradients(net, leaves)]]
            equal(got, right, 1e-4, 1e-5)
