"""A transition parser with stack LSTMs.

Dyer, Ballesteros, Ling, Matthews, Smith 2015 (arXiv:1505.08075), without parts of speech and
labels. LSTMs over the stack, the buffer and the past actions make up the state; when a word gets a
dependent, the vectors of both are composed into one. Transitions are arc-standard (Nivre 2004).
Trees come from SICK or the built-in corpus. Training follows the actions of the oracle, inference
the parser's own; all sentences of a minibatch take their actions in lockstep.
"""

import mxnet as mx
import numpy as np
from mxnet.gluon import nn, rnn

import gluon_dynbatch as gdb

from .base import Layers, labelling
from .pairs import sentences
from .sequences import rows_of
from .text import build_vocab, word_sample

SHIFT, LEFT, RIGHT = range(3)


def oracle(heads):
    """List the actions that build a tree; None if it is not projective."""
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
    """State of the parser in one sentence.

    A stack element is a vector and the states of the stack's LSTM after reading it; the bottom one
    has no vector. Elements keep their states, so that removing the top needs no computation.
    """

    def __init__(self, model, words):
        self.model = model
        self.vectors = rows_of(model.embedding(words))
        self.actions = rows_of(model.taken.weight.data())
        self.history = start = model.past.begin_state(batch_size=1)
        self.stack = [(None, start)]
        self.buffers = [start]  # states after no words, the last word, the last two words, ...
        for vector in self.vectors[::-1]:
            self.buffers.append(model.buffer(vector, self.buffers[-1])[1])

    def scores(self):
        """Score all actions. Shape (1, 3)."""
        return self.model.score(self.stack[-1][1][0], self.buffers[-1][0], self.history[0])

    def allowed(self):
        """List the possible actions; none at the end."""
        arcs = [LEFT, RIGHT] if len(self.stack) > 2 else []
        return ([SHIFT] if len(self.buffers) > 1 else []) + arcs

    def take(self, action):
        """Take an action."""
        action_vector = self.actions[action]
        _, self.history = self.model.past(action_vector, self.history)
        if action == SHIFT:
            vector = self.vectors[1 - len(self.buffers)]
            self.buffers.pop()
        else:
            top, below = self.stack.pop()[0], self.stack.pop()[0]
            head, dependent = (top, below) if action == LEFT else (below, top)
            vector = self.model.compose(head, dependent, action_vector)
        self.stack.append((vector, self.model.stack(vector, self.stack[-1][1])[1]))


class Parser(gdb.DynamicHybridBlock):
    """Scores of all actions for every step of one sentence."""

    def __init__(self, vocab_size, embedding_size=100, hidden_size=100):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.taken = nn.Embedding(3, embedding_size)  # vectors of actions
        cells = (rnn.LSTMCell(hidden_size, input_size=embedding_size) for _ in range(3))
        self.stack, self.buffer, self.past = cells
        # Input: vectors of a head, a dependent, and the action that joins them.
        joined = nn.Dense(embedding_size, in_units=3 * embedding_size, activation="tanh")
        self.compose = Layers(joined)
        # Input: states of stack, buffer and past actions.
        hidden = nn.Dense(hidden_size, in_units=3 * hidden_size, activation="relu")
        self.score = Layers(hidden, nn.Dense(3, in_units=hidden_size))

    def forward(self, words, actions):
        """Map words, shape (T,), and actions to the scores at each action, (actions, 3)."""
        configuration = Configuration(self, words)
        scores = []
        for action in actions:
            scores.append(configuration.scores())
            configuration.take(action)
        return mx.nd.concat(*scores, dim=0)

    def greedy(self, samples):
        """Take the best action at each step; return the scores of all steps of each sentence."""
        states = [Configuration(self, sample.inputs[0]) for sample in samples]
        scores = [[] for _ in samples]
        running = list(range(len(samples)))
        while running:
            for i in running:
                scores[i].append(states[i].scores())
            for i in running:  # the first read runs the step of all sentences
                values, allowed = scores[i][-1].asnumpy()[0], states[i].allowed()
                states[i].take(allowed[int(np.argmax(values[allowed]))])
            running = [i for i in running if states[i].allowed()]
        return [mx.nd.concat(*each, dim=0) for each in scores]


def parsing(data=None, limit=None, **sizes):
    """Make the parser with the trees of SICK, or of the built-in corpus."""
    parsed = [(words, oracle(tree.heads)) for words, tree in sentences(data, limit)]
    vocab = build_vocab(words for words, _ in parsed)
    samples = [word_sample(vocab, words, a, tuple(a)) for words, a in parsed if a is not None]
    model = Parser(len(vocab), **sizes)
    title, frozen = "transition parser", ["embedding"]
    return labelling("parser", title, "sentences", samples, model, frozen, "words")
