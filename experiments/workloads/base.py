"""What every workload is: samples, what to compute for one of them, and how to train on them."""

import inspect
from itertools import count
from typing import Any, Callable, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from command import UsageError


class Sample(NamedTuple):
    """What a model takes, what is right, and how much of what rates count this is."""

    inputs: Tuple[Any, ...]
    target: mx.nd.NDArray
    size: int = 1


class Layers(gluon.HybridBlock):
    """Layers over inputs, shape (1, size) each, side by side."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.HybridSequential()
        self.layers.add(*layers)

    def hybrid_forward(self, F, *inputs):  # noqa: D102
        return self.layers(F.concat(*inputs, dim=1))


class Gated(gluon.HybridBlock):
    """A cell whose gates are one product of its inputs, shape (1, size) each, side by side."""

    def __init__(self, gates, input_size, hidden_size):
        super().__init__()
        self._count = gates
        self.gates = nn.Dense(gates * hidden_size, in_units=input_size)

    def split(self, F, *inputs):
        """Give the gates, shape (1, hidden_size) each."""
        x = F.concat(*inputs, dim=1) if len(inputs) > 1 else inputs[0]
        return F.split(self.gates(x), num_outputs=self._count, axis=1)


class Workload(NamedTuple):
    """A model with its samples."""

    name: str  # for options and file names
    title: str  # for people
    unit: str  # what a sample is, in the plural
    counted: str  # what rates count, in the plural
    samples: Sequence[Sample]  # what minibatches are drawn from
    #: Maps the inputs of a sample to an array, or to several that are to be joined.
    model: gluon.Block
    trainer: gluon.Trainer
    loss_block: gluon.Block  # what `compare` calls
    #: Maps what the model says of a sample, and its target, to a loss of one element.
    compare: Callable

    def score(self, sample):
        """Give the model's result for one sample."""
        found = self.model(*sample.inputs)
        return mx.nd.concat(*found, dim=0) if isinstance(found, list) else found

    def loss(self, sample):
        """Give the loss of one sample."""
        return self.compare(self.model(*sample.inputs), sample.target)

    def predict(self, samples):
        """Give the results for some samples; a model that is `greedy` takes all step by step."""
        greedy = getattr(self.model, "greedy", None)
        return greedy(samples) if greedy else list(map(self.score, samples))

    @property
    def lines(self):
        """Count lines that exist only because of the library: in the model, and two to use it."""
        kinds = set()
        self.model.apply(lambda block: kinds.update(type(block).__mro__))
        own = [kind for kind in kinds if kind.__module__.startswith("workloads.")]
        text = [line for kind in own for line in inspect.getsource(kind).splitlines()]
        return sum("gdb." in line for line in text) + 2  # gdb.convert(model), with gdb.batching():

    def minibatches(self, size, seed):
        """Draw minibatches without end, epoch after epoch in new orders; none repeats exactly.

        Raises `UsageError` if there are fewer samples than one minibatch needs.
        """
        total = len(self.samples)
        if size > total:
            raise UsageError(
                f"a minibatch of {size} is asked for, but {self.name} has {total} {self.unit}; "
                "give smaller --batch-sizes"
            )
        rng = np.random.RandomState(seed)
        orders = (rng.permutation(total).tolist() for _ in count())
        parts = (order[i : i + size] for order in orders for i in range(0, total - size + 1, size))
        return ([self.samples[i] for i in part] for part in parts)


def new_trainer(model, frozen=(), **options):
    """Initialize a model; make its trainer, which leaves the embeddings `frozen` as they are."""
    model.initialize(mx.init.Xavier())
    for name in frozen:
        getattr(model, name).weight.grad_req = "null"
    return gluon.Trainer(model.collect_params(), "adagrad", {"learning_rate": 0.05, **options})


def labelling(name, title, unit, samples, model, frozen=(), counted="", trainer=None):
    """Make the workload of a model that scores labels, whose numbers are the targets.

    Without a trainer, the model is made dynamic and initialized, and trained but for the embeddings
    `frozen`. Rates count samples unless `counted` says what.
    """
    trainer = trainer or new_trainer(gdb.convert(model), frozen)
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
    for block in (model, cross_entropy):
        block.hybridize()

    def compare(scores, labels):
        return cross_entropy(scores, labels).mean()

    counted = counted or unit
    return Workload(name, title, unit, counted, samples, model, trainer, cross_entropy, compare)
