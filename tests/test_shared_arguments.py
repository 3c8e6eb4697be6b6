"""Arguments that are not batched: each call brings a variable of its own, or all bring one."""

from __future__ import annotations

import pytest
from mxnet import nd

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop


class Weighed(gdb.DynamicHybridBlock):
    """Reads its weight by way of another operator, which depends on nothing else."""

    def hybrid_forward(self, F, x, weight):
        return x * F.exp(F.sin(weight))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("granularity", ["block", "operator", "graph"])
def test_a_weight_behind_an_operator_gets_its_gradient(granularity, several):
    """At granularity `operator`, only the product is the sample's own."""
    net = Weighed()
    net.hybridize()
    weights = [nd.random.normal(shape=(2, 3)) for _ in range(4 if several else 1)]
    for weight in weights:
        weight.attach_grad()
    samples = [(nd.random.normal(shape=(2, 3)), weights[i % len(weights)]) for i in range(4)]
    batch = check_against_loop(lambda sample: net(*sample), samples, granularity=granularity)
    assert not batch.report.alone
