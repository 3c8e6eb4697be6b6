"""Tagging characters, where words of a list that end at a character have a say in its state.

Lattice LSTM: Zhang, Yang 2018 (arXiv:1805.02023), section 3; lattice GRU: the same lattice with
gated units that have one state. Characters are those of WikiNER's sentences, or of the built-in
corpus, without spaces; the list are their frequent words.
"""

from collections import Counter

import mxnet as mx
from mxnet.gluon import nn

import gluon_dynbatch as gdb

from .base import Gated, Sample, labelling
from .sequences import read_wikiner, rows_of
from .text import indices, numbered

#: Characters of a sentence at most; words of the list occur so often, and have so many letters.
MOST_CHARACTERS, FREQUENT, LETTERS = 60, 3, range(2, 11)


class Character(Gated, gdb.DynamicHybridBlock):
    """A cell that mixes candidates of words with its own; each word has a gate of its own."""

    def __init__(self, gates, input_size, hidden_size):
        super().__init__(gates, input_size, hidden_size)
        self.link = nn.Dense(hidden_size, in_units=input_size)

    def mix(self, F, x, gate, own, before, words):
        """Weigh candidates by their gates, which are normalized; equations 11, 14 and 15."""
        gate, own = F.sigmoid(gate), F.tanh(own)
        if not words:
            return (1 - gate) * before + gate * own
        links = [F.exp(F.sigmoid(self.link(F.concat(x, word, dim=1)))) for word in words]
        gate = F.exp(gate)
        return F.add_n(gate * own, *(a * b for a, b in zip(links, words))) / F.add_n(gate, *links)


class LSTMCharacter(Character):
    """States h and c of a character from those before it and from words; equations 11 to 15."""

    def hybrid_forward(self, F, x, h, c, *words):  # noqa: D102
        i, o, u = self.split(F, x, h)
        c = self.mix(F, x, i, u, c, words)
        return F.sigmoid(o) * F.tanh(c), c


class GRUCharacter(Character):
    """State of a character from the one before it and from words."""

    def hybrid_forward(self, F, x, h, *words):  # noqa: D102
        z, u = self.split(F, x, h)
        return [self.mix(F, x, z, u, h, words)]


class LSTMWord(Gated):
    """What a word brings to c of its last character, from the states before its first one."""

    def hybrid_forward(self, F, x, h, c):  # noqa: D102
        i, f, u = self.split(F, x, h)
        return F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(u)


class GRUWord(Gated):
    """What a word brings to the state of its last character."""

    def hybrid_forward(self, F, x, h):  # noqa: D102
        z, u = self.split(F, x, h)
        z = F.sigmoid(z)
        return (1 - z) * h + z * F.tanh(u)


#: By name of the workload: cells of characters and words, their gates, number of states, title.
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
        """Map characters, (T,), and the words that end at each in turn to scores, (T, tags)."""
        vectors = iter([] if words is None else rows_of(self.words(words)))
        states = [[mx.nd.zeros((1, self.hidden_size))] * self.states]
        for x, own in zip(rows_of(self.embedding(characters)), starts):
            brought = [self.word(next(vectors), *states[start]) for start in own]
            states.append(self.character(x, *states[-1], *brought))
        return self.score(mx.nd.concat(*(state[0] for state in states[1:]), dim=0))


def lattice_of(text, listed):
    """Find the words that end at each character: where each begins, and its number."""
    found = []
    for end in range(1, len(text) + 1):
        starts = [end - size for size in LETTERS if size <= end]
        found.append(tuple((i, listed[text[i:end]]) for i in starts if text[i:end] in listed))
    return tuple(found)


def lattice_workload(name, wikiner=None, limit=None, **sizes):
    """Put a tagger on the characters of WikiNER's sentences, or of the built-in corpus's."""
    found = read_wikiner(wikiner, limit)
    tags = numbered(tag for s in found for tag in s.tags)
    counts = Counter(word for s in found for word in s.words)
    listed = numbered(w for w, n in counts.items() if n >= FREQUENT and len(w) in LETTERS)
    letters = numbered(c for word in counts for c in word)

    def sample(sentence):
        text = "".join(sentence.words)[:MOST_CHARACTERS]
        own = [tags[tag] for word, tag in zip(*sentence) for _ in word][:MOST_CHARACTERS]
        endings = lattice_of(text, listed)
        numbers = [number for ending in endings for _, number in ending]
        starts = tuple(tuple(start for start, _ in ending) for ending in endings)
        words = indices(numbers) if numbers else None
        inputs = indices([letters[c] for c in text]), words, starts
        return Sample(inputs, mx.nd.array(own), len(text))

    model = LatticeTagger(name, len(letters), max(len(listed), 1), len(tags), **sizes)
    title, samples = KINDS[name][4], list(map(sample, found))
    return labelling(name, title, "sentences", samples, model, counted="characters")
