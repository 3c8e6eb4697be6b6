"""What is wrong is said at the user's own line, by type and by text, and nothing is lost by it.

A line that must be named carries the comment ``# wrong``.
"""

# ruff: noqa: F811, SIM117 - Python 3.8 has no brackets around the items of a with statement.
from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from tests.misuse.refusals import array, cell, net, refused, user_frame

__all__ = ["net"]

# Shapes, dtypes, contexts


def test_wrong_shape(net):
    with refused(gdb.ShapeError, "block: the_dense", "(1, 5) float32"), gdb.batching():
        net(array(1, 4))
        net(array(1, 5))  # wrong


def test_wrong_shape_is_a_value_error_as_well(net):
    with pytest.raises(ValueError), gdb.batching():
        net(array(1, 5))


def test_wrong_shape_of_an_operator(net):
    with refused(gdb.ShapeError, "block: broadcast_add", "(1, 3) float32, (1, 5) float32"):
        with gdb.batching():
            y = net(array(1, 4))
            y + array(1, 5)  # wrong


def test_wrong_shape_of_a_generated_function(net):
    with refused(gdb.ShapeError, "block: dot", "(5, 2)"), gdb.batching():
        y = net(array(1, 4))
        mx.nd.dot(y, array(5, 2))  # wrong


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


def test_wrong_axis_in_a_cell(net):
    block = cell(lambda F, x: F.sum(x, axis=7))
    with refused(gdb.ShapeError, "block: the_cell", "axis 7"), gdb.batching():
        block(net(array(1, 4)))  # wrong


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


def test_wrong_dtype(net):
    with refused(gdb.DTypeError, "block: the_dense", "float64", ".astype("), gdb.batching():
        net(array(1, 4))
        net(array(1, 4, dtype="float64"))  # wrong


def test_wrong_dtype_of_an_operator(net):
    with refused(gdb.DTypeError, "broadcast_add", "(1, 3) float32, (1, 3) float64"):
        with gdb.batching():
            y = net(array(1, 4))
            y + array(1, 3, dtype="float64")  # wrong


def test_two_contexts(net):
    block = cell(lambda F, a, b: a + b)
    with refused(gdb.ContextError, "cpu(0), cpu(1)", "block: the_cell", ".as_in_context("):
        with gdb.batching():
            net(array(1, 4))
            block(array(1, 4), array(1, 4, ctx=mx.cpu(1)))  # wrong


def test_two_contexts_of_an_operator(net):
    with refused(gdb.ContextError, "cpu(0), cpu(1)", "broadcast_add"), gdb.batching():
        y = net(array(1, 4))
        y + array(1, 3, ctx=mx.cpu(1))  # wrong


def test_parameters_on_another_context(net):
    with refused(gdb.ContextError, "the_dense_weight", "cpu(1)", "cpu(0)"), gdb.batching():
        net(array(1, 4, ctx=mx.cpu(1)))  # wrong


# Cells


def test_own_exception_for_the_37th_sample(net):
    class Picky(gdb.DynamicHybridBlock):
        def hybrid_forward(self, F, x, number):
            if number == 37:
                raise KeyError("sample 37")  # wrong
            return x * number

    block = Picky()
    block.hybridize()
    with pytest.raises(KeyError, match="sample 37") as caught, gdb.batching():
        for number in range(100):
            block(net(array(1, 4)), number)
    assert number == 37
    assert user_frame(caught.value).line.endswith("# wrong")
    with gdb.batching():
        got = block(net(array(1, 4)), 36)
    np.testing.assert_allclose(got.asnumpy(), net(array(1, 4)).asnumpy() * 36, 1e-5)


def test_own_exception_in_a_dynamic_block_for_the_37th_sample(net):
    class Picky(gdb.DynamicHybridBlock):
        def forward(self, x, number):
            if number == 37:
                raise MemoryError("sample 37")  # wrong
            return net(x)

    block = Picky()
    block.hybridize()
    with pytest.raises(MemoryError) as caught, gdb.batching():
        for number in range(100):
            block(array(1, 4), number)
    assert user_frame(caught.value).line.endswith("# wrong")


def test_a_misspelt_name_in_a_cell_is_not_taken_for_something_else(net):
    block = cell(lambda F, x: F.reluu(x))
    with pytest.raises((AttributeError, gdb.CellError), match="reluu"), gdb.batching():
        block(net(array(1, 4)))


READS = {
    "asnumpy": lambda F, x: x * float(x.asnumpy().sum()),
    "asscalar": lambda F, x: x * x.sum().asscalar(),
    "shape": lambda F, x: x * x.shape[0],
    "branch": lambda F, x: x if x.sum() > 0 else -x,
    "float": lambda F, x: x * float(x.sum()),
    "int": lambda F, x: x * int(x.sum()),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_cell_that_reads_a_value(net, read):
    block = cell(read)
    with refused(gdb.CellError, "block: the_cell", "forward()"), gdb.batching():
        block(net(array(1, 4)))  # wrong


@pytest.mark.parametrize("result", [None, 3, object()], ids=["None", "number", "object"])
def test_a_cell_without_an_array_as_result(net, result):
    block = cell(lambda F, x: result)
    with refused(gdb.CellError, "block: the_cell"), gdb.batching():
        block(net(array(1, 4)))  # wrong


def test_a_cell_that_calls_nd(net):
    block = cell(lambda F, x: mx.nd.relu(x))
    with refused(gdb.CellError, "block: the_cell"), gdb.batching():
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
        for key in (99, -2, (0, 99), (0, -4), (99, 0), (0, 0, 0), (slice(None), 3)):
            with pytest.raises(IndexError) as caught:
                y[key]  # wrong
            assert user_frame(caught.value).line.endswith("# wrong")
        assert batch.report.flushes == []


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
