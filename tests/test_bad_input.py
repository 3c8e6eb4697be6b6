"""Wrong calls raise at the user's line, with the right type and text, and the scope goes on.

The message must name a line that has the comment ``# wrong``.
"""

# ruff: noqa: SIM117 - Python 3.8 has no brackets around the items of a with statement.
import sys
import traceback
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from tests.cells import array, cell, equal
from tests.common import named_lines, refused, user_frame

net = pytest.fixture(lambda unharmed: unharmed, name="net")


class Tree:
    def __repr__(self):
        return "Tree(3)"


def calling(fn):
    """Call a cell that does something that no cell can do."""
    block = cell(fn)
    return lambda net, y: block(y)  # wrong


def passing(argument):
    """Call a cell with something that cannot be an argument."""
    block = cell(lambda F, x, other: x)
    return lambda net, y: block(y, argument)  # wrong


FORWARD, CELL, STRUCTURES = "forward()", "block: the_cell", "lists, tuples and dictionaries"
ADD, FIRST = cell(lambda F, a, b: a + b), cell(lambda F, n: F.ones((1, 2)) * n)
PAIR = cell(lambda F, a, b: F.concat(a, b, dim=1))
#: Wrong calls: the error, texts in its message, and a function of a net and one of its results.
WRONG = {
    "shape": (gdb.ShapeError, ["block: the_dense", "(1, 5) float32"],
              lambda net, y: net(array(1, 5))),  # wrong
    "vector": (gdb.ShapeError, ["block: the_dense", "axis 0 counts rows"],
               lambda net, y: net(array(4))),  # wrong
    "dtype": (gdb.DTypeError, ["block: the_dense", "float64", ".astype("],
              lambda net, y: net(array(1, 4, dtype="float64"))),  # wrong
    "context": (gdb.ContextError, ["block: the_dense", "the_dense_weight", "cpu(1)", "cpu(0)"],
                lambda net, y: net(array(1, 4, ctx=mx.cpu(1)))),  # wrong
    "two contexts": (gdb.ContextError, ["cpu(0), cpu(1)", CELL, ".as_in_context("],
                     lambda net, y: ADD(array(1, 4), array(1, 4, ctx=mx.cpu(1)))),  # wrong
    "object": (gdb.ArgumentError, [], lambda net, y: net(object())),  # wrong
    **{f"no array, {type(wrong).__name__}": (
        gdb.ArgumentError, [CELL, "mx.nd.array("],
        lambda net, y, wrong=wrong: FIRST(wrong))  # wrong
       for wrong in (3, [[1, 2]])},
    "csr": (gdb.ArgumentError, ["csr", ".tostype('default')"],
            lambda net, y: net(array(1, 4).tostype("csr"))),  # wrong
    "NumPy interface": (gdb.ArgumentError, ["npx.set_np()", ".as_nd_ndarray()"],
                        lambda net, y: net(array(1, 4).as_np_ndarray())),  # wrong
    # Operators on pending arrays.
    "shape of an operand": (
        gdb.ShapeError, ["block: broadcast_add", "(1, 3) float32, (1, 5) float32"],
        lambda net, y: y + array(1, 5)),  # wrong
    "shape, generated function": (gdb.ShapeError, ["block: dot", "(5, 2)"],
                                  lambda net, y: mx.nd.dot(y, array(5, 2))),  # wrong
    "dtype of an operand": (
        gdb.DTypeError, ["broadcast_add", "(1, 3) float32, (1, 3) float64"],
        lambda net, y: y + array(1, 3, dtype="float64")),  # wrong
    "context of an operand": (gdb.ContextError, ["cpu(0), cpu(1)", "broadcast_add"],
                              lambda net, y: y + array(1, 3, ctx=mx.cpu(1))),  # wrong
    "row_sparse operand": (
        gdb.ArgumentError, ["row_sparse"],
        lambda net, y: mx.nd.dot(y, array(3, 3).tostype("row_sparse"))),  # wrong
    "too few arrays": (
        gdb.ArgumentError, ["takes 3 arrays (data, weight, bias), not 1"],
        lambda net, y: mx.nd.FullyConnected(y, num_hidden=2)),  # wrong
    # Gluon refuses these arguments and results as well.
    **{f"argument {type(wrong).__name__}": (gdb.ArgumentError, [CELL, STRUCTURES], passing(wrong))
       for wrong in (object(), {1, 2}, [1, {"a": object()}], range(3), iter([]))},
    "argument ndarray": (gdb.ArgumentError, [CELL, "of type ndarray", "mx.nd.array("],
                         passing(np.ones((1, 4)))),
    "argument that is named": (gdb.ArgumentError, ["Tree(3) of type Tree"], passing([Tree()])),
    "cell, too few arrays": (
        gdb.CellError, [CELL, "without the array", "_weight"],
        calling(lambda F, x: F.FullyConnected(x, num_hidden=2))),
    "cell, a tuple for an array": (
        gdb.CellError, [CELL, "net(*sample)"],
        lambda net, y: cell(lambda F, x: F.tanh(x))((y, y))),  # wrong
    "layer, a list for an array": (
        gdb.ArgumentError, ["block: the_dense", "net(*sample)"],
        lambda net, y: net([y, y])),  # wrong
    **{f"{type(wrong).__name__} for an array": (
        gdb.ArgumentError, [CELL, "got ", "mx.nd.array("],
        lambda net, y, wrong=wrong: PAIR(y, wrong))  # wrong
       for wrong in (1.5, -2, [1, 2, 3])},
    "axis": (gdb.ShapeError, [CELL, "axis 7"], calling(lambda F, x: F.sum(x, axis=7))),
    **{f"cell, {name}": (gdb.CellError, [CELL, FORWARD], calling(fn)) for name, fn in {
        "asnumpy": lambda F, x: x * float(x.asnumpy().sum()),
        "asscalar": lambda F, x: x * x.sum().asscalar(),
        "shape": lambda F, x: x * x.shape[0],
        "branch": lambda F, x: x if x.sum() > 0 else -x,
        "float": lambda F, x: x * float(x.sum()),
        "int": lambda F, x: x * int(x.sum()),
    }.items()},
    "cell, in place": (gdb.CellError, [CELL, "write x = x - y"],
                       calling(lambda F, x: x.__isub__(x))),
    **{f"cell, {name}": (gdb.CellError, [CELL], calling(fn)) for name, fn in {
        "result None": lambda F, x: None,
        "result number": lambda F, x: 3,
        "result object": lambda F, x: object(),
        "nd": lambda F, x: mx.nd.relu(x),
    }.items()},
}  # fmt: skip


