"""Programs as users write them: contexts, sharing, long chains, results nobody holds."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet import autograd

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, Cells, array, attached, cell, gradients, make_cells
from tests.common import ALL, loop_and_scope


def check(net, fn, samples, **options):
    return check_against_loop(fn, samples, net.collect_params(), **options)


@ALL
def test_samples_on_two_contexts_in_one_scope(granularity):
    contexts, net = [mx.cpu(0), mx.cpu(1)], Cells()
    net.initialize(mx.init.Uniform(0.8), ctx=contexts)
    net.hybridize()
    samples = attached([array(1, WIDTH, seed=i, ctx=contexts[i % 2]) for i in range(6)])

    def fn(x):
        out, state = net.gate(net.linear(x), x)
        return [out, net.norm(state * 2)]

    batch = check(net, fn, samples, granularity=granularity)
    assert {launch.segment.context for launch in batch.plan.launches} == set(contexts)
    assert fn(samples[1])[0].context == mx.cpu(1)


@ALL
def test_one_array_in_every_place(granularity):
    """The same array as every argument of every cell, and as result."""
    net, (x,) = make_cells(), attached([array(1, WIDTH)])

    def fn(sample):
        out, state = net.gate(x, x)
        h, c = net.child_sum(x, [x, x, x], [x, out, x])
        return [out, h, net.lookup(x, x), net.gate(out, out)[1], x]

    check(net, fn, [0, 1, 2], granularity=granularity)
    check(net, fn, [x, x], granularity=granularity)


@ALL
def test_one_array_in_some_places(granularity):
    """What all samples share in one call, and in another do not."""
    mix = cell(lambda F, a, b, c: F.tanh(a) * b + c * 3)
    (*samples, other) = attached([array(1, 4, seed=i) for i in range(4)])

    def run(x):
        calls = [mix(x, x, x), mix(x, other, x), mix(other, other, x), mix(other, x, other)]
        return [*calls, mix(*[mix(x, x, other)] * 3)]

    check_against_loop(run, samples, granularity=granularity)


@ALL
@pytest.mark.parametrize("several", [False, True])
def test_a_weight_behind_an_operator(granularity, several):
    """It is no batched argument: each call brings a variable of its own, or all bring one."""
    weighed = cell(lambda F, x, weight: x * F.exp(F.sin(weight)))
    weights = attached([array(2, 3, seed=i) for i in range(4 if several else 1)])
    samples = [(array(2, 3, seed=10 + i), weights[i % len(weights)]) for i in range(4)]
    batch = check_against_loop(lambda x, w: weighed(x, w), samples, granularity=granularity)
    assert not batch.report.alone


@ALL
@pytest.mark.parametrize("readers", [1, 3, 12, 13, 40])
def test_a_value_with_many_readers(readers, granularity):
    """Its gradient is a sum over readers, level by level or scattered by index."""
    net, samples = make_cells(), attached([array(1, WIDTH, seed=i) for i in range(3)])

    def fn(x):
        h = net.linear(x)
        return [net.gate(h, x)[0] * (1 + k) / readers for k in range(readers)]

    check(net, fn, samples, granularity=granularity)


@ALL
def test_operands_of_one_launch_from_arenas_of_several_row_sizes(granularity):
    """Some samples bring a vector, others one row of a matrix that is normalised as a whole."""
    net, normal = make_cells(), cell(lambda F, m: F.softmax(m, axis=0))
    samples = attached([array(n, WIDTH, seed=i) for i, n in enumerate((1, 3, 1, 3))])

    def fn(x):
        return net.linear(net.other(x) if len(x) == 1 else normal(x)[1:2])

    check(net, fn, samples, granularity=granularity)


@ALL
def test_long_chains_and_wide_sums(granularity):
    net = make_cells()

    def fn(length):
        state, states = mx.nd.ones((1, WIDTH)) / length, []
        for _ in range(length):
            out, state = net.gate(state, net.norm(state))
            states.append(out)
        return [mx.nd.add_n(*states), net.child_sum(state, states, states)[0]]

    check(net, fn, [1, 7, 30, 7], granularity=granularity)


@ALL
def test_only_some_results_are_held(granularity):
    """What nobody holds is computed if it is needed, and no more is handed out."""
    net = make_cells()

    def run(scope):
        net.collect_params().zero_grad()
        with autograd.record(), scope:
            kept = []
            for i in range(6):
                out, state = net.gate(mx.nd.ones((1, WIDTH)) * i, mx.nd.ones((1, WIDTH)))
                out, state = net.gate(state, out)
                kept.append(out if i % 2 else state[0:1])
            del out, state
        autograd.backward(kept[1:])
        return [kept, gradients(net)]

    loop_and_scope(run, granularity=granularity)


@ALL
def test_results_that_are_arguments(granularity):
    through = cell(lambda F, a, b: (a, F.tanh(b), b, a))
    samples = attached([array(1, 4, seed=i) for i in range(3)])
    check_against_loop(lambda x: through(x, x * 2), samples, granularity=granularity)
    with gdb.batching(granularity=granularity):
        a, _, b, again = through(*samples[:2])
    a[:] = 0
    assert (b.asnumpy() == samples[1].asnumpy()).all()
    assert (again.asnumpy() == samples[0].asnumpy()).all()
