"""Relatedness of sentence pairs by child-sum Tree-LSTM.

Tai, Socher, Manning 2015, arXiv:1503.00075, section 3.1; the relatedness head is from section 4.2.
The model is written for one pair, without minibatches.
"""

import math

import numpy as np
from mxnet import gluon
from scipy.stats import pearsonr, spearmanr

import gluon_dynbatch as gdb
from relatedness.corpora import load_corpus
from relatedness.trees import CLASSES

from .base import RATE, Workload, new_trainer
from .front import KLDivLoss, front
from .text import build_vocab, encode


class ChildSumCell(gdb.DynamicHybridBlock):
    """One node of a child-sum Tree-LSTM.

    ``cell(x, child_h, child_c)`` takes the word's vector, shape (1, input_size), and two lists with
    a state per child, shape (1, hidden_size) each, empty at a leaf. It returns h and c of the node,
    shape (1, hidden_size) each. Equations 2 to 8 of the paper.
    """

    def __init__(self, input_size, hidden_size, dropout=0.0):
        super().__init__()
        self._hidden_size = size = hidden_size
        self._dropout = dropout
        # All four gates of x in one product: forget, input, output, update.
        self.i2h_weight = self.params.get("i2h_weight", shape=(4 * size, input_size))
        self.i2h_bias = self.params.get("i2h_bias", shape=(4 * size,), init="zeros")
        self.h2h_weight = self.params.get("h2h_weight", shape=(3 * size, size))
        self.hf_weight = self.params.get("hf_weight", shape=(size, size))

    def hybrid_forward(  # noqa: D102
        self, F, x, child_h, child_c, i2h_weight, i2h_bias, h2h_weight, hf_weight
    ):
        F, size = front(F), self._hidden_size
        gates = F.FullyConnected(x, i2h_weight, i2h_bias, num_hidden=4 * size)  # (1, 4H)
        x_forget, x_input, x_output, x_update = F.split(gates, num_outputs=4, axis=1)
        if child_h:
            h_sum = F.add_n(*child_h)  # (1, H)
            gates = F.FullyConnected(h_sum, h2h_weight, no_bias=True, num_hidden=3 * size)
            h_input, h_output, h_update = F.split(gates, num_outputs=3, axis=1)
            x_input, x_output = x_input + h_input, x_output + h_output
            x_update = x_update + h_update
        c = F.sigmoid(x_input) * F.tanh(x_update)
        if child_h:
            terms = []
            for h_k, c_k in zip(child_h, child_c):
                forget = x_forget + F.FullyConnected(h_k, hf_weight, no_bias=True, num_hidden=size)
                terms.append(F.sigmoid(forget) * c_k)
            c = c + F.add_n(*terms)
        h = F.sigmoid(x_output) * F.tanh(c)
        return F.Dropout(h, p=self._dropout) if self._dropout else h, c


class TreeEncoder(gdb.DynamicHybridBlock):
    """Computes the states of a sentence's tree from the leaves up; returns that of the root."""

    def __init__(self, input_size, hidden_size, dropout=0.0):
        super().__init__()
        self.cell = ChildSumCell(input_size, hidden_size, dropout)

    def forward(self, inputs, tree):
        """Map word vectors, shape (T, input_size), to h at the root, shape (1, hidden_size)."""
        h = [None] * len(tree.heads)
        c = [None] * len(tree.heads)
        for i in tree.order:
            children = tree.children[i]
            h[i], c[i] = self.cell(
                inputs[i : i + 1], [h[k] for k in children], [c[k] for k in children]
            )
        return h[tree.root]