@pytest.mark.parametrize("kind, texts, call", WRONG.values(), ids=WRONG)
def test_a_wrong_call_raises_at_its_line_and_the_scope_goes_on(net, kind, texts, call):
    x = array(1, 4)
    wanted = net(x)
    with gdb.batching(granularity="block", policy="depth") as batch:
        first = net(x)
        with refused(kind, *texts):
            call(net, first)
        second = net(x)
    assert (batch.report.nodes, batch.report.launches) == (2, 1)
    equal([first, second], [wanted] * 2)


def test_errors_of_a_cell_name_the_line_in_it(net):
    """And what to write for an index, which symbols do not take."""

    def chosen(F, x, index):
        return x[index]  # in the cell

    with gdb.batching(), refused(gdb.CellError, "F.take(x, index)") as caught:
        cell(chosen)(net(array(1, 4)), array(1))  # wrong
    inner, outer = named_lines(str(caught.value))
    assert inner.endswith("# in the cell") and outer.endswith("# wrong")


def test_exceptions_of_python_in_a_cell(net):
    """A misspelt name is reported as such; the user's own exceptions are raised unchanged."""
    python = (AttributeError, TypeError, gdb.CellError)
    for fn, kind, text in (
        (lambda F, x: F.reluu(x), python, "reluu"), (lambda F, x, y: x + y, python, "'y'"),
        (lambda F, x: {}["my own"], KeyError, "my own"),
    ):  # fmt: skip
        with pytest.raises(kind, match=text), gdb.batching():
            cell(fn)(net(array(1, 4)))


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


def test_without_a_scope_a_dynamic_block_refuses_the_same_arguments(net):
    block = cell(lambda F, x, other: x)
    with refused(gdb.ArgumentError, "Tree(3) of type Tree"):
        block(array(1, 4), [Tree()])  # wrong
    with refused(gdb.ContextError, "cpu(0), cpu(1)"):
        block(array(1, 4), array(1, 4, ctx=mx.cpu(1)))  # wrong


@pytest.fixture
def ipython(monkeypatch):
    """Pretend to run in a notebook; return a function that gives the lines which it shows."""

    def structured_traceback(kind, error, trace, tb_offset):
        frames = [frame for frame, _ in traceback.walk_tb(trace)]
        shown = [frame for frame in frames if not frame.f_locals.get("__tracebackhide__")]
        return [frame.f_code.co_name for frame in shown] + [f"{kind.__name__}: {error}"]

    texts = SimpleNamespace(structured_traceback=structured_traceback)
    shell = SimpleNamespace(InteractiveTB=texts)
    module = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)

    def show(error):
        if hasattr(error, "_render_traceback_"):
            return error._render_traceback_()
        return structured_traceback(type(error), error, error.__traceback__, 1)

    return show


def test_notebooks_show_the_users_frames_only(net, ipython):
    """Also between frames of the user, and of errors that are not of this package."""

    def wrong_shape(x):
        return net(array(1, 5))

    def by_zero(x):
        return 1 / 0

    class Outer(gdb.DynamicHybridBlock):
        def forward(self, x):
            return wrong_shape(x)

    outer = Outer()
    outer.hybridize()
    here = "test_notebooks_show_the_users_frames_only"
    for kind, wrong, names in (
        (gdb.ShapeError, lambda: wrong_shape(None), ["<lambda>", "wrong_shape"]),
        (gdb.ShapeError, lambda: outer(array(1, 4)), ["<lambda>", "forward", "wrong_shape"]),
        (gdb.ShapeError, lambda: gdb.map(wrong_shape, [1]), ["<lambda>", "wrong_shape"]),
        (ZeroDivisionError, lambda: gdb.map(by_zero, [1]),
         ["<lambda>", "by_zero"]),
        (gdb.OptionError, lambda: gdb.batching(policy="none"), ["<lambda>"]),
    ):  # fmt: skip
        with pytest.raises(kind) as caught, gdb.batching():
            wrong()
        *shown, last = ipython(caught.value)
        assert shown == [here, *names] and last.startswith(f"{kind.__name__}: ")
        # The traceback itself keeps all frames, for debuggers.
        assert len([*traceback.walk_tb(caught.value.__traceback__)]) > len(shown)


def test_an_argument_error_has_no_other_error_as_its_context(net):
    with gdb.batching(), pytest.raises(gdb.ArgumentError) as caught:
        net(np.ones((1, 4)))
    assert caught.value.__suppress_context__
