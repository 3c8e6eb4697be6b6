"""What every workload is: samples, what to compute for one of them, and how to train on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, TypeVar

import mxnet as mx
import numpy as np
from mxnet import gluon

from relatedness.reading import DataError, read_lines

Read = TypeVar("Read")


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
        while True:
            order = rng.permutation(len(self.samples))
            for start in range(0, len(order) - size + 1, size):
                yield [self.samples[i] for i in order[start : start + size]]


def read_samples(
    directory: Path, what: str, parse: Callable[[str], Optional[Read]], limit: Optional[int]
) -> List[Read]:
    """Read the first `limit` samples of ``train.txt`` in a folder, one per line.

    Parameters
    ----------
    directory : pathlib.Path
    what : str
        What a sample is, in the plural.
    parse : callable
        Returns the sample of a line, None if it has none; raises ValueError with the reason.
    limit : int or None

    Raises
    ------
    DataError
        Naming file, line and reason.
    """
    path = Path(directory) / "train.txt"
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
