"""convert(), and DynamicHybridBlock as a HybridBlock."""

from __future__ import annotations

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, inputs
from tests.common import ALL, check, prepared, ragged


class Plain(nn.Block):
    """A block with Python control flow over hybrid children."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.cell = rnn.GRUCell(WIDTH, input_size=WIDTH)
            self.out = nn.Dense(2, in_units=WIDTH)

    def forward(self, x):
        states = self.cell.begin_state(batch_size=1)
        for i in range(len(x)):
            out, states = self.cell(x[i : i + 1], states)
        return self.out(out)


def test_convert_keeps_everything_but_the_class():
    net = Plain(prefix="plain_")
    names = list(net.collect_params())
    kind = type(net)
    assert gdb.convert(net) is net and type(net) is kind, "a plain Block stays what it is"
    assert isinstance(net.cell, rnn.GRUCell) and isinstance(net.cell, gdb.DynamicHybridBlock)
    assert isinstance(net.out, nn.Dense) and type(net.out).__name__ == "Dense"
    assert list(net.collect_params()) == names
    once = type(net.out)
    assert type(gdb.convert(net).out) is once, "converting twice changes nothing"
    assert type(gdb.convert(nn.Dense(3))) is once
    prepared(net)
    check(net, ragged(), net)


# As a HybridBlock ------------------------------------------------------------------------------


class Many(gdb.DynamicHybridBlock):
    """Takes lists of any length, dictionaries, numbers and None; returns a nest."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=WIDTH)

    def hybrid_forward(self, F, x, others=(), factor=1, named=None):
        total = self.dense(x) * factor
        for other in others:
            total = total + self.dense(other)
        if named is not None:
            total = total - self.dense(named["last"])
        return {"total": total, "count": len(others)}, [x * 2, (total.sum(), None)]


STRUCTURES = [
    (),
    ([],),
    ([0],),
    ([0, 1],),
    ([0, 1, 2], 2),
    ([0], 2.5),
    ([], -1, {"last": 0}),
    ((0, 1), 1, {"last": 1}),
]


def fill(structure, arrays):
    """Put arrays in the places that numbers in lists and dictionaries name."""
    made = []
    for item in structure:
        if isinstance(item, (list, tuple)):
            item = type(item)(arrays[i] for i in item)
        elif isinstance(item, dict):
            item = {key: arrays[i] for key, i in item.items()}
        made.append(item)
    return made


def test_several_structures_of_arguments_outside_a_scope():
    """Stock Gluon keeps one cached graph; here there is one for each structure."""
    net = prepared(Many(), convert=False)
    xs = inputs(4)
    for structure in STRUCTURES + STRUCTURES[::-1]:
        args = fill(structure, xs[1:])
        net.hybridize(False)
        wanted, (double, (total, nothing)) = net(xs[0], *args)
        net.hybridize()
        for _ in range(2):
            got, (twice, (summed, none)) = net(xs[0], *args)
            np.testing.assert_allclose(
                got["total"].asnumpy(), wanted["total"].asnumpy(), 1e-5, 1e-6
            )
            np.testing.assert_allclose(summed.asnumpy(), total.asnumpy(), 1e-5, 1e-6)
            np.testing.assert_array_equal(twice.asnumpy(), double.asnumpy())
            assert got["count"] == wanted["count"] and none is nothing is None


def test_several_structures_of_arguments_in_a_scope():
    net = prepared(Many(), convert=False)
    xs = inputs(4)
    for x in xs:
        x.attach_grad()
    samples = [(xs[0], *fill(structure, xs[1:])) for structure in STRUCTURES * 2]
    check(lambda sample: net(*sample), samples, net)


class Named(gdb.DynamicHybridBlock):
    def hybrid_forward(self, F, named):
        return named["a"] + named["b"]


@pytest.mark.parametrize("active", [True, False])
def test_arrays_in_a_dictionary_only(active):
    """Stock Gluon looks for arrays in lists and tuples alone."""
    net = Named()
    net.initialize()
    net.hybridize(active)
    x, y = inputs(2)
    wanted = (x + y).asnumpy()
    np.testing.assert_array_equal(net({"a": x, "b": y}).asnumpy(), wanted)
    with gdb.batching():
        got = net({"a": x, "b": y})
    np.testing.assert_array_equal(got.asnumpy(), wanted)


