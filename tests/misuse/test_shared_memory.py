"""Memory that several arrays have in common: a write to one is seen through the others."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.cells import array, cell, equal
from tests.common import SAMPLES, SCOPES, same_as_loop


def write(x: Any, value: float = 7) -> None:
    x[:] = value


#: From a pending array, everything there is afterwards; the array itself is held only if it is
#: among that.
SHARING: Dict[str, Callable[[Any], List[Any]]] = {
    "detached": lambda y: [y, m := y.detach(), write(m)],
    "array of a detached": lambda y: [y, y.detach(), write(y)],
    "detached twice": lambda y: [y, m := y.detach().detach(), write(m)],
    "view of a detached": lambda y: [y, m := y.detach()[1:], write(m)],
    "row of a detached": lambda y: [y, m := y.detach()[1], write(m)],
    "detached view": lambda y: [y, m := y[1:].detach(), write(m)],
    "shape of a detached": lambda y: [y, m := y.detach().reshape((-1,)), write(m[1:3])],
    "only a detached": lambda y: [m := y.detach(), write(m)],
    "two detached": lambda y: [m := y.detach(), y.detach(), write(m)],
    "detached and a view": lambda y: [m := y.detach(), y[0:1], write(m)],
    "parts of detached": lambda y: [m := y[0:1].detach(), y[0:2].detach(), write(m)],
    "views": lambda y: [m := y[0:2], y[1], y[1:3], write(m)],
    "views apart": lambda y: [m := y[0:1], y[1:3], write(m)],
    "read, then written": lambda y: [m := y.detach(), m * 2, m + 1, write(m), m * 3],
    "+=": lambda y: [y, m := y.detach(), m.__iadd__(1)],
    "out=": lambda y: [y, m := y.detach(), mx.nd.ones((3, 2), out=m)],
    "after a flush, read": lambda y: [y, y.asnumpy(), y * 2, m := y[0:1], write(m), y * 2],
    "one row set": lambda y: [y, y.__setitem__(0, 5)], "numpy row": lambda y: [y, y[np.int64(1)]],
    "axes": lambda y: [y[0:1, 1], y[:, 0], y],
    "after a flush": lambda y: [y, y.asnumpy(), m := y.detach(), write(m)],
    "computed when detached": lambda y: [y, m := y.detach(), m.asnumpy(), write(m)],
    "copy": lambda y: [y, m := y.copy(), write(m)],
    "flattened": lambda y: [y, m := y.flatten(), write(m)],
    "flattened in place": lambda y: [y, m := y.flatten(inplace=True), write(m)],
    "row of flattened": lambda y: [y, f := y.flatten(), m := f[1], m * 2, write(f), f[0:2]],
    "expanded": lambda y: [y, m := y.expand_dims(1), y.expand_dims(1), write(m)],
    "expanded, detached": lambda y: [y, e := y.expand_dims(0), m := e.detach(), e[0, 1:], write(m)],
    "squeezed": lambda y: [y, m := y.reshape((1, 3, 2)).squeeze(0), write(m)],
    "squeezed, views only": lambda y: [(s := y[0:1].squeeze(0))[0:1], m := s[0:2], write(m), s + 1],
}  # fmt: skip


CUTS = (
    slice(None), slice(0, 1), slice(1, 3), slice(0, 3, 2), slice(2, 3, 2), slice(None, None, -1), 1,
)  # fmt: skip


def test_basic_indices_share_memory_as_without_a_scope():
    square = cell(lambda F, x: x * x)
    keys = [(a, b) for a in CUTS for b in CUTS] + [(a,) for a in CUTS]

    def program():
        made = [square(array(3, 3, seed=i)) for i in range(len(keys))]
        parts = [y[key] for y, key in zip(made, keys)]
        read = [part * 2 for part in parts]
        for i, part in enumerate(parts):
            write(part, i)
        return lambda: [*made, *parts, *read]

    same_as_loop(program)


#: What is looked into: a recorded result, or one of several equal arrays of a creation operator,
#: which are one value in a scope until somebody looks into one.
OF = ["predicting", "recording", "constant", "constant, after the scope"]


@pytest.mark.parametrize("of", OF)
@pytest.mark.parametrize("make", SHARING.values(), ids=SHARING)
def test_arrays_with_memory_in_common(make, of):
    """A write to one is seen through all others; a copy stays what it was."""
    square = cell(lambda F, x: x * x)

    def looked_into(y):
        try:
            found = make(y.pop())
        except mx.MXNetError as error:
            # MXNet refuses to write to what it may need for a gradient.
            assert "in a computational graph" in str(error)
            return []
        return [one for one in found if isinstance(one, mx.nd.NDArray)]

    def program():
        x, other = array(3, 2), mx.nd.ones((3, 2))
        x.attach_grad()
        x.grad[:] = 5
        before = square(other)
        with autograd.record() if of == "recording" else contextlib.nullcontext():
            y = [mx.nd.ones((3, 2)) if "constant" in of else square(x)]
            found = [] if "after" in of else looked_into(y)
        after = square(other)
        return lambda: [*found, *(looked_into(y) if y else []), other, before, after, x.grad]

    same_as_loop(program)


def test_what_is_detached_gets_no_gradient():
    """Gradients of what comes before stay what they were, not zero."""
    first, second = cell(lambda F, x: x * x), cell(lambda F, x, w: F.broadcast_mul(x, w))

    def program():
        x, w, beside = array(3, 2), array(1, 2), array(3, 2)
        for one in (x, w, beside):
            one.attach_grad()
            one.grad[:] = 5
        with autograd.record():
            z = second(first(x).detach(), w)
            # One launch computes both; a gradient comes through one of them.
            y = first(beside)
            both = second(y, w) + second(y.detach(), w)
            m = both.detach()
            m.attach_grad()
            total = (m * m).sum()

        def end():
            autograd.backward([z, both, total])
            return [z, both, x.grad, w.grad, beside.grad, m.grad]

        return end

    wanted = same_as_loop(program, SCOPES)
    equal([wanted[2]], [mx.nd.ones((3, 2)) * 5])


def test_constants_of_any_kind(net):
    def run(x):
        y = net(x)
        return [
            y * mx.nd.ones((1, 3)), y + mx.nd.full((1, 3), 2.5), y + mx.nd.arange(3),
            mx.nd.dot(y, mx.nd.eye(3)), y + mx.nd.zeros_like(y), y + y.ones_like(),
            y + mx.nd.array([[1, 2, 3]]), y + 1, y + np.float32(2), mx.nd.zeros((2, 2)),
        ]  # fmt: skip

    gdb.testing.check_against_loop(run, SAMPLES[:3])


def test_memory_that_numpy_lends_may_go_when_the_scope_ends():
    """The engine is busy by then, and reads it later."""
    net = cell(lambda F, x, z: x * 2 + z)
    slow = mx.nd.ones((1200, 1200))
    for _ in range(3):
        slow = mx.nd.dot(slow, slow) / 1200
    late = slow[:1, :1000]
    with gdb.batching(granularity="block", policy="depth"):
        lent = [mx.nd.from_numpy(np.full((1, 1000), i, np.float32)) for i in range(8)]
        results = [net(x, late) for x in lent]
    del lent
    others = [np.full((1, 1000), -1, np.float32) for _ in range(64)]
    for i, result in enumerate(results):
        np.testing.assert_allclose(result.asnumpy(), np.full((1, 1000), 2 * i + 1), 1e-4)
    assert len(others) == 64
