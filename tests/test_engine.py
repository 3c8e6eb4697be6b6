"""What scopes ask of MXNet's engine: separate memories, a bounded queue, any size of memory."""

import ctypes

import mxnet as mx
import pytest

import gluon_dynbatch as gdb
from tests.cells import dense
from tests.common import SAMPLES, SCOPES, output_of


def memory_of(array):
    """Return the address of MXNet's record of an array's memory."""
    return ctypes.c_size_t.from_address(array.handle.value).value


@pytest.mark.parametrize("options", SCOPES)
def test_arrays_have_memories_of_their_own(options):
    """MXNet's engine queues operations by memory, so arrays that share one wait for each other."""
    net = dense(4, 4)
    with gdb.batching(**options) as batch:
        arrays = [net(sample) for sample in SAMPLES]
        arrays += [mx.nd.sum(array) for array in arrays]
        for array in list(arrays):
            array.attach_grad()
            arrays.append(array.grad)
        batch.flush()
        arrays += [array * 2 for array in arrays]
    assert len(set(map(memory_of, arrays))) == len(arrays)


WAITING = """
import faulthandler
faulthandler.dump_traceback_later(60, exit=True)
from tests.cells import SQUARING

net = dense(3, 3)

class Times(autograd.Function):
    def forward(self, x):
        self.save_for_backward(x)
        return x * x

    def backward(self, d):
        return 2 * d * self.saved_tensors[0].asnumpy().sum()

def with_function():
    x = net(mx.nd.ones((1, 3)))
    x.attach_grad()
    with autograd.record():
        y = Times()(x)
    y.backward()
    return x.grad

def with_given_gradient():
    x, gradient = net(mx.nd.ones((1, 3))), net(mx.nd.ones((1, 3)))
    autograd.mark_variables([x], [gradient])
    with autograd.record():
        y = Times()(x)
    y.backward()
    return gradient

def after_a_decision():
    x = net(mx.nd.ones((1, 3)))
    x.attach_grad()
    with autograd.record():
        best = int(x.argmax(axis=1).asscalar())
        loss = mx.nd.log_softmax(x)[0, best]
    loss.backward()
    return x.grad

def with_an_update_in_place():
    x, target = net(mx.nd.ones((1, 3))), net(mx.nd.ones((1, 3)))
    target.wait_to_read()
    x.attach_grad()
    with autograd.record():
        y = Times()(x)
    y.backward()
    target -= x.grad
    return target

def with_an_operator_in_python():
    x, y = net(mx.nd.ones((1, 3))), net(mx.nd.ones((1, 3)))
    mx.nd.Custom(mx.nd.relu(x), out=y, **SQUARING)
    return x + y

for program in list(vars().values()):
    if getattr(program, "__module__", None) == "__main__" and program is not Times:
        wanted = program()
        with gdb.batching(granularity="block", policy="depth"):
            got = program()
        equal([got], [wanted])
        print(program.__name__)
"""


def test_functions_in_python_read_arrays_beside_those_that_they_write():
    """Of arrays of one flush, a backward pass in Python reads some and writes others."""
    assert len(output_of(WAITING).split()) == 5
