"""A report names cells that are not hybridized exactly if it would help to hybridize them."""

import gc

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.hybridizing import helps
from gluon_dynbatch.record.idle import IdleCell
from tests.common import FIXED, host, loop_and_scope

WIDTH = 4


class Gate(gluon.HybridBlock):
    """Several operators, and layers of Gluon."""

    def __init__(self):
        super().__init__()
        self.new = nn.Dense(WIDTH, in_units=WIDTH)
        self.old = nn.Dense(WIDTH, in_units=WIDTH)

    def hybrid_forward(self, F, x, state):
        gate = self.new(x) + self.old(state)  # neither function is named otherwise in `mx.np`
        return gate * x + (1 - gate) * state


class Own(gluon.HybridBlock):
    """A cell whose `hybrid_forward` is a function."""

    def __init__(self, function, *layers):
        super().__init__()
        self.function = function
        for number, layer in enumerate(layers):
            setattr(self, f"layer{number}", layer)

    def hybrid_forward(self, F, *args):
        return self.function(self, F, *args)


class Chain(gdb.DynamicHybridBlock):
    """Calls a cell for each row, which no `hybridize` of the chain reaches."""

    def __init__(self, cell):
        super().__init__()
        self.first = nn.Dense(WIDTH, in_units=WIDTH)
        self.cells = (lambda: cell,)

    def forward(self, rows):
        (cell,) = self.cells
        state = self.first(rows[0:1])
        for i in range(1, len(rows)):
            state = cell()(rows[i : i + 1], state)
        return state


def samples(front="nd"):
    F = mx.np if front == "np" else mx.nd
    return [F.random.normal(0, 1, (n, WIDTH)) for n in (2, 3, 4) * 3]


def chain_of(cell):
    net = Chain(cell)
    for block in (net, cell):
        block.initialize(mx.init.Normal(0.5))
    net.hybridize()
    return net


def run(fn, xs, **options):
    with gdb.batching(**(options or FIXED)) as batch:
        results = [fn(x) for x in xs]
    return batch.report, [host(result) for result in results]


def told(report):
    return report.found_of("idle")


def residual(make):
    return Own(lambda self, F, x, state: self.layer0(F.concat(x, state, dim=1)) + state, make())


def lambda_cell():
    return nn.HybridLambda(lambda F, x, state: F.tanh(x * state) + state)


CELLS = {
    "of the user": Gate,
    "around a cell of the user": lambda: Own(lambda self, F, x, h: self.layer0(x, h) * h, Gate()),
    "of a function": lambda_cell,
    "with a recurrent layer": lambda: Own(
        lambda self, F, x, h: self.layer0(F.expand_dims(x + h, 0)).reshape((1, WIDTH)),
        rnn.GRU(WIDTH, input_size=WIDTH),
    ),
    "converted": lambda: gdb.convert(Gate()),
}


@pytest.mark.parametrize("kind", CELLS)
def test_the_remedy_helps(kind):
    cell = CELLS[kind]()
    net, xs = chain_of(cell), samples()
    wanted = [host(net(x)) for x in xs]
    before, got = run(net, xs)
    (found,) = told(before)
    assert found.name == type(cell).__name__ and found.calls == sum(len(x) - 1 for x in xs)
    assert found.where.filename == __file__ and found.where.function == "forward"
    text = str(before)
    assert f"hybridize   {found.calls} x {found.name} at {found.where}" in text
    assert f"block {cell.name} is not hybridized: its operators are" in text
    assert "-> call hybridize() on the outermost block" in " ".join(text.split())
    cell.hybridize()
    after, again = run(net, xs)
    assert not told(after)
    assert after.nodes == len(xs) + found.calls < before.nodes
    assert after.launches < before.launches
    for each in (got, again):
        for value, loop in zip(each, wanted):
            np.testing.assert_allclose(value, loop, 1e-4, 1e-5)


def test_the_remedy_helps_with_mx_np(front):
    net, xs = chain_of(Gate()), samples(front)
    cell = net.cells[0]()
    before, _ = run(net, xs)
    assert len(told(before)) == 1
    cell.hybridize()
    after, _ = run(net, xs)
    assert not told(after) and after.launches < before.launches


@pytest.mark.parametrize("hidden", [False, True], ids=["alone", "beside many recorded calls"])
def test_a_cell_whose_operators_run_at_once(hidden):
    """It gets arrays that no recorded call has returned; the other calls may be more."""
    cell, other = Gate(), nn.Dense(WIDTH, in_units=WIDTH)
    for block in (cell, other):
        block.initialize(mx.init.Normal(0.5))
    other.hybridize()
    xs = [x[0:1] for x in samples()]

    def work(x):
        y = cell(x, x)
        for _ in range(20 * hidden):
            y = other(y)
        return y

    before, _ = run(work, xs)
    (found,) = before.findings
    assert found.kind == "idle" and found.calls == len(xs) and "it runs at once" in found.reason
    assert sum(before.ordinary.values()) >= 5 * len(xs)
    cell.hybridize()
    after, _ = run(work, xs)
    assert not after.findings and not after.ordinary
    assert after.nodes == len(xs) * (1 + 20 * hidden)


