"""A bidirectional LSTM that tags the words of sentences of different length, cell by cell.

With a folder of WikiNER (``train.txt``: a sentence per line, ``word|TAG`` separated by spaces), the
tags are its named entities. Without, sentences and tags come from the built-in corpus; a word's tag
is the number of its dependents (0, 1, 2, 3 or more).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn, rnn

from .base import Workload, count_words, labelling, read_samples
from .pairs import embedded_sentences

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


def tagged_sentences(limit: Optional[int] = None) -> List[Sentence]:
    """Take the sentences of the built-in corpus, tagged with the number of dependents."""
    return [
        Sentence(words, tuple(str(min(len(c), MOST_DEPENDENTS)) for c in tree.children))
        for words, tree in embedded_sentences(limit)
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
        return self.tag(rows_of(self.embedding(words)))

    def tag(self, vectors: List[mx.nd.NDArray]) -> mx.nd.NDArray:
        """Map word vectors, shape (1, embedding_size) each, to scores, shape (T, tags)."""
        ahead, _ = read(self.forwards, vectors)
        back, _ = read(self.backwards, vectors[::-1])
        states = mx.nd.concat(mx.nd.concat(*ahead, dim=0), mx.nd.concat(*back[::-1], dim=0), dim=1)
        return self.score(states)


def rows_of(array: mx.nd.NDArray) -> List[mx.nd.NDArray]:
    """Cut an array into rows, each with an axis 0 of 1."""
    return [array[i : i + 1] for i in range(len(array))]


def read(cell: Any, rows: Sequence[mx.nd.NDArray]) -> Tuple[List[Any], Any]:
    """Run a cell over rows; returns its outputs, shape (1, hidden_size) each, and last states."""
    states = cell.begin_state(batch_size=1)
    outputs = []
    for row in rows:
        output, states = cell(row, states)
        outputs.append(output)
    return outputs, states


def read_or_make(wikiner: Optional[Path], limit: Optional[int]) -> Tuple[List[Sentence], str]:
    """Return sentences, WikiNER's or those of the built-in corpus, and where they are from."""
    if wikiner is None:
        return tagged_sentences(limit), "built-in corpus"
    return read_wikiner(wikiner, limit), "WikiNER"


def count_tags(sentences: Sequence[Sentence]) -> Dict[str, int]:
    """Give numbers to the tags."""
    return {tag: i for i, tag in enumerate(sorted({tag for s in sentences for tag in s.tags}))}


def tagging(wikiner: Optional[Path] = None, limit: Optional[int] = None, **sizes: int) -> Workload:
    """Put the tagger on the sentences of WikiNER, or on those of the built-in corpus."""
    sentences, source = read_or_make(wikiner, limit)
    vocab, tags = count_words(sentences), count_tags(sentences)
    model = Tagger(len(vocab), len(tags), **sizes)
    samples = [
        TaggedSample(
            mx.nd.array(vocab[list(s.words)], dtype="int32"), mx.nd.array([tags[t] for t in s.tags])
        )
        for s in sentences
    ]
    title = f"BiLSTM tagger, {source}"
    return labelling("sequences", title, "sentences", samples, model, [model.embedding.weight])


def wandering(
    wikiner: Optional[Path] = None, limit: Optional[int] = None, **sizes: int
) -> Workload:
    """Put the tagger on minibatches that each have a size of their own."""
    made = tagging(wikiner, limit, **sizes)
    return made._replace(name="wandering", title=f"{made.title}, half to twice", wanders=True)
