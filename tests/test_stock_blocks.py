"""Gluon's own blocks in a scope: one recorded call each, hybridized or not."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet.gluon import HybridBlock, loss, nn, rnn

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH, array, ready
from tests.common import FIXED, nothing_is_left_behind

__all__ = ["nothing_is_left_behind"]

FIRST = ready(gdb.convert(nn.Dense(WIDTH, in_units=WIDTH, prefix="first_")))


def sequential(*blocks):
    net = nn.HybridSequential()
    net.add(*blocks)
    return net


def deferred():
    return nn.Dense(3)


#: What makes a block, what it is called with after a lazy array, and recorded calls of each.
BLOCKS = [
    (lambda: nn.Dense(3, in_units=WIDTH, activation="tanh"), [], 1),
    (deferred, [], 1),
    (lambda: nn.LayerNorm(in_channels=WIDTH), [], 1),
    (lambda: nn.LeakyReLU(0.1), [], 1),
    (lambda: sequential(nn.Dense(5, in_units=WIDTH), nn.Dense(2, in_units=5)), [], 1),
    (loss.L2Loss, [array(1, WIDTH)], 1),
    (lambda: loss.KLDivLoss(from_logits=False), [array(1, WIDTH)], 1),
    (loss.SoftmaxCrossEntropyLoss, [mx.nd.array([1])], 1),
    (loss.SigmoidBinaryCrossEntropyLoss, [array(1, WIDTH), array(1, 1)], 1),
    (lambda: rnn.GRUCell(WIDTH, input_size=WIDTH), [[array(1, WIDTH)]], 1),
    (lambda: rnn.LSTMCell(WIDTH, input_size=WIDTH), [[array(1, WIDTH), array(1, WIDTH)]], 1),
    (lambda: nn.HybridLambda(lambda F, x: F.exp(x) * 2), [], 2),
    (lambda: nn.BatchNorm(in_channels=WIDTH), [], None),
    (loss.SDMLLoss, [array(1, WIDTH)], None),
]


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("make, others, calls", BLOCKS)
def test_a_stock_block_is_one_call(make, others, calls, hybridized):
    block = make()
    block.initialize()
    if hybridized and calls is None:
        return
    block.hybridize(hybridized)
    params = block.collect_params().values()
    samples = [array(1, WIDTH, seed=i) for i in range(4)]
    FIRST(samples[0])
    block(FIRST(samples[0]), *others)
    batch = check_against_loop(lambda x: block(FIRST(x), *others), samples, params, **FIXED)
    if calls is not None:
        assert batch.report.nodes == len(samples) * (1 + (1 if hybridized else calls))


def test_without_a_lazy_array_it_runs_at_once():
    dense = nn.Dense(3, in_units=WIDTH)
    dense.initialize()
    with gdb.batching(**FIXED) as batch:
        assert type(dense(array(1, WIDTH))) is mx.nd.NDArray
    assert batch.report.nodes == 0


class Own(HybridBlock):
    """Not MXNet's: what it does in Python is to be done each time."""

    calls = 0

    def hybrid_forward(self, F, x):
        Own.calls += 1
        return F.tanh(x)


@pytest.mark.parametrize("within", [False, True])
def test_blocks_of_the_users_run_their_python(within):
    block = sequential(Own()) if within else Own()
    Own.calls = 0
    with gdb.batching(**FIXED):
        for i in range(3):
            block(FIRST(array(1, WIDTH, seed=i)))
    assert Own.calls == 3


@pytest.mark.parametrize("inner", [False, True])
def test_hooks_run(inner):
    net = sequential(nn.Dense(WIDTH, in_units=WIDTH))
    net.initialize()
    seen = []
    (net[0] if inner else net).register_forward_hook(lambda *_: seen.append(1))
    with gdb.batching(**FIXED):
        for i in range(3):
            net(FIRST(array(1, WIDTH, seed=i)))
    assert len(seen) == 3


def test_a_zoneout_cell_keeps_its_last_output():
    cell = rnn.ZoneoutCell(rnn.RNNCell(WIDTH, input_size=WIDTH), 0.0, 0.0)
    cell.initialize()

    def two(x):
        cell.reset()
        out, states = cell(FIRST(x), [FIRST(x)])
        return cell(out, states)

    check_against_loop(two, [array(1, WIDTH, seed=i) for i in range(3)], **FIXED)


def test_structures_of_results():
    cell = rnn.LSTMCell(WIDTH, input_size=WIDTH)
    cell.initialize()
    for hybridized in (False, True):
        cell.hybridize(hybridized)
        with gdb.batching(**FIXED):
            for _ in range(2):
                x = FIRST(array(1, WIDTH))
                results = cell(x, [x, x])
                assert type(results) is tuple and type(results[1]) is list
                assert [h.shape for h in (results[0], *results[1])] == [(1, WIDTH)] * 3
