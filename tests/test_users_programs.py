"""Programs as users write them: contexts, nesting, sharing, long chains, results nobody holds."""

from __future__ import annotations

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.scope import GRANULARITIES
from gluon_dynbatch.testing import check_against_loop
from tests import strategies
from tests.strategies import (
    TREE_BATCH,
    WIDTH,
    Cells,
    assert_close,
    gradients,
    make_cells,
    run_sequence,
    run_tree,
    zero_gradients,
)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_samples_on_two_contexts_in_one_scope(granularity):
    contexts = [mx.cpu(0), mx.cpu(1)]
    mx.random.seed(3)
    net = Cells()
    net.initialize(mx.init.Uniform(0.8), ctx=contexts)
    net.hybridize()
    samples = []
    for i in range(6):
        x = mx.nd.random.uniform(-1, 1, (1, WIDTH)).as_in_context(contexts[i % 2])
        x.attach_grad()
        samples.append(x)

    def fn(x):
        made, state = net.gate(net.linear(x), x)
        return [made, net.norm(state * 2)]

    batch = check_against_loop(fn, samples, net.collect_params().values(), granularity=granularity)
    assert {launch.segment.context for launch in batch.plan.launches} == set(contexts)
    assert fn(samples[1])[0].context == mx.cpu(1)


def test_scopes_may_be_nested():
    net = make_cells()
    program = strategies.Program(lambda tree: run_tree(net, tree), TREE_BATCH, net)

    def fn(tree):
        with gdb.batching():
            return gdb.map(lambda t: run_tree(net, t)[0], [tree])[0]

    batch = check_against_loop(fn, program.samples, program.params)
    assert len(batch.report.flushes) == 1, "only the outer scope computes"


def test_map_returns_computed_values_in_order():
    net = make_cells()
    got = gdb.map(lambda tree: {"tree": tree, "h": run_tree(net, tree)[0]}, iter(TREE_BATCH))
    assert [one["tree"] for one in got] == TREE_BATCH
    for one in got:
        assert not getattr(one["h"], "pending", False)
        np.testing.assert_allclose(
            one["h"].asnumpy(), run_tree(net, one["tree"])[0].asnumpy(), 1e-4, 1e-5
        )


def test_samples_with_nothing_to_do():
    net = make_cells()
    x = mx.nd.ones((1, WIDTH))
    x.attach_grad()
    samples = [[], [x], [], [x, x]]
    batch = check_against_loop(
        lambda s: [net.linear(a) for a in s] + s, samples, net.collect_params().values()
    )
    assert batch.report.nodes == 3
    with gdb.batching() as batch:
        pass
    assert batch.report.flushes == [] and batch.plan is None


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_one_array_in_every_place(granularity):
    """The same array as every argument of every cell, and as result."""
    net = make_cells()
    x = mx.nd.random.uniform(-1, 1, (1, WIDTH))
    x.attach_grad()

    def fn(sample):
        made, state = net.gate(x, x)
        h, c = net.child_sum(x, [x, x, x], [x, made, x])
        return [made, h, net.lookup(x, x), net.gate(made, made)[1], x]

    check_against_loop(fn, [0, 1, 2], net.collect_params().values(), granularity=granularity)
    check_against_loop(fn, [x, x], net.collect_params().values(), granularity=granularity)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("readers", [1, 2, 3, 12, 13, 40])
def test_a_value_with_many_readers(readers, granularity):
    """Its gradient is a sum over readers, level by level or scattered by index."""
    net = make_cells()
    samples = [mx.nd.random.uniform(-1, 1, (1, WIDTH)) for _ in range(3)]
    for x in samples:
        x.attach_grad()

    def fn(x):
        h = net.linear(x)
        return [net.gate(h, x)[0] * (1 + k) for k in range(readers)]

    check_against_loop(fn, samples, net.collect_params().values(), granularity=granularity)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_long_chains_and_wide_sums(granularity):
    net = make_cells()

    def fn(length):
        state = mx.nd.ones((1, WIDTH)) / length
        states = []
        for _ in range(length):
            made, state = net.gate(state, net.norm(state))
            states.append(made)
        return [mx.nd.add_n(*states), net.child_sum(state, states, states)[0]]

    check_against_loop(fn, [1, 7, 30, 7], net.collect_params().values(), granularity=granularity)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_only_some_results_are_held(granularity):
    """What nobody holds is computed if it is needed, and no more is handed out."""
    net = make_cells()
    found = []
    for scope in (nullcontext(), gdb.batching(granularity=granularity)):
        zero_gradients(net)
        with autograd.record(), scope:
            kept = []
            for i in range(6):
                made, state = net.gate(mx.nd.ones((1, WIDTH)) * i, mx.nd.ones((1, WIDTH)))
                made, state = net.gate(state, made)
                kept.append(made if i % 2 else state[0:1])
            del made, state
        autograd.backward(kept[1:])
        found.append(({str(i): x.asnumpy() for i, x in enumerate(kept)}, gradients(net)))
    assert_close(found[0][0], found[1][0])
    assert_close(found[0][1], found[1][1])


def test_sequences_that_share_a_start():
    net = make_cells()
    start = mx.nd.zeros((1, WIDTH))
    start.attach_grad()
    samples = [
        {"words": mx.nd.array(range(n), dtype="int32"), "scale": mx.nd.ones((n, 1)), "start": start}
        for n in (2, 5, 3)
    ]
    for granularity in GRANULARITIES:
        check_against_loop(
            lambda s: run_sequence(net, s),
            samples,
            net.collect_params().values(),
            granularity=granularity,
        )
