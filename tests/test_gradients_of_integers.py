"""Gradients of integer arrays, which MXNet computes like any others, equal those of the loop."""

import numpy as np
import pytest
from mxnet import autograd, nd

import gluon_dynbatch as gdb
from gluon_dynbatch.options import GRANULARITIES
from tests.cells import array, cell, ready, unary
from tests.common import by_mxnets_operators, loop_and_scope

INTEGERS = ("int8", "uint8", "int32", "int64")
DENSE = ready(unary())

#: Programs of one sample: of two integer arrays, one of which all samples share, and a float array.
PROGRAMS = {
    "arithmetic": lambda a, b, x: [a * a + a * 3, (a + b) * 2],
    "leaves": lambda a, b, x: [(a * b).astype("float32") * x],
    "casts": lambda a, b, x: [(x * 5).astype(a.dtype).astype("float32") * x],
    "cells": lambda a, b, x: [CASTS(a, x) + CASTS(b, x)],
    "two casts": lambda a, b, x: [TWO(a, x)],
    "moves": lambda a, b, x: [nd.concat(a * 2, b, dim=0)[1:3], nd.stack(a, b * a).sum(axis=0)],
    "a deep sum": lambda a, b, x: [sum([a] * 5, b).astype("float32") * DENSE(x)],
    "an index": lambda a, b, x: [nd.take(x, (x[0, :2] + 1).astype(a.dtype)) * a.astype("float32")],
}
CASTS = cell(lambda F, a, x: F.tanh(F.cast(a, "float32") * x))
#: Each of the gradients is cut to whole numbers before they are added up.
TWO = cell(lambda F, a, x: F.cast(a, "float32") * x + F.sin(F.cast(a * 1, "float32") * 0.4))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_gradients_of_integers_equal_the_loop(name, dtype, grad_req):
    def run(scope):
        arrays = [nd.array(np.arange(8).reshape(2, 4) % k, dtype=dtype) for k in (2, 3, 4, 5)]
        floats = [array(2, 4, seed=k) for k in range(3)]
        shared, *own = arrays
        for x in (*arrays, *floats):
            x.attach_grad(grad_req)
        with autograd.record(), scope:
            results = [out for a, x in zip(own, floats) for out in PROGRAMS[name](a, shared, x)]
        heads = [nd.array(2.6 * np.ones(out.shape), dtype=out.dtype) for out in results]
        autograd.backward(results, heads)
        return [*results, *(x.grad for x in (*arrays, *floats))]

    for granularity in GRANULARITIES:
        loop_and_scope(run, granularity=granularity, policy="depth", analysis_budget=None)
    with by_mxnets_operators():
        loop_and_scope(run, granularity="block", policy="depth")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("name", ["take", "gather_nd", "a sum by index"])
def test_gradients_of_gathered_integers_equal_the_loop(name, grad_req, dtype):
    """They are computed in double precision, and only loops convert them."""
    choose = {
        "take": lambda a, index: nd.take(a, index[0]),
        "gather_nd": nd.gather_nd,
        "a sum by index": lambda a, index: nd._internal._backward_gather_nd(
            a, index * 0 + nd.array([[0, 1, 1]]), shape=(3, 2)
        ),
    }[name]

    def run(scope):
        arrays = [nd.array(np.arange(6).reshape(3, 2) * k, dtype=dtype) for k in (2, 3, 4)]
        for x in arrays:
            x.attach_grad(grad_req)
        with autograd.record(), scope:
            results = [choose(a, nd.array([[0, 2, k]])) for k, a in enumerate(arrays)]
        autograd.backward(results)
        return [*results, *(x.grad for x in arrays)]

    for granularity in GRANULARITIES:
        loop_and_scope(run, granularity=granularity, policy="depth", analysis_budget=None)


def test_casts_of_integers_have_kernels_unless_all_rows_share_the_integers():
    for batch, reason in [(casts(False), None), (casts(True), "all rows share its integers")]:
        for launch in batch.plan.launches:
            kernels = batch.plan.kernels_of(launch.number)
            assert (reason in kernels) if reason else not isinstance(kernels, str)


def casts(shared):
    integers = [nd.array([[k, 2, 3, 4]] * 2, dtype="int32") for k in range(3)]
    with autograd.record(), gdb.batching(granularity="block", policy="depth") as batch:
        for a in integers:
            CASTS(integers[0] if shared else a, array(2, 4))
    return batch
