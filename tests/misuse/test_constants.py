"""What creation operators make in a scope: one value for all, and yet each sample's own."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from tests.cells import equal
from tests.common import SAMPLES


def test_constants_are_each_samples_own(net):
    with gdb.batching():
        zeros = [mx.nd.zeros((1, 3)) for _ in range(3)]
        sums = [z + net(x) for z, x in zip(zeros, SAMPLES)]
        zeros[1][:] = 5
        after = [z + net(x) for z, x in zip(zeros, SAMPLES)]
    equal(zeros, [mx.nd.zeros((1, 3)), mx.nd.ones((1, 3)) * 5, mx.nd.zeros((1, 3))])
    equal(sums, [net(x) for x in SAMPLES[:3]])
    equal(after, [z + net(x) for z, x in zip(zeros, SAMPLES)])


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


@pytest.mark.parametrize("rows", [1, 2])
def test_view_of_a_constant_that_is_written_to_in_the_scope(net, rows):
    """Eagerly, a view shares memory with its array."""

    def run() -> Any:
        state = mx.nd.zeros((3, 3))
        for i in range(rows):
            state[i] = net(SAMPLES[i])[0]
        return state

    wanted = run()
    with gdb.batching():
        got = run()
    equal([got], [wanted])


def test_constants_of_any_kind(net):
    def run(x):
        y = net(x)
        return [
            y * mx.nd.ones((1, 3)), y + mx.nd.full((1, 3), 2.5), y + mx.nd.arange(3),
            mx.nd.dot(y, mx.nd.eye(3)), y + mx.nd.zeros_like(y), y + y.ones_like(),
            y + mx.nd.array([[1, 2, 3]]), y + 1, y + np.float32(2), mx.nd.zeros((2, 2)),
        ]  # fmt: skip

    gdb.testing.check_against_loop(run, SAMPLES[:3])


def test_random_creation_is_drawn_for_each_sample(net):
    with gdb.batching():
        noise = [mx.nd.random.normal(shape=(1, 3)) for _ in range(3)]
        got = [net(x) + n for x, n in zip(SAMPLES, noise)]
    assert len({tuple(n.asnumpy().ravel()) for n in noise}) == 3
    equal(got, [net(x) + n for x, n in zip(SAMPLES, noise)])
