"""Calls that join or add up many arrays: recorded in parts, with the values of one call."""

import contextlib

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.record.many_arrays import MOST_PART, MOST_WHOLE, part_sizes
from tests.cells import array, cell
from tests.common import FIXED, semantics
from tests.depth import examples

#: By interface: functions of a list of arrays of shape (1, 2).
ND = {
    "concat": lambda xs: mx.nd.concat(*xs, dim=0),
    "concat along the last axis": lambda xs: mx.nd.concat(*xs, dim=-1),
    "stack": lambda xs: mx.nd.stack(*xs),
    "stack at the end": lambda xs: mx.nd.stack(*xs, axis=-1),
    "add_n": lambda xs: mx.nd.add_n(*xs),
}
NP = {
    "concatenate": lambda xs: mx.np.concatenate(xs),
    "concatenate flat": lambda xs: mx.np.concatenate(xs, axis=None),
    "stack": lambda xs: mx.np.stack(xs, axis=1),
    "stack of single elements": lambda xs: mx.np.stack([x[0, 0] for x in xs]),
    "vstack": lambda xs: mx.np.vstack([x[0] for x in xs]),
    "hstack": lambda xs: mx.np.hstack([x[0] for x in xs]),
    "dstack": lambda xs: mx.np.dstack(xs),
    "column_stack": lambda xs: mx.np.column_stack([x[0] for x in xs]),
}
CASES = [("nd", name) for name in ND] + [("np", name) for name in NP]


@pytest.mark.parametrize("front, name", CASES)
@pytest.mark.parametrize("count", [MOST_WHOLE, MOST_WHOLE + 1, 200])
def test_many_arrays_are_joined_as_in_the_loop(front, name, count):
    """Values equal those of the loop to the last bit, and so do gradients."""
    with semantics(front):
        join, F = {"nd": ND, "np": NP}[front][name], {"nd": mx.nd, "np": mx.np}[front]
        net = cell(lambda _, x: x * 2)
        values = [np.random.randn(1, 2).astype("float32") for _ in range(count)]
        results, gradients = [], []
        for scope in (None, gdb.batching(**FIXED)):
            x = F.array(np.concatenate(values))
            x.attach_grad()
            net.hybridize(scope is not None)
            with autograd.record(), scope or contextlib.nullcontext():
                joined = join([net(x[i : i + 1]) for i in range(count)])
            weights = F.array(np.random.RandomState(1).rand(*joined.shape))
            joined.backward(weights.astype("float32"))
            results.append(joined.asnumpy())
            gradients.append(x.grad.asnumpy())
        np.testing.assert_array_equal(*results)
        np.testing.assert_array_equal(*gradients)


@given(st.integers(1, 5000))
def test_parts_are_few_and_of_few_sizes(count):
    sizes = part_sizes(count)
    assert sum(sizes) == count and sizes == sorted(sizes, reverse=True)
    assert all(size in (128, 256, 512, 1024) for size in sizes[:-1])
    assert sizes[-1] <= MOST_WHOLE or len(sizes) == 1 or sizes[-1] in (128, 256, 512, 1024)
    assert len(sizes) <= 1 + count // MOST_PART + 4


@given(st.lists(st.integers(129, 300), min_size=2, max_size=3))
@examples(5)
def test_parts_of_all_calls_share_launches(counts):
    """Those of one minibatch take two launches: one joins the parts of all, one the results."""
    net = cell(lambda F, x: x + 1)
    x = array(1, 2)
    with gdb.batching(**FIXED) as batch:
        joined = [mx.nd.concat(*[net(x) for _ in range(count)], dim=0) for count in counts]
    assert [y.shape for y in joined] == [(count, 2) for count in counts]
    assert batch.report.launches <= 3


@pytest.mark.parametrize("name", ["vstack", "dstack", "column_stack"])
def test_joins_of_other_numbers_of_arrays_that_change_shapes_are_reported(name):
    """An operator of mx.np that is several of mx.nd."""
    with semantics("np"):
        net, x = cell(lambda F, x: x + 1), mx.np.ones((2,))
        with gdb.batching(**FIXED) as batch:
            joined = [getattr(mx.np, name)([net(x) for _ in range(count)]) for count in (2, 3)]
        assert all((y.asnumpy() == 2).all() for y in joined)
    (found,) = batch.report.findings
    assert found.kind == "split" and found.calls == 2 and found.name.endswith(name)
    assert "number of arrays differs" in found.reason and "mx.np.concatenate" in found.advice
