"""Values of earlier flushes of a scope as inputs of later ones, on any device."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.common import FIXED


class Products(nn.HybridBlock):
    """Reads a shared table with an operator that has no kernel, and with one that has."""

    def hybrid_forward(self, F, x, table):
        return F.linalg.gemm2(x, table) + F.dot(x, table)


def masked(x, table):
    # MXNet leaves the gradient of lengths uninitialized.
    lengths = mx.nd.BlockGrad(table.reshape(-1)[:2] * 0 + 1)
    x = mx.nd.broadcast_add(x.reshape((2, 2, 1)), lengths[0] * 0)
    return mx.nd.SequenceMask(x, lengths, True)[0] + mx.nd.SequenceLast(x, lengths, True)


PRODUCTS, TANH = Products(), nn.Activation("tanh")
PRODUCTS.hybridize()
TANH.hybridize()
#: What is done with an array of shape (1, 4) and a table of shape (4, 4) that is computed earlier.
PROGRAMS = {
    "products": PRODUCTS,
    "sequences": masked,
    "views": lambda x, table: mx.nd.concat(x, table[1:3], table.reshape((2, 8))[:, 1:5], dim=0),
    "rows": lambda x, table: table[2] * x.reshape(-1) + table[1:][0],
    "sums": lambda x, table: mx.nd.add_n(table, mx.nd.broadcast_mul(table, x), table),
    "detached": lambda x, table: mx.nd.dot(x, table.detach()[:, 1:]) + table[0, 1:],
}


@pytest.mark.parametrize("context", [mx.cpu(0), mx.cpu(1), mx.cpu_pinned()], ids=str)
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_of_an_earlier_flush(name, debug, context):
    """Operators of MXNet ask for handles of such arrays, which have none of their own."""
    # MXNet's own backward pass of such graphs fails in pinned memory.
    trained = context != mx.cpu_pinned()
    base = mx.nd.array(np.arange(16).reshape(4, 4) / 8, ctx=context)
    xs = [mx.nd.array([[1, 2, 3, number]], ctx=context) for number in range(3)]
    base.attach_grad()

    def run(flush):
        with autograd.record() if trained else autograd.pause():
            table = TANH(base)
            flush()
            results = [PROGRAMS[name](x, table) for x in xs]
            flush()
            results += [PROGRAMS[name](x, table) for x in xs]
        return results

    wanted = run(lambda: None)
    if trained:
        autograd.backward(wanted)
    gradient = base.grad.asnumpy()
    base.grad[:] = 0
    with gdb.batching(**FIXED, debug=debug) as batch:
        got = run(batch.flush)
    if trained:
        autograd.backward(got)
    np.testing.assert_allclose(base.grad.asnumpy(), gradient, 1e-4, 1e-5)
    for result, right in zip(got, wanted):
        np.testing.assert_allclose(result.asnumpy(), right.asnumpy(), 1e-5, 1e-6)
