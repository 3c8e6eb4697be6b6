"""What raises without a scope raises in it, too: an error that the same ``except`` catches."""

import contextlib
import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.errors import DynBatchError
from tests.cells import array, cell
from tests.common import FIXED, refused


class Blocks:
    """Makes blocks: hybridized or not, converted or not."""

    def __init__(self, hybridize, convert):
        self._hybridize, self._convert = hybridize, convert
        self.net = self(nn.Dense(3, in_units=3))

    def __call__(self, block, *parts, initialize=True):
        for part in parts:
            block.add(part)
        if self._convert:
            gdb.convert(block)
        if initialize:
            block.initialize()
        if self._hybridize:
            block.hybridize()
        return block


class Weighted(gluon.HybridBlock):
    """Adds a parameter."""

    def __init__(self, shape, **kwargs):
        super().__init__()
        self.w = self.params.get("w", shape=shape, **kwargs)

    def hybrid_forward(self, F, x, w):
        return F.broadcast_add(x, w)


class Second(gluon.HybridBlock):
    """Adds the second item of its second argument."""

    def hybrid_forward(self, F, x, items):
        return x + items[1]


def wide(*shape, **kwargs):
    return mx.nd.ones(shape, **kwargs)


def again(call, *arguments):
    """Call a block with several arguments in turn."""
    return [call(*each) for each in arguments][-1]


def lambdas(fn):
    return lambda b, h: b(nn.HybridLambda(fn))(h)


LSTM, LSTM_CELL = {"hidden_size": 4, "input_size": 3}, {"hidden_size": 4, "input_size": 3}
TWO_CELLS = [rnn.LSTMCell(4, input_size=3), rnn.LSTMCell(4, input_size=3)]
CROSS_ENTROPY = gluon.loss.SoftmaxCrossEntropyLoss

