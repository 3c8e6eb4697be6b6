"""Train Gluon's LSTMCell on sequences of different lengths, without padding or masks."""

import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import arguments
import gluon_dynbatch as gdb


class Classifier(gluon.Block):
    """Scores two classes for one sequence: (T, size) -> (1, 2)."""

    def __init__(self, size, hidden):
        super().__init__()
        self.cell = rnn.LSTMCell(hidden, input_size=size)
        self.score = nn.Dense(2, in_units=hidden)

    def forward(self, sequence):  # noqa: D102
        states = self.cell.begin_state(batch_size=1)
        for step in range(len(sequence)):
            output, states = self.cell(sequence[step : step + 1], states)
        return self.score(output)


def make_sample(rng, size=4):
    """Draw a sequence and its label: the sign of the sum of its first column."""
    sequence = rng.normal(size=(rng.randint(2, 20), size))
    return mx.nd.array(sequence), mx.nd.array([sequence[:, 0].sum() > 0])


def main(argv=None):
    """Train for some epochs, then compare values and gradients with those of the plain loop."""
    args = arguments.read(__doc__, argv, epochs=16)
    samples = [make_sample(np.random.RandomState(seed)) for seed in range(128)]
    net = gdb.convert(Classifier(size=4, hidden=16))
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})
    for epoch in range(args.epochs):
        started = time.perf_counter()
        with autograd.record(), gdb.batching(args.analysis_budget) as batch:
            losses = [loss_fn(net(sequence), label) for sequence, label in samples]
        autograd.backward(losses)
        trainer.step(len(losses))
        loss = mx.nd.concat(*losses, dim=0).mean().asscalar()
        speed = f"{len(samples) / (time.perf_counter() - started):.0f} sequences/s"
        print(f"epoch {epoch}: loss {loss:.3f}, {speed}; {batch.report.flushes[-1].line}")
    gdb.testing.check_against_loop(lambda s: net(s[0]), samples, net.collect_params().values())
    print("values and gradients equal those of the loop")


if __name__ == "__main__":
    main()
