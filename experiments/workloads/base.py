"""What every workload is: samples, what to compute for one of them, and how to train on them."""

from __future__ import annotations

import inspect
from typing import (
    Any,
    Callable,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb

NDArray = mx.nd.NDArray
#: Packages that models are in.
OWN = ("workloads", "relatedness")


class WorkloadError(ValueError):
    """A workload that cannot be made, or has too little for what is asked of it."""


class Sample(NamedTuple):
    """What a model takes, what is right, and how much of what rates count this is."""

    inputs: Tuple[Any, ...]
    target: NDArray
    size: int = 1


class Gated(gluon.HybridBlock):
    """A cell whose gates are one product of its inputs, shape (1, size) each, side by side."""

    def __init__(self, gates: int, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self._count = gates
        with self.name_scope():
            self.gates = nn.Dense(gates * hidden_size, in_units=input_size)

    def split(self, F: Any, *inputs: Any) -> Any:
        """Give the gates, shape (1, hidden_size) each."""
        x = F.concat(*inputs, dim=1) if len(inputs) > 1 else inputs[0]
        return F.split(self.gates(x), num_outputs=self._count, axis=1)


class Workload(NamedTuple):
    """A model with its samples.

    Attributes
    ----------
    name : str
        For options and file names.
    title : str
        For people.
    unit, counted : str
        What a sample is, and what rates count, in the plural.
    samples : sequence of Sample
        What minibatches are drawn from.
    model : gluon.Block
        Maps the inputs of a sample to an array, or to several that are to be joined.
    trainer : gluon.Trainer
    loss_block : gluon.Block
        What `compare` calls.
    compare : callable
        Maps what the model says of a sample, and its target, to a loss of one element.
    score_all : callable, optional
        Results for the samples of a minibatch, for a model that does all of them step by step.
    """

    name: str
    title: str
    unit: str
    counted: str
    samples: Sequence[Sample]
    model: gluon.Block
    trainer: gluon.Trainer
    loss_block: gluon.Block
    compare: Callable[[Any, NDArray], NDArray]
    score_all: Optional[Callable[[Sequence[Sample]], List[NDArray]]] = None

    def score(self, sample: Sample) -> NDArray:
        """Give the model's result for one sample."""
        found = self.model(*sample.inputs)
        return mx.nd.concat(*found, dim=0) if isinstance(found, list) else found

    def loss(self, sample: Sample) -> NDArray:
        """Give the loss of one sample."""
        return self.compare(self.model(*sample.inputs), sample.target)

    def predict(self, samples: Sequence[Sample]) -> List[NDArray]:
        """Give the results for some samples."""
        if self.score_all is not None:
            return self.score_all(samples)
        return [self.score(sample) for sample in samples]

    @property
    def lines(self) -> int:
        """Count lines that exist only because of the library: in the model, and two to use it.

        These are ``gdb.convert(model)`` and ``with gdb.batching():``.
        """
        kinds: Set[type] = set()
        self.model.apply(lambda block: kinds.update(type(block).__mro__))
        own = [kind for kind in kinds if kind.__module__.split(".")[0] in OWN]
        text = [line for kind in own for line in inspect.getsource(kind).splitlines()]
        return 2 + sum("gdb." in line for line in text)

    def minibatches(self, size: int, seed: int) -> Iterator[List[Sample]]:
        """Draw minibatches without end, epoch after epoch in new orders; none repeats exactly.

        Raises
        ------
        WorkloadError
            If there are fewer samples than one minibatch needs.
        """
        if size > len(self.samples):
            raise WorkloadError(
                f"a minibatch of {size} is asked for, but {self.name} has "
                f"{len(self.samples)} {self.unit}; give smaller --batch-sizes"
            )
        return self._draw(size, np.random.RandomState(seed))

    def _draw(self, size: int, rng: np.random.RandomState) -> Iterator[List[Sample]]:
        order: List[int] = []
        while True:
            if size > len(order):
                order = rng.permutation(len(self.samples)).tolist()
            batch, order = order[:size], order[size:]
            yield [self.samples[i] for i in batch]


def labelling(
    name: str,
    title: str,
    unit: str,
    samples: Sequence[Sample],
    model: gluon.Block,
    frozen: Iterable[gluon.Parameter] = (),
    counted: str = "",
    trainer: Optional[gluon.Trainer] = None,
) -> Workload:
    """Make the workload of a model that scores labels, whose numbers are the targets.

    Parameters
    ----------
    name, title, unit, counted : str
        See `Workload`; samples are counted by default.
    samples : sequence of Sample
    model : gluon.Block
        Becomes dynamic and initialized, unless it has a trainer, and hybridized.
    frozen : iterable of Parameter
        Not trained.
    trainer : gluon.Trainer, optional
    """
    if trainer is None:
        gdb.convert(model).initialize(mx.init.Xavier())
        for parameter in frozen:
            parameter.grad_req = "null"
        trainer = gluon.Trainer(model.collect_params(), "adagrad", {"learning_rate": 0.05})
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
    for block in (model, cross_entropy):
        block.hybridize()

    def compare(scores: NDArray, labels: NDArray) -> NDArray:
        return cross_entropy(scores, labels).mean()

    counted = counted or unit
    return Workload(name, title, unit, counted, samples, model, trainer, cross_entropy, compare)
