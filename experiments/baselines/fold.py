"""Calls batched by depth, with a concatenation before and a split after every launch.

The method of the prototype of Zha et al. 2019 (arXiv:1904.07421) at the granularity of blocks, and
that of TensorFlow Fold (Looks et al. 2017, arXiv:1702.02181, section 2): the program of each sample
is recorded; calls of one block at one depth with arguments of one structure are one launch; its
arguments are concatenated from single rows, and its results are split into single rows again.
All of it is on MXNet's tape.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import mxnet as mx
from mxnet import autograd

from relatedness.data import Sample
from relatedness.model import RelatednessModel, TreeEncoder
from relatedness.trees import Tree

NDArray = mx.nd.NDArray


class _Launch:
    """Calls that run together: per call a tuple of rows, later per output a list of rows."""

    def __init__(self, run: Callable[..., Sequence[NDArray]]) -> None:
        self.run = run
        self.calls: List[Tuple[Any, ...]] = []
        self.results: List[Sequence[NDArray]] = []


class _Row:
    """A row of a result, before there is one."""

    __slots__ = ("launch", "output", "number", "depth")

    def __init__(self, launch: _Launch, output: int, number: int, depth: int) -> None:
        self.launch = launch
        self.output = output
        self.number = number
        self.depth = depth

    @property
    def value(self) -> NDArray:
        return self.launch.results[self.output][self.number]


class _Vectors:
    """The word vectors of a sentence; the model takes slices of one row."""

    __slots__ = ("launch", "start")

    def __init__(self, launch: _Launch, start: int) -> None:
        self.launch = launch
        self.start = start

    def __getitem__(self, rows: slice) -> _Row:
        return _Row(self.launch, 0, self.start + rows.start, 0)


class _Recorder:
    """Stands in for the model and its encoder while their own `forward` walks over a sample."""

    def __init__(self, model: RelatednessModel) -> None:
        self._model = model
        self._launches: Dict[Any, _Launch] = {}
        self._words: List[NDArray] = []
        self._word_count = 0
        self._vectors = _Launch(model.embedding)

    def record(self, sample: Sample) -> _Row:
        return RelatednessModel.forward(self, *sample[:4])

    def embedding(self, tokens: NDArray) -> _Vectors:
        start = self._word_count
        self._words.append(tokens)
        self._word_count += tokens.shape[0]
        return _Vectors(self._vectors, start)

    def encoder(self, inputs: _Vectors, tree: Tree) -> _Row:
        return TreeEncoder.forward(self, inputs, tree)

    def cell(self, x: _Row, child_h: List[_Row], child_c: List[_Row]) -> Tuple[_Row, _Row]:
        depth = 1 + max([x.depth, *[row.depth for row in child_h]])
        count = len(child_h)
        launch = self._launches.get((depth, count))
        if launch is None:

            def run(x: NDArray, *states: NDArray) -> Sequence[NDArray]:
                return self._model.encoder.cell(x, list(states[:count]), list(states[count:]))

            launch = self._launches[depth, count] = _Launch(run)
        number = len(launch.calls)
        launch.calls.append((x, *child_h, *child_c))
        return _Row(launch, 0, number, depth), _Row(launch, 1, number, depth)

    def similarity(self, left: _Row, right: _Row) -> _Row:
        depth = 1 + max(left.depth, right.depth)
        launch = self._launches.get((depth, "similarity"))
        if launch is None:
            launch = _Launch(lambda *states: [self._model.similarity(*states)])
            self._launches[depth, "similarity"] = launch
        launch.calls.append((left, right))
        return _Row(launch, 0, len(launch.calls) - 1, depth)

    def run(self) -> None:
        """Run what was recorded, depth by depth."""
        words = _concat(self._words)
        self._vectors.results = [_split(self._vectors.run(words))]
        for _, launch in sorted(self._launches.items(), key=lambda item: item[0][0]):
            arguments = [_concat([row.value for row in rows]) for rows in zip(*launch.calls)]
            launch.results = [_split(result) for result in launch.run(*arguments)]


class DepthBatching:
    """Runs a model over minibatches.

    Parameters
    ----------
    model : RelatednessModel
        Initialized, and hybridized, so that a launch is a call of a cached graph.
    """

    def __init__(self, model: RelatednessModel) -> None:
        self.model = model

    def score(self, samples: Sequence[Sample]) -> NDArray:
        """Give the log-probabilities of the scores of all samples. Shape (N, CLASSES)."""
        recorder = _Recorder(self.model)
        results = [recorder.record(sample) for sample in samples]
        recorder.run()
        return _concat([row.value for row in results])

    def differentiate(
        self, samples: Sequence[Sample], loss: Callable[[NDArray, NDArray], NDArray]
    ) -> NDArray:
        """Compute the loss of all samples, shape (N,), and the gradients of all parameters."""
        with autograd.record():
            losses = loss(self.score(samples), _concat([sample.target for sample in samples]))
        losses.backward()
        return losses


def _concat(rows: Sequence[NDArray]) -> NDArray:
    return rows[0] if len(rows) == 1 else mx.nd.concat(*rows, dim=0)


def _split(array: NDArray) -> Sequence[NDArray]:
    return [array] if len(array) == 1 else mx.nd.split(array, len(array), axis=0)
