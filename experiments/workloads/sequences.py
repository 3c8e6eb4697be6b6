"""A bidirectional LSTM that tags the words of sentences of different length, cell by cell.

With a folder of WikiNER (``train.txt``: a sentence per line, ``word|TAG`` separated by spaces), the
tags are its named entities. Without, sentences and tags come from the built-in corpus; a word's tag
is the number of its dependents (0, 1, 2, 3 or more).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, NamedTuple, Optional, Tuple

import gluonnlp
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb

from .base import Workload, read_samples
from .pairs import embedded_pairs

MOST_DEPENDENTS = 3


class Sentence(NamedTuple):
    """Words and as many tags."""

    words: Tuple[str, ...]
    tags: Tuple[str, ...]


class TaggedSample(NamedTuple):
    """A sentence as the model takes it: indices of words and of tags. Shape (T,), each."""

    words: mx.nd.NDArray
    tags: mx.nd.NDArray


def read_wikiner(directory: Path, limit: Optional[int] = None) -> List[Sentence]:
    """Read the first `limit` sentences of ``train.txt``; see `read_samples` for what is raised."""
    return read_samples(directory, "sentences", _parse, limit)


def _parse(line: str) -> Optional[Sentence]:
    """Read ``word|TAG``s with spaces between.

    Raises
    ------
    ValueError
        With the reason.
    """
    words, tags = [], []
    for field in line.split():
        word, bar, tag = field.rpartition("|")  # a word may be a bar itself
        if not (word and bar and tag):
            raise ValueError(f'{field!r} is not of the form "word|TAG"')
        words.append(word)
        tags.append(tag)
    return Sentence(tuple(words), tuple(tags)) if words else None


def embedded_sentences(limit: Optional[int] = None) -> List[Sentence]:
    """Take the sentences of the built-in corpus, tagged with the number of dependents."""
    sides = [
        side
        for pair in embedded_pairs()
        for side in ((pair.tokens_a, pair.tree_a), (pair.tokens_b, pair.tree_b))
    ]
    return [
        Sentence(words, tuple(str(min(len(c), MOST_DEPENDENTS)) for c in tree.children))
        for words, tree in sides[:limit]
    ]


class Tagger(gluon.Block):
    """Scores of all tags for every word of one sentence, by Gluon's own LSTM cells."""

    def __init__(
        self, vocab_size: int, tags: int, embedding_size: int = 100, hidden_size: int = 128
    ) -> None:
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(vocab_size, embedding_size)
            self.forwards = rnn.LSTMCell(hidden_size, input_size=embedding_size)
            self.backwards = rnn.LSTMCell(hidden_size, input_size=embedding_size)
            self.score = nn.Dense(tags, in_units=2 * hidden_size, flatten=False)

    def forward(self, words: mx.nd.NDArray) -> mx.nd.NDArray:
        """Map word indices, shape (T,), to scores, shape (T, tags)."""
        vectors = self.embedding(words)  # (T, embedding_size)
        steps = range(len(words))
        ahead = _read(self.forwards, vectors, steps)
        back = _read(self.backwards, vectors, reversed(steps))[::-1]
        states = mx.nd.concat(mx.nd.concat(*ahead, dim=0), mx.nd.concat(*back, dim=0), dim=1)
        return self.score(states)


def _read(cell: Any, vectors: mx.nd.NDArray, steps: Any) -> List[mx.nd.NDArray]:
    """Run a cell over rows in some order; returns its outputs, shape (1, hidden_size) each."""
    states = cell.begin_state(batch_size=1)
    outputs = []
    for step in steps:
        output, states = cell(vectors[step : step + 1], states)
        outputs.append(output)
    return outputs


def tagging(wikiner: Optional[Path] = None, limit: Optional[int] = None, **sizes: int) -> Workload:
    """Put the tagger on the sentences of WikiNER, or on those of the built-in corpus."""
    if wikiner is None:
        sentences, source = embedded_sentences(limit), "built-in corpus"
    else:
        sentences, source = read_wikiner(wikiner, limit), "WikiNER"
    vocab = gluonnlp.Vocab(gluonnlp.data.Counter(w for s in sentences for w in s.words))
    tags = {tag: i for i, tag in enumerate(sorted({tag for s in sentences for tag in s.tags}))}
    model = gdb.convert(Tagger(len(vocab), len(tags), **sizes))
    model.initialize(mx.init.Xavier())
    model.embedding.weight.grad_req = "null"
    model.hybridize()
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
    cross_entropy.hybridize()

    def score(sample):
        return model(sample.words)

    def loss(sample):
        return cross_entropy(score(sample), sample.tags).mean()

    samples = [
        TaggedSample(
            mx.nd.array(vocab[list(s.words)], dtype="int32"), mx.nd.array([tags[t] for t in s.tags])
        )
        for s in sentences
    ]
    trainer = gluon.Trainer(model.collect_params(), "adagrad", {"learning_rate": 0.05})
    title = f"BiLSTM tagger, {source}"
    return Workload(
        "sequences", title, "sentences", samples, score, loss, trainer, model, cross_entropy
    )
