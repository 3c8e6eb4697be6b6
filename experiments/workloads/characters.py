"""The tagger that spells rare words: their vectors come from a BiLSTM over their characters.

The model of Neubig, Goldberg, Dyer 2017 (arXiv:1705.07860, section 4.1, "BiLSTM w/char"). Sentences
are those of `sequences`; the rarest words are spelled, as many as make up `RARE` of all text.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, List, NamedTuple, Optional

import mxnet as mx
import numpy as np
from mxnet.gluon import nn, rnn

from .base import Workload, count_words, labelling
from .sequences import Tagger, count_tags, read, read_or_make, rows_of

RARE = 0.15


class SpelledSample(NamedTuple):
    """A sentence: indices of words, shape (T,); letters of rare words; indices of tags, (T,)."""

    words: mx.nd.NDArray
    #: For each word: indices of its characters, shape (number of characters,); None if frequent.
    letters: List[Optional[mx.nd.NDArray]]
    tags: mx.nd.NDArray


class SpellingTagger(Tagger):
    """Scores of all tags for every word of one sentence; knows rare words by their characters."""

    def __init__(
        self,
        vocab_size: int,
        tags: int,
        alphabet_size: int,
        embedding_size: int = 100,
        hidden_size: int = 128,
        letter_size: int = 20,
    ) -> None:
        super().__init__(vocab_size, tags, embedding_size, hidden_size)
        ahead = embedding_size // 2
        with self.name_scope():
            self.letters = nn.Embedding(alphabet_size, letter_size)
            self.spell_forwards = rnn.LSTMCell(ahead, input_size=letter_size)
            self.spell_backwards = rnn.LSTMCell(embedding_size - ahead, input_size=letter_size)

    def forward(self, words: mx.nd.NDArray, letters: List[Any]) -> mx.nd.NDArray:
        """Map words, shape (T,), and the letters of rare ones to scores, shape (T, tags)."""
        known = rows_of(self.embedding(words))
        return self.tag([v if own is None else self.spell(own) for v, own in zip(known, letters)])

    def spell(self, letters: mx.nd.NDArray) -> mx.nd.NDArray:
        """Map the characters of a word to its vector, shape (1, embedding_size)."""
        rows = rows_of(self.letters(letters))
        ahead, _ = read(self.spell_forwards, rows)
        back, _ = read(self.spell_backwards, rows[::-1])
        return mx.nd.concat(ahead[-1], back[-1], dim=1)


def spelling(wikiner: Optional[Path] = None, limit: Optional[int] = None, **sizes: int) -> Workload:
    """Put the tagger on the sentences of WikiNER, or on those of the built-in corpus."""
    sentences, source = read_or_make(wikiner, limit)
    vocab, tags = count_words(sentences), count_tags(sentences)
    counts = Counter(word for s in sentences for word in s.words)
    letters = {c: i for i, c in enumerate(sorted({c for word in counts for c in word}))}
    model = SpellingTagger(len(vocab), len(tags), len(letters), **sizes)

    rarest = sorted(counts, key=counts.__getitem__)
    reach = np.cumsum([counts[word] for word in rarest])
    spelled = {
        word: mx.nd.array([letters[c] for c in word], dtype="int32")
        for word in rarest[: np.searchsorted(reach, RARE * reach[-1]) + 1]
    }
    samples = [
        SpelledSample(
            mx.nd.array(vocab[list(s.words)], dtype="int32"),
            [spelled.get(word) for word in s.words],
            mx.nd.array([tags[tag] for tag in s.tags]),
        )
        for s in sentences
    ]
    title = f"BiLSTM tagger with characters, {source}"
    return labelling("characters", title, "sentences", samples, model, [model.embedding.weight])
