"""Taggers of words: bidirectional LSTMs, cell by cell, on sentences of different lengths.

With a folder of WikiNER (``train.txt``: a sentence per line, ``word|TAG`` separated by spaces),
tags are its named entities. Otherwise, sentences come from the built-in corpus, and a word's tag is
the number of its dependents (0, 1, 2, 3 or more).

`characters` is the model of Neubig, Goldberg, Dyer 2017 (arXiv:1705.07860, section 4.1, "BiLSTM
w/char"): vectors of rare words come from a second BiLSTM over their characters.
"""

from collections import Counter
from typing import NamedTuple, Tuple

import numpy as np
from mxnet.gluon import nn

import gluon_dynbatch as gdb

from .base import RATE, labelling
from .front import LSTMCell, front
from .pairs import sentences
from .text import build_vocab, indices, numbered, read_samples, word_sample

MAX_DEPENDENTS = 3
#: Share of the text, in its rarest words, that is spelled; size of a character's vector.
RARE, LETTER_SIZE = 0.15, 20


class Sentence(NamedTuple):
    """Words and their tags."""

    words: Tuple[str, ...]
    tags: Tuple[str, ...]


def read_wikiner(directory, limit=None):
    """Read the first `limit` sentences of ``train.txt``, or of the built-in corpus."""
    if directory is not None:
        return read_samples(directory, "sentences", _parse, limit)
    return [
        Sentence(words, tuple(str(min(len(c), MAX_DEPENDENTS)) for c in tree.children))
        for words, tree in sentences(limit=limit)
    ]


def _parse(line):
    """Parse a line of ``word|TAG`` fields; an empty line gives None."""
    words, tags = [], []
    for field in line.split():
        word, bar, tag = field.rpartition("|")  # a word may contain bars
        if not (word and bar and tag):
            raise ValueError(f'{field!r} is not of the form "word|TAG"')
        words.append(word)
        tags.append(tag)
    return Sentence(tuple(words), tuple(tags)) if words else None


class Tagger(gdb.DynamicHybridBlock):
    """Scores of all tags for every word of one sentence, by Gluon's own LSTM cells.

    In training, elements of all "words", or of all "states", may be `dropped`.
    """

    def __init__(self, vocab_size, tags, embedding_size=100, hidden_size=128, dropped=None):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.forwards = LSTMCell(hidden_size, input_size=embedding_size)
        self.backwards = LSTMCell(hidden_size, input_size=embedding_size)
        self.dropped = dropped
        self.score = nn.Dense(tags, in_units=2 * hidden_size, flatten=False)

    def forward(self, words):
        """Map word indices, shape (T,), to scores, shape (T, tags)."""
        return self.tag(rows_of(self.drop("words", self.embedding(words))))

    def drop(self, what, array):
        """Apply dropout if this is what is dropped."""
        return front().Dropout(array, p=RATE) if self.dropped == what else array

    def tag(self, vectors):
        """Map word vectors, shape (1, embedding_size) each, to scores, shape (T, tags)."""
        ahead, _ = self.forwards.read(vectors)
        back, _ = self.backwards.read(vectors[::-1])
        F = front()
        states = F.concat(F.concat(*ahead, dim=0), F.concat(*back[::-1], dim=0), dim=1)
        return self.score(self.drop("states", states))


def rows_of(array):
    """Cut an array into rows, each with an axis 0 of 1."""
    return [array[i : i + 1] for i in range(len(array))]


def encoded(sentences):
    """Make samples of sentences; return also the numbers of distinct words and tags."""
    vocab = build_vocab(s.words for s in sentences)
    tags = numbered(t for s in sentences for t in s.tags)
    samples = [word_sample(vocab, s.words, [tags[t] for t in s.tags]) for s in sentences]
    return samples, len(vocab), len(tags)


def tagging(wikiner=None, limit=None, **options):
    """Make the tagger with the sentences of WikiNER, or of the built-in corpus."""
    samples, *counts = encoded(read_wikiner(wikiner, limit))
    model = Tagger(*counts, **options)
    title, frozen = "BiLSTM tagger", ["embedding"]
    return labelling("tagger", title, "sentences", samples, model, frozen, "words")


class SpellingTagger(Tagger):
    """Scores of all tags for every word of one sentence; spells rare words."""

    def __init__(self, vocab_size, tags, alphabet_size, embedding_size=100, hidden_size=128):
        super().__init__(vocab_size, tags, embedding_size, hidden_size)
        ahead = embedding_size // 2
        self.letters = nn.Embedding(alphabet_size, LETTER_SIZE)
        self.spell_forwards = LSTMCell(ahead, input_size=LETTER_SIZE)
        self.spell_backwards = LSTMCell(embedding_size - ahead, input_size=LETTER_SIZE)

    def forward(self, words, letters):
        """Map words and their letters (None for a frequent word) to scores, shape (T, tags)."""
        vectors = rows_of(self.embedding(words))
        return self.tag([x if w is None else self.spell(w) for x, w in zip(vectors, letters)])

    def spell(self, letters):
        """Map the characters of a word to its vector, shape (1, embedding_size)."""
        rows = rows_of(self.letters(letters))
        ahead, _ = self.spell_forwards.read(rows)
        back, _ = self.spell_backwards.read(rows[::-1])
        return front().concat(ahead[-1], back[-1], dim=1)


def spelling(wikiner=None, limit=None, **sizes):
    """Make the spelling tagger with the same sentences."""
    tagged = read_wikiner(wikiner, limit)
    samples, *vocab_sizes = encoded(tagged)
    counts = Counter(word for s in tagged for word in s.words)
    letters = numbered(c for word in counts for c in word)
    model = SpellingTagger(*vocab_sizes, len(letters), **sizes)
    rarest = sorted(counts, key=counts.__getitem__)
    totals = np.cumsum([counts[word] for word in rarest])
    spelled = {
        word: indices([letters[c] for c in word])
        for word in rarest[: np.searchsorted(totals, RARE * totals[-1]) + 1]
    }
    samples = [
        sample._replace(inputs=(*sample.inputs, [spelled.get(word) for word in s.words]))
        for s, sample in zip(tagged, samples)
    ]
    title, frozen = "BiLSTM tagger with characters", ["embedding"]
    return labelling("characters", title, "sentences", samples, model, frozen, "words")
