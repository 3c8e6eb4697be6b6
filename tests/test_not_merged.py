"""What must not be merged, or is not as much as it could be."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.lower import expand
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, Binary, Unary, array, attached, cell, equal, inputs, ready, widths
from tests.common import ALL

A, JOIN = ready(Unary(prefix="not_merged_a_")), ready(Binary(prefix="not_merged_join_"))
X, Y = inputs(2)
WEIGHTS = attached([array(WIDTH, WIDTH, seed=k) for k in (2, 3)])


@ALL
def test_modes_tell_calls_apart(granularity):
    """Calls under pause() keep no gradient, so they run apart from recorded ones."""
    with autograd.record(), gdb.batching(granularity=granularity, analysis_budget=None) as batch:
        kept = [A(X), A(X * 2)]
        with autograd.pause():
            cut = [A(X), A(X * 2), A(X)]
    assert batch.report.launches == 2
    equal(kept, cut[:2])


def test_equal_zeros_are_one_value():
    """Initial states made inside the scope take no memory and no launch per sample."""
    with gdb.batching(granularity="block") as batch:
        outputs = [A(mx.nd.zeros((1, WIDTH))) for _ in range(5)]
    assert widths(batch) == [5]
    assert len(batch.plan.fills[0].externals) == 1
    equal(outputs, [A(mx.nd.zeros((1, WIDTH)))] * 5)


@ALL
@pytest.mark.parametrize("product", [False, True])
def test_other_halves_of_one_product(product, granularity):
    """Nothing but the half differs, so the two are no equal calls."""

    def half(which):
        def take(F, x, weight):
            if product:
                x = F.FullyConnected(x, weight, num_hidden=WIDTH, no_bias=True)
            return F.split(x, num_outputs=2, axis=1)[which]

        return cell(take)

    first, second = half(0), half(1)
    xs = inputs(2) if product else [mx.nd.arange(4).reshape((1, 4)).astype("int32")]
    check_against_loop(
        lambda x: [first(x, WEIGHTS[0]), second(x, WEIGHTS[0]), first(x + 1, WEIGHTS[0])], xs,
        granularity=granularity, policy="depth",
    )  # fmt: skip


def test_with_very_many_callees_nothing_is_recurrent(monkeypatch):
    """Which is right, if not the best; the table of who delivers what would get too large."""
    monkeypatch.setattr(expand, "MOST_EDGES", 0)
    check_against_loop(lambda x: JOIN(x, JOIN(x, Y)), inputs(2), granularity="operator")
