"""Backward passes that are queued while the program goes on, or ends."""

from __future__ import annotations

import mxnet as mx
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch.record.recorder import STATE
from tests.misuse.common import array, output_of

SAMPLES = [array(1, 4) * i for i in range(1, 6)]

TRAINING = """
    import mxnet as mx
    import gluon_dynbatch as gdb

    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(64, in_units=64, activation="tanh"))
    net.add(mx.gluon.nn.Dense(1, in_units=64))
    gdb.convert(net)
    net.initialize()
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "{optimizer}", {{"learning_rate": 0.01}})
    samples = [mx.nd.random.normal(shape=(1, 64)) for _ in range(64)]
    first = None
    for _ in range(10):
        with mx.autograd.record():
            with gdb.batching():
                losses = [(net(x) - 1) ** 2 for x in samples]
            loss = mx.nd.concat(*losses, dim=0).mean()
        loss.backward()
        trainer.step(1)
        first = loss if first is None else first
    print(first.asscalar() > loss.asscalar())
"""


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_trainer_step_right_after_backward(optimizer, engine):
    """Nothing waits between the steps: a backward pass that waited for the optimizer would hang."""
    program = TRAINING.format(optimizer=optimizer)
    assert output_of(program, MXNET_ENGINE_TYPE=engine).split()[-1] == "True"


TIED = """
    import mxnet as mx
    import gluon_dynbatch as gdb

    embedding = gdb.convert(mx.gluon.nn.Embedding(50, 64))
    scores = gdb.convert(mx.gluon.nn.Dense(50, in_units=64, params=embedding.params))
    for layer in (embedding, scores):
        layer.initialize(force_reinit=True)
        layer.hybridize()
    trainer = mx.gluon.Trainer(scores.collect_params(), "sgd", {"learning_rate": 0.1})
    words = [mx.nd.array([k]) for k in range(50)]
    for _ in range(3):
        with mx.autograd.record():
            with gdb.batching(granularity="block", policy="depth"):
                losses = [(scores(embedding(word)) ** 2).sum() for word in words]
        mx.autograd.backward(losses)
        trainer.step(1)
    print(scores.weight is embedding.weight, losses[0].asscalar() > 0)
"""


def test_trainer_step_on_a_table_that_is_also_a_weight():
    """Looked up, it is not read in the backward pass; as the weight of a product, it is."""
    assert output_of(TIED).split()[-2:] == ["True", "True"]


LATE = """
    import mxnet as mx
    import gluon_dynbatch as gdb

    net = gdb.convert(mx.gluon.nn.Dense(3, in_units=4))
    net.initialize()
    net.hybridize()
    late = mx.nd.ones((1500, 1500))
    for _ in range(6):
        late = mx.nd.dot(late, late) * 0
    with mx.autograd.record(), gdb.batching():
        losses = [net(late[:1, :4]) for _ in range(3)]
    mx.autograd.backward(losses)
    print("end of the program")
"""


def test_process_that_ends_while_a_backward_pass_is_queued():
    """MXNet stops the threads of custom functions first and waits for all work afterwards."""
    assert "end of the program" in output_of(LATE)


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

    for x in SAMPLES:
        x.attach_grad()
    batch = gdb.testing.check_against_loop(run, SAMPLES, net.collect_params().values())
    assert len(batch.report.flushes) == 6
