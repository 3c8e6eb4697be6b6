"""Sentiment of every phrase by binary Tree-LSTM (Tai, Socher, Manning 2015, section 3.2, N = 2).

With a folder of the Stanford Sentiment Treebank (``train.txt``: a binary tree per line in brackets,
each node with a label from 0 to 4), trees and labels are its own. Without, they are made of the
built-in corpus: dependents join their head one by one, and the label of a phrase is the number of
its words, counted to 5.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from relatedness.trees import Tree

from .base import Workload, count_words, labelling, read_samples
from .pairs import embedded_sentences

CLASSES = 5
NDArray = mx.nd.NDArray
#: A word's number, or the phrases that a phrase is made of.
Shape = Union[int, Tuple["Shape", "Shape"]]


class Phrases(NamedTuple):
    """A sentence as nested phrases.

    Attributes
    ----------
    words : tuple of str
    shape : int or pair of shapes
    labels : tuple of int
        Of all phrases, those within before those around them.
    """

    words: Tuple[str, ...]
    shape: Shape
    labels: Tuple[int, ...]


class TreeSample(NamedTuple):
    """A sentence as the model takes it: words, shape (T,); their tree; labels, shape (2T - 1,)."""

    words: NDArray
    shape: Shape
    labels: NDArray


def read_treebank(directory: Path, limit: Optional[int] = None) -> List[Phrases]:
    """Read the first `limit` trees of ``train.txt``; see `read_samples` for what is raised."""
    return read_samples(directory, "trees", _parse, limit)


def _parse(line: str) -> Phrases:
    """Read one tree, such as ``(3 (2 so) (4 good))``; a word may hold anything but " ", "(", ")".

    Raises
    ------
    ValueError
        With the reason.
    """
    words: List[str] = []
    labels: List[int] = []
    open_labels: List[int] = []
    parts: List[List[Shape]] = [[]]  # of each phrase that is open, and of the line
    for token in re.findall(r"\([^ ()]*|\)|[^ ()]+", line):
        if token.startswith("("):
            if token[1:] not in map(str, range(CLASSES)):
                raise ValueError(f"label {token[1:]!r} is none of 0 to {CLASSES - 1}")
            open_labels.append(int(token[1:]))
            parts.append([])
        elif token != ")":
            parts[-1].append(len(words))
            words.append(token)
        elif not open_labels:
            raise ValueError('a ")" too many')
        else:
            parts[-2].append(_phrase(parts.pop()))
            labels.append(open_labels.pop())
    if open_labels:
        raise ValueError('a ")" is missing')
    if len(parts[0]) != 1 or len(labels) != 2 * len(words) - 1:
        raise ValueError("is not one binary tree with a label for every word and phrase")
    return Phrases(tuple(words), parts[0][0], tuple(labels))


def _phrase(parts: Sequence[Shape]) -> Shape:
    if len(parts) == 1:
        return parts[0]
    if len(parts) != 2:
        raise ValueError(f"a phrase of {len(parts)} parts; there must be a word or two phrases")
    return parts[0], parts[1]


def embedded_phrases(limit: Optional[int] = None) -> List[Phrases]:
    """Make binary trees of the sentences of the built-in corpus."""
    return [_of_dependencies(words, tree) for words, tree in embedded_sentences(limit)]


def _of_dependencies(words: Tuple[str, ...], tree: Tree) -> Phrases:
    """Join each head with its dependents, first those after it and then those before it."""
    shapes: List[Shape] = list(range(len(words)))
    for head in tree.order:
        before = [k for k in tree.children[head] if k < head]
        for child in (k for k in tree.children[head] if k > head):
            shapes[head] = (shapes[head], shapes[child])
        for child in reversed(before):
            shapes[head] = (shapes[child], shapes[head])
    labels: List[int] = []

    def count(shape: Shape) -> int:
        found = 1 if isinstance(shape, int) else sum([count(part) for part in shape])
        labels.append(min(found, CLASSES) - 1)
        return found

    count(shapes[tree.root])
    return Phrases(words, shapes[tree.root], tuple(labels))


class LeafCell(gluon.HybridBlock):
    """States of a word from its vector."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        with self.name_scope():
            self.gates = nn.Dense(3 * hidden_size, in_units=input_size)

    def hybrid_forward(self, F: Any, x: Any) -> Tuple[Any, Any]:  # noqa: D102
        i, o, u = F.split(self.gates(x), num_outputs=3, axis=1)  # (1, H) each
        c = F.sigmoid(i) * F.tanh(u)
        return F.sigmoid(o) * F.tanh(c), c


class JoinCell(gluon.HybridBlock):
    """States of a phrase from those of its two parts, each with a forget gate of its own."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        with self.name_scope():
            self.gates = nn.Dense(5 * hidden_size, in_units=2 * hidden_size)

    def hybrid_forward(  # noqa: D102
        self, F: Any, left_h: Any, left_c: Any, right_h: Any, right_c: Any
    ) -> Tuple[Any, Any]:
        gates = self.gates(F.concat(left_h, right_h, dim=1))
        i, left, right, o, u = F.split(gates, num_outputs=5, axis=1)  # (1, H) each
        c = F.sigmoid(i) * F.tanh(u) + F.sigmoid(left) * left_c + F.sigmoid(right) * right_c
        return F.sigmoid(o) * F.tanh(c), c


class SentimentModel(gluon.Block):
    """Scores of all labels for every phrase of one sentence."""

    def __init__(self, vocab_size: int, embedding_size: int = 300, hidden_size: int = 150) -> None:
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(vocab_size, embedding_size)
            self.leaf = LeafCell(embedding_size, hidden_size)
            self.join = JoinCell(hidden_size)
            self.score = nn.Dense(CLASSES, in_units=hidden_size)

    def forward(self, words: NDArray, shape: Shape) -> NDArray:
        """Map word indices, shape (T,), and their tree to scores, shape (2T - 1, CLASSES)."""
        states: List[NDArray] = []
        self._read(self.embedding(words), shape, states)
        return self.score(mx.nd.concat(*states, dim=0))

    def _read(self, vectors: NDArray, shape: Shape, states: List[NDArray]) -> Any:
        if isinstance(shape, int):
            h, c = self.leaf(vectors[shape : shape + 1])
        else:
            left, right = (self._read(vectors, part, states) for part in shape)
            h, c = self.join(*left, *right)
        states.append(h)
        return h, c


def tree_samples(sst: Optional[Path], limit: Optional[int]) -> Tuple[List[TreeSample], int, str]:
    """Return samples of the treebank or the built-in corpus, how many words, and where from."""
    if sst is None:
        sentences, source = embedded_phrases(limit), "built-in corpus"
    else:
        sentences, source = read_treebank(sst, limit), "SST"
    vocab = count_words(sentences)
    samples = [
        TreeSample(mx.nd.array(vocab[list(s.words)], dtype="int32"), s.shape, mx.nd.array(s.labels))
        for s in sentences
    ]
    return samples, len(vocab), source


def sentiment(sst: Optional[Path] = None, limit: Optional[int] = None, **sizes: int) -> Workload:
    """Put the model on the trees of the treebank, or on those of the built-in corpus."""
    samples, words, source = tree_samples(sst, limit)
    model = SentimentModel(words, **sizes)
    title = f"binary Tree-LSTM, {source}"
    return labelling("sst", title, "sentences", samples, model, [model.embedding.weight])
