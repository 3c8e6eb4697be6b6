"""Writing into lazy arrays, and assigning them to others."""

# ruff: noqa: F811
from __future__ import annotations

from typing import Any, Callable, Dict

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from tests.misuse.shift import SHAPE, real, same, shift, values

__all__ = ["shift"]

# Writing in place

WRITES: Dict[str, Callable[[Any], Any]] = {
    "+= number": lambda y: y.__iadd__(2), "+= array": lambda y: y.__iadd__(mx.nd.ones(SHAPE)),
    "-=": lambda y: y.__isub__(2), "*=": lambda y: y.__imul__(2), "/=": lambda y: y.__itruediv__(2),
    "%=": lambda y: y.__imod__(0.3), "+= itself": lambda y: y.__iadd__(y),
    "[:] = number": lambda y: y.__setitem__(slice(None), 3),
    "[:] = array": lambda y: y.__setitem__(slice(None), real() * 2),
    "[:] = NumPy": lambda y: y.__setitem__(slice(None), values()),
    "[1] = number": lambda y: y.__setitem__(1, 3), "[1] = row": lambda y: y.__setitem__(1, y[0]),
    "[1:3] = list": lambda y: y.__setitem__(slice(1, 3), [[1, 2]]),
    "[:, 0] =": lambda y: y.__setitem__((slice(None), 0), 3),
    "[0, 1, 1] =": lambda y: y.__setitem__((0, 1, 1), 9),
    "[[0, 2]] =": lambda y: y.__setitem__([0, 2], 3),
    "[...] =": lambda y: y.__setitem__(Ellipsis, 1),
    "out=": lambda y: mx.nd.elemwise_mul(y, y, out=y), "copyto": lambda y: real().copyto(y),
    "row[:] =": lambda y: y[1].__setitem__(slice(None), 3),
    "rows += 1": lambda y: y[1:3].__iadd__(1),
    "reshaped[:] =": lambda y: y.reshape((-1,)).__setitem__(slice(0, 5), 3),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writing_in_place(shift, write):
    """A write changes the array itself and nothing else, before a flush and after."""
    wanted = real()
    write(wanted)
    with gdb.batching(policy="depth"):
        before = shift(mx.nd.array(values()), 1)
        double = before * 2
        write(before)
        more = before * 3
        flushed = shift(mx.nd.array(values()), 1)
        flushed.asnumpy()
        write(flushed)
        later = shift(mx.nd.array(values()), 1)
        untouched = shift(mx.nd.array(values()), 1)
    write(later)
    for y in (before, flushed, later):
        same(y, wanted)
    same(double, real() * 2)
    same(more, wanted * 3)
    same(untouched, real())


def test_augmented_assignment_keeps_the_object(shift):
    with gdb.batching(policy="depth"):
        y = alias = shift(mx.nd.array(values()), 1)
        y += 1
        assert y is alias
        y *= 2
    same(alias, (real() + 1) * 2)


@pytest.mark.parametrize("where", ["pending", "after"])
@pytest.mark.parametrize(
    "key", [slice(None), 1, (1, 2), slice(1, 3), (slice(None), 0), (0, 1, 1), [0, 2]], ids=str
)
def test_assigned_to_a_real_array(shift, key, where):
    wanted = mx.nd.zeros(SHAPE)
    wanted[key] = real()[key]
    got = mx.nd.array(np.zeros(SHAPE))
    with gdb.batching(policy="depth"):
        y = shift(mx.nd.array(values()), 1)
        if where == "pending":
            got[key] = y[key]
    if where == "after":
        got[key] = y if key == slice(None) else y[key]
    same(got, wanted)


def test_parameter_set_to_a_lazy_array():
    parameter = mx.gluon.Parameter("p", shape=(2, 2))
    parameter.initialize()
    with gdb.batching(policy="depth"):
        parameter.set_data(mx.nd.ones((2, 2)))
    same(parameter.data(), mx.nd.ones((2, 2)))
