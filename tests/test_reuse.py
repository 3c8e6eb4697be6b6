"""What is kept between flushes: compiled operators and plans."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.scope import RUNTIME
from tests.cells import WIDTH, Binary, Unary, chain, complete, inputs, ready, tree

A, JOIN = ready(Unary(prefix="reuse_a_")), ready(Binary(prefix="reuse_join_"))


@pytest.mark.parametrize("granularity", ["block", "operator"])
def test_nothing_is_compiled_for_new_widths_and_shapes(granularity):
    """CachedOps are per piece of a cell: neither the minibatch nor the trees matter."""
    cell, join = ready(Unary()), ready(Binary())

    def run(samples):
        with autograd.record(), gdb.batching(granularity=granularity) as batch:
            outputs = [tree(cell, join, s) for s in samples]
        autograd.backward(outputs)
        return batch

    x, y = inputs(2)
    before = RUNTIME.dispatcher.built
    run([complete(2, x)])
    built = RUNTIME.dispatcher.built
    assert built - before == 2
    run([complete(2, x)] * 9)
    run([(x, ((x, y), y)), complete(3, y), x, (x, y)])
    run([complete(height, x) for height in (4, 1, 0)])
    assert RUNTIME.dispatcher.built == built


def test_plans_are_reused_for_equal_graphs():
    """By structure: other values hit, another order or another shape does not."""
    x, y = inputs(2)

    def cached(samples):
        with gdb.batching(granularity="block", policy="agenda") as batch:
            outputs = [tree(A, JOIN, s) for s in samples]
        wanted = [tree(A, JOIN, s) for s in samples]
        for got, want in zip(outputs, wanted):
            np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), 1e-4, 1e-6)
        return batch.report.flushes[-1].cached

    RUNTIME.plans.clear()
    z = inputs(3)[2]
    assert not cached([(x, y), x])
    assert cached([(x, y), x])
    assert cached([(y, z), y]), "other arrays in the same places"
    assert not cached([x, (x, y)]), "the samples in another order"
    assert not cached([(x, x), x]), "one array where there were two"
    assert not cached([(x, y), x, x])
    assert cached([(x, y), x, x])
    RUNTIME.plans.clear()
    assert not cached([(x, y), x])


def test_options_are_part_of_what_a_plan_is_for():
    RUNTIME.plans.clear()

    def run(**options):
        with gdb.batching(**options) as batch:
            outputs = [chain([A, A], x) for x in inputs(4)]
        del outputs
        return batch.report.flushes[-1].cached, batch.report.launches

    assert run(granularity="block", policy="depth") == (False, 2)
    assert run(granularity="block", policy="depth") == (True, 2)
    assert run(granularity="block", policy="depth", max_rows=2) == (False, 4)
    assert run(granularity="operator", policy="depth") == (False, 2)
    assert run(granularity="block", policy="depth") == (True, 2)


def test_what_is_read_of_an_array_is_part_of_what_a_plan_is_for():
    """Other rows of an equal result, and the same rows of a larger array, make other plans."""
    RUNTIME.plans.clear()
    random = np.random.RandomState(5)
    table = mx.nd.array(random.uniform(-1, 1, (3, WIDTH)))

    def run(make):
        with gdb.batching(granularity="block", policy="depth") as batch:
            got = A(make())
        np.testing.assert_allclose(got.asnumpy(), A(make()).asnumpy(), 1e-4, 1e-6)
        return batch.report.flushes[-1].cached

    assert [run(lambda k=k: A(table)[k : k + 1]) for k in (1, 2, 1)] == [False, False, True]
    sizes = (3, 2, 3)
    assert [run(lambda n=n: mx.nd.ones((n, WIDTH))[1:2]) for n in sizes] == [False, False, True]