#: By name, functions of a maker of blocks and of the result of a block, of shape (2, 3).
BLOCKS = {
    "width": lambda b, h: b.net(wide(2, 4)),
    "width of a result": lambda b, h: b.net(mx.nd.concat(h, h, dim=1)),
    "vector": lambda b, h: b(nn.Dense(3, in_units=3, flatten=False))(h.reshape((-1,))),
    "width, shape deferred": lambda b, h: again(b(nn.Dense(3)), (h,), (wide(2, 5),)),
    "width of results, shape deferred": lambda b, h: again(
        b(nn.Dense(3)), (h,), (mx.nd.concat(h, h, dim=1),)
    ),
    "float64": lambda b, h: b.net(wide(2, 3, dtype="float64")),
    "int32": lambda b, h: b.net(wide(2, 3, dtype="int32")),
    "device": lambda b, h: b.net(wide(2, 3, ctx=mx.cpu(1))),
    "None": lambda b, h: b.net(None),
    "two None": lambda b, h: b.net(None, None),
    "no argument": lambda b, h: b.net(),
    "one argument too many": lambda b, h: b.net(h, h),
    "number": lambda b, h: b.net(3),
    "string": lambda b, h: b.net("x"),
    "NumPy": lambda b, h: b.net(np.ones((2, 3))),
    "numbers": lambda b, h: b.net([[1, 2, 3]]),
    "list of arrays": lambda b, h: b.net([h, h]),
    "object": lambda b, h: b.net(object()),
    "keyword": lambda b, h: b.net(x=h),
    "not initialized": lambda b, h: b(nn.Dense(3, in_units=3), initialize=False)(h),
    "not initialized, shape deferred": lambda b, h: b(nn.Dense(3), initialize=False)(h),
    "deferred data": lambda b, h: b(nn.Dense(3)).weight.data(),
    "gradient, not initialized": lambda b, h: b(nn.Dense(3), initialize=False).weight.grad(),
    "parameter's shape": lambda b, h: b(Weighted((4,)))(h),
    "parameter's dtype": lambda b, h: b(Weighted((3,), dtype="float64"))(h),
    "parameter's shape unknown": lambda b, h: b(
        Weighted((0, 0, 7), allow_deferred_init=True)
    )(h),
    "convolution's rank": lambda b, h: b(nn.Conv2D(3, 3))(h),
    "convolution's channels": lambda b, h: b(nn.Conv2D(3, 3, in_channels=2))(wide(1, 3, 5, 5)),
    "convolution's kernel": lambda b, h: b(nn.Conv2D(3, 3, in_channels=1))(wide(1, 1, 2, 2)),
    "pooling's rank": lambda b, h: b(nn.MaxPool2D(2))(h),
    "embedding of None": lambda b, h: b(nn.Embedding(5, 3))(None),
    "embedding of a number": lambda b, h: b(nn.Embedding(5, 3))(3),
    "layer norm's width": lambda b, h: b(nn.LayerNorm(in_channels=7))(h),
    "instance norm's rank": lambda b, h: b(nn.InstanceNorm(in_channels=3))(h),
    "activation": lambda b, h: b(nn.Activation("none"))(h),
    "sequence of widths": lambda b, h: b(
        nn.HybridSequential(), nn.Dense(4, in_units=3), nn.Dense(2, in_units=5)
    )(h),
    "plain sequence of widths": lambda b, h: b(
        nn.Sequential(), nn.Dense(4, in_units=3), nn.Dense(2, in_units=5)
    )(h),
    "sequence of two arguments": lambda b, h: b(nn.HybridSequential(), nn.Dense(4))(h, h),
    "item of a sequence": lambda b, h: b(nn.HybridSequential(), nn.Dense(4))[5],
    "LSTM's rank": lambda b, h: b(rnn.LSTM(**LSTM))(h),
    "LSTM's width": lambda b, h: b(rnn.LSTM(**LSTM))(wide(2, 1, 5)),
    "LSTM's states": lambda b, h: b(rnn.LSTM(**LSTM))(wide(2, 1, 3), [wide(1, 4)] * 2),
    "LSTM with one state": lambda b, h: b(rnn.LSTM(**LSTM))(wide(2, 1, 3), [wide(1, 1, 4)]),
    "cell without states": lambda b, h: b(rnn.LSTMCell(**LSTM_CELL))(h),
    "cell with None": lambda b, h: b(rnn.LSTMCell(**LSTM_CELL))(h, None),
    "cell of None": lambda b, h: b(rnn.LSTMCell(**LSTM_CELL))(None, [wide(2, 4)] * 2),
    "cell with one state": lambda b, h: b(rnn.LSTMCell(**LSTM_CELL))(h, [wide(2, 4)]),
    "cell's states": lambda b, h: b(rnn.LSTMCell(**LSTM_CELL))(h, [wide(2, 5)] * 2),
    "cell's batch": lambda b, h: b(rnn.LSTMCell(**LSTM_CELL))(h, [wide(3, 4)] * 2),
    "cell's state is a number": lambda b, h: b(rnn.GRUCell(4, input_size=3))(h, 3),
    "cell in a sequence": lambda b, h: b(rnn.SequentialRNNCell(), TWO_CELLS[0])(h, [h]),
    "bidirectional call": lambda b, h: b(rnn.BidirectionalCell(*TWO_CELLS))(h, []),
    "unroll's length": lambda b, h: b(rnn.RNNCell(4, input_size=3)).unroll(5, wide(2, 3, 3)),
    "unroll's layout": lambda b, h: b(rnn.RNNCell(4, input_size=3)).unroll(
        2, wide(2, 3, 3), layout="XYZ"
    ),
    "loss of other lengths": lambda b, h: b(CROSS_ENTROPY())(h, wide(5)),
    "loss without labels": lambda b, h: b(CROSS_ENTROPY())(h),
    "loss with None": lambda b, h: b(gluon.loss.L2Loss())(h, None),
    "loss with a number": lambda b, h: b(gluon.loss.L2Loss())(h, 1.0),
    "loss with NumPy": lambda b, h: b(gluon.loss.L2Loss())(h, np.ones((2, 3))),
    "loss with a string": lambda b, h: b(CROSS_ENTROPY())(h, wide(2), "w"),
    "no forward": lambda b, h: b(gluon.HybridBlock())(h),
    "plain block, no forward": lambda b, h: gluon.Block()(h),
    "item that is missing": lambda b, h: b(Second())(h, [h]),
    "number for a list": lambda b, h: b(Second())(h, 3),
    "dictionary for a list": lambda b, h: b(Second())(h, {"a": h}),
    "array and symbol": lambda b, h: b(Second())(h, [mx.sym.var("x")] * 2),
    "symbol block": lambda b, h: b(
        gluon.SymbolBlock(mx.sym.var("x") * 2, mx.sym.var("x"))
    )(h, h),
    "cell, no such operator": lambdas(lambda F, x: F.none(x)),
    "cell, exception": lambdas(lambda F, x: [][1]),
    "cell, shapes": lambdas(lambda F, x: F.dot(x, x)),
    "cell, axis": lambdas(lambda F, x: F.sum(x, axis=7)),
    "cell, attribute's value": lambdas(lambda F, x: F.sum(x, axis="q")),
    "cell, string": lambdas(lambda F, x: x + "a"),
    "cell, index": lambdas(lambda F, x: x[7]),
}  # fmt: skip
OPERATORS_AND_ARRAYS = {
    "dot": lambda b, h: mx.nd.dot(h, h),
    "add, shapes": lambda b, h: h + wide(5, 5),
    "subtract, dtypes": lambda b, h: h - wide(2, 3, dtype="float64"),
    "add a string": lambda b, h: h + "x",
    "add to a string": lambda b, h: "x" + h,
    "add None": lambda b, h: h + None,
    "add a list": lambda b, h: h + [1, 2, 3],
    "add a symbol": lambda b, h: h + mx.sym.var("x"),
    "times a large number": lambda b, h: h * 10**400,
    "floor division": lambda b, h: h // 2,
    "matrix product": lambda b, h: h @ h,
    "invert": lambda b, h: ~h,
    "less than a string": lambda b, h: h < "x",
    "equal, shapes": lambda b, h: h == wide(5, 5),
    "add in place, shapes": lambda b, h: h.__iadd__(wide(5, 5)),
    "add in place, None": lambda b, h: h.__iadd__(None),
    "add in place, more dimensions": lambda b, h: h.__iadd__(wide(4, 2, 3)),
    "concat, shapes": lambda b, h: mx.nd.concat(h, wide(3, 1), dim=1),
    "concat, None": lambda b, h: mx.nd.concat(h, None, dim=1),
    "concat, list": lambda b, h: mx.nd.concat([h, h], dim=1),
    "concat, nothing": lambda b, h: mx.nd.concat(dim=1),
    "concat, axis": lambda b, h: mx.nd.concat(h, h, dim=7),
    "stack, shapes": lambda b, h: mx.nd.stack(h, wide(3, 1)),
    "sum of arrays, shapes": lambda b, h: mx.nd.add_n(h, wide(3, 1)),
    "split": lambda b, h: mx.nd.split(h, num_outputs=2, axis=1),
    "slice": lambda b, h: mx.nd.slice_axis(h, axis=0, begin=5, end=9),
    "reshape": lambda b, h: h.reshape((5, 5)),
    "reshape to two unknown": lambda b, h: h.reshape((-1, -1)),
    "reshape to nothing": lambda b, h: h.reshape(),
    "reshape to None": lambda b, h: h.reshape(None),
    "reshape with a typo": lambda b, h: h.reshape(shape=(2, 3), sape=1),
    "reshape like None": lambda b, h: h.reshape_like(None),
    "squeeze": lambda b, h: h.squeeze(axis=0),
    "transpose": lambda b, h: mx.nd.transpose(h, axes=(0, 1, 2)),
    "sum, axis": lambda b, h: h.sum(axis=7),
    "sum, attribute": lambda b, h: mx.nd.sum(h, none=1),
    "norm, order": lambda b, h: h.norm(ord=5),
    "topk, result": lambda b, h: h.topk(ret_typ="none"),
    "softmax, axis": lambda b, h: h.softmax(axis=9),
    "pick": lambda b, h: h.pick(wide(5)),
    "take of a number": lambda b, h: mx.nd.take(h, 1),
    "take, mode": lambda b, h: mx.nd.take(h, wide(1), mode="none"),
    "weight left out": lambda b, h: mx.nd.FullyConnected(h, num_hidden=2),
    "bias's shape": lambda b, h: mx.nd.FullyConnected(h, wide(2, 3), wide(2, 1), num_hidden=2),
    "weight's shape": lambda b, h: mx.nd.FullyConnected(h, wide(2, 4), wide(2), num_hidden=2),
    "activation's name": lambda b, h: mx.nd.Activation(h, act_type="none"),
    "dtype": lambda b, h: h.astype("none"),
    "broadcast": lambda b, h: h.broadcast_to((5, 5)),
    "clip": lambda b, h: mx.nd.clip(h),
    "maximum of None": lambda b, h: mx.nd.maximum(h, None),
    "relu of a string": lambda b, h: mx.nd.relu("x"),
    "relu, out": lambda b, h: mx.nd.relu(h, out=wide(5, 5)),
    "no such operator": lambda b, h: mx.nd.none(h),
    "no such method": lambda b, h: h.none(),
    "custom operator": lambda b, h: mx.nd.Custom(h, op_type="none"),
    "Cholesky": lambda b, h: mx.nd.linalg.potrf(mx.nd.dot(h, h, transpose_b=True) * 0 - 1),
    "number of many": lambda b, h: h.asscalar(),
    "truth of many": lambda b, h: bool(h),
    "float of many": lambda b, h: float(h),
    "int of many": lambda b, h: int(h),
    "position of many": lambda b, h: [1, 2, 3][h],
    "branch of many": lambda b, h: 1 if h > 0 else 0,
    "complex": lambda b, h: complex(h),
    "format": lambda b, h: f"{h:.2f}",
    "largest row": lambda b, h: max(h),
    "row 9": lambda b, h: h[9],
    "row -9": lambda b, h: h[-9],
    "column 9": lambda b, h: h[0, 9],
    "three indices": lambda b, h: h[0, 0, 0],
    "index, string": lambda b, h: h["x"],
    "index, float": lambda b, h: h[1.5],
    "index, slice of strings": lambda b, h: h["a":"b"],
    "index, dictionary": lambda b, h: h[{}],
    "assign to row 9": lambda b, h: h.__setitem__(9, 1),
    "assign shapes": lambda b, h: h.__setitem__(slice(None), wide(5, 5)),
    "assign a string": lambda b, h: h.__setitem__(0, "x"),
    "delete": lambda b, h: h.__delitem__(0),
    "copy to": lambda b, h: h.copyto(wide(5, 5)),
    "to a string": lambda b, h: h.as_in_context("cpu"),
    "grad_req": lambda b, h: h.attach_grad("none"),
    "no gradient": lambda b, h: h.grad.asnumpy(),
    "restored from a number": lambda b, h: h.__setstate__(3),
    "zeros, shape": lambda b, h: mx.nd.zeros("x"),
    "zeros, dtype": lambda b, h: mx.nd.zeros((2,), dtype="none"),
    "full, string": lambda b, h: mx.nd.full((2,), "x"),
    "array of two lengths": lambda b, h: mx.nd.array([[1], [1, 2]]),
    "parameter's data": lambda b, h: b.net.weight.set_data(wide(5, 5)),
    "trainer without gradients": lambda b, h: gluon.Trainer(b.net.collect_params(), "sgd").step(1),
    "metric": lambda b, h: mx.metric.Accuracy().update([wide(5)], [h]),
    "backward, nothing recorded": lambda b, h: h.backward(),
    "backward of a list, nothing recorded": lambda b, h: autograd.backward([h]),
    "gradient, nothing recorded": lambda b, h: autograd.grad(h, [b.net.weight.data()]),
    "gradient of nothing": lambda b, h: autograd.grad(h, []),
}  # fmt: skip
#: These work in blocks that are not hybridized.
NEED_HYBRIDIZE = {
    "cell, value": lambdas(lambda F, x: x * x.sum().asscalar()),
    "cell, array": lambdas(lambda F, x: x * mx.nd.array(x.asnumpy())),
    "cell, branch": lambdas(lambda F, x: x if x.sum() > 0 else -x),
    "cell, float": lambdas(lambda F, x: x * float(x.sum())),
    "cell, no shape": lambdas(lambda F, x: x * x.shape[0]),
    "cell, mx.nd": lambdas(lambda F, x: mx.nd.relu(x)),
    "cell, weight left out": lambdas(lambda F, x: F.FullyConnected(x, num_hidden=3)),
    "cell, result None": lambdas(lambda F, x: None),
    "cell, result number": lambdas(lambda F, x: 3),
    "cell, result object": lambdas(lambda F, x: object()),
}
#: These work in hybridized blocks, where the rows of a symbol are the symbol.
NEED_ARRAYS = {
    "cell's state is an array": lambda b, h: b(rnn.GRUCell(4, input_size=3))(h, wide(2, 4)),
}
WRONG = {**BLOCKS, **OPERATORS_AND_ARRAYS, **NEED_HYBRIDIZE, **NEED_ARRAYS}
CASES = [(name, True) for name in WRONG if name not in NEED_ARRAYS]
CASES += [(name, False) for name in [*BLOCKS, *NEED_ARRAYS]]