class Similarity(gdb.DynamicHybridBlock):
    """Log-probabilities of the scores 1 to CLASSES for two sentence states; equation 15."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self._hidden_size = hidden_size
        shape = (hidden_size, input_size)
        self.angle_weight = self.params.get("angle_weight", shape=shape)
        self.distance_weight = self.params.get("distance_weight", shape=shape)
        self.hidden_bias = self.params.get("hidden_bias", shape=(hidden_size,), init="zeros")
        self.score_weight = self.params.get("score_weight", shape=(CLASSES, hidden_size))
        self.score_bias = self.params.get("score_bias", shape=(CLASSES,), init="zeros")

    def hybrid_forward(  # noqa: D102
        self, F, left, right, angle_weight, distance_weight, hidden_bias, score_weight, score_bias
    ):
        F, size = front(F), self._hidden_size
        angle = F.FullyConnected(left * right, angle_weight, hidden_bias, num_hidden=size)
        difference = F.abs(left - right)
        distance = F.FullyConnected(difference, distance_weight, no_bias=True, num_hidden=size)
        hidden = F.sigmoid(angle + distance)  # (1, hidden_size)
        scores = F.FullyConnected(hidden, score_weight, score_bias, num_hidden=CLASSES)
        return F.log_softmax(scores, axis=-1)  # (1, CLASSES)


class RelatednessModel(gdb.DynamicHybridBlock):
    """Scores how related two sentences are; the head has a hidden layer of `similarity_size`.

    In training, elements of all "words", or of all "states", may be `dropped`.
    """

    def __init__(
        self, vocab_size, embedding_size=300, hidden_size=150, similarity_size=50, dropped=None
    ):
        super().__init__()
        self.embedding = gluon.nn.Embedding(vocab_size, embedding_size)
        self.dropout = gluon.nn.Dropout(RATE if dropped == "words" else 0)
        self.encoder = TreeEncoder(embedding_size, hidden_size, RATE * (dropped == "states"))
        self.similarity = Similarity(hidden_size, similarity_size)

    def forward(self, tokens_a, tree_a, tokens_b, tree_b):
        """Map word indices, shape (T,), and trees to log-probabilities, shape (1, CLASSES)."""
        left = self.encoder(self.vectors(tokens_a), tree_a)
        right = self.encoder(self.vectors(tokens_b), tree_b)
        return self.similarity(left, right)

    def vectors(self, tokens):
        """Return the vectors of words, shape (T, embedding_size)."""
        rows = self.embedding(tokens)
        return self.dropout(rows) if self.dropout._rate else rows


class Relatedness:
    """Relatedness of pairs: Tai et al. 2015, section 4.2; see `relatedness.options.TASKS`."""

    unit = "pairs"
    best_by = "pearson"
    defaults = {}

    def read(self, args, splits):  # noqa: D102
        return load_corpus(args.data, splits, args.limit, args.on_bad_sample == "skip")

    def model(self, vocab_size, settings, sparse):  # noqa: D102
        sizes = (settings[name] for name in ("embedding_size", "hidden", "similarity_hidden"))
        return RelatednessModel(vocab_size, *sizes)

    def workload(self, model, trainer, samples=()):  # noqa: D102
        title = "child-sum Tree-LSTM"
        loss = KLDivLoss(from_logits=True)
        for block in (model, loss):
            block.hybridize()
        return Workload("sick", title, "pairs", "pairs", samples, model, trainer, loss, loss)

    def answers(self, outputs, items=()):
        """Return the expected scores, shape (N,), from log-probabilities, shape (N, CLASSES)."""
        return np.exp(outputs) @ np.arange(1, CLASSES + 1)

    def measure(self, answers, items):
        """Compute Pearson's r, Spearman's rho and the mean squared error."""
        targets = np.array([pair.score for pair in items])
        defined = len(targets) > 1 and np.ptp(answers) > 0 and np.ptp(targets) > 0
        mse = float(np.mean((answers - targets) ** 2))
        return {
            "pearson": float(pearsonr(answers, targets)[0]) if defined else None,
            "spearman": float(spearmanr(answers, targets)[0]) if defined else None,
            "mse": None if math.isnan(mse) else mse,
        }


RELATEDNESS = Relatedness()


def sentences(data=None, limit=None, split="train"):
    """List words and tree of each sentence of a corpus of pairs."""
    pairs = load_corpus(data, (split,), limit)[split]
    sides = (((p.tokens_a, p.tree_a), (p.tokens_b, p.tree_b)) for p in pairs)
    return [side for both in sides for side in both][:limit]


def relatedness(data=None, limit=None, embedding_size=300, hidden_size=150, dropped=None):
    """Make the relatedness model with the training pairs of a corpus."""
    pairs = load_corpus(data, ("train",), limit)["train"]
    vocab = build_vocab(pair.words for pair in pairs)
    model = RelatednessModel(len(vocab), embedding_size, hidden_size, dropped=dropped)
    # Word vectors are frozen, as they are when they come from a file. A dense gradient of the whole
    # table would cost all ways of running the model equally much.
    trainer = new_trainer(model, ["embedding"], wd=1e-4)
    return RELATEDNESS.workload(model, trainer, encode(pairs, vocab))
