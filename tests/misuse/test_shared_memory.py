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


@pytest.mark.parametrize("recorded", [False, True], ids=["predicting", "recording"])
@pytest.mark.parametrize("make", SHARING.values(), ids=SHARING)
def test_arrays_with_memory_in_common(make, recorded):
    """A write to one is seen through all others; a copy stays what it was."""
    square = cell(lambda F, x: x * x)

    def program():
        x = array(3, 2)
        x.attach_grad()
        x.grad[:] = 5
        with autograd.record() if recorded else contextlib.nullcontext():
            try:
                found = make(square(x))
            except mx.MXNetError as error:
                # MXNet refuses to write to what it may need for a gradient.
                assert "in a computational graph" in str(error)
                found = [array(1, 1)]
        found = [one for one in found if isinstance(one, mx.nd.NDArray)]
        return lambda: [*found, x.grad]

    same_as_loop(program, SCOPES)


def test_what_is_detached_gets_no_gradient():
    """Gradients of what comes before stay what they were, not zero."""
    first, second = cell(lambda F, x: x * x), cell(lambda F, x, w: F.broadcast_mul(x, w))

    def program():
        x, w = array(3, 2), array(1, 2)
        for one in (x, w):
            one.attach_grad()
            one.grad[:] = 5
        with autograd.record():
            z = second(first(x).detach(), w)

        def end():
            z.backward()
            return [z, x.grad, w.grad]

        return end

    wanted = same_as_loop(program, SCOPES)
    equal([wanted[1]], [mx.nd.ones((3, 2)) * 5])


def test_detached_beside_what_is_not():
    """One launch computes both; a gradient comes through one of them."""
    first, second = cell(lambda F, x: x * x), cell(lambda F, x: x * 3)

    def program():
        x = array(3, 2)
        x.attach_grad()
        with autograd.record():
            y = first(x)
            z = second(y) + second(y.detach())
            m = z.detach()
            m.attach_grad()
            total = (m * m).sum()

        def end():
            autograd.backward([z, total])
            return [z, x.grad, m.grad]

        return end

    same_as_loop(program, SCOPES)


CONSTANTS: Dict[str, Callable[[Any], List[Any]]] = {
    "written": lambda z: [z, write(z)], "row": lambda z: [z, z.__setitem__(0, 5)],
    "view": lambda z: [z, v := z[0:1], write(v)], "held view": lambda z: [z, z[0:1], write(z)],
    "one row": lambda z: [z, v := z[1], write(v)], "numpy row": lambda z: [z[np.int64(1)], z],
    "shape": lambda z: [z, v := z.reshape((-1,)), write(v[1:2])],
    "flat": lambda z: [z, v := z.flatten(), write(v)],
    "expanded": lambda z: [z, v := z.expand_dims(0), write(v)],
    "squeezed": lambda z: [z, v := z.expand_dims(0).squeeze(0), write(v)],
    "detached": lambda z: [z, v := z.detach(), write(v)],
    "axes": lambda z: [z[0:1, 1], z[:, 0], z],
}  # fmt: skip


@pytest.mark.parametrize("name", ["zeros", "ones"])
@pytest.mark.parametrize("make", CONSTANTS.values(), ids=CONSTANTS)
def test_views_of_what_a_creation_operator_made(make, name):
    """Equal arrays are one value in a scope, until somebody looks into one."""
    square = cell(lambda F, x: x * x)

    def program():
        one, other = (getattr(mx.nd, name)((2, 2)) for _ in range(2))
        before = square(one)
        found = [x for x in make(one) if isinstance(x, mx.nd.NDArray)]
        after = square(one)
        return lambda: [before, after, other, *found]

    same_as_loop(program)


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a.__setitem__(slice(None), 5),
        lambda a: a.__setitem__((0, 1), 5),
        lambda a: a.__setitem__(0, mx.nd.array([7, 8, 9])),
        lambda a: a.__iadd__(2),
        lambda a: a.__imul__(3),
        lambda a: mx.nd.ones((1, 3)).copyto(a),
        lambda a: mx.nd.elemwise_add(a, a, out=a),
        lambda a: a.__setitem__(slice(0, 1), 5),
    ],
)
def test_constant_that_is_written_to_after_the_scope(net, write):
    with gdb.batching():
        first, second, third = (mx.nd.ones((1, 3)) for _ in range(3))
        y = net(SAMPLES[0]) * second
    expected = mx.nd.ones((1, 3))
    write(first)
    write(expected)
    equal(
        [first, second, third, y],
        [expected, mx.nd.ones((1, 3)), mx.nd.ones((1, 3)), net(SAMPLES[0])],
    )
    write(y)
    equal([second], [mx.nd.ones((1, 3))])


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
    slow = mx.nd.ones((2000, 2000))
    for _ in range(3):
        slow = mx.nd.dot(slow, slow) / 2000
    late = slow[:1, :1000]
    with gdb.batching(granularity="block", policy="depth"):
        lent = [mx.nd.from_numpy(np.full((1, 1000), i, np.float32)) for i in range(8)]
        results = [net(x, late) for x in lent]
    del lent
    others = [np.full((1, 1000), -1, np.float32) for _ in range(64)]
    for i, result in enumerate(results):
        np.testing.assert_allclose(result.asnumpy(), np.full((1, 1000), 2 * i + 1), 1e-4)
    assert len(others) == 64
