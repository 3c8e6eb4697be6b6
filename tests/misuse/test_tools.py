"""What Gluon offers around calls, in a scope as without: hooks, ``export``, summaries."""

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import SymbolBlock, nn

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests import cells
from tests.cells import array, cell, equal
from tests.common import FIXED, refused, same_as_loop

# MXNet warns of static memory in any case, and of types that an exported graph leaves open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:register_op_hook is experimental"),
    pytest.mark.filterwarnings("ignore:Cannot decide type"),
]

DYNAMIC = pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "stock"])


def model(dynamic=True):
    net = nn.HybridSequential(prefix="model_")
    with net.name_scope():
        net.add(nn.Dense(2, in_units=3, prefix="a_"), nn.Dense(2, in_units=2, prefix="b_"))
    if dynamic:
        gdb.convert(net)
    net.initialize(mx.init.One())
    net.hybridize()
    return net


@DYNAMIC
@pytest.mark.parametrize("monitor_all, called_before", [(False, False), (True, True)])
def test_operators_are_shown(dynamic, monitor_all, called_before):
    """Blocks whose operators are shown run at once, one by one; others are merged."""
    seen = []

    def program():
        net, other = model(dynamic), model(dynamic)
        x = array(1, 3)
        x.attach_grad()
        if called_before:
            net(x)
        seen.append([])
        net.register_op_hook(lambda name, *_: seen[-1].append(str(name)), monitor_all)
        with autograd.record():
            outputs = [net(x), net(other(x)[:, :1].tile((1, 3))), other(x)]

        def end():
            autograd.backward(outputs)
            return [*outputs, x.grad]

        return end

    same_as_loop(program)
    assert seen[0] and all(names == seen[0] for names in seen[1:])
    net = model(dynamic)
    net.register_op_hook(lambda *_: None)
    with refused(gdb.NotMergedError, "register_op_hook"), gdb.batching(strict=True):
        net(array(1, 3))  # wrong


def exported(net, path):
    net.export(path)
    names = sorted(mx.nd.load(f"{path}-0000.params"))
    with open(f"{path}-symbol.json") as file:
        return names, json.load(file)


@DYNAMIC
@pytest.mark.parametrize("inside", [True, False])
def test_files_after_calls_in_scopes_only(tmp_path, dynamic, inside):
    """The parameters are those of the time of the export."""
    net, x = model(dynamic), array(1, 3)
    wanted = net(x)
    want = exported(net, str(tmp_path / "wanted"))
    net = model(dynamic)
    with gdb.batching(**FIXED):
        net(x)
        if inside:
            got = exported(net, str(tmp_path / "got"))
    if not inside:
        net[0].weight.set_data(mx.nd.ones((2, 3)) * 2)
        wanted = net(x)
        got = exported(net, str(tmp_path / "got"))
    assert got == want
    path = str(tmp_path / "got")
    read = SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
    net.save(path)
    with open(f"{path}-model.json") as file:
        saved = json.load(file)["hybridsequential0"]
    assert saved["hybridized"] and (saved["in_format"], saved["out_format"]) == ([0], 0)
    again = model(dynamic)
    again.load(path)
    equal([read(x), net(x), again(x)], [wanted] * 3)
    read.hybridize()
    with gdb.batching(**FIXED) as batch:
        again = [read(x), read(x)]
    assert batch.report.launches == 1
    equal(again, [wanted] * 2)


def test_export_of_a_block_with_several_arguments_and_results(tmp_path):
    path = str(tmp_path / "cell")
    block = cell(lambda F, x, others: (x + others[0], {"b": others[1] * 2}))
    x = array(1, 3)
    with gdb.batching(**FIXED):
        got = block(x, [x, x])
    block.export(path)
    read = SymbolBlock.imports(f"{path}-symbol.json", ["data0", "data1", "data2"])
    equal(read(x, x, x), [got[0], got[1]["b"]])


