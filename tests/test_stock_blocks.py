"""Gluon's own blocks in a scope: one recorded call each, hybridized or not."""

import mxnet as mx
import pytest
from mxnet.gluon import HybridBlock, loss, nn

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, Cells, array, attached, cell, ready
from tests.common import ALL, FIXED, several

FIRST = ready(gdb.convert(nn.Dense(WIDTH, in_units=WIDTH, prefix="first_")))


@pytest.mark.parametrize("make, others, calls", [
    (nn.BatchNorm, [], 1), (loss.SDMLLoss, [array(1, WIDTH)], 13),
    (lambda: nn.HybridLambda(lambda F, x: F.exp(x) * 2), [], 2),
])  # fmt: skip
def test_stock_blocks_are_one_call_each_and_equal_the_loop(make, others, calls):
    block = make()
    block.initialize()
    samples = [array(1, WIDTH, seed=i) for i in range(4)]
    block(FIRST(samples[0]), *others)
    params = block.collect_params().values()
    batch = check_against_loop(lambda x: block(FIRST(x), *others), samples, params, **FIXED)
    assert batch.report.nodes == len(samples) * (1 + calls)


class UserBlock(HybridBlock):
    """A block of a user, whose Python code must run each time."""

    def hybrid_forward(self, F, x):
        SEEN.append(self)
        return F.tanh(x)


SEEN = []


@pytest.mark.parametrize("code", ["block", "hook", "pre-hook"])
@pytest.mark.parametrize("kind", ["block", "within another", "hybridized", "converted"])
def test_python_code_of_users_runs_for_each_sample(kind, code):
    """Code of blocks or hooks: the calls inside a block with hooks are recorded, and merge."""
    block = UserBlock() if code == "block" else nn.Dense(WIDTH, in_units=WIDTH)
    net = several(nn.HybridSequential, block) if kind == "within another" else block
    net.initialize()
    if kind == "converted" and code != "block":
        gdb.convert(net)
    net.hybridize(kind in ("converted", "hybridized") and code != "block")
    if code == "hook":
        handle = block.register_forward_hook(lambda *args: SEEN.append(args[2].shape))
    if code == "pre-hook":
        handle = block.register_forward_pre_hook(lambda *args: SEEN.append(args[1][0].shape))
    SEEN.clear()
    with gdb.batching(**FIXED) as batch:
        results = [net(FIRST(array(1, WIDTH, seed=i))) for i in range(3)]
    assert len(SEEN) == len(results) == 3 and batch.report.launches <= 4
    if code != "block":
        assert SEEN == [(1, WIDTH)] * 3
        handle.detach()
        with gdb.batching():
            net(FIRST(array(1, WIDTH)))
        assert len(SEEN) == 3


@ALL
def test_samples_in_two_contexts_of_one_scope_equal_the_loop(granularity):
    contexts, net = [mx.cpu(0), mx.cpu(1)], Cells()
    net.initialize(mx.init.Uniform(0.8), ctx=contexts)
    net.hybridize()
    samples = attached([array(1, WIDTH, seed=i, ctx=contexts[i % 2]) for i in range(6)])

    def fn(x):
        out, state = net.child_sum(net.linear(x), [x], [x])
        return [out, net.norm(state * 2)]

    batch = check_against_loop(fn, samples, net.collect_params(), granularity=granularity)
    assert {launch.segment.context for launch in batch.plan.launches} == set(contexts)
    assert fn(samples[1])[0].context == mx.cpu(1)


@ALL
def test_results_that_are_arguments_are_passed_through(granularity):
    through = cell(lambda F, a, b: (a, F.tanh(b), b, a))
    samples = attached([array(1, 4, seed=i) for i in range(3)])
    check_against_loop(lambda x: through(x, x * 2), samples, granularity=granularity)
    with gdb.batching(granularity=granularity):
        a, _, b, same = through(*samples[:2])
    a[:] = 0
    assert (b.asnumpy() == samples[1].asnumpy()).all()
    assert (same.asnumpy() == samples[0].asnumpy()).all()
