"""Gradients that MXNet knows to be zero, of results of a scope that go through other operators."""

import contextlib

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.cells import array, cell, equal
from tests.common import FIXED, filled_memory, semantics
from tests.depth import examples

#: Operators whose operands MXNet's tape does not hold.
PASSING = [
    lambda x: 2 * x, lambda x: -x, lambda x: x.reshape((-1,)), lambda x: x[0:1] + 1,
    lambda x: x.reshape((-1, 1)), lambda x: x.sum(axis=-1, keepdims=True), lambda x: x.T,
]  # fmt: skip
#: Operators whose gradients are zero.
ENDING = [
    mx.nd.BlockGrad, mx.nd.round, mx.nd.sign, mx.nd.ones_like, lambda x: x > 0.1,
    lambda x: mx.nd.broadcast_greater(x, x), lambda x: mx.nd.argmax(x.reshape((1, -1)), axis=1),
]  # fmt: skip
CELLS = {
    "nd": cell(lambda F, x: (F.tanh(x), F.sum(x * x, axis=1), F.negative(x))),
    "np": cell(lambda F, x: (F.np.tanh(x), F.np.sum(x * x), -x)),
}
PROGRAMS = st.lists(
    st.tuples(
        st.integers(0, 11), st.lists(st.sampled_from(PASSING), max_size=3), st.sampled_from(ENDING)
    ),
    min_size=1,
    max_size=4,
)


def as_nd(x):
    return x.as_nd_ndarray() if isinstance(x, mx.np.ndarray) else x


def gradients(front, scope, program, inside, late, grad_req):
    """Return the gradients of samples after a backward pass from what a program does to results.

    `inside` says whether the scope is still open; `late` are results that a gradient reaches.
    """
    CELLS[front].hybridize(scope is not None)
    samples = [as_nd(array(k % 2 + 1, 3)) * k for k in range(1, 5)]
    if front == "np":
        samples = [x.as_np_ndarray() for x in samples]
    for x in samples:
        x.attach_grad(grad_req)
    with autograd.record(), contextlib.ExitStack() as stack:
        stack.enter_context(scope or contextlib.nullcontext())
        results = [y for x in samples for y in CELLS[front](x)]
        if not inside:
            stack.close()
        heads = [_through(results[at], steps, end) for at, steps, end in program]
        heads += [as_nd((2 * results[at]).sum()) for at in late]
    for retained in (True, False):
        autograd.backward(heads, retain_graph=retained)
    return [x.grad.asnumpy() for x in samples]


def _through(x, steps, end):
    for step in steps:
        x = step(x) if x.shape else x
    return as_nd(end(as_nd(x))).astype("float32").sum()


@pytest.mark.parametrize("front", ["nd", "np"])
@pytest.mark.parametrize("inside", [False, True])
@given(PROGRAMS, st.lists(st.integers(0, 11), max_size=2), st.sampled_from(["write", "add"]))
@examples(20)
def test_gradients_that_are_known_to_be_zero(front, inside, program, late, grad_req):
    with semantics(front), filled_memory():
        wanted = gradients(front, None, program, inside, late, grad_req)
        found = gradients(front, gdb.batching(**FIXED), program, inside, late, grad_req)
    equal(wanted, found)


@pytest.mark.parametrize("large", [False, True])
def test_results_of_many_types(large):
    shapes = [(2, 3), (2, 3), (1, 3), (4096 * large + 1, 3), (4096 * large + 1, 3)]
    double = cell(lambda F, x: 2 * x)
    for dtype in ("float16", "float32", "float64", "int32"):
        samples = [mx.nd.ones(shape, dtype=dtype) for shape in shapes]
        for x in samples:
            x.attach_grad()
        with autograd.record():
            with gdb.batching(**FIXED):
                results = [double(x) for x in samples]
            blocked = [mx.nd.BlockGrad(-y).sum() for y in results]
            heads = [*blocked, (results[0] * 3).sum()]
        autograd.backward(heads)
        assert [x.grad.asnumpy().max() for x in samples] == [6, 0, 0, 0, 0]
