"""A transition parser with stack LSTMs.

Dyer, Ballesteros, Ling, Matthews, Smith 2015 (arXiv:1505.08075), without parts of speech and
labels: LSTMs over stack, buffer and past actions are the state, and when a word takes a dependent,
the two become one vector. Transitions are arc-standard (Nivre 2004). Trees are those of SICK or of
the built-in corpus. In training the right actions are taken, in inference the parser's own; all
sentences of a minibatch take an action before the next one.
"""

import mxnet as mx
import numpy as np
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb

from .base import Layers, labelling
from .pairs import sentences
from .sequences import rows_of
from .text import count_words, word_sample

SHIFT, LEFT, RIGHT = range(3)


def oracle(heads):
    """List the actions that make a tree; None if it is not projective."""
    missing = [list(heads).count(word) for word in range(len(heads))]
    stack, actions = [], []
    for word in range(len(heads)):
        stack.append(word)
        actions.append(SHIFT)
        while len(stack) > 1:
            below, top = stack[-2:]
            if heads[below] == top and not missing[below]:
                action, head, dependent = LEFT, top, below
            elif heads[top] == below and not missing[top]:
                action, head, dependent = RIGHT, below, top
            else:
                break
            actions.append(action)
            missing[head] -= 1
            stack.remove(dependent)
    return actions if len(stack) == 1 else None


class Configuration:
    """Where the parser stands in one sentence.

    An element of the stack is a vector and the states of the stack's LSTM after it, of the bottom
    the states alone; what is below keeps its own, so that taking elements off costs nothing.
    """

    def __init__(self, model, words):
        self.model = model
        self.vectors = rows_of(model.embedding(words))
        self.sides = rows_of(model.taken.weight.data())
        self.history = start = model.past.begin_state(batch_size=1)
        self.stack = [(None, start)]
        self.buffers = [start]  # of no words, the last one, the last two ...
        for vector in self.vectors[::-1]:
            self.buffers.append(model.buffer(vector, self.buffers[-1])[1])

    def scores(self):
        """Score all actions. Shape (1, 3)."""
        return self.model.score(self.stack[-1][1][0], self.buffers[-1][0], self.history[0])

    def allowed(self):
        """List the actions that can be taken; none at the end."""
        arcs = [LEFT, RIGHT] if len(self.stack) > 2 else []
        return ([SHIFT] if len(self.buffers) > 1 else []) + arcs

    def take(self, action):
        """Take an action."""
        side = self.sides[action]
        _, self.history = self.model.past(side, self.history)
        if action == SHIFT:
            vector = self.vectors[1 - len(self.buffers)]
            self.buffers.pop()
        else:
            top, below = self.stack.pop()[0], self.stack.pop()[0]
            head, dependent = (top, below) if action == LEFT else (below, top)
            vector = self.model.compose(head, dependent, side)
        self.stack.append((vector, self.model.stack(vector, self.stack[-1][1])[1]))


class Parser(gdb.DynamicHybridBlock):
    """Scores of all actions for every step of one sentence."""

    def __init__(self, vocab_size, embedding_size=100, hidden_size=100):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.taken = nn.Embedding(3, embedding_size)  # vectors of actions
        self.stack = rnn.LSTMCell(hidden_size, input_size=embedding_size)
        self.buffer = rnn.LSTMCell(hidden_size, input_size=embedding_size)
        self.past = rnn.LSTMCell(hidden_size, input_size=embedding_size)
        # Of a head, a dependent, and the side on which it was taken.
        joined = nn.Dense(embedding_size, in_units=3 * embedding_size, activation="tanh")
        self.compose = Layers(joined)
        # Of the states of stack, buffer and past actions.
        hidden = nn.Dense(hidden_size, in_units=3 * hidden_size, activation="relu")
        self.score = Layers(hidden, nn.Dense(3, in_units=hidden_size))

    def forward(self, words, actions):
        """Map words, shape (T,), and the actions that are taken to scores, shape (actions, 3)."""
        at = Configuration(self, words)
        scores = []
        for action in actions:
            scores.append(at.scores())
            at.take(action)
        return mx.nd.concat(*scores, dim=0)

    def greedy(self, samples):
        """Score the actions on the parser's own way through each sentence."""
        places = [Configuration(self, sample.inputs[0]) for sample in samples]
        scores = [[] for _ in samples]
        running = list(range(len(samples)))
        while running:
            for i in running:
                scores[i].append(places[i].scores())
            for i in running:  # the first value that is read runs the step of all
                values, allowed = scores[i][-1].asnumpy()[0], places[i].allowed()
                places[i].take(allowed[int(np.argmax(values[allowed]))])
            running = [i for i in running if places[i].allowed()]
        return [mx.nd.concat(*each, dim=0) for each in scores]


def parsing(data=None, limit=None, **sizes):
    """Put the parser on the trees of SICK, or on those of the built-in corpus."""
    found = [(words, oracle(tree.heads)) for words, tree in sentences(data, limit)]
    vocab = count_words(words for words, _ in found)
    samples = [word_sample(vocab, words, a, tuple(a)) for words, a in found if a is not None]
    model = Parser(len(vocab), **sizes)
    title, frozen = "transition parser", ["embedding"]
    return labelling("parser", title, "sentences", samples, model, frozen, "words")
