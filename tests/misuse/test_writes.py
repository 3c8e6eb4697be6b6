"""Writes to what a pending call reads: the call uses the value that it was recorded with."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable, Dict, List

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.base import _LIB

import gluon_dynbatch as gdb
from tests.cells import array, dense
from tests.common import FIXED, same_as_loop

Change = Callable[[Any], Any]


def fill(target: mx.nd.NDArray, value: float = 9) -> None:
    target[:] = value


def numpy_of(capsule: Any) -> np.ndarray:
    """Return NumPy's view of what a capsule lends, as another library would write to it."""
    shared = mx.nd.from_dlpack(capsule)
    KEPT.append(shared)
    address = ctypes.c_void_p()
    mx.base.check_call(_LIB.MXNDArrayGetData(shared.handle, ctypes.byref(address)))
    words = (ctypes.c_float * shared.size).from_address(address.value)
    return np.frombuffer(words, dtype=np.float32)


KEPT: List[Any] = []

# Writes


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
    "lent": lambda net: lambda: fill(numpy_of(mx.nd.to_dlpack_for_write(net.weight.data()))),
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
def test_write(tmp_path, make):
    """A call, the write, and the same call again."""

    def program():
        net = dense()
        argument, write = make(net, tmp_path)
        before, same = net(argument), net(argument)
        write()
        after = net(argument)
        return lambda: [before, same, after, argument, *(p.data() for p in (net.weight, net.bias))]

    before, _, after, *_ = same_as_loop(program)
    assert not np.allclose(before.asnumpy(), after.asnumpy()), "the write changed nothing"


def test_backward_reads_the_parameters_of_its_own_time(net):
    """What a step writes between forward and backward does not reach the gradient."""
    x = array(1, 4)
    x.attach_grad()
    slope = 2 * net(x).asnumpy() @ net.weight.data().asnumpy()
    with autograd.record(), gdb.batching(**FIXED):
        losses = [(net(x) ** 2).sum() for _ in range(2)]
    fill(net.weight.data(), 5)
    autograd.backward(losses)
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * slope, 1e-4)


def test_many_writes_cost_one_flush_and_to_what_no_call_reads_none(net):
    """A view is another variable than the array that it looks into."""
    whole, other = array(4, 4), dense()
    with autograd.record(), gdb.batching(**FIXED) as batch:
        rows = [whole[i : i + 1] for i in range(4)]
        for x in rows:
            x.attach_grad()
        outputs = [net(x) for x in rows]
        whole.attach_grad()
        other.weight.grad_req = "add"
        other.cast("float64")
        other.initialize(force_reinit=True)
        unread = array(2, 4)
        unread[:] = 0
        unread[0:1] += 2
        mx.nd.to_dlpack_for_write(array(1, 2))
        mx.nd.to_dlpack_for_read(rows[0])
        assert all(y.pending for y in outputs)
    assert batch.report.launches == 1 and not batch.report.forced
    with gdb.batching(**FIXED) as batch:
        outputs = [net(x) for x in rows]
        for x in rows:
            x[:] = 0
    assert len(batch.report.flushes) == 1
