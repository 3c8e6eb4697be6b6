"""Gluon's tools work in a scope as without one: hooks, ``export``, summaries."""

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

# MXNet warns of any op hook, and of dtypes that an exported graph does not define.
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
def test_op_hooks_see_every_operator(dynamic, monitor_all, called_before):
    """Calls of blocks with hooks run at once, one by one; others are merged."""
    seen = []

    def program():
        net, unhooked = model(dynamic), model(dynamic)
        x = array(1, 3)
        x.attach_grad()
        if called_before:
            net(x)
        seen.append([])
        net.register_op_hook(lambda name, *_: seen[-1].append(str(name)), monitor_all)
        with autograd.record():
            outputs = [net(x), net(unhooked(x)[:, :1].tile((1, 3))), unhooked(x)]

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
def test_export_and_save_after_calls_in_scopes_only(tmp_path, dynamic, inside):
    """Files have the parameters at the time of the export."""
    net, x, path = model(dynamic), array(1, 3), str(tmp_path / "net")
    wanted = net(x)
    wanted_files = exported(net, str(tmp_path / "wanted"))
    net = model(dynamic)
    with gdb.batching(**FIXED):
        net(x)
        if inside:
            files = exported(net, path)
    if not inside:
        net[0].weight.set_data(mx.nd.ones((2, 3)) * 2)
        wanted = net(x)
        files = exported(net, path)
    assert files == wanted_files
    imported = SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
    net.save(path)
    with open(f"{path}-model.json") as file:
        saved = json.load(file)["hybridsequential0"]
    assert saved["hybridized"] and (saved["in_format"], saved["out_format"]) == ([0], 0)
    loaded = model(dynamic)
    loaded.load(path)
    equal([imported(x), net(x), loaded(x)], [wanted] * 3)
    imported.hybridize()
    with gdb.batching(**FIXED) as batch:
        got = [imported(x), imported(x)]
    assert batch.report.launches == 1
    equal(got, [wanted] * 2)


def test_export_of_a_dynamic_block_is_refused(tmp_path):
    """Gluon would say to hybridize and to call it, which does not help."""

    class Doubled(gdb.DynamicHybridBlock):
        def forward(self, x):
            return x * 2

    net = Doubled()
    net.hybridize()
    with gdb.batching(**FIXED):
        net(array(1, 3))
    with refused(gdb.ArgumentError, "no graph", "save_parameters()"):
        net.export(str(tmp_path / "net"))  # wrong


def test_export_of_a_block_with_several_arguments_and_results(tmp_path):
    path = str(tmp_path / "cell")
    block = cell(lambda F, x, more: (x + more[0], {"b": more[1] * 2}))
    x = array(1, 3)
    with gdb.batching(**FIXED):
        got = block(x, [x, x])
    block.export(path)
    imported = SymbolBlock.imports(f"{path}-symbol.json", ["data0", "data1", "data2"])
    equal(imported(x, x, x), [got[0], got[1]["b"]])


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


class RowSelection(nn.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = nn.Dense(2, in_units=3)

    def hybrid_forward(self, F, x):
        rows = F.slice_axis(x, axis=1, begin=0, end=1).reshape((-1,))
        return F.contrib.boolean_mask(self.dense(x), rows)


@pytest.mark.parametrize("kind", ["stock", "dynamic", "loaded"])
def test_shapes_that_depend_on_values(kind, tmp_path):
    """Python code of the block runs in the scope; a loaded block has none, and runs at once."""
    path, net = str(tmp_path / "net"), RowSelection()
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
    assert sum(row.calls for row in batch.report.alone) == 4
    assert "depend on values" in batch.report.alone[-1].reason


@pytest.mark.parametrize("stype", ["csr", "row_sparse"])
def test_sparse_arrays_are_made_at_once(stype):
    sparse = cell(lambda F, x: F.cast_storage(x * 2, stype=stype))
    for make in (lambda x: (x * 2).tostype(stype), sparse):
        with gdb.batching(**FIXED) as batch:
            got = make(cells.dense()(array(2, 4)))
        assert got.stype == stype and batch.report.nodes > 0
        equal([got.tostype("default")], [cells.dense()(array(2, 4)) * 2])
        (row,) = batch.report.alone
        assert "sparse" in row.reason


@mx.util.use_np
class NumPyBlock(RowSelection):
    def hybrid_forward(self, F, x):
        return F.np.tanh(self.dense(x))


def test_a_block_of_mx_np_works_outside_of_scopes_and_in_them():
    """It switches NumPy's semantics on for its own calls; a scope needs them for its results."""
    net, x = NumPyBlock(), mx.np.ones((1, 3))
    net.initialize()
    net.hybridize()
    wanted = net(x)
    got = gdb.convert(net)(x)
    assert type(got) is mx.np.ndarray
    with gdb.batching():
        inside = net(x)
    with mx.util.np_shape(True), mx.util.np_array(True), gdb.batching(**FIXED) as batch:
        recorded = net(x)
    assert batch.report.nodes == 1 and isinstance(recorded, mx.np.ndarray)
    equal([got, inside, recorded], [wanted] * 3)


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_arrays_without_axes_or_elements_need_numpy_shapes(shape):
    net = cell(lambda F, x: x * 2)
    with mx.util.np_shape(True):
        x = mx.nd.zeros(shape)
    for call in (lambda x: net(x), lambda x: net(mx.nd.ones((1, 3))) + x):
        with mx.util.np_shape(True):
            wanted = call(x)
            with gdb.batching(**FIXED):
                got = call(x)
            assert got.shape == wanted.shape
            equal([got], [wanted])
    with refused(gdb.ShapeError, f"shapes {shape}", "do not fit"), gdb.batching(**FIXED):
        net(x)  # wrong


@pytest.mark.parametrize("np_shape", [True, False])
def test_elements_have_the_same_shape_as_without_a_scope(np_shape):
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
