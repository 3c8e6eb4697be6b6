"""Writes to what a pending call reads: the call uses the value that it was recorded with."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from gluon_dynbatch.record.lazy import LazyNDArray
from tests.cells import array, equal
from tests.common import FIXED


def fill(target: mx.nd.NDArray, value: float = 9) -> None:
    target[:] = value


def eager(net: gdb.DynamicHybridBlock, x: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return what the call gives now, without recording it."""
    weight, bias = (p.data().asnumpy() for p in (net.weight, net.bias))
    return mx.nd.array(x.asnumpy() @ weight.T + bias)


def own_weights(net: Any, tmp_path: Any) -> Any:
    path = str(tmp_path / "net.params")
    net.save_parameters(path)
    net.weight.data()[:] *= 3
    return array(1, 4), lambda: net.load_parameters(path)


def gradient(name: str) -> Any:
    """Read a gradient; every access to ``x.grad`` makes an array anew, of the same memory."""

    def make(net: Any, _: Any) -> Any:
        x = net.weight.data()
        x.grad[:] = 1
        with autograd.record():
            loss = (x * x).sum()
        writes = {
            "written": lambda: fill(x.grad),
            "backward": loss.backward,
            "autograd.backward": lambda: autograd.backward([loss]),
            "zero_grad": net.collect_params().zero_grad,
        }
        return x.grad, writes[name]

    return make


def trainer_step(optimizer: str) -> Any:
    def make(net: Any, _: Any) -> Any:
        trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.5})
        with autograd.record():
            loss = net(array(1, 4)).sum()
        loss.backward()
        return array(1, 4, seed=1), lambda: trainer.step(1)

    return make


def store(name: str) -> Any:
    """Have a ``KVStore`` give out an array."""

    def make(net: Any, _: Any) -> Any:
        given, x, ones = mx.kv.create("local"), array(1, 4), mx.nd.ones((1, 4))
        if name != "broadcast":
            given.init(3, ones)
        more = () if name == "pull" else (ones,)
        return x, lambda: getattr(given, name)(3, *more, out=x)

    return make


#: From an array, what a call reads and how that is written to.
ARRAYS: Dict[str, Callable[[mx.nd.NDArray], Any]] = {
    "itself": lambda x: (x, lambda: fill(x)),
    "+=": lambda x: (x, lambda: x.__iadd__(1)),
    "element": lambda x: (x, lambda: x.__setitem__((0, 1), 9)),
    "out=": lambda x: (x, lambda: mx.nd.random.uniform(5, 6, x.shape, out=x)),
    "copyto": lambda x: (x, lambda: mx.nd.ones(x.shape).copyto(x)),
    "as numpy array": lambda x: (x, lambda: x.as_np_ndarray().__iadd__(1)),
    "changed by an operator": lambda x: (x, lambda: mx.nd.reset_arrays(x, num_arrays=1)),
    "rows": lambda x: (x, lambda: fill(x[0:1])),
    "shape": lambda x: (x, lambda: fill(x.reshape((-1,)))),
    "detached": lambda x: (x, lambda: fill(x.detach())),
    "call reads rows": lambda x: (x[0:1], lambda: fill(x)),
    "call reads a shape": lambda x: (x.reshape((4, 2)).reshape((2, 4)), lambda: fill(x)),
    "call reads what is detached": lambda x: (x.detach(), lambda: fill(x)),
    "two views": lambda x: (x[0:1], lambda: fill(x[0:2])),
    # By what exists before the call.
    "old rows": lambda x: (x, functools.partial(fill, x[0:1])),
    "old row": lambda x: (x, functools.partial(fill, x[0])),
    "old shape": lambda x: (x, functools.partial(fill, x.reshape((-1,)))),
    "old view of a view": lambda x: (
        x, functools.partial(fill, x.reshape((-1,))[2:6].reshape((2, 2))),
    ),
    "old detached": lambda x: (x, functools.partial(fill, x.detach())),
    "old numpy array": lambda x: (x, functools.partial(fill, x.as_np_ndarray())),
}  # fmt: skip

#: From a model, how its parameters are written to.
PARAMETERS: Dict[str, Callable[[Any], Any]] = {
    "set_data": lambda net: lambda: net.weight.set_data(mx.nd.ones((3, 4))),
    "[:] =": lambda net: lambda: fill(net.weight.data()),
    "+=": lambda net: lambda: net.weight.data().__iadd__(1),
    "bias": lambda net: lambda: fill(net.bias.data()),
    "view": lambda net: lambda: fill(net.weight.data()[1:2]),
    "view from before the call": lambda net: functools.partial(fill, net.weight.data()[1:2]),
    "list_data": lambda net: lambda: fill(net.weight.list_data()[0]),
    "initialize": lambda net: lambda: net.initialize(mx.init.One(), force_reinit=True),
}

