"""BatchNorm: merged in prediction; in training call by call, running statistics included."""

from __future__ import annotations

import itertools

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import contrib, nn

import gluon_dynbatch as gdb
from gluon_dynbatch.testing import check_against_loop
from tests.cells import WIDTH
from tests.common import ALL, arrays, check, prepared, ragged


def batch_norm():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=WIDTH, flatten=False), nn.BatchNorm(in_channels=3))
    return prepared(net)


def train_batch_norm(scope):
    """Go backward once; return the network."""
    net = batch_norm()
    xs = [x.detach() for x in ragged(lengths=(2, 3, 2, 4))]
    with autograd.record(), scope:
        outputs = [net(x) for x in xs]
    autograd.backward(outputs, [y * 2 for y in outputs])
    return net


@ALL
def test_running_statistics_move_once_per_sample(granularity):
    """In whatever order the samples are launched; who reads them after backward finds them so."""
    net = train_batch_norm(gdb.batching(granularity=granularity, analysis_budget=None))
    moved = net[1].running_mean.data().asnumpy()
    mx.nd.waitall()
    np.testing.assert_array_equal(moved, net[1].running_mean.data().asnumpy())
    means = [net[0](x.detach()).mean(axis=0).asnumpy() for x in ragged(lengths=(2, 3, 2, 4))]
    ends = []
    for order in itertools.permutations(means):
        value = np.zeros(3)
        for mean in order:
            value = 0.9 * value + 0.1 * mean
        ends.append(np.allclose(moved, value, 1e-3, 1e-5))
    assert any(ends)


@ALL
def test_batch_norm_in_training_against_the_loop(granularity):
    """Each call normalises its own sample, of images and of rows, before and behind others."""
    for make, shape in ((batch_norm, (WIDTH,)), (lambda: batch_norm()[1], (3, 3, 3))):
        net = make()
        options = {"granularity": granularity, "analysis_budget": None}
        samples = arrays(*[(n, *shape) for n in (2, 3, 2)])
        parameters = net.collect_params().values()
        batch = check_against_loop(net, samples, parameters, **options)
        assert sum(one.calls for one in batch.report.alone) == len(samples)
        assert all("BatchNorm" in one.reason for one in batch.report.alone)


def test_synchronised_batch_norm_runs_alone():
    net = prepared(contrib.nn.SyncBatchNorm(in_channels=WIDTH, num_devices=1))
    samples = ragged(lengths=(2, 3, 2))
    (alone,) = check(net, samples, net).report.alone
    assert "_contrib_SyncBatchNorm can't be merged" in alone.reason
    assert alone.calls == len(samples)


def test_global_statistics_merge_in_training():
    net = prepared(nn.BatchNorm(in_channels=WIDTH, use_global_stats=True))
    check(net, ragged(), net, launches=1)
