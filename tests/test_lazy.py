"""A lazy array can be used like any NDArray: in its scope, after it, and by any other code.

The reference is the same use of a real array of equal values.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable, Dict

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.record.lazy import LazyNDArray
from tests.cells import cell
from tests.common import host, nothing_is_left_behind, same

__all__ = ["nothing_is_left_behind"]


SHAPE = (4, 3, 2)
SHIFT = cell(lambda F, x, by: x + by)


def values(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).uniform(-1, 1, shape or SHAPE).astype("float32")


def real(*shape: int) -> mx.nd.NDArray:
    return mx.nd.array(values(*shape) + 1)


def lazy(*shape: int) -> mx.nd.NDArray:
    """Return an array of the same values, recorded if a scope is open."""
    return SHIFT(mx.nd.array(values(*shape)), 1)


def check_use(use: Callable[[Any], Any], *shape: int) -> None:
    """Compare a use while the value is pending, after a flush, and after the scope."""
    wanted = use(real(*shape))
    with gdb.batching(policy="depth") as batch:
        pending, flushed, later = use(lazy(*shape)), lazy(*shape), lazy(*shape)
        batch.flush()
        assert not flushed.pending
        flushed = use(flushed)
        in_scope = host(flushed)
    for got in (pending, in_scope, flushed, use(later)):
        same(got, wanted)


# What it is


def test_what_is_known_without_running():
    x = mx.nd.array(values(), dtype="float64")
    with gdb.batching(policy="depth") as batch:
        y = SHIFT(x, 1)
        assert isinstance(y, mx.nd.NDArray) and type(y) is LazyNDArray
        assert (y.shape, y.ndim, y.size, y.stype) == (SHAPE, 3, 24, "default")
        assert y.dtype is np.float64 and y.context == y.ctx == mx.cpu()
        assert (len(y), y.writable) == (4, True)
        assert y.pending and batch.report.flushes == []
    assert not y.pending and y.shape == SHAPE and y.dtype is np.float64
    same(y, x + 1)


# Operators

OPERATORS: Dict[str, Callable[[Any], Any]] = {
    "add": lambda y: y + y, "add number": lambda y: y + 2, "radd": lambda y: 2 + y,
    "sub": lambda y: y - y * 2, "rsub": lambda y: 1 - y, "mul": lambda y: y * 3,
    "rmul": lambda y: 3 * y, "div": lambda y: y / 3, "rdiv": lambda y: 3 / y,
    "mod": lambda y: y % 0.3, "rmod": lambda y: 3 % y, "pow": lambda y: y**2,
    "rpow": lambda y: 2**y, "neg": lambda y: -y, "abs": abs,
    "real on the left": lambda y: mx.nd.ones(SHAPE) - y,
    "NumPy number": lambda y: y * np.float32(2), "eq": lambda y: y == 1,
    "eq itself": lambda y: y == y, "ne": lambda y: y != y * 1, "lt": lambda y: y < 1,
    "le": lambda y: y <= y, "gt": lambda y: y > mx.nd.ones(SHAPE),
    "ge": lambda y: mx.nd.ones(SHAPE) >= y,
    "broadcast": lambda y: y + y[:, :1], "sum": lambda y: y.sum(), "mean": lambda y: y.mean(axis=1),
    "max": lambda y: y.max(axis=(0, 2)), "norm": lambda y: y.norm(),
    "argmax": lambda y: y.argmax(axis=1), "topk": lambda y: y.topk(k=2, axis=1),
    "sort": lambda y: y.sort(axis=0), "exp": lambda y: y.exp(), "clip": lambda y: y.clip(0.5, 1.2),
    "split": lambda y: y.split(2, axis=0), "tile": lambda y: y.tile((1, 2, 1)),
    "dot": lambda y: mx.nd.dot(y[:, :, 0], y[0]),
    "batch_dot": lambda y: mx.nd.batch_dot(y, y, transpose_b=True),
    "concat": lambda y: mx.nd.concat(y, y * 2, dim=1),
    "stack": lambda y: mx.nd.stack(y, y * 2, axis=1), "take": lambda y: y.take(mx.nd.array([2, 0])),
    "pick": lambda y: y.pick(mx.nd.zeros((4, 2)), axis=1),
    "one_hot": lambda y: (y[0, :, 0] > 1).one_hot(2), "where": lambda y: mx.nd.where(y > 1, y, -y),
    "slice_axis": lambda y: y.slice_axis(axis=1, begin=1, end=3), "flip": lambda y: y.flip(axis=0),
    "zeros_like": lambda y: y.zeros_like(), "softmax": lambda y: y.softmax(axis=1),
    "repeat": lambda y: y.repeat(2, axis=0),
    "pad": lambda y: y.expand_dims(0).pad("edge", (0, 0, 0, 0, 1, 1, 1, 1)),
    "SequenceMask": lambda y: mx.nd.SequenceMask(y, mx.nd.array([1, 2, 3]), True),
    "NumPy function": lambda y: np.tanh(y.asnumpy()),
}  # fmt: skip


@pytest.mark.parametrize("use", OPERATORS.values(), ids=OPERATORS)
def test_operators(use):
    check_use(use)


# Indexing, against NumPy

BASIC = [
    0, 2, -1, -4, np.int64(1), slice(None), slice(1, 3), slice(-2, None), slice(None, -1),
    slice(2, 99), slice(None, None, 2), slice(None, None, -1), slice(3, 0, -2), slice(-1, None, -1),
    (0, 1), (-1, -1), (0, 1, 1), (slice(None), 1), (slice(1, 3), slice(0, 2)),
    (slice(None), slice(None), -1), (slice(None, None, -1), slice(None, None, 2)),
    (2, slice(None), 0), (slice(3, 0, -1), -1, slice(1, None)), Ellipsis, (Ellipsis, 0),
    (0, Ellipsis), (Ellipsis, slice(0, 1)), (1, Ellipsis, -1), None, (None, 0), (slice(None), None),
    (0, None, Ellipsis, None), (slice(0, 2), Ellipsis, None, 1),
]  # fmt: skip
ADVANCED = [
    [0, 2], [3, -1, 0], np.array([1, 1]), ([0, 1], [2, 0]), (slice(None), [0, 2]), (0, [1, 2]),
    ([0, 3], slice(None), 1), np.array([[0, 1], [2, 3]]), (slice(None), slice(None), [1, 0]),
]  # fmt: skip


@pytest.mark.parametrize("key", BASIC + ADVANCED, ids=str)
def test_indexing_is_that_of_numpy(key):
    wanted = (values() + 1)[key]
    wanted = np.asarray(wanted).reshape(np.shape(wanted) or (1,))
    same(real()[key], wanted)
    check_use(lambda y: y[key])
    with gdb.batching(policy="depth"):
        got = SHIFT(lazy()[key], 1)
    same(got, wanted + 1)


@pytest.mark.parametrize("key", [slice(2, 1), slice(9, None), (0, slice(1, 1))], ids=str)
def test_empty_slices_behave_as_on_a_real_array(key):
    try:
        wanted = host(real()[key])
    except Exception as error:
        with gdb.batching(policy="depth"), pytest.raises(type(error)):
            host(lazy()[key])
        return
    with gdb.batching(policy="depth"):
        got = lazy()[key]
    same(got, wanted)


def test_index_that_is_an_array():
    index = mx.nd.array([2, 0], dtype="int32")
    check_use(lambda y: y[index])
    check_use(lambda y: real()[y[0, :, 0].zeros_like().astype("int32")])


def test_basic_indexing_costs_no_flush_and_rows_no_call():
    with gdb.batching(policy="depth") as batch:
        y = lazy()
        got = [y[1], y[1:3], y[-1][0], y[1:][1:][0], y[:, 1], y[::2, 1], y.reshape((2, 12))[1]]
        assert batch.report.flushes == []
    assert batch.report.nodes == 3
    wanted = values() + 1
    same(
        got,
        [
            wanted[1], wanted[1:3], wanted[-1][0], wanted[2], wanted[:, 1], wanted[::2, 1],
            wanted.reshape(2, 12)[1],
        ],
    )  # fmt: skip


# Shapes

SHAPES: Dict[str, Callable[[Any], Any]] = {
    "reshape": lambda y: y.reshape((2, 12)), "reshape numbers": lambda y: y.reshape(2, 12),
    "reshape list": lambda y: y.reshape([2, 12]),
    "reshape keyword": lambda y: y.reshape(shape=(3, 8)), "reshape -1": lambda y: y.reshape((-1,)),
    "reshape 0": lambda y: y.reshape((0, -1)), "reshape 0 0": lambda y: y.reshape((0, 0, 2)),
    "reshape -2": lambda y: y.reshape((4, -2)), "reshape -3": lambda y: y.reshape((-3, 0)),
    "reshape -4": lambda y: y.reshape((-4, 2, 2, 0, 0)),
    "reshape reverse": lambda y: y.reshape((-1, 0), reverse=True),
    "reshape number": lambda y: y.reshape(-1),
    "reshape_like": lambda y: y.reshape_like(mx.nd.zeros((6, 4))),
    "expand_dims": lambda y: y.expand_dims(0), "expand_dims last": lambda y: y.expand_dims(-1),
    "expand_dims middle": lambda y: y.expand_dims(axis=2),
    "expand_dims inplace": lambda y: y.expand_dims(1, True), "squeeze": lambda y: y[:1].squeeze(),
    "squeeze axis": lambda y: y[:, :1].squeeze(axis=1),
    "squeeze axes": lambda y: y[:1, :1].squeeze(axis=(0, 1)),
    "squeeze negative": lambda y: y[:, :, :1].squeeze(-1),
    "squeeze inplace": lambda y: y[:1].squeeze(inplace=True),
    "squeeze all": lambda y: y[:1, :1, :1].squeeze(), "flatten": lambda y: y.flatten(),
    "flatten inplace": lambda y: y.flatten(inplace=True),
    "flatten a vector": lambda y: y.reshape((-1,)).flatten(), "T": lambda y: y.T,
    "transpose": lambda y: y.transpose((1, 2, 0)),
    "transpose keyword": lambda y: y.transpose(axes=(2, 0, 1)),
    "swapaxes": lambda y: y.swapaxes(0, 2), "broadcast_to": lambda y: y[:1].broadcast_to((4, 3, 2)),
    "broadcast_like": lambda y: y[:1].broadcast_like(mx.nd.zeros((4, 3, 2))),
    "diag": lambda y: y[:, :, 0].diag(),
}  # fmt: skip


@pytest.mark.parametrize("use", SHAPES.values(), ids=SHAPES)
def test_shapes(use):
    check_use(use)


# Copies and conversions

CONVERSIONS: Dict[str, Callable[[Any], Any]] = {
    "astype": lambda y: y.astype("float64"), "astype class": lambda y: (y * 10).astype(np.int32),
    "astype same": lambda y: y.astype("float32", copy=False),
    "astype half": lambda y: y.astype("float16"), "copy": lambda y: y.copy(),
    "detach": lambda y: y.detach(), "asnumpy": lambda y: y.asnumpy(),
    "as_in_context": lambda y: y.as_in_context(mx.cpu()),
    "other context": lambda y: y.as_in_context(mx.cpu(1)),
    "name of the other context": lambda y: str(y.as_in_context(mx.cpu(1)).context),
    "copyto context": lambda y: y.copyto(mx.cpu(1)),
    "copyto": lambda y: y.copyto(mx.nd.zeros(SHAPE)), "tostype": lambda y: y.tostype("default"),
    "np.asarray": lambda y: np.asarray(y.asnumpy()),
    "as_np_ndarray": lambda y: y.as_np_ndarray().asnumpy(),
    "as_nd_ndarray": lambda y: y.as_nd_ndarray(), "asscalar": lambda y: y[0, 0, 0].asscalar(),
    "float": lambda y: float(y[1, 1, 1].asscalar()),
    "int": lambda y: int(y[2, 2, 1].asscalar() * 10), "len": len, "list": list,
    "bool": lambda y: bool(y[0, 0, 0] > 0), "unpacking": lambda y: [a for a, b, c in [y[:3]]],
    "enumerate": lambda y: [(i, a) for i, a in enumerate(y)],
    "any": lambda y: [bool(a.sum() > 3) for a in y],
    "pickle": lambda y: pickle.loads(pickle.dumps(y)),
    "pickle protocol 0": lambda y: pickle.loads(pickle.dumps(y, 0)), "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy, "deepcopy of a nest": lambda y: copy.deepcopy([y, (y,)]),
    "wait_to_read": lambda y: y.wait_to_read(),
    "to_dlpack": lambda y: mx.nd.from_dlpack(y.to_dlpack_for_read()), "nd.array": mx.nd.array,
    "nd.array of rows": lambda y: mx.nd.array([a.asnumpy() for a in y]),
}  # fmt: skip


@pytest.mark.parametrize("use", CONVERSIONS.values(), ids=CONVERSIONS)
def test_conversions(use):
    check_use(use)


@pytest.mark.parametrize("text", [str, repr, "{}".format, "{!r:>5}".format])
def test_printing(text, capsys):
    with gdb.batching(policy="depth"):
        got = text(lazy())
    assert got.replace("LazyNDArray", "NDArray") == text(real())
    print(real())
    wanted = capsys.readouterr().out
    with gdb.batching(policy="depth"):
        print(lazy())
    assert capsys.readouterr().out.replace("LazyNDArray", "NDArray") == wanted


@pytest.mark.parametrize("ask", [bool, lambda y: y.asscalar(), lambda y: 1 if y else 2])
def test_more_than_one_value_is_no_scalar(ask):
    with pytest.raises(ValueError) as wanted:
        ask(real())
    with gdb.batching(policy="depth"), pytest.raises(ValueError) as got:
        ask(lazy())
    assert str(got.value) == str(wanted.value)


def test_hash_and_identity():
    with gdb.batching(policy="depth"):
        y = SHIFT(real(), 1)
        known = {y: "y"}
        y.asnumpy()
        assert known[y] == "y" and y in known and SHIFT(real(), 1) not in known


def test_saved_and_loaded(tmp_path):
    path = str(tmp_path / "arrays.params")
    with gdb.batching(policy="depth"):
        y = lazy()
        mx.nd.save(path, {"y": y, "row": y[1]})
    same(mx.nd.load(path)["y"], real())
    same(mx.nd.load(path)["row"], real()[1])
    mx.nd.save(path, [y])
    same(mx.nd.load(path), [real()])


# Writing in place

WRITES: Dict[str, Callable[[Any], Any]] = {
    "+= number": lambda y: y.__iadd__(2), "+= array": lambda y: y.__iadd__(mx.nd.ones(SHAPE)),
    "-=": lambda y: y.__isub__(2), "*=": lambda y: y.__imul__(2), "/=": lambda y: y.__itruediv__(2),
    "%=": lambda y: y.__imod__(0.3), "+= itself": lambda y: y.__iadd__(y),
    "[:] = number": lambda y: y.__setitem__(slice(None), 3),
    "[:] = array": lambda y: y.__setitem__(slice(None), real() * 2),
    "[:] = NumPy": lambda y: y.__setitem__(slice(None), values()),
    "[1] = number": lambda y: y.__setitem__(1, 3), "[1] = row": lambda y: y.__setitem__(1, y[0]),
    "[1:3] = list": lambda y: y.__setitem__(slice(1, 3), [[1, 2]]),
    "[:, 0] =": lambda y: y.__setitem__((slice(None), 0), 3),
    "[0, 1, 1] =": lambda y: y.__setitem__((0, 1, 1), 9),
    "[[0, 2]] =": lambda y: y.__setitem__([0, 2], 3),
    "[...] =": lambda y: y.__setitem__(Ellipsis, 1),
    "out=": lambda y: mx.nd.elemwise_mul(y, y, out=y), "copyto": lambda y: real().copyto(y),
    "by an operator": lambda y: mx.nd.reset_arrays(y, num_arrays=1),
    "row[:] =": lambda y: y[1].__setitem__(slice(None), 3),
    "rows += 1": lambda y: y[1:3].__iadd__(1),
    "reshaped[:] =": lambda y: y.reshape((-1,)).__setitem__(slice(0, 5), 3),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writing_in_place(write):
    """A write changes the array itself and nothing else, before a flush and after."""
    wanted = real()
    write(wanted)
    with gdb.batching(policy="depth"):
        before = lazy()
        double = before * 2
        write(before)
        more = before * 3
        flushed = lazy()
        flushed.asnumpy()
        write(flushed)
        later = lazy()
        untouched = lazy()
    write(later)
    for y in (before, flushed, later):
        same(y, wanted)
    same(double, real() * 2)
    same(more, wanted * 3)
    same(untouched, real())


def test_augmented_assignment_keeps_the_object():
    with gdb.batching(policy="depth"):
        y = alias = lazy()
        y += 1
        assert y is alias
        y *= 2
    same(alias, (real() + 1) * 2)


@pytest.mark.parametrize("where", ["pending", "after"])
@pytest.mark.parametrize(
    "key", [slice(None), 1, (1, 2), slice(1, 3), (slice(None), 0), (0, 1, 1), [0, 2]], ids=str
)
def test_assigned_to_a_real_array(key, where):
    wanted = mx.nd.zeros(SHAPE)
    wanted[key] = real()[key]
    got = mx.nd.array(np.zeros(SHAPE))
    with gdb.batching(policy="depth"):
        y = lazy()
        if where == "pending":
            got[key] = y[key]
    if where == "after":
        got[key] = y if key == slice(None) else y[key]
    same(got, wanted)


# Later, elsewhere


def test_used_in_another_scope():
    with gdb.batching(policy="depth"):
        y = lazy()
        row = y[1]
    with gdb.batching(policy="depth") as batch:
        got = [SHIFT(y, 1), y * 2, SHIFT(row, 1), y[0] + 1, SHIFT(y[:, 0], 1)]
        assert batch.report.flushes == []
    same(got, [real() + 1, real() * 2, real()[1] + 1, real()[0] + 1, real()[:, 0] + 1])


# Gradients


def test_gradients_through_views():
    def run(x):
        y = SHIFT(x, 1)
        return [
            y[1] * y[2], y[1:3].reshape((-1,)), (y[:, 1] ** 2).expand_dims(0), y[:1].squeeze() * 3,
            y.T, y[::2, ::-1], y.flatten() * y.detach().flatten(), y.copy(), y.astype("float64"),
            y[-1, -1, -1],
        ]  # fmt: skip

    samples = [mx.nd.array(values() * i) for i in (1, 2, 3)]
    for x in samples:
        x.attach_grad()
    gdb.testing.check_against_loop(run, samples)


def test_attach_grad_to_a_lazy_array():
    x = mx.nd.array(values())
    with autograd.record(), gdb.batching(policy="depth"):
        y = SHIFT(x, 1)
        y.attach_grad()
        loss = SHIFT(y * 3, 0).sum()
    loss.backward()
    same(y.grad, mx.nd.ones(SHAPE) * 3)
