"""Sentiment by child-sum Tree-GRU, with a loss at every phrase; trees are those of `sentiment`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Optional

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb

from .base import Workload, labelling
from .sentiment import CLASSES, Shape, TreeSample, tree_samples
from .sequences import rows_of


class WordCell(gluon.HybridBlock):
    """State of a word from its vector."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        with self.name_scope():
            self.gates = nn.Dense(2 * hidden_size, in_units=input_size)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: D102
        update, new = F.split(self.gates(x), num_outputs=2, axis=1)  # (1, H) each
        return F.sigmoid(update) * F.tanh(new)


class ChildSumGRUCell(gdb.DynamicHybridBlock):
    """State of a phrase from those of its parts, any number of them, each with a reset gate."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        with self.name_scope():
            self.reset = nn.Dense(hidden_size, in_units=hidden_size)
            self.update = nn.Dense(hidden_size, in_units=hidden_size)
            self.new = nn.Dense(hidden_size, in_units=hidden_size)

    def hybrid_forward(self, F: Any, parts: List[Any]) -> Any:  # noqa: D102
        kept = F.add_n(*[F.sigmoid(self.reset(h)) * h for h in parts])  # (1, H)
        update = F.sigmoid(self.update(F.add_n(*parts)))
        return update * F.tanh(self.new(kept)) + (1 - update) * F.add_n(*parts) / len(parts)


class TreeGRU(gluon.Block):
    """Scores of all labels for every phrase of one sentence."""

    def __init__(self, vocab_size: int, embedding_size: int = 100, hidden_size: int = 100) -> None:
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(vocab_size, embedding_size)
            self.word = WordCell(embedding_size, hidden_size)
            self.phrase = ChildSumGRUCell(hidden_size)
            self.score = nn.Dense(CLASSES, in_units=hidden_size)

    def forward(self, words: mx.nd.NDArray, shape: Shape) -> List[mx.nd.NDArray]:
        """Map word indices, shape (T,), and their tree to 2T - 1 scores, shape (1, CLASSES)."""
        scores: List[mx.nd.NDArray] = []
        self._read(rows_of(self.embedding(words)), shape, scores)
        return scores

    def _read(self, vectors: List[Any], shape: Shape, scores: List[Any]) -> Any:
        if isinstance(shape, int):
            h = self.word(vectors[shape])
        else:
            h = self.phrase([self._read(vectors, part, scores) for part in shape])
        scores.append(self.score(h))
        return h


def phrases(sst: Optional[Path] = None, limit: Optional[int] = None, **sizes: int) -> Workload:
    """Put the model on the trees of the treebank, or on those of the built-in corpus."""
    samples, words, source = tree_samples(sst, limit)
    model = TreeGRU(words, **sizes)
    title = f"Tree-GRU, {source}"
    made = labelling("treegru", title, "sentences", samples, model, [model.embedding.weight])

    def score(sample: TreeSample) -> mx.nd.NDArray:
        return mx.nd.concat(*model(sample.words, sample.shape), dim=0)

    def loss(sample: TreeSample) -> mx.nd.NDArray:
        scores = model(sample.words, sample.shape)
        return mx.nd.add_n(*map(made.loss_block, scores, rows_of(sample.labels))) / len(scores)

    return made._replace(score=score, loss=loss)
