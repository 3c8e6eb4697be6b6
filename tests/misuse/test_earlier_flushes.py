"""Values of earlier flushes of a scope as inputs of later ones, on any device."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from tests.cells import module
from tests.common import FIXED, semantics


class Products(nn.HybridBlock):
    """Reads a shared table with an operator that has no kernel, and with one that has."""

    def hybrid_forward(self, F, x, table):
        return F.linalg.gemm2(x, table) + F.dot(x, table)


def masked(x, table):
    # MXNet leaves the gradient of lengths uninitialized.
    lengths = mx.nd.BlockGrad(table.reshape(-1)[:2] * 0 + 1)
    x = mx.nd.broadcast_add(x.reshape((2, 2, 1)), lengths[0] * 0)
    return mx.nd.SequenceMask(x, lengths, True)[0] + mx.nd.SequenceLast(x, lengths, True)


PRODUCTS = Products()
PRODUCTS.hybridize()
#: What is done with an array of shape (1, 4) and a table of shape (4, 4) that is computed earlier:
#: by arrays of `mx.np`, and by those of `mx.nd`.
NUMPY_PROGRAMS = {
    "np products": lambda x, table: mx.np.dot(x, table) + mx.np.einsum("ij,jk->ik", x, table),
    "np views": lambda x, table: mx.np.concatenate(
        [x, table[1:3], table.reshape(2, 8)[:, 1:5], table.reshape_view(8, 2)[1:5].T]
    ),
    "np elements": lambda x, table: x * table[1, 2] + table[3, 3] * table[0].sum(),
    "np rows": lambda x, table: table[2] * x.reshape_view(-1) + table[1:][0] + table.T[1],
    "np detached": lambda x, table: mx.np.dot(x, table.detach()[:, 1:]) + table[0, 1:],
    "np other class": lambda x, table: mx.nd.dot(
        x.as_nd_ndarray(), table.as_nd_ndarray()
    ).as_np_ndarray() * table[0],
    "np chosen": lambda x, table: (
        x * table[mx.np.array([0, 2])].sum(axis=0) + table[table > 0.9].sum()
    ),
}  # fmt: skip
PROGRAMS = {
    "products": PRODUCTS,
    "sequences": masked,
    "views": lambda x, table: mx.nd.concat(x, table[1:3], table.reshape((2, 8))[:, 1:5], dim=0),
    "rows": lambda x, table: table[2] * x.reshape(-1) + table[1:][0],
    "sums": lambda x, table: mx.nd.add_n(table, mx.nd.broadcast_mul(table, x), table),
    "detached": lambda x, table: mx.nd.dot(x, table.detach()[:, 1:]) + table[0, 1:],
}


@pytest.mark.filterwarnings("ignore:.*(np.bool|as_in_context):DeprecationWarning")
@pytest.mark.parametrize("context", [mx.cpu(0), mx.cpu(1), mx.cpu_pinned()], ids=str)
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize("name", [*PROGRAMS, *NUMPY_PROGRAMS])
def test_values_of_an_earlier_flush_are_inputs_as_in_the_loop(name, debug, context):
    """Operators of MXNet ask for handles of such arrays, which have none of their own."""
    with semantics("np" if name in NUMPY_PROGRAMS else "nd"):
        check_flush({**PROGRAMS, **NUMPY_PROGRAMS}[name], debug, context)


def check_flush(program, debug, context):
    # MXNet's own backward pass of such graphs fails in pinned memory.
    trained, tanh = context != mx.cpu_pinned(), nn.Activation("tanh")
    tanh.hybridize()
    base = module().array(np.arange(16).reshape(4, 4) / 8, dtype="float32", ctx=context)
    xs = [module().array([[1, 2, 3, number]], ctx=context) for number in range(3)]
    base.attach_grad()

    def run(flush):
        with autograd.record() if trained else autograd.pause():
            table = tanh(base)
            flush()
            results = [program(x, table) for x in xs]
            flush()
            results += [program(x, table) for x in xs]
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