def error_of(call, scope, blocks):
    """Return the exception of a wrong call: when it is called, read, or the scope ends."""
    try:
        with scope:
            result = call(blocks, blocks.net(array(2, 3)) * 1)
            for each in result if isinstance(result, (list, tuple)) else [result]:
                if isinstance(each, mx.nd.NDArray):
                    each.asnumpy()
    except Exception as error:
        return error
    finally:
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()


@pytest.mark.filterwarnings("ignore")  # Gluon's, of unused arguments and calls of a wrong type
@pytest.mark.parametrize("name, hybridize", CASES)
def test_a_wrong_call_raises_what_it_raises_without_a_scope(name, hybridize):
    call = WRONG[name]
    wanted = error_of(call, contextlib.nullcontext(), Blocks(hybridize, False))
    assert wanted is not None, "it is right"
    for options, convert in (({}, False), (FIXED, False), (FIXED, True)):
        got = error_of(call, gdb.batching(**options), Blocks(hybridize, convert))
        assert isinstance(got, type(wanted)), (wanted, got)


def losses_of(net, record, scope):
    with autograd.record() if record else contextlib.nullcontext(), scope:
        return [net(array(1, 3)).sum() for _ in range(2)]


#: Functions of losses and a parameter's array.
PASSES = {
    "a list twice": lambda losses, w: [autograd.backward(losses), autograd.backward(losses)],
    "an array twice": lambda losses, w: again(autograd.backward, losses[:1], losses[:1]),
    "the method twice": lambda losses, w: [losses[0].backward(), losses[0].backward()],
    "grad twice": lambda losses, w: [autograd.grad(losses, [w]), autograd.grad(losses, [w])],
    "backward and grad": lambda losses, w: [autograd.backward(losses), autograd.grad(losses, w)],
    "a result of it twice": lambda losses, w: again((losses[0] * 1).backward, (), ()),
    "a detached array": lambda losses, w: losses[0].detach().backward(),
    "something that is no parameter": lambda losses, w: autograd.grad(losses, [array(1, 3)]),
    "no parameters": lambda losses, w: autograd.grad(losses, []),
    "too few gradients": lambda losses, w: autograd.backward(losses, [None]),
    "gradients of a wrong type": lambda losses, w: autograd.backward(losses, ["x", "x"]),
    "a gradient of a wrong type": lambda losses, w: losses[0].backward("x"),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("record", [True, False], ids=["recorded", "not recorded"])
def test_a_wrong_backward_pass_raises_what_it_raises_without_a_scope(name, record):
    errors = []
    for scope in (contextlib.nullcontext(), gdb.batching(**FIXED), gdb.batching()):
        net = Blocks(True, False).net
        losses = losses_of(net, record, scope)
        with pytest.raises(Exception) as caught:
            PASSES[name](losses, net.weight.data())
        errors.append(caught.value)
    plain, *others = errors
    assert all(isinstance(error, type(plain)) for error in others)


BACKWARD = {
    "list": lambda losses, w: autograd.backward(losses),  # wrong
    "array": lambda losses, w: autograd.backward(losses[0]),  # wrong
    "method": lambda losses, w: losses[0].backward(),  # wrong
    "grad": lambda losses, w: autograd.grad(losses, [w]),  # wrong
}


@pytest.mark.parametrize("name", BACKWARD)
@pytest.mark.parametrize("record", [True, False], ids=["recorded", "not recorded"])
def test_a_second_backward_pass_names_the_line_and_the_remedy(name, record):
    net = Blocks(True, True).net
    losses = losses_of(net, record, gdb.batching(**FIXED))
    if record:
        autograd.backward(losses)
    with refused(gdb.GradientError, "autograd.backward(losses) once", "retain_graph=True"):
        BACKWARD[name](losses, net.weight.data())


def test_a_gradient_that_is_too_small_is_an_error():
    """MXNet would read memory beyond it."""
    net = Blocks(True, False).net
    with autograd.record(), gdb.batching(**FIXED):
        result = net(array(1, 3))
    assert result.size > 1
    with pytest.raises(mx.MXNetError):
        autograd.backward([result], [wide(1)])
        net.weight.grad().asnumpy()
    with contextlib.suppress(mx.MXNetError):
        mx.nd.waitall()


def test_an_array_as_states_gives_its_rows():
    """In a cell that is not hybridized, ``states[0]`` is a row of an array."""
    for kind, count in ((rnn.GRUCell, 1), (rnn.LSTMCell, 2)):
        net = kind(4, input_size=3)
        net.initialize()
        x, states = array(2, 3), array(count, 2, 4)
        wanted = net(x, states)[0].asnumpy()
        with gdb.batching(**FIXED):
            got = net(x * 1 + mx.nd.zeros((2, 3)), states)[0]
        np.testing.assert_allclose(got.asnumpy(), wanted, 1e-5, 1e-6)


def test_errors_can_be_copied_and_pickled():
    block = cell(lambda F, x: x * float(x.sum()))
    with gdb.batching(), pytest.raises(gdb.CellError) as caught:
        block(array(1, 4))
    for error in (caught.value, gdb.ShapeError("shapes", advice="none")):
        for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert type(other) is type(error) and str(other) == str(error)
            assert isinstance(other, (mx.MXNetError, DynBatchError))
