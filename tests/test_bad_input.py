"""What is wrong is said at the user's own line, by type and by text, and nothing is lost by it.

A line that must be named carries the comment ``# wrong``.
"""

# ruff: noqa: F811, SIM117 - Python 3.8 has no brackets around the items of a with statement.
from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from tests.cells import array, cell, equal
from tests.common import refused, user_frame
from tests.common import unharmed as net

__all__ = ["net"]

# Shapes, dtypes, contexts


#: By what is wrong with an argument of a cell: the error, what it says, and the argument.
ARGUMENTS = {
    "shape": (gdb.ShapeError, ["(1, 5) float32"], array(1, 5)),
    "dtype": (gdb.DTypeError, ["float64", ".astype("], array(1, 4, dtype="float64")),
    "context": (
        gdb.ContextError, ["the_dense_weight", "cpu(1)", "cpu(0)"], array(1, 4, ctx=mx.cpu(1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind, texts, argument", ARGUMENTS.values(), ids=ARGUMENTS)
def test_wrong_argument_of_a_cell(net, kind, texts, argument):
    with refused(kind, "block: the_dense", *texts), gdb.batching():
        net(array(1, 4))
        net(argument)  # wrong


#: The same of operators on a pending array.
OPERANDS = {
    "shape": (
        gdb.ShapeError, ["block: broadcast_add", "(1, 3) float32, (1, 5) float32"],
        lambda y: y + array(1, 5),  # wrong
    ),
    "shape, generated function": (
        gdb.ShapeError, ["block: dot", "(5, 2)"], lambda y: mx.nd.dot(y, array(5, 2)),  # wrong
    ),
    "dtype": (
        gdb.DTypeError, ["broadcast_add", "(1, 3) float32, (1, 3) float64"],
        lambda y: y + array(1, 3, dtype="float64"),  # wrong
    ),
    "context": (
        gdb.ContextError, ["cpu(0), cpu(1)", "broadcast_add"],
        lambda y: y + array(1, 3, ctx=mx.cpu(1)),  # wrong
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind, texts, call", OPERANDS.values(), ids=OPERANDS)
def test_wrong_operand(net, kind, texts, call):
    with refused(kind, *texts), gdb.batching():
        call(net(array(1, 4)))


def test_wrong_shape_inside_a_dynamic_block(net):
    class Twice(gdb.DynamicHybridBlock):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(self.inner(x))  # wrong

    block = Twice(net)
    block.hybridize()
    with refused(gdb.ShapeError, "block: the_dense", "(1, 3) float32"), gdb.batching():
        block(array(1, 4))


def test_a_wrong_call_that_is_caught_leaves_the_scope_in_order(net):
    wanted = [net(array(1, 4) * i).asnumpy() for i in range(4)]
    got = []
    with gdb.batching(granularity="block") as batch:
        for i in range(4):
            got.append(net(array(1, 4) * i))
            with refused(gdb.ShapeError):
                net(array(1, 5))  # wrong
            with refused(gdb.DTypeError):
                net(array(1, 4, dtype="float64"))  # wrong
            with refused(gdb.ArgumentError):
                net(object())  # wrong
    assert (batch.report.nodes, batch.report.launches) == (4, 1)
    np.testing.assert_allclose([y.asnumpy() for y in got], wanted, 1e-5, 1e-6)


def test_two_contexts(net):
    block = cell(lambda F, a, b: a + b)
    with refused(gdb.ContextError, "cpu(0), cpu(1)", "block: the_cell", ".as_in_context("):
        with gdb.batching():
            net(array(1, 4))
            block(array(1, 4), array(1, 4, ctx=mx.cpu(1)))  # wrong


# Cells


def picky(x, number):
    if number == 37:
        raise KeyError("sample 37")  # wrong
    return x * number


class PickyBlock(gdb.DynamicHybridBlock):
    def forward(self, x, number):
        return picky(x, number)


@pytest.mark.parametrize("make", [lambda: cell(lambda F, x, number: picky(x, number)), PickyBlock])
def test_own_exception_for_the_37th_sample(net, make):
    block = make()
    block.hybridize()
    with pytest.raises(KeyError, match="sample 37") as caught, gdb.batching():
        for number in range(100):
            block(net(array(1, 4)), number)
    assert number == 37
    assert user_frame(caught.value).line.endswith("# wrong")
    with gdb.batching():
        got = block(net(array(1, 4)), 36)
    equal([got], [net(array(1, 4)) * 36])


def test_a_misspelt_name_in_a_cell_is_not_taken_for_something_else(net):
    block = cell(lambda F, x: F.reluu(x))
    with pytest.raises((AttributeError, gdb.CellError), match="reluu"), gdb.batching():
        block(net(array(1, 4)))


#: By what a cell does that none can do: the error, what it says, and the cell.
CELLS = {
    "axis": (gdb.ShapeError, ["axis 7"], lambda F, x: F.sum(x, axis=7)),
    "asnumpy": (gdb.CellError, ["forward()"], lambda F, x: x * float(x.asnumpy().sum())),
    "asscalar": (gdb.CellError, ["forward()"], lambda F, x: x * x.sum().asscalar()),
    "shape": (gdb.CellError, ["forward()"], lambda F, x: x * x.shape[0]),
    "branch": (gdb.CellError, ["forward()"], lambda F, x: x if x.sum() > 0 else -x),
    "float": (gdb.CellError, ["forward()"], lambda F, x: x * float(x.sum())),
    "int": (gdb.CellError, ["forward()"], lambda F, x: x * int(x.sum())),
    "result None": (gdb.CellError, [], lambda F, x: None),
    "result number": (gdb.CellError, [], lambda F, x: 3),
    "result object": (gdb.CellError, [], lambda F, x: object()),
    "nd": (gdb.CellError, [], lambda F, x: mx.nd.relu(x)),
}


@pytest.mark.parametrize("kind, texts, fn", CELLS.values(), ids=CELLS)
def test_what_a_cell_cannot_do(net, kind, texts, fn):
    block = cell(fn)
    with refused(kind, "block: the_cell", *texts), gdb.batching():
        block(net(array(1, 4)))  # wrong


def test_a_cell_called_with_too_few_arguments(net):
    block = cell(None)
    block._fn = lambda F, x, y: x + y
    with pytest.raises(TypeError, match="'y'"), gdb.batching():
        block(net(array(1, 4)))


def test_a_cell_called_without_any_array(net):
    """Stock Gluon refuses such a call too."""
    block = cell(lambda F, n: F.ones((1, 2)) * n)
    with refused(gdb.ArgumentError, "block: the_cell"), gdb.batching():
        net(array(1, 4))
        block(3)  # wrong


# Arguments


@pytest.mark.parametrize(
    "argument",
    [object(), {1, 2}, np.ones((1, 4)), [1, {"a": object()}], range(3), len, iter([])],
    ids=lambda value: type(value).__name__,
)
def test_an_argument_that_cannot_be_recorded(net, argument):
    block = cell(lambda F, x, other: x)
    with refused(gdb.ArgumentError, "block: the_cell", "lists, tuples and dictionaries"):
        with gdb.batching():
            block(net(array(1, 4)), argument)  # wrong


def test_an_argument_that_cannot_be_recorded_is_named(net):
    class Tree:
        def __repr__(self):
            return "Tree(3)"

    block = cell(lambda F, x, other: x)
    with refused(gdb.ArgumentError, "Tree(3) of type Tree"), gdb.batching():
        block(net(array(1, 4)), [Tree()])  # wrong
    with refused(gdb.ArgumentError, "Tree(3) of type Tree"):
        block(array(1, 4), [Tree()])  # wrong


@pytest.mark.parametrize("stype", ["csr", "row_sparse"])
def test_sparse_array(net, stype):
    x = array(1, 4).tostype(stype)
    with refused(gdb.ArgumentError, stype, ".tostype('default')"), gdb.batching():
        net(x)  # wrong
    with refused(gdb.ArgumentError, stype), gdb.batching():
        y = net(array(1, 4))
        mx.nd.dot(y, array(3, 3).tostype(stype))  # wrong


def test_array_of_the_numpy_interface(net):
    with refused(gdb.ArgumentError, "mx.np", ".as_nd_ndarray()"), gdb.batching():
        net(array(1, 4).as_np_ndarray())  # wrong


def test_indices_out_of_bounds(net):
    with gdb.batching() as batch:
        y = net(array(1, 4))
        for flushed in (False, True):
            for key in (99, -2, (0, 99), (0, -4), (99, 0), (0, 0, 0), (slice(None), 3)):
                with pytest.raises(IndexError) as caught:
                    y[key]  # wrong
                assert flushed or user_frame(caught.value).line.endswith("# wrong")
            assert len(batch.report.flushes) == flushed
            batch.flush()


@pytest.mark.parametrize(
    "use",
    [
        lambda y: y.reshape((2, 2)),
        lambda y: y.reshape((-1, -1)),
        lambda y: y.squeeze(1),
        lambda y: y.squeeze(9),
        lambda y: y.expand_dims(9),
        lambda y: y["a"],
        lambda y: y.transpose((0, 1, 2)),
    ],
)
def test_shape_operations_that_cannot_be(net, use):
    """Stock MXNet raises one of these two as well."""
    with gdb.batching():
        y = net(array(1, 4))
        with pytest.raises((ValueError, mx.MXNetError)):
            use(y)
    np.testing.assert_allclose(y.asnumpy(), net(array(1, 4)).asnumpy(), 1e-5, 1e-6)
