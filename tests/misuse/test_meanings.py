"""Arrays and parameters that change after a call: the call uses them as they were.

Nearly every test runs a program as a loop, in a scope, and in a scope with ``debug=True``.
"""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.base import _LIB
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.cells import array, cell, equal
from tests.common import FIXED, same_as_loop
from tests.misuse.test_writes import numpy_of

#: Original functions of MXNet's library, whose calls no scope notices.
MARK, WRITE = _LIB.MXAutogradMarkVariables, _LIB.MXNDArraySyncCopyFromCPU


def square():
    return cell(lambda F, x: x * x)


def gradient_of(x):
    return [mx.nd.array([-7]) if x.grad is None else x.grad]


MARKS = {
    "attach_grad": lambda x: x.attach_grad(),
    "attach_grad add": lambda x: x.attach_grad("add"),
    "attach_grad null": lambda x: x.attach_grad("null"),
    "mark_variables": lambda x: autograd.mark_variables([x], [mx.nd.ones((1, 2))], "add"),
    "mark_variables, not lists": lambda x: autograd.mark_variables(x, mx.nd.ones((1, 2))),
    "several": lambda x: autograd.mark_variables(
        [mx.nd.ones((1, 2)), x], [mx.nd.ones((1, 2)), mx.nd.ones((1, 2))]
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", MARKS.values(), ids=MARKS)
@pytest.mark.parametrize("before", [True, False], ids=["a variable", "no variable"])
def test_calls_write_to_the_gradient_buffer_at_their_time(change, before):
    """The gradient of the call goes to the buffer at the time of the call, if there was one."""

    def program():
        x, factor = array(1, 2), array(1, 2, seed=1)
        factor.attach_grad()
        if before:
            x.attach_grad()
        old = gradient_of(x)
        with autograd.record():
            y = square()(x) * factor
            change(x)
            z = square()(x) * 3

        def end():
            autograd.backward([y, z])
            return [y, z, factor.grad, *old, *gradient_of(x)]

        return end

    same_as_loop(program)


def reload(net):
    values = {p.name: p.data().copy() for p in net.collect_params().values()}
    net.collect_params().load_dict(values)


CHANGES = {
    "grad_req add": lambda net: setattr(net.weight, "grad_req", "add"),
    "grad_req null": lambda net: setattr(net.weight, "grad_req", "null"),
    "grad_req write": lambda net: setattr(net.weight, "grad_req", "write"),
    "setattr": lambda net: net.collect_params().setattr("grad_req", "null"),
    "block.cast": lambda net: net.cast("float64"),
    "cast": lambda net: net.weight.cast("float64"),
    "dtype": lambda net: setattr(net.weight, "dtype", "float64"),
    "other gradients": lambda net: net.weight._init_grad(),
    "reset_ctx": lambda net: net.weight.reset_ctx(mx.cpu(0)),
    "other device": lambda net: net.collect_params().reset_ctx(mx.cpu(1)),
    "initialize": lambda net: net.initialize(mx.init.Zero(), force_reinit=True),
    "load_dict": reload,
    "other arrays": lambda net: setattr(net.weight, "_data", [mx.nd.zeros((2, 3))]),
    "attach_grad": lambda net: net.weight.data().attach_grad(),
    "_fresh_grad": lambda net: [
        setattr(p.data(), "_fresh_grad", False) for p in [net.weight] if p.grad_req != "null"
    ],
    "zero_grad": lambda net: net.collect_params().zero_grad(),
    "hybridize": lambda net: net.hybridize(static_alloc=True),
    "hybridize off": lambda net: net.hybridize(False),
}  # fmt: skip


@pytest.mark.parametrize("req", ["write", "add", "null"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_calls_use_the_parameters_at_their_time(change, req):
    def program():
        net = gdb.convert(nn.Dense(2, in_units=3, use_bias=False))
        net.initialize(mx.init.One())
        net.hybridize()
        net.weight.grad_req = req
        x = array(1, 3)
        x.attach_grad()
        old = net.weight.list_grad() if req != "null" else []
        with autograd.record():
            y = net(x)
        change(net)

        def end():
            y.backward()
            new = net.weight.list_grad() if net.weight.grad_req != "null" else []
            return [y, x.grad, *old, *new, net.weight.data(net.weight.list_ctx()[0])]

        return end

    same_as_loop(program)


def test_calls_draw_from_the_seed_at_their_time():
    net = cell(lambda F, x: F.Dropout(x, p=0.5))

    def draw(seed):
        mx.random.seed(seed)
        return net(mx.nd.ones((1, 64)))

    with autograd.train_mode():
        wanted = []
        for seed in (3, 5):
            with gdb.batching(**FIXED):
                wanted.append(draw(seed))
        with gdb.batching(**FIXED):
            got = [draw(3), draw(5)]
    for y, other in zip(got, wanted):
        np.testing.assert_array_equal(y.asnumpy(), other.asnumpy())
    assert not np.array_equal(got[0].asnumpy(), got[1].asnumpy())


def test_calls_use_the_values_before_a_data_iterator_reuses_their_memory(tmp_path):
    """MXNet's iterators write a batch over an earlier one that a pending call may read."""
    path = str(tmp_path / "data.csv")
    np.savetxt(path, np.arange(100).reshape(100, 1), delimiter=",")
    net = square()

    def program():
        batches = mx.io.CSVIter(data_csv=path, data_shape=(1,), batch_size=2)
        outputs = [net(batch.data[0]) for batch in batches]
        return lambda: outputs

    same_as_loop(program)


LENDING = {
    "function": mx.nd.to_dlpack_for_write,
    "method": lambda x: x.to_dlpack_for_write(),
    "view": lambda x: x.reshape((-1,)).to_dlpack_for_write(),
}

WAITS = {
    "waitall": lambda y: mx.nd.waitall(),
    "wait_to_read": lambda y: y.wait_to_read(),
    "asnumpy": lambda y: y.asnumpy(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("lend", LENDING.values(), ids=LENDING)
def test_calls_use_the_values_before_a_write_by_another_library(lend, wait):
    """It waits for MXNet before it writes to lent memory, in a scope as without one."""

    def program():
        x, net = array(1, 2), square()
        first = net(x)
        shared = numpy_of(lend(x))
        shared[:] = 5
        second = net(x)
        wait(second)
        shared[:] = 7
        third = net(x[0:1])
        return lambda: [first, second, third]

    same_as_loop(program)


def lent(lend, x):
    return x, mx.nd.from_dlpack(lend(x))


def of_numpy(x):
    memory = x.asnumpy()
    return mx.nd.from_numpy(memory), mx.nd.from_numpy(memory)


SHARED = {
    "lent before the scope": functools.partial(lent, mx.nd.to_dlpack_for_write),
    "a view lent": functools.partial(lent, lambda x: mx.nd.to_dlpack_for_write(x[0:1])),
    "lent for reading": functools.partial(lent, mx.nd.to_dlpack_for_read),
    "of NumPy": of_numpy,
}


@pytest.mark.parametrize("share", SHARED.values(), ids=SHARED)
def test_calls_use_the_values_before_mxnet_writes_to_shared_memory(share):
    """Two arrays of MXNet may share memory without being views of each other."""
    net = square()
    for options in ({}, {"debug": True}):
        wanted, (x, shared) = net(array(2, 2)), share(array(2, 2))
        with gdb.batching(**FIXED, **options):
            y = net(x)
            shared += 1
        mx.nd.waitall()
        equal([y, x[:1]], [wanted, array(2, 2)[:1] + 1])


def mark_unseen(x):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_LIB, "MXAutogradMarkVariables", MARK)
        x.attach_grad()


def write_unseen(x):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_LIB, "MXNDArraySyncCopyFromCPU", WRITE)
        x._sync_copyfrom(np.ones(x.shape))


UNSEEN = {
    "attach_grad": (lambda net, x: mark_unseen(x), "an array.*given another gradient"),
    "written": (lambda net, x: write_unseen(x), "an array.*was written to"),
    "parameter written": (
        lambda net, x: write_unseen(net.weight.data()),
        r"'the_dense_weight' of shape \(3, 4\).*was written to",
    ),
    "grad_req": (
        lambda net, x: net.weight.__dict__.update(_grad_req="null"), "parameter.*grad_req 'null'",
    ),
    "other arrays": (
        lambda net, x: net.weight._data.__setitem__(0, mx.nd.ones((3, 4))), "other arrays",
    ),
    "variable": (
        lambda net, x: mark_unseen(net.weight.data()), "parameter.*given another gradient",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change, text", UNSEEN.values(), ids=UNSEEN)
def test_debug_notices_what_nothing_else_sees(net, change, text):
    x, batch = array(1, 4), gdb.batching(debug=True, **FIXED)
    with pytest.raises(gdb.MismatchError, match=text), autograd.record(), batch:
        net(x)
        change(net, x)
