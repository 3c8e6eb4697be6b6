"""Backward passes that are queued while the program goes on."""

from __future__ import annotations

import mxnet as mx
import pytest

from gluon_dynbatch.record.recorder import STATE
from gluon_dynbatch.testing import check_against_loop
from tests.cells import attached, inputs
from tests.common import output_of

TRAINING = """
    import mxnet as mx, numpy as np, gluon_dynbatch as gdb
    from mxnet.gluon import nn

    def trained(net, optimizer):
        net.initialize(mx.init.Uniform(0.1), force_reinit=True)
        net.hybridize()
        return mx.gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.01})

    def learns(optimizer):
        net = gdb.convert(nn.HybridSequential())
        net.add(nn.Dense(64, in_units=64, activation="tanh"), nn.Dense(1, in_units=64))
        trainer, told = trained(net, optimizer), []
        samples = [mx.nd.random.normal(shape=(1, 64)) for _ in range(64)]
        for _ in range(10):
            with mx.autograd.record():
                with gdb.batching():
                    losses = [(net(x) - 1) ** 2 for x in samples]
                told.append(mx.nd.concat(*losses, dim=0).mean())
            told[-1].backward()
            trainer.step(1)
        return told[0].asscalar() > told[-1].asscalar()

    def ties():
        # Looked up, the table is not read in the backward pass; as a weight, it is.
        embedding = nn.Embedding(50, 64)
        net = nn.HybridSequential()
        net.add(embedding, nn.Dense(50, in_units=64, params=embedding.params))
        for layer in net:
            gdb.convert(layer)
        trainer = trained(net, "sgd")
        for _ in range(3):
            with mx.autograd.record(), gdb.batching(granularity="block", policy="depth"):
                losses = [(net[1](net[0](mx.nd.array([k]))) ** 2).sum() for k in range(50)]
            mx.autograd.backward(losses)
            trainer.step(1)
        return net[1].weight is embedding.weight and losses[0].asscalar() > 0

    def skips():
        # The loss that is not finite is left out; then there are two backward passes.
        net = nn.HybridSequential()
        net.add(nn.Embedding(9, 64), nn.Dense(64, in_units=64, activation="relu"))
        net.add(nn.Dense(1, in_units=64))
        for layer in net:
            gdb.convert(layer)
        trainer = trained(net, "adam")
        for step in range(6):
            with mx.autograd.record(), gdb.batching(granularity="block"):
                rows = net[0](mx.nd.arange(9))
                bad = [np.inf if i == step else 1 for i in range(9)]
                losses = [net[2](net[1](rows[i : i + 1] * bad[i])).sum() for i in range(9)]
            mx.autograd.backward([loss for i, loss in enumerate(losses) if i != step])
            trainer.step(1)
        params = net.collect_params().values()
        return all(np.isfinite(p.data().asnumpy()).all() for p in params)

    for name, does in {
        "sgd": lambda: learns("sgd"), "adam": lambda: learns("adam"), "tied": ties, "skips": skips
    }.items():
        print(name, bool(does()), flush=True)
"""


@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_trainer_step_right_after_backward(engine):
    """Nothing waits between the steps: a backward pass that waited for the optimizer would hang."""
    told = output_of(TRAINING, MXNET_ENGINE_TYPE=engine).split()[-8:]
    assert told == ["sgd", "True", "adam", "True", "tied", "True", "skips", "True"]


@pytest.mark.parametrize("ask", ["flush", "asnumpy"])
def test_leaving_in_mid_recording_keeps_gradients(net, ask):
    """A value that is asked for cuts the work in two flushes, and gradients cross the cut."""

    def run(x):
        y = net(x)
        if ask == "asnumpy":
            assert y.asnumpy().shape == (1, 3)
        elif STATE.batch is not None:
            STATE.batch.flush()
        return net(mx.nd.concat(y, x[:, :1], dim=1))

    batch = check_against_loop(run, attached(inputs(5)), net.collect_params().values())
    # Samples wait for values together.
    assert len(batch.report.flushes) == (6 if ask == "flush" else 2)
