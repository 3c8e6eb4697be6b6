"""The parts of a workload: samples, a model and a loss for one sample, and a trainer."""

import inspect
from itertools import count
from typing import Any, Callable, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from command import UsageError

from .front import ND, converted, front

#: The rate at which elements are dropped, of "words" or of "states" (`dropped`).
RATE = 0.3


class Sample(NamedTuple):
    """Inputs of a model, the target, and the size in the unit of rates."""

    inputs: Tuple[Any, ...]
    target: mx.nd.NDArray
    size: int = 1

    @property
    def length(self):
        """What samples are sorted by to get minibatches of similar lengths."""
        return self.size, len(self.target)

    def of(self, interface):
        """Return the sample with arrays of an interface, which share memory with these."""
        arrays = converted((self.inputs, self.target), interface)
        return Sample(*arrays, self.size)


class Layers(gluon.HybridBlock):
    """Layers on the concatenation of inputs, shape (1, size) each."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.HybridSequential()
        self.layers.add(*layers)

    def hybrid_forward(self, F, *inputs):  # noqa: D102
        return self.layers(front(F).concat(*inputs, dim=1))


class Gated(gluon.HybridBlock):
    """A cell that computes all gates in one product from its inputs, shape (1, size) each."""

    def __init__(self, gates, input_size, hidden_size):
        super().__init__()
        self._count = gates
        self.gates = nn.Dense(gates * hidden_size, in_units=input_size)

    def split(self, F, *inputs):
        """Return the gates, shape (1, hidden_size) each."""
        F = front(F)
        x = F.concat(*inputs, dim=1) if len(inputs) > 1 else inputs[0]
        return F.split(self.gates(x), num_outputs=self._count, axis=1)


class Workload(NamedTuple):
    """A model with its samples."""

    name: str  # for options and file names
    title: str  # for people
    unit: str  # plural noun for samples
    counted: str  # plural noun for the unit of rates
    samples: Sequence[Sample]
    #: Maps the inputs of a sample to an array, or to a list of arrays to concatenate.
    model: gluon.Block
    trainer: gluon.Trainer
    loss_block: gluon.Block  # called by `compare`
    #: Maps the model's result for a sample, and the target, to a loss of one element.
    compare: Callable
    #: Whose arrays the model and the samples have: "nd" or "np"; see `front`.
    interface: str = ND

    def score(self, sample):
        """Return the model's result for one sample."""
        result = self.model(*sample.inputs)
        return front().concat(*result, dim=0) if isinstance(result, list) else result

    def loss(self, sample):
        """Return the loss of one sample."""
        return self.compare(self.model(*sample.inputs), sample.target)

    def predict(self, samples):
        """Return a result for each sample; a model with `greedy` decodes all in lockstep."""
        greedy = getattr(self.model, "greedy", None)
        return greedy(samples) if greedy else list(map(self.score, samples))

    @property
    def lines(self):
        """Count lines that exist only because of the library: in the model, and two to use it."""
        classes = set()
        self.model.apply(lambda block: classes.update(type(block).__mro__))
        libraries = ("mxnet", "gluon_dynbatch", "builtins")
        ours = [cls for cls in classes if cls.__module__.split(".")[0] not in libraries]
        lines = [line for cls in ours for line in inspect.getsource(cls).splitlines()]
        return sum("gdb." in line for line in lines) + 2  # gdb.convert(model), with gdb.batching():

    def minibatches(self, size, seed):
        """Draw minibatches without end, each epoch in a new order."""
        total = len(self.samples)
        if size > total:
            limit = f"{self.name} has {total} {self.unit}; use smaller --batch-sizes"
            raise UsageError(f"a minibatch of {size} is too large: {limit}")
        rng = np.random.RandomState(seed)
        orders = (rng.permutation(total).tolist() for _ in count())
        parts = (order[i : i + size] for order in orders for i in range(0, total - size + 1, size))
        return ([self.samples[i] for i in part] for part in parts)


def new_trainer(model, frozen=(), **options):
    """Initialize a model and make its trainer, which does not train the embeddings `frozen`."""
    model.initialize(mx.init.Xavier())
    for name in frozen:
        getattr(model, name).weight.grad_req = "null"
    return gluon.Trainer(model.collect_params(), "fusedadagrad", {"learning_rate": 0.05, **options})


def labelling(name, title, unit, samples, model, frozen=(), counted="", trainer=None):
    """Make a workload of classification: the model's results are scores, the targets are labels.

    Without a trainer, convert and initialize the model; the embeddings `frozen` are not trained.
    Rates count samples by default, or the unit `counted`.
    """
    trainer = trainer or new_trainer(gdb.convert(model), frozen)
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
    for block in (model, cross_entropy):
        block.hybridize()

    def compare(scores, labels):
        return cross_entropy(scores, labels).mean()

    counted = counted or unit
    return Workload(name, title, unit, counted, samples, model, trainer, cross_entropy, compare)
