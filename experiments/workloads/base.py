"""What every workload is: samples, what to compute for one of them, and how to train on them."""

from __future__ import annotations

import inspect
from pathlib import Path
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
    TypeVar,
)

import gluonnlp
import mxnet as mx
import numpy as np
from mxnet import gluon

import gluon_dynbatch as gdb
from relatedness.corpora import DataError, read_lines

Read = TypeVar("Read")
#: Packages that models are in.
OWN = ("workloads", "relatedness")


class WorkloadError(ValueError):
    """A workload that cannot be made, or has too little for what is asked of it."""


class Workload(NamedTuple):
    """A model with its samples.

    Attributes
    ----------
    name : str
        For options and file names.
    title : str
        For people.
    unit : str
        What a sample is, in the plural.
    samples : sequence
        What minibatches are drawn from.
    score : callable
        Result of the model for one sample.
    loss : callable
        Loss of one sample; a scalar or an array of one element.
    trainer : gluon.Trainer
    model, loss_block : gluon.Block
        What `score` and `loss` call.
    per : str
        Name of the array in a sample whose rows are what rates count; "" counts samples.
    score_all : callable, optional
        Results for the samples of a minibatch, for a model that does all of them step by step.
    """

    name: str
    title: str
    unit: str
    samples: Sequence[Any]
    score: Callable[[Any], mx.nd.NDArray]
    loss: Callable[[Any], mx.nd.NDArray]
    trainer: gluon.Trainer
    model: gluon.Block
    loss_block: gluon.Block
    per: str = ""
    score_all: Optional[Callable[[Sequence[Any]], List[mx.nd.NDArray]]] = None

    @property
    def counted(self) -> str:
        """What rates count."""
        return self.per or self.unit

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

    def amount(self, sample: Any) -> int:
        """Say how much of what is counted a sample has."""
        return len(getattr(sample, self.per)) if self.per else 1

    def predict(self, samples: Sequence[Any]) -> List[mx.nd.NDArray]:
        """Give the results for some samples."""
        if self.score_all is not None:
            return self.score_all(samples)
        return [self.score(sample) for sample in samples]

    def minibatches(self, size: int, seed: int) -> Iterator[List[Any]]:
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

    def _draw(self, size: int, rng: np.random.RandomState) -> Iterator[List[Any]]:
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
    samples: Sequence[Sequence[Any]],
    model: gluon.Block,
    frozen: Iterable[gluon.Parameter] = (),
    per: str = "",
) -> Workload:
    """Make the workload of a model that scores the labels at the end of each sample.

    Parameters
    ----------
    name, title, unit : str
        See `Workload`.
    samples : sequence
        Of the model's arguments and, for each row of its result, the number of a label.
    model : gluon.Block
        Becomes dynamic, initialized and hybridized.
    frozen : iterable of Parameter
        Not trained.
    per : str
        See `Workload`.
    """
    gdb.convert(model).initialize(mx.init.Xavier())
    for parameter in frozen:
        parameter.grad_req = "null"
    trainer = gluon.Trainer(model.collect_params(), "adagrad", {"learning_rate": 0.05})
    return labelled(name, title, unit, samples, model, trainer, per)


def labelled(
    name: str,
    title: str,
    unit: str,
    samples: Sequence[Sequence[Any]],
    model: gluon.Block,
    trainer: gluon.Trainer,
    per: str = "",
) -> Workload:
    """Make the workload of such a model that is initialized and has a trainer."""
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
    for block in (model, cross_entropy):
        block.hybridize()

    def score(sample):
        return model(*sample[:-1])

    def loss(sample):
        return cross_entropy(score(sample), sample[-1]).mean()

    return Workload(name, title, unit, samples, score, loss, trainer, model, cross_entropy, per)


def count_words(sentences: Iterable[Sequence[str]]) -> gluonnlp.Vocab:
    """Give numbers to the words of sentences."""
    return gluonnlp.Vocab(gluonnlp.data.Counter(word for words in sentences for word in words))


def read_samples(
    directory: Path,
    what: str,
    parse: Callable[[str], Optional[Read]],
    limit: Optional[int],
    split: str = "train",
) -> List[Read]:
    """Read the first `limit` samples of a split, such as ``train.txt``, one per line.

    Parameters
    ----------
    directory : pathlib.Path
    what : str
        What a sample is, in the plural.
    parse : callable
        Returns the sample of a line, None if it has none; raises ValueError with the reason.
    limit : int or None
    split : str

    Raises
    ------
    DataError
        Naming file, line and reason.
    """
    path = Path(directory) / f"{split}.txt"
    samples: List[Read] = []
    for number, line in enumerate(read_lines(path), 1):
        if len(samples) == limit:
            break
        try:
            sample = parse(line)
        except ValueError as error:
            raise DataError(path, number, str(error)) from None
        if sample is not None:
            samples.append(sample)
    if not samples:
        raise DataError(path, 0, f"holds no {what}")
    return samples