OPTIMIZERS = (
    "adadelta adagrad adam adamax dcasgd ftml ftrl lamb lars nadam nag rmsprop sgd sgld signum"
)
WRITES: Dict[str, Callable[[Any, Any], Any]] = {
    **{name: lambda net, _, make=make: make(array(2, 4)) for name, make in ARRAYS.items()},
    **{
        f"parameter {name}": lambda net, _, make=make: (array(1, 4), make(net))
        for name, make in PARAMETERS.items()
    },
    "parameters loaded": own_weights,
    **{f"gradient {n}": gradient(n) for n in ("written", "backward", "autograd.backward")},
    "gradient zero_grad": gradient("zero_grad"),
    **{optimizer: trainer_step(optimizer) for optimizer in OPTIMIZERS.split()},
    **{f"store {name}": store(name) for name in ("pull", "pushpull", "broadcast")},
}


@pytest.mark.parametrize("make", WRITES.values(), ids=WRITES)
def test_write(net, tmp_path, make):
    """Compare with the loop: a call, the write, and the same call again."""
    argument, write = make(net, tmp_path)
    with gdb.batching(**FIXED) as batch:
        before, same = net(argument), net(argument)
        wanted = eager(net, argument)
        write()
        after = net(argument)
    equal([before, same, after], [wanted, wanted, eager(net, argument)])
    assert not np.allclose(before.asnumpy(), after.asnumpy()), "the write changed nothing"
    assert batch.report.forced, "the write was not noticed"


def test_result_of_an_earlier_flush_by_a_view(net):
    """A lazy array that was computed is an array from outside for the calls after that."""
    wide = gdb.convert(nn.Dense(4, in_units=4))
    wide.initialize(mx.init.Uniform(1))
    wide.hybridize()
    with gdb.batching(**FIXED) as batch:
        y = wide(array(2, 4))
        view = y[0:1]
        batch.flush()
        assert type(y) is LazyNDArray and type(view) is LazyNDArray
        z = net(y)
        wanted = eager(net, y)
        fill(view)
        again = net(y)
    equal([z, again], [wanted, eager(net, y)])


def test_many_writes_cost_one_flush(net):
    with gdb.batching(**FIXED) as batch:
        arrays = [array(1, 4, seed=i) for i in range(5)]
        outputs = [net(x) for x in arrays]
        wanted = [eager(net, x) for x in arrays]
        for x in arrays:
            x[:] = 0
    assert len(batch.report.flushes) == 1
    equal(outputs, wanted)


@pytest.mark.parametrize("update_on_kvstore", [False, True])
def test_trainer_step_on_two_devices(update_on_kvstore):
    """With several devices a ``KVStore`` writes the parameters."""
    block = gdb.convert(nn.Dense(3, in_units=4))
    devices = [mx.cpu(0), mx.cpu(1)]
    block.initialize(mx.init.Uniform(1), ctx=devices)
    block.hybridize()
    trainer = gluon.Trainer(
        block.collect_params(), "sgd", {"learning_rate": 0.5}, update_on_kvstore=update_on_kvstore
    )
    samples = [array(1, 4).as_in_context(device) for device in devices]
    with autograd.record():
        losses = [block(x).sum() for x in samples]
    autograd.backward(losses)
    wanted = [block(x) for x in samples]
    with gdb.batching(**FIXED):
        before = [block(x) for x in samples]
        trainer.step(1)
        after = [block(x) for x in samples]
    equal(before, wanted)
    equal(after, [block(x) for x in samples])
    assert not np.allclose(before[0].asnumpy(), after[0].asnumpy())


def test_backward_reads_the_parameters_of_its_own_time(net):
    """What a step writes between forward and backward does not reach the gradient."""
    x = array(1, 4)
    x.attach_grad()
    old = net.weight.data().asnumpy()
    with autograd.record(), gdb.batching(**FIXED):
        losses = [(net(x) ** 2).sum() for _ in range(2)]
    slope = 2 * eager(net, x).asnumpy() @ old
    fill(net.weight.data(), 5)
    autograd.backward(losses)
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * slope, 1e-4)
