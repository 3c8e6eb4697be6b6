"""A report names blocks that override `forward` although all of their calls record the same."""

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.record.overridden import FIRST_LOOKS
from gluon_dynbatch.record.state import STATE
from tests.cells import equal
from tests.common import FIXED, host, named_lines

WIDTH = 4


def gate(self, x, h):
    F = mx.np if isinstance(x, mx.np.ndarray) else mx.nd
    old = F.exp(self.dense(x)) * h  # the operators
    return F.tanh(old) + h


def block_of(forward, base=gluon.HybridBlock, **attributes):
    """Return a new class of blocks with this `forward`, hybridized; each test has its own."""

    def init(self):
        base.__init__(self)
        self.dense = nn.Dense(WIDTH, in_units=WIDTH)
        vars(self).update(attributes)

    block = type("Made", (base,), {"__init__": init, "forward": forward})()
    block.initialize(mx.init.Constant(0.1))
    block.hybridize()
    return block


def samples(front="nd"):
    F = mx.np if front == "np" else mx.nd
    return [F.ones((1, WIDTH)) * (1 + i / 8) for i in range(6)]


def run(work, xs, **options):
    with gdb.batching(**(options or FIXED)) as batch:
        results = [work(x) for x in xs]
    return batch.report, results


def told(report):
    return report.found_of("forward")


BASES = [gluon.HybridBlock, gluon.Block, gdb.DynamicHybridBlock]


@pytest.mark.parametrize("base", BASES)
def test_a_block_is_named_with_its_line_and_its_calls(base, front):
    block, xs = block_of(gate, base), samples(front)
    wanted = [block(x, block.dense(x)) for x in xs]
    report, results = run(lambda x: block(x, block.dense(x)), xs)
    equal(list(map(host, results)), list(map(host, wanted)), 1e-5, 1e-6)
    (found,) = told(report)
    assert (found.name, found.calls) == ("Made", len(xs))
    assert named_lines(str(found.where))[0].endswith("# the operators")
    assert "its 4 operators are calls of their own" in found.reason
    row = f"forward 6 x Made at {found.where} it overrides forward, so"
    assert row in " ".join(str(report).split())
    assert told(run(lambda x: block(x, block.dense(x)), xs)[0]), "in a later scope, too"


def test_a_block_that_is_not_hybridized_or_has_hooks_or_is_in_map(front):
    xs = samples(front)
    for change in (
        lambda block: block.hybridize(False),
        lambda block: block.register_forward_hook(lambda *_: None),
        lambda block: block.register_forward_pre_hook(lambda *_: None),
    ):
        block = block_of(gate)
        change(block)
        block.dense.hybridize()
        with gdb.batching(**FIXED) as batch:
            results = batch.map(lambda x, block=block: block(x, block.dense(x)), xs)
        (found,) = told(batch.report)
        assert len(results) == found.calls == len(xs)


def by_number(self, x, h):
    for _ in range(int(self.numbers.pop())):
        h = mx.nd.tanh(self.dense(h)) * x
    return h


def by_value(self, x, h):
    y = mx.nd.tanh(self.dense(x)) * h
    return y if y.sum() > 0 else h + y


def layers(self, x, h):
    return self.dense(self.dense(x)) + h


def parts(self, x, h):
    return self.dense(x[0:1]), self.dense(h[0:1])


@pytest.mark.parametrize("forward", [by_number, by_value, layers, parts])
def test_programs_that_differ_and_those_of_cells_are_not_named(forward):
    block = block_of(forward, numbers=[1, 2, 1, 1, 2, 2, 1, 2])
    report, _ = run(lambda x: block(x, block.dense(x)), samples())
    assert report.nodes and not told(report)


def test_one_call_is_not_named_and_some_calls_are_looked_at():
    block, xs = block_of(gate), samples()
    assert not told(run(lambda x: block(x, block.dense(x)), xs[:1])[0])
    looks = []
    other = block_of(lambda self, x, h: gate(self, x, h))
    with gdb.batching(**FIXED):
        for _ in range(4 * FIRST_LOOKS + 1):
            y = block(xs[0], block.dense(xs[0]))
            looks.append(STATE.recorder.forwards[type(block)].next_look)
        y = other(y, y)
    changes = [n for n, (a, b) in enumerate(zip(looks, looks[1:]), 2) if a != b]
    later = [2 * FIRST_LOOKS, 4 * FIRST_LOOKS]
    assert changes == [*range(2, FIRST_LOOKS + 1), *later] and y is not None


def test_its_parts_have_their_own_rows_and_gradients_are_the_loops():
    inner = block_of(gate)
    outer = block_of(lambda self, x, h: mx.nd.relu(inner(x, h)) * h - x)
    xs, gradients = samples(), []
    for scope in (None, gdb.batching(**FIXED)):
        for p in inner.collect_params().values():
            p.zero_grad()
        with autograd.record():
            if scope is None:
                losses = [outer(x, inner.dense(x)).sum() for x in xs]
            else:
                with scope:
                    losses = [outer(x, inner.dense(x)).sum() for x in xs]
        autograd.backward(losses)
        gradients.append([p.grad().asnumpy() for p in inner.collect_params().values()])
    equal(gradients[1], gradients[0], 1e-4, 1e-5)
    assert [found.calls for found in told(scope.report)] == [6, 6]
