"""Gluon's own blocks in a scope: one recorded call each, hybridized or not."""

import copy
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
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


def change_of(name, *values):
    """Return a change of an attribute to the value of a sample."""
    return lambda block, k: setattr(block, name, values[k % len(values)])


def change_stride(block, k):
    block._kwargs["stride"] = (1 + k % 2, 1)


CHANGES = {
    "a loss": (loss.HuberLoss, change_of("_rho", 1, 0.1, 2), (3,)),
    "an axis of a loss": (lambda: loss.L2Loss(batch_axis=0), change_of("_batch_axis", 0, 1), (3,)),
    "an activation": (lambda: nn.LeakyReLU(0.1), change_of("_alpha", 0.1, 0.5), (3,)),
    "a child": (lambda: several(nn.HybridSequential, nn.Dense(3, in_units=3), nn.LeakyReLU(0.1)),
                lambda block, k: setattr(block[1], "_alpha", 0.1 * k), (3,)),
    "a convolution": (lambda: nn.Conv2D(2, 2, in_channels=1), change_stride, (1, 5, 5)),
    "dropout": (lambda: nn.Dropout(0), change_of("_rate", 0, 1e-9), (3,)),
    "another child": (lambda: several(nn.HybridSequential, nn.Dense(3, in_units=3), nn.ELU(0)),
                      lambda block, k: block._children.update({"1": nn.LeakyReLU(k)}), (3,)),
    "an equal copy": (lambda: several(nn.HybridSequential, nn.ELU(0.5)),
                      lambda block, k: block._children.update({"0": copy.copy(block[0])}), (3,)),
}  # fmt: skip


@pytest.mark.parametrize("granularity", ["block", "operator"])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_block_that_is_not_hybridized_follows_its_attributes(kind, granularity):
    """Its Python code would run for each call: as in a schedule of a rate."""
    make, change, shape = CHANGES[kind]
    same = cell(lambda F, x: x * 1)
    xs = attached([array(1, *shape, seed=k) - 0.3 for k in range(7)])
    block = make()
    block.initialize(mx.init.Normal(1))
    params = [p for p in block.collect_params().values() if p.grad_req != "null"]

    def run(*scopes):
        results = []
        with autograd.record():
            for scope, part in zip(scopes, (range(4), range(4, 7))):
                with scope:  # with a lock, calls run at once
                    for k in part:
                        change(block, k)
                        x = same(xs[k])
                        results.append(block(x, x * 2) if "loss" in kind else block(x))
            losses = [(result * result).sum() for result in results]
        autograd.backward(losses)
        arrays = results + [x.grad for x in xs] + [p.grad() for p in params]
        return [a.asnumpy() for a in arrays]

    wanted = run(threading.Lock(), threading.Lock())
    options = {**FIXED, "granularity": granularity}
    for got, right in zip(run(gdb.batching(**options), gdb.batching(**options)), wanted):
        np.testing.assert_allclose(got, right, 1e-5, 1e-6)


MADE = [
    lambda x: loss.SoftmaxCrossEntropyLoss()(x, mx.nd.array([1])),
    lambda x: nn.LeakyReLU(0.2)(x), lambda x: nn.Dropout(0)(x),
    lambda x: several(nn.HybridSequential, nn.Flatten(), nn.Activation("tanh"))(x),
]  # fmt: skip


@pytest.mark.parametrize("granularity", ["block", "operator"])
@pytest.mark.parametrize("call", MADE)
def test_equal_blocks_that_samples_make_are_one(call, granularity):
    """All calls of a minibatch merge, and the next minibatch has a known plan, and no new entry."""
    options = {**FIXED, "granularity": granularity}
    samples = attached([array(1, WIDTH, seed=k) for k in range(5)])
    params = FIRST.collect_params().values()
    for expected in (0, 1, 1):
        batch = check_against_loop(lambda x: call(FIRST(x)), samples, params, **options)
        assert batch.report.launches == 2
        cached = [flush.cached for flush in batch.report.flushes]
        assert not expected or all(cached)


def test_equal_blocks_with_parameters_are_not_one():
    one, other = (nn.Dense(WIDTH, in_units=WIDTH) for _ in range(2))
    for block in (one, other):
        block.initialize(mx.init.Normal(1))
    params = [*one.collect_params().values(), *other.collect_params().values()]
    samples = [(array(1, WIDTH, seed=k), k % 2) for k in range(6)]
    check_against_loop(lambda x, k: (one, other)[k](FIRST(x)), samples, params, **FIXED)


def test_a_piece_is_of_blocks_that_it_refers_to():
    """A block that is none of its attributes may change, so it has no pieces; its own may not."""
    outer = nn.LeakyReLU(0.1)

    class Net(gdb.DynamicHybridBlock):
        def __init__(self, *held):
            super().__init__()
            self.held = held

        def forward(self, x):
            return (self.held or [outer])[0](FIRST(x))

    for net in (Net(), Net(nn.LeakyReLU(0.1))):
        net.hybridize(trace_once=True)
        for alpha in (0.1, 0.5, 0.1):
            (net.held or [outer])[0]._alpha = alpha
            samples = [array(1, WIDTH, seed=k) - 0.5 for k in range(4)]
            check_against_loop(net, samples, **FIXED)
