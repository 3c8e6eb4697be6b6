"""Taggers of characters; a character's state also depends on the dictionary words that end there.

Lattice LSTM: Zhang, Yang 2018 (arXiv:1805.02023), section 3; lattice GRU: the same lattice with
GRU cells. The text is WikiNER's sentences, or those of the built-in corpus, without spaces; the
dictionary has its frequent words.
"""

from collections import Counter

import mxnet as mx
from mxnet.gluon import nn

import gluon_dynbatch as gdb

from .base import Gated, Sample, labelling
from .sequences import read_wikiner, rows_of
from .text import indices, numbered

#: Longest sentence; how often words of the dictionary occur at least, and their lengths.
MAX_CHARACTERS, FREQUENT, LENGTHS = 60, 3, range(2, 11)


class Character(Gated, gdb.DynamicHybridBlock):
    """A cell that mixes its own candidate state with those of words, each with its own gate."""

    def __init__(self, gates, input_size, hidden_size):
        super().__init__(gates, input_size, hidden_size)
        self.link = nn.Dense(hidden_size, in_units=input_size)

    def mix(self, F, x, gate, state, previous, words):
        """Average the candidates, weighted by their gates; equations 11, 14 and 15."""
        gate, state = F.sigmoid(gate), F.tanh(state)
        if not words:
            return (1 - gate) * previous + gate * state
        links = [F.exp(F.sigmoid(self.link(F.concat(x, word, dim=1)))) for word in words]
        gate = F.exp(gate)
        return F.add_n(gate * state, *(a * b for a, b in zip(links, words))) / F.add_n(gate, *links)


class LSTMCharacter(Character):
    """States h and c of a character from the previous ones and from words; equations 11 to 15."""

    def hybrid_forward(self, F, x, h, c, *words):  # noqa: D102
        i, o, u = self.split(F, x, h)
        c = self.mix(F, x, i, u, c, words)
        return F.sigmoid(o) * F.tanh(c), c


class GRUCharacter(Character):
    """State of a character from the previous one and from words."""

    def hybrid_forward(self, F, x, h, *words):  # noqa: D102
        z, u = self.split(F, x, h)
        return [self.mix(F, x, z, u, h, words)]


class LSTMWord(Gated):
    """A word's candidate for c of its last character, from the states before its first one."""

    def hybrid_forward(self, F, x, h, c):  # noqa: D102
        i, f, u = self.split(F, x, h)
        return F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(u)


class GRUWord(Gated):
    """A word's candidate for the state of its last character."""

    def hybrid_forward(self, F, x, h):  # noqa: D102
        z, u = self.split(F, x, h)
        z = F.sigmoid(z)
        return (1 - z) * h + z * F.tanh(u)


#: By workload: cells of characters and words, numbers of gates and states, title.
KINDS = {
    "lattice-lstm": (LSTMCharacter, LSTMWord, 3, 2, "lattice LSTM"),
    "lattice-gru": (GRUCharacter, GRUWord, 2, 1, "lattice GRU"),
}


class LatticeTagger(gdb.DynamicHybridBlock):
    """Scores of all tags for every character of one sentence."""

    def __init__(self, kind, characters, words, tags, embedding_size=50, hidden_size=100):
        super().__init__()
        character, word, gates, self.states, _ = KINDS[kind]
        self.hidden_size = hidden_size
        sizes = gates, embedding_size + hidden_size, hidden_size
        self.embedding = nn.Embedding(characters, embedding_size)
        self.words = nn.Embedding(words, embedding_size)
        self.character = character(*sizes)
        self.word = word(*sizes)
        self.score = nn.Dense(tags, in_units=hidden_size)

    def forward(self, characters, words, starts):
        """Map characters, (T,), and the words that end at each to scores, (T, tags).

        `words` has the words of all characters in order, or is None; `starts` has a tuple for each
        character, with the positions where its words start.
        """
        vectors = iter([] if words is None else rows_of(self.words(words)))
        states = [[mx.nd.zeros((1, self.hidden_size))] * self.states]
        for x, word_starts in zip(rows_of(self.embedding(characters)), starts):
            candidates = [self.word(next(vectors), *states[start]) for start in word_starts]
            states.append(self.character(x, *states[-1], *candidates))
        return self.score(mx.nd.concat(*(state[0] for state in states[1:]), dim=0))


def lattice_of(text, dictionary):
    """List the words that end at each character, as pairs of start and number."""
    lattice = []
    for end in range(1, len(text) + 1):
        words = [(end - size, text[end - size : end]) for size in LENGTHS if size <= end]
        lattice.append(tuple((i, dictionary[word]) for i, word in words if word in dictionary))
    return tuple(lattice)


def lattice_workload(name, wikiner=None, limit=None, **sizes):
    """Make a tagger of the characters of WikiNER, or of the built-in corpus."""
    sentences = read_wikiner(wikiner, limit)
    tags = numbered(tag for s in sentences for tag in s.tags)
    counts = Counter(word for s in sentences for word in s.words)
    dictionary = numbered(w for w, n in counts.items() if n >= FREQUENT and len(w) in LENGTHS)
    letters = numbered(c for word in counts for c in word)

    def sample(sentence):
        text = "".join(sentence.words)[:MAX_CHARACTERS]
        labels = [tags[tag] for word, tag in zip(*sentence) for _ in word][:MAX_CHARACTERS]
        lattice = lattice_of(text, dictionary)
        numbers = [number for words in lattice for _, number in words]
        starts = tuple(tuple(start for start, _ in words) for words in lattice)
        inputs = indices([letters[c] for c in text]), indices(numbers) if numbers else None, starts
        return Sample(inputs, mx.nd.array(labels), len(text))

    model = LatticeTagger(name, len(letters), max(len(dictionary), 1), len(tags), **sizes)
    title, samples = KINDS[name][4], list(map(sample, sentences))
    return labelling(name, title, "sentences", samples, model, counted="characters")
