"""Random programs of ``mx.np`` equal the loop, in values, shapes, dtypes and gradients."""

import contextlib

import mxnet as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, npx

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from tests.cells import cell
from tests.common import semantics
from tests.depth import examples

mnp = mx.np
COPIES = cell(lambda F, arrays: [F.np.copy(a) for a in arrays])
DENSE = cell(lambda F, x: F.np.tanh(F.npx.softmax(x) * 2 - F.np.mean(x, axis=-1, keepdims=True)))


def needs(ndim, fn):
    """Return a function that refuses arrays of fewer axes, as MXNet does, but too late."""

    def checked(*arrays):
        if min(x.ndim for x in arrays) < ndim:
            raise ValueError
        return fn(*arrays)

    return checked


#: Functions of one array, and of two; they fail for some shapes, which MXNet refuses as well.
UNARY = [
    mnp.tanh,
    npx.sigmoid,
    mnp.square,
    mnp.abs,
    lambda x: 2 - x * 0.5,
    lambda x: 1 / (2 + x * x),
    lambda x: x.sum(),
    needs(1, lambda x: x.mean(axis=0)),
    needs(1, lambda x: x.max(axis=-1, keepdims=True)),
    needs(2, lambda x: mnp.sum(x, axis=(0, 1))),
    lambda x: x.T,
    lambda x: x.reshape(-1),
    lambda x: x[0],
    lambda x: x[-1:],
    lambda x: x[..., 0],
    lambda x: mnp.expand_dims(x, 0),
    lambda x: x[:, ::2],
    lambda x: mnp.squeeze(x),
    needs(1, npx.log_softmax),
    needs(1, lambda x: mnp.cumsum(x, axis=0)),
    lambda x: mnp.where(x > 0, x, x * 0.1),
    lambda x: mnp.clip(x, -0.5, 0.5),
    lambda x: x.copy(),
    lambda x: mnp.stack([x, x * 2]),
    needs(1, lambda x: mnp.split(x, 2, axis=-1)[1]),
    lambda x: (x.as_nd_ndarray() * 2).as_np_ndarray(),
    lambda x: x.astype("float64"),
    needs(1, DENSE),
    needs(1, lambda x: mnp.swapaxes(x, 0, -1)),
    needs(1, lambda x: mnp.flip(x, 0)),
    lambda x: mnp.linalg.norm(x),
    lambda x: mnp.broadcast_to(x, (2, *x.shape)),
    lambda x: mnp.einsum("ij->ji", x),
    lambda x: x.reshape_view(-1),
    lambda x: x + mnp.ones(x.shape[-1:]) + x.detach(),
    lambda x: (x > 0) * x,
]
BINARY = [
    mnp.add,
    mnp.subtract,
    mnp.multiply,
    lambda x, y: x / (y * y + 1),
    mnp.maximum,
    mnp.dot,
    mnp.matmul,
    needs(1, lambda x, y: mnp.concatenate([x, y], axis=0)),
    needs(1, lambda x, y: mnp.tensordot(x, y, 1)),
    lambda x, y: mnp.einsum("ij,kj->ik", x, y),
    lambda x, y: mnp.where(x > y, x, y),
    mnp.outer,
    needs(1, lambda x, y: mnp.concatenate([x, y], axis=-1)),
    lambda x, y: mnp.stack([x, y], axis=-1),
]
SIZES = st.lists(st.integers(1, 4), max_size=3)


@st.composite
def programs(draw):
    """Draw shapes of two arguments, and steps: a function, and the values that it reads."""
    steps = []
    for number in range(draw(st.integers(3, 9))):
        fn = draw(st.sampled_from(UNARY * 2 + BINARY * 3))
        count = 2 if fn in BINARY else 1
        steps.append((fn, [draw(st.integers(0, number + 1)) for _ in range(count)]))
    return [tuple(draw(SIZES)) for _ in range(2)], steps


def run(steps, arguments):
    """Return all values of a program; a step that MXNet refuses has the value of its operand."""
    values = list(arguments)
    for fn, reads in steps:
        operands = [values[at] for at in reads]
        try:
            values.append(fn(*operands))
        except (mx.MXNetError, ValueError, IndexError, TypeError, AssertionError):
            values.append(operands[0])
    return [value for value in values if value.size <= 256]


def results(steps, samples, scope):
    """Return values and gradients of a program for all samples."""
    for a in (a for sample in samples for a in sample):
        a.attach_grad()
    with autograd.record():
        if scope is None:
            values = [v for sample in samples for v in run(steps, COPIES(list(sample)))]
        else:
            with scope:
                values = [v for sample in samples for v in run(steps, COPIES(list(sample)))]
        # A value and a view of all of it count as one head.
        heads = [v * 1 for v in values if v.dtype in (np.float32, np.float64)]
    autograd.backward(heads)
    kinds = [(isinstance(v, mnp.ndarray), v.shape, v.dtype) for v in values]
    gradients = [a.grad.asnumpy() for sample in samples for a in sample]
    return kinds, [v.asnumpy() for v in values], gradients


@examples(15)
@given(programs(), st.sampled_from(GRANULARITIES), st.booleans())
def test_random_programs_equal_the_loop(program, granularity, debug):
    shapes, steps = program
    rng = np.random.RandomState(0)
    with semantics("np"):
        samples = [[mnp.array(rng.uniform(0.2, 1, s), dtype="float32") for s in shapes]
                   for _ in range(2)]  # fmt: skip
        wanted = results(steps, samples, None)
        options = {"granularity": granularity, "policy": "depth", "debug": debug}
        got = results(steps, samples, gdb.batching(**options))
    assert got[0] == wanted[0]
    for mine, others in zip(got[1:], wanted[1:]):
        for a, b in zip(mine, others):
            np.testing.assert_allclose(a, b, 1e-3, 1e-4)


def test_gradients_that_are_given_in_a_type_that_native_code_cannot_add():
    """They are arrays of ``mx.np``, which MXNet's older operators refuse."""
    with semantics("np"):
        xs = [mnp.array([[1.0, 2.0]], dtype="float16") * k for k in (1, 2, 3)]
        given_ones = [mnp.array([[0.5, 2.0]], dtype="float16") * k for k in (1, 2, 3)]

        double = cell(lambda F, x: F.np.tanh(x * 2))

        def gradients(scope):
            for x in xs:
                x.attach_grad()
            with autograd.record(), scope:
                heads = [double(x) for x in (*xs, xs[0])]
            autograd.backward(heads, [*given_ones, given_ones[1]])
            return [x.grad.asnumpy() for x in xs]

        wanted = gradients(contextlib.nullcontext())
        for got, expected in zip(gradients(gdb.batching()), wanted):
            np.testing.assert_allclose(got, expected, 1e-2, 1e-3)
