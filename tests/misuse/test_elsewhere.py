"""Lazy arrays and scopes in other threads and other processes."""

from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
from tests.cells import equal
from tests.common import FIXED, SAMPLES, output_of


def test_values_asked_for_in_other_threads_are_refused_or_right(net):
    """While they are pending, also as arguments in a scope of the other thread."""

    def asked(ask):
        with ThreadPoolExecutor(len(outputs)) as pool:
            return [pool.submit(ask, y) for y in outputs]

    def use(y):
        with gdb.batching(**FIXED):
            mx.nd.tanh(y)

    wanted = net(SAMPLES[0])
    with gdb.batching(**FIXED) as batch:
        outputs = [net(SAMPLES[0]) for _ in range(8)]
        for ask in (lambda y: y.asnumpy(), use):
            for told in asked(ask):
                assert isinstance(told.exception(), gdb.ScopeError)
                assert f"{__file__}:" in str(told.exception())
        assert all(y.pending for y in outputs)
        batch.flush()
        equal([told.result() for told in asked(lambda y: y.asnumpy())], [wanted] * 8)
    equal([told.result() for told in asked(lambda y: y.asnumpy())], [wanted] * 8)


LOADING = """
    from mxnet.gluon.data import ArrayDataset, DataLoader, SimpleDataset

    net = dense()
    net.initialize("ones", force_reinit=True)
    numbers = np.arange(24, dtype="float32").reshape(6, 4)

    def load(mode, make):
        with mode, gdb.batching(granularity="block", policy="depth") as batch:
            before = [net(mx.nd.array(row[None])) for row in numbers]
            data = make(before)
            # Workers are forked here; the loader waits for all work before: none is pending.
            loaded = list(DataLoader(data, 2, num_workers=2))
            after = [net(x.as_in_context(mx.cpu())) for x in loaded]
        print([y.asnumpy()[0, 0] for y in before])
        print([y.asnumpy()[:, 0].tolist() for y in after])
        print("flushes", len(batch.report.flushes))

    for mode in mx.autograd.record(), mx.autograd.pause():
        load(mode, lambda before: ArrayDataset(numbers))
    pairs = lambda ys: SimpleDataset([mx.nd.concat(y, y[:, :1], dim=1)[0] for y in ys])
    load(mx.autograd.pause(), pairs)
"""


def test_loader_whose_workers_are_forked_in_an_open_scope():
    """With and without gradients; a worker that gets pending arrays computes them itself."""
    told = [line for line in output_of(LOADING).splitlines() if line[:1] in ("[", "f")]
    sums = np.arange(24).reshape(6, 4).sum(axis=1).astype(float)
    first = [str(sums.tolist()), str(sums.reshape(3, 2).tolist()), "flushes 2"]
    assert told[:8] == [*first, *first, first[0], str((4 * sums).reshape(3, 2).tolist())]


TRAINING = """
    from mxnet.gluon import nn

    def skips(tied, optimizer):
        # The loss that is not finite is left out; then there are two backward passes.  Looked up,
        # a table is not read in the backward pass; as a weight, it is.
        table = nn.Embedding(9, 64)
        out = nn.Dense(9, in_units=64, params=table.params if tied else None)
        net = nn.HybridSequential()
        net.add(table, nn.Dense(64, in_units=64, activation="relu"), out)
        ready(gdb.convert(net), 0.1)
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.01})
        for step in range(6):
            with mx.autograd.record(), gdb.batching(granularity="block"):
                rows = net[0](mx.nd.arange(9))
                bad = [np.inf if i == step else 1 for i in range(9)]
                losses = [net[2](net[1](rows[i : i + 1] * bad[i])).sum() for i in range(9)]
            mx.autograd.backward([loss for i, loss in enumerate(losses) if i != step])
            trainer.step(1)
        params = net.collect_params().values()
        return all(np.isfinite(p.data().asnumpy()).all() for p in params)

    print("told", skips(False, "sgd"), skips(False, "adam"), skips(True, "adam"))
"""


@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_trainer_step_right_after_backward(engine):
    """Nothing waits between the steps: a backward pass that waited for the optimizer would hang."""
    assert output_of(TRAINING, MXNET_ENGINE_TYPE=engine).endswith("told True True True\n")