def shape_of(self, F, x, h):
    return F.tanh(x * h) + h.shape[0]


def reads(self, F, x, h):
    return F.tanh(x * h) + (1 if h.sum() > 0 else 2)


def keeps(self, F, x, h):
    self.weights = F.sigmoid(x + h)
    return self.weights * x


def appends(self, F, x, h):
    self.seen.append(F.sigmoid(x + h))
    return self.seen[-1] * x


def with_number(self, F, x, h):
    return F.tanh(x * h)


NOT_TOLD = {
    "reads shapes": shape_of,
    "reads values": reads,
    "sets an attribute": keeps,
    "changes a list": appends,
    "is one operator": lambda self, F, x, h: F.broadcast_mul(x, h),
    "is an output layer": lambda self, F, x, h: F.tanh(F.SoftmaxOutput(x + h, F.zeros((1,)))),
}


@pytest.mark.parametrize("kind", NOT_TOLD)
def test_no_advice_that_cannot_be_followed(kind):
    cell = Own(NOT_TOLD[kind])
    cell.seen = []
    net, xs = chain_of(cell), samples()
    report, _ = run(net, xs)
    assert report.nodes and not told(report)
    # Nothing that was asked of the cell is left in it.
    assert not hasattr(cell, "weights") or isinstance(cell.weights, mx.nd.NDArray)
    assert all(isinstance(seen, mx.nd.NDArray) for seen in cell.seen)


def test_no_advice_for_what_makes_no_difference():
    dynamic = Chain(Gate())
    dynamic.initialize()
    dynamic.cells[0]().initialize()
    for block in (dynamic.first, dynamic.cells[0]()):
        block.hybridize()
    xs = samples()
    report, _ = run(dynamic, xs)
    assert report.nodes and not told(report), "its forward runs as Python in any case"
    cell = Gate()
    cell.initialize()
    report, _ = run(lambda x: cell(x[0:1] + mx.nd.zeros((1, WIDTH)), x[0:1]), xs[:1])
    assert not told(report), "one call has none to merge with"
    norm = Own(lambda self, F, x, h: F.tanh(self.layer0(x + h)), nn.BatchNorm(in_channels=WIDTH))
    net = chain_of(norm)
    with autograd.record():
        report, _ = run(net, xs)
    assert report.alone and not told(report), "the whole call would run alone"


def test_numbers_among_the_arguments():
    """Without a scope, a hybridized block of Gluon refuses them; a dynamic block does not."""
    cell = Own(lambda self, F, x, h: F.tanh(x * 2) + h)
    for count in (0, 1):
        report, _ = run(lambda x: cell(x[0:1] + mx.nd.zeros((1, WIDTH)), 3.0), samples())
        assert len(told(report)) == count
        gdb.convert(cell)
    cell.hybridize()
    assert cell(samples()[0], 3.0) is not None


def test_of_nested_cells_the_outermost_that_can_be_hybridized():
    inner = Gate()
    good = Own(lambda self, F, x, h: self.layer0(x, h) + h, inner)
    bad = Own(lambda self, F, x, h: self.layer0(x, h) + h.shape[0], Gate())
    (found,) = told(run(chain_of(good), samples())[0])
    assert found.name == "Own"
    net, xs = chain_of(bad), samples()
    (found,) = told(run(net, xs)[0])
    assert found.name == "Gate"
    bad.layer0.hybridize()
    assert not told(run(net, xs)[0])


def test_a_cell_is_asked_only_when_the_report_is_read_and_is_left_as_it_is():
    asked = []

    def function(self, F, x, h):
        asked.append(F)
        return F.tanh(x + h) * h

    cell = Own(function)
    net, xs = chain_of(cell), samples()
    before = dict(vars(cell), _cached_op_args=[*cell._cached_op_args])
    report, _ = run(net, xs)
    assert set(asked) == {mx.nd}
    for _ in range(2):
        assert len(told(report)) == 1
    assert asked.count(mx.sym) == 1
    assert dict(vars(cell)) == before and cell._cached_graph == ()


def test_a_block_that_was_freed_is_not_told():
    cell = Gate()
    cell.initialize()
    x = samples()[0][0:1]
    idle = IdleCell(cell, (x, x), gdb.errors.Where("a.py", 1, "f"), None, helps)
    assert idle.block() is cell
    del cell
    gc.collect()
    assert idle.block() is None and not helps(None, idle)


def test_in_map_and_in_traces_and_with_gradients():
    net, xs = chain_of(Gate()), samples()
    with gdb.batching(**FIXED) as batch:
        batch.map(lambda x: float(net(x).sum().asscalar()), xs)
    assert len(told(batch.report)) == 1
    net.hybridize(trace_once=True)

    def work(scope):
        with scope:
            return [net(x) for x in xs]

    loop_and_scope(work, granularity="block")
    report, _ = run(net, xs)
    assert len(told(report)) == 1


def test_a_cell_of_symbols_stays_one_of_symbols():
    cell = Gate()
    with gdb.batching(**FIXED) as batch:
        result = cell(mx.sym.var("x"), mx.sym.var("h"))
    assert isinstance(result, mx.sym.Symbol)
    assert [found.kind for found in batch.report.findings] == ["none"]
