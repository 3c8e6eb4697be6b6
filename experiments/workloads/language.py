"""Language models: recurrent networks that predict the next word of a sentence of any length.

Mikolov et al. 2010, "Recurrent neural network based language model", with GRU (Cho et al. 2014,
arXiv:1406.1078) or LSTM cells. Sentences are those of SICK, or of the built-in corpus.
"""

from mxnet.gluon import nn

import gluon_dynbatch as gdb

from .base import Sample, labelling
from .front import GRUCell, LSTMCell, front
from .pairs import sentences
from .sequences import rows_of
from .text import build_vocab, indices

#: By name of the workload: the cell, and the title.
CELLS = {"gru-lm": (GRUCell, "GRU language model"), "lstm-lm": (LSTMCell, "LSTM language model")}


class LanguageModel(gdb.DynamicHybridBlock):
    """Scores of all words for every position of a sentence; word `words` begins and ends it."""

    def __init__(self, cell, words, embedding_size=64, hidden_size=128):
        super().__init__()
        self.embedding = nn.Embedding(words + 1, embedding_size)
        self.cell = cell(hidden_size, input_size=embedding_size)
        self.score = nn.Dense(words + 1, in_units=hidden_size, flatten=False)

    def forward(self, fed):
        """Map the words before each position, shape (T,), to scores, shape (T, words + 1)."""
        states, _ = self.cell.read(rows_of(self.embedding(fed)))
        return self.score(front().concat(*states, dim=0))


def language(name, data=None, limit=None, **sizes):
    """Make a language model with the sentences of SICK, or of the built-in corpus."""
    texts = [words for words, _ in sentences(data, limit)]
    vocab = build_vocab(texts)
    border = len(vocab)
    numbers = [vocab[list(words)] for words in texts]
    samples = [
        Sample((indices([border, *each]),), indices([*each, border]), len(each) + 1)
        for each in numbers
    ]
    cell, title = CELLS[name]
    return labelling(name, title, "sentences", samples, LanguageModel(cell, border, **sizes),
                     counted="words")  # fmt: skip