def small():
    net = nn.HybridSequential(prefix="small_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=WIDTH, activation="tanh"), nn.Dense(2, in_units=5))
    return prepared(net)


def test_parameters_go_to_a_file_and_back(tmp_path):
    net, x = small(), inputs(1)[0]
    with gdb.batching():
        wanted = net(x)
    net.save_parameters(str(tmp_path / "net.params"))
    stock = nn.HybridSequential(prefix="other_")
    with stock.name_scope():
        stock.add(nn.Dense(5, in_units=WIDTH, activation="tanh"), nn.Dense(2, in_units=5))
    stock.load_parameters(str(tmp_path / "net.params"))
    np.testing.assert_allclose(stock(x).asnumpy(), wanted.asnumpy(), 1e-5)
    stock.collect_params().setattr("grad_req", "null")
    stock[0].weight.set_data(stock[0].weight.data() * 2)
    stock.save_parameters(str(tmp_path / "other.params"))
    net.load_parameters(str(tmp_path / "other.params"))
    with gdb.batching():
        got = net(x)
    np.testing.assert_allclose(got.asnumpy(), stock(x).asnumpy(), 1e-5)
    assert np.abs(got.asnumpy() - wanted.asnumpy()).max() > 1e-3


@ALL
def test_cast(granularity):
    net, xs = small(), inputs(3)
    check_against_loop(net, xs, net.collect_params().values(), granularity=granularity)
    net.cast("float64")
    xs = [x.astype("float64") for x in xs]
    batch = check_against_loop(net, xs, net.collect_params().values(), granularity=granularity)
    assert {arena.dtype for arena in batch.plan.arenas} == {"float64"}
    net.cast("float32")
    check_against_loop(net, inputs(3), net.collect_params().values(), granularity=granularity)


def test_changes_of_a_block_after_its_first_call_are_seen():
    """New values, new layers and another grad_req, each after a scope has compiled the block."""
    net, xs = small(), inputs(3)
    check(net, xs, net)
    net[0].weight.set_data(net[0].weight.data() * 3)
    check(net, xs, net)
    net[1].collect_params().setattr("grad_req", "null")
    check(net, xs, net)
    net.add(gdb.convert(nn.Dense(7, in_units=2)))
    net[2].initialize()
    net.hybridize()
    batch = check(net, xs, net)
    assert batch.report.launches == 1 and net(xs[0]).shape == (1, 7)


def test_hooks_are_called_for_every_sample():
    """A block with hooks is entered, not recorded as a whole; what is inside still merges."""
    net = small()
    seen = []
    handle = net.register_forward_hook(
        lambda block, args, out: seen.append((block, args[0].shape, out.shape))
    )
    pre = net.register_forward_pre_hook(lambda block, args: seen.append(block))
    with gdb.batching(granularity="block", policy="depth") as batch:
        outputs = [net(x) for x in inputs(3)]
    assert len(seen) == 6 and seen[1] == (net, (1, WIDTH), (1, 2))
    assert batch.report.launches <= 2 and len(outputs) == 3
    handle.detach()
    pre.detach()
    with gdb.batching():
        outputs = [net(x) for x in inputs(3)]
    assert len(seen) == 6


def test_a_copy_of_a_block_is_a_block_of_its_own():
    """After a first call outside of a scope, MXNet's own CachedOp cannot be copied."""
    net, xs = small(), inputs(3)
    with gdb.batching():
        wanted = net(xs[0])
    other = copy.deepcopy(net)
    other[0].weight.set_data(other[0].weight.data() * 0)
    with gdb.batching():
        got = [net(xs[0]), other(xs[0])]
    np.testing.assert_allclose(got[0].asnumpy(), wanted.asnumpy(), 1e-5)
    np.testing.assert_allclose(got[1].asnumpy(), other(xs[0]).asnumpy(), 1e-5)
    assert np.abs(got[0].asnumpy() - got[1].asnumpy()).max() > 1e-4


def test_repr_and_apply_work_as_ever():
    net, stock = small(), nn.HybridSequential(prefix="small_")
    with stock.name_scope():
        stock.add(nn.Dense(5, in_units=WIDTH, activation="tanh"), nn.Dense(2, in_units=5))
    assert repr(net) == repr(stock)
    names = {True: [], False: []}
    net.apply(lambda block: names[True].append(block.name))
    stock.apply(lambda block: names[False].append(block.name))
    assert names[True] == names[False] and len(names[True]) == 4


def test_symbols_go_through_a_dynamic_block():
    net = small()
    made = net(mx.sym.var("x"))
    assert made.list_arguments()[0] == "x" and len(made.list_arguments()) == 5
    _, shapes, _ = made.infer_shape(x=(3, WIDTH))
    assert shapes == [(3, 2)]
