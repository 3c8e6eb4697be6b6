"""Batch a network of Gluon's recurrent cells, unchanged, on sequences of different lengths."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import arguments
import gluon_dynbatch as gdb


class Tagger(gluon.Block):
    """Scores every step of a sequence: (length, size) -> (length, 2)."""

    def __init__(self, size, hidden):
        super().__init__()
        self.cells = rnn.SequentialRNNCell()
        self.cells.add(
            rnn.BidirectionalCell(
                rnn.LSTMCell(hidden // 2, input_size=size),
                rnn.LSTMCell(hidden // 2, input_size=size),
            )
        )
        self.cells.add(rnn.ResidualCell(rnn.GRUCell(hidden, input_size=hidden)))
        self.score = nn.Dense(2, in_units=hidden)

    def forward(self, sequence):  # noqa: D102
        steps = [sequence[n : n + 1] for n in range(len(sequence))]
        outputs, _ = self.cells.unroll(len(steps), steps, merge_outputs=False)
        return self.score(mx.nd.concat(*outputs, dim=0))


def make_sample(rng, size=4):
    """Draw a sequence, and a label per step: whether its first number is above the mean of all."""
    sequence = rng.normal(size=(rng.randint(2, 16), size))
    return mx.nd.array(sequence), mx.nd.array(sequence[:, 0] > sequence[:, 0].mean())


def main(argv=None):
    """Train for some epochs, then compare values and gradients with those of the loop."""
    args = arguments.read(__doc__, argv, epochs=10)
    rng = np.random.RandomState(0)
    samples = [make_sample(rng) for _ in range(64)]
    net, loss_fn = gdb.convert(Tagger(4, 16)), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    for epoch in range(args.epochs):
        with autograd.record(), gdb.batching(args.analysis_budget) as batch:
            losses = [loss_fn(net(sequence), tags).mean() for sequence, tags in samples]
        autograd.backward(losses)
        trainer.step(len(losses))
        loss = mx.nd.concat(*losses, dim=0).mean().asscalar()
        print(f"epoch {epoch}: loss {loss:.3f}; {batch.report.flushes[-1].line}")
    sequences = [sequence for sequence, _ in samples[:16]]
    gdb.testing.check_against_loop(net, sequences, net.collect_params().values())
    print("values and gradients equal those of the loop")


if __name__ == "__main__":
    main()