@DYNAMIC
def test_inference_and_summary_in_a_scope(dynamic, capsys):
    def program():
        net, x = model(dynamic), array(1, 3)
        net.infer_shape(x)
        y = net(x)
        net.infer_type(x)
        net.hybridize(False)
        net.summary(x)
        return lambda: [y]

    same_as_loop(program)
    assert capsys.readouterr().out.count("Total params: 14") == 3


class Chosen(nn.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = nn.Dense(2, in_units=3)

    def hybrid_forward(self, F, x):
        rows = F.slice_axis(x, axis=1, begin=0, end=1).reshape((-1,))
        return F.contrib.boolean_mask(self.dense(x), rows)


@pytest.mark.parametrize("kind", ["stock", "dynamic", "loaded"])
def test_shapes_that_depend_on_values(kind, tmp_path):
    """A block with such shapes is entered; one that was loaded has no Python, and runs at once."""
    path, net = str(tmp_path / "net"), Chosen()
    net.initialize()
    net.hybridize()
    samples = [mx.nd.array([[0, i, 3], [i - 1, 2, 5], [1, i, i]]) for i in range(4)]
    wanted = [net(x) for x in samples]
    if kind == "loaded":
        net.export(path)
        net = SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
    elif kind == "dynamic":
        gdb.convert(net).hybridize()
    equal([net(x) for x in samples], wanted)
    batch = check_against_loop(net, samples, net.collect_params(), **FIXED)
    assert sum(one.calls for one in batch.report.alone) == 4
    assert "depend on values" in batch.report.alone[-1].reason


@pytest.mark.parametrize("stype", ["csr", "row_sparse"])
def test_sparse_arrays_are_made_at_once(stype):
    sparse = cell(lambda F, x: F.cast_storage(x * 2, stype=stype))
    for make in (lambda x: (x * 2).tostype(stype), sparse):
        with gdb.batching(**FIXED) as batch:
            got = make(cells.dense()(array(2, 4)))
        assert got.stype == stype and batch.report.nodes > 0
        equal([got.tostype("default")], [cells.dense()(array(2, 4)) * 2])
        (told,) = batch.report.alone
        assert "sparse" in told.reason


@mx.util.use_np
class OfNumPy(Chosen):
    def hybrid_forward(self, F, x):
        return F.np.tanh(self.dense(x))


def test_a_converted_block_of_mx_np_is_gluons_outside_of_scopes():
    net, x = OfNumPy(), mx.np.ones((1, 3))
    net.initialize()
    net.hybridize()
    wanted = net(x)
    got = gdb.convert(net)(x)
    assert type(got) is mx.np.ndarray
    equal([got], [wanted])
    with refused(gdb.ArgumentError, ".as_nd_ndarray()"), gdb.batching():
        net(x)  # wrong


@pytest.mark.parametrize("shape, text", [((), "reshape"), ((0, 3), "is empty")])
def test_arrays_without_axes_or_elements_are_refused(shape, text):
    """Which there are under NumPy's shapes."""
    net = cell(lambda F, x: x * 2)
    for call in (lambda x: net(x), lambda x: net(mx.nd.ones((1, 3))) + x):  # wrong
        batch = gdb.batching(**FIXED)
        with mx.util.np_shape(True), refused(gdb.ShapeError, f"shape {shape}", text), batch:
            call(mx.nd.zeros(shape))


@pytest.mark.parametrize("np_shape", [True, False])
def test_element_has_the_shape_that_it_has_without_a_scope(np_shape):
    net, x = cell(lambda F, x: x * 2), array(3)
    for element in (
        lambda y: y[1], lambda y: y[-1], lambda y: y[np.int64(1)], lambda y: y[(1,)],
        lambda y: y.reshape((3, 1))[1, :], lambda y: y.reshape((3, 1))[1, 0], lambda y: y[1:2],
    ):  # fmt: skip
        for _ in range(2):
            with mx.util.np_shape(np_shape):
                wanted = element(net(x))
                with gdb.batching(**FIXED):
                    got = element(net(x))
                assert got.shape == wanted.shape
                equal([got], [wanted])
