"""An encoder, and a decoder that attends to the encoder's states at every step.

Luong, Pham, Manning 2015 (arXiv:1508.04025): global dot attention with input feeding. With SICK,
the model translates the first sentence of a pair to the second; otherwise it reverses random
sequences of 4 to 20 tokens. In training, the decoder is fed the target tokens, in inference its
own, for as many steps as the target has: its best token, or with `BeamTranslator` the tokens of the
`BEAM` best translations so far. All sentences of a minibatch are decoded in lockstep.
"""

import numpy as np
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from relatedness.corpora import load_corpus

from .base import Sample, labelling
from .front import LSTMCell, front
from .sequences import rows_of
from .text import build_vocab, indices

TOKENS, LENGTHS = 30, (4, 20)
#: Translations of a sentence that beam search keeps.
BEAM = 4


class Attention(nn.HybridBlock):
    """The attentional state: dot attention to the memory, then one layer."""

    def __init__(self, hidden_size):
        super().__init__()
        self.layer = nn.Dense(hidden_size, in_units=2 * hidden_size, activation="tanh")

    def hybrid_forward(self, F, h, memory):  # noqa: D102
        F = front(F)
        weights = F.softmax(F.dot(h, memory, transpose_b=True))  # (1, S)
        return self.layer(F.concat(F.dot(weights, memory), h, dim=1))  # (1, H)


class Translator(gdb.DynamicHybridBlock):
    """Scores of all tokens for every position of the target; token `tokens` begins it."""

    def __init__(self, tokens, embedding_size=32, hidden_size=64):
        super().__init__()
        self.embedding = nn.Embedding(tokens + 1, embedding_size)
        self.encoder = LSTMCell(hidden_size, input_size=embedding_size)
        self.decoder = LSTMCell(hidden_size, input_size=embedding_size + hidden_size)
        self.attention = Attention(hidden_size)
        self.score = nn.Dense(tokens, in_units=hidden_size)

    def forward(self, source, fed):
        """Map tokens, shapes (S,) and (T,), to scores, shape (T, tokens)."""
        memory, state = self.encode(source)
        attentional = []
        for row in rows_of(self.embedding(fed)):
            state = self.decode(row, memory, *state)
            attentional.append(state[0])
        return self.score(front().concat(*attentional, dim=0))

    def encode(self, source):
        """Return the memory, shape (S, hidden_size), and the initial state of the decoder."""
        rows = rows_of(self.embedding(source))
        encoded, states = self.encoder.read(rows)
        return front().concat(*encoded, dim=0), (states[0], states)

    def decode(self, row, memory, attentional, states):
        """Take one step; return the attentional state, shape (1, hidden_size), and LSTM states."""
        h, states = self.decoder(front().concat(row, attentional, dim=1), states)
        return self.attention(h, memory), states

    def greedy(self, samples):
        """Feed the decoder its own best tokens; return scores of as many steps as targets have."""
        sources, fed = zip(*(sample.inputs for sample in samples))
        memories, states = (list(each) for each in zip(*map(self.encode, sources)))
        fed = [tokens[:1] for tokens in fed]
        scores = [[] for _ in samples]
        lengths = [len(sample.target) for sample in samples]
        for step in range(max(lengths)):
            running = [i for i, length in enumerate(lengths) if step < length]
            for i in running:
                states[i] = self.decode(self.embedding(fed[i]), memories[i], *states[i])
                scores[i].append(self.score(states[i][0]))
            best = [scores[i][-1].argmax(axis=1) for i in running]
            for i, token in zip(running, best):
                fed[i] = front().array(token.asnumpy(), dtype="int32")
        return [front().concat(*each, dim=0) for each in scores]


class BeamTranslator(Translator):
    """Decodes by beam search; each translation is a call of the decoder for itself."""

    def greedy(self, samples):
        """Return the scores of all steps of the best translation of each sentence."""
        beams = []
        for sample in samples:
            source, fed = sample.inputs
            memory, state = self.encode(source)
            beams.append([(0.0, state, memory, int(fed[0].asscalar()), [])])
        lengths = [len(sample.target) for sample in samples]
        for step in range(max(lengths)):
            running = [i for i, length in enumerate(lengths) if step < length]
            grown = {i: [self.grow(*each) for each in beams[i]] for i in running}
            for i in running:  # the first read runs the step of all sentences
                beams[i] = best_of(grown[i])
        return [front().concat(*beam[0][-1], dim=0) for beam in beams]

    def grow(self, total, state, memory, token, scores):
        """Take one step of one translation."""
        state = self.decode(self.embedding(front().array([token])), memory, *state)
        scores = [*scores, self.score(state[0])]
        return total, state, memory, front().log_softmax(scores[-1]), scores


def best_of(grown):
    """Return the best continuations of some translations, best first."""
    totals = np.stack([total + logs.asnumpy()[0] for total, _, _, logs, _ in grown])
    places = np.argpartition(-totals, BEAM, axis=None)[:BEAM]
    beam = []
    for place in places[np.argsort(-totals.ravel()[places], kind="stable")]:
        number, token = divmod(int(place), totals.shape[1])
        _, state, memory, _, scores = grown[number]
        beam.append((float(totals[number, token]), state, memory, token, scores))
    return beam


def translation(name="seq2seq", data=None, limit=None, seed=1, **sizes):
    """Make the model with the sentences of SICK, or with random sequences."""
    if data is None:
        tokens, rng = TOKENS, np.random.RandomState(seed)
        lengths = (rng.randint(LENGTHS[0], LENGTHS[1] + 1) for _ in range(limit or 1024))
        sources = (rng.randint(TOKENS, size=length) for length in lengths)
        pairs = [(source, source[::-1]) for source in sources]
    else:
        corpus = load_corpus(data, ("train",), limit)["train"]
        vocab = build_vocab(pair.words for pair in corpus)
        tokens = len(vocab)
        pairs = [(vocab[list(p.tokens_a)], vocab[list(p.tokens_b)]) for p in corpus]
    samples = [
        Sample((indices(source), indices([tokens, *target[:-1]])), indices(target))
        for source, target in pairs
    ]
    model_class, by_beam = (
        (BeamTranslator, f", beam of {BEAM}") if name == "beam" else (Translator, "")
    )
    model = model_class(tokens, **sizes)
    return labelling(name, f"seq2seq with attention{by_beam}", "sequences", samples, model)
