"""Sentences as nested phrases, each with a label, and models that score every phrase.

Trees and labels come from a folder of the Stanford Sentiment Treebank (``train.txt``: a binary tree
per line in brackets, each node with a label from 0 to 4). Without a folder, they are derived from
the built-in corpus: dependents join their head one by one, and the label of a phrase is the number
of its words minus one, at most 4. Models:

- Binary Tree-LSTM: Tai, Socher, Manning 2015 (arXiv:1503.00075), section 3.2 with N = 2.
- Child-sum Tree-GRU, whose phrases are scored one by one.
- TreeFC: one layer joins two phrases (Looks et al. 2017, arXiv:1702.02181).
- MV-RNN: a phrase is a vector and a matrix; the matrix of each part multiplies the vector of the
  other (Socher et al. 2012, "Semantic Compositionality through Recursive Matrix-Vector Spaces").
"""

import re
from typing import Any, NamedTuple, Tuple

import numpy as np
from mxnet.gluon import nn

import gluon_dynbatch as gdb
from relatedness.trees import phrases_of

from .base import Gated, Layers, Sample, labelling
from .front import front
from .pairs import sentences
from .sequences import rows_of
from .text import build_vocab, encode, read_samples

CLASSES = 5
UNIT = "sentences"


class Phrases(NamedTuple):
    """A sentence as nested phrases."""

    words: Tuple[str, ...]
    shape: Any  # a word's number, or a pair of shapes
    labels: Tuple[int, ...]  # of all phrases, in post-order

    def target(self):
        """Return the labels."""
        return self.labels

    def sample(self, words, labels):
        """Make a sample of words, shape (T,), and labels, shape (2T - 1,)."""
        return Sample((words, self.shape), labels, len(self.words))


def read_treebank(directory, limit=None, split="train"):
    """Read the first `limit` trees of a split, or of the built-in corpus."""
    if directory is None:
        return [_of_dependencies(*each) for each in sentences(limit=limit, split=split)]
    return read_samples(directory, "trees", _parse, limit, split)


def _parse(line):
    """Parse a tree such as ``(3 (2 so) (4 good))``; words contain no " ", "(" or ")"."""
    words, labels = [], []
    stack = [[]]  # the line and each open phrase: a label and parts
    for token in re.findall(r"\([^ ()]*|\)|[^ ()]+", line):
        if token.startswith("("):
            if token[1:] not in map(str, range(CLASSES)):
                raise ValueError(f"label {token[1:]!r} is none of 0 to {CLASSES - 1}")
            stack.append([int(token[1:])])
        elif token != ")":
            stack[-1].append(len(words))
            words.append(token)
        elif len(stack) == 1:
            raise ValueError('unmatched ")"')
        else:
            label, *parts = stack.pop()
            if len(parts) not in (1, 2):
                raise ValueError(f"a phrase has {len(parts)} parts, not one word or two phrases")
            stack[-1].append(parts[0] if len(parts) == 1 else tuple(parts))
            labels.append(label)
    if len(stack) > 1:
        raise ValueError('missing ")"')
    if len(stack[0]) != 1 or len(labels) != 2 * len(words) - 1:
        raise ValueError("not one binary tree with a label for every word and phrase")
    return Phrases(tuple(words), stack[0][0], tuple(labels))


def _of_dependencies(words, tree):
    """Join each head with its dependents, first those after it, then those before it."""
    shapes = list(range(len(words)))
    for head in tree.order:
        before = [k for k in tree.children[head] if k < head]
        for child in (k for k in tree.children[head] if k > head):
            shapes[head] = (shapes[head], shapes[child])
        for child in reversed(before):
            shapes[head] = (shapes[child], shapes[head])
    sizes = []
    for parts in phrases_of(shapes[tree.root]):
        sizes.append(1 if isinstance(parts, int) else sum(sizes[k] for k in parts))
    return Phrases(words, shapes[tree.root], tuple(min(size, CLASSES) - 1 for size in sizes))


class PhraseModel(gdb.DynamicHybridBlock):
    """Scores of all labels for every phrase of one sentence.

    A subclass has `leaf` and `join`, which compute the state of a word and of a phrase.
    """

    dropout = 0.0

    def __init__(self, vocab_size, embedding_size, hidden_size, sparse=False):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_size, sparse_grad=sparse)
        self.score = nn.Dense(CLASSES, in_units=hidden_size)

    def forward(self, words, shape):
        """Map word indices, shape (T,), and their tree to scores, shape (2T - 1, CLASSES)."""
        return self.score(self.dropped(front().concat(*self.states(words, shape), dim=0)))

    def dropped(self, array):
        """Apply dropout in training."""
        return front().Dropout(array, p=self.dropout) if self.dropout else array

    def states(self, words, shape):
        """Return vectors of all phrases in post-order, shape (1, hidden_size) each."""
        inputs = self.leaf_inputs(words)
        vectors = []

        def visit(shape):
            if isinstance(shape, int):
                state = self.leaf(*inputs[shape])
            else:
                state = self.join(*(array for part in shape for array in visit(part)))
            state = state if isinstance(state, (list, tuple)) else [state]
            vectors.append(state[0])
            return state

        visit(shape)
        return vectors

    def leaf_inputs(self, words):
        """Return the arguments of `leaf` for each word."""
        return [(row,) for row in rows_of(self.dropped(self.embedding(words)))]


class LSTMNode(Gated):
    """States h and c of a word or a phrase, with a forget gate for each part of the phrase."""

    def hybrid_forward(self, F, *inputs):  # noqa: D102
        i, *forgets, o, u = self.split(F, *inputs[::2])
        F = front(F)
        c = F.sigmoid(i) * F.tanh(u)
        for forget, part in zip(forgets, inputs[1::2]):
            c = c + F.sigmoid(forget) * part
        return F.sigmoid(o) * F.tanh(c), c


class TreeLSTM(PhraseModel):
    """The binary Tree-LSTM, with `dropout` of word vectors and of states before scoring."""

    def __init__(self, vocab_size, embedding_size=300, hidden_size=150, dropout=0.0, sparse=False):
        super().__init__(vocab_size, embedding_size, hidden_size, sparse)
        self.dropout = dropout
        self.leaf = LSTMNode(3, embedding_size, hidden_size)
        self.join = LSTMNode(5, 2 * hidden_size, hidden_size)


class GRULeaf(Gated):
    """State of a word from its vector."""

    def hybrid_forward(self, F, x):  # noqa: D102
        update, new = self.split(F, x)
        F = front(F)
        return F.sigmoid(update) * F.tanh(new)


class GRUJoin(gdb.DynamicHybridBlock):
    """State of a phrase from those of any number of parts, each with a reset gate."""

    def __init__(self, hidden_size):
        super().__init__()
        gates = (nn.Dense(hidden_size, in_units=hidden_size) for _ in range(3))
        self.reset, self.update, self.new = gates

    def hybrid_forward(self, F, *parts):  # noqa: D102
        F = front(F)
        reset = F.add_n(*[F.sigmoid(self.reset(h)) * h for h in parts])  # (1, H)
        update = F.sigmoid(self.update(F.add_n(*parts)))
        return update * F.tanh(self.new(reset)) + (1 - update) * F.add_n(*parts) / len(parts)


class TreeGRU(PhraseModel):
    """The child-sum Tree-GRU, which scores phrases one by one."""

    def __init__(self, vocab_size, embedding_size=100, hidden_size=100):
        super().__init__(vocab_size, embedding_size, hidden_size)
        self.leaf = GRULeaf(2, embedding_size, hidden_size)
        self.join = GRUJoin(hidden_size)

    def forward(self, words, shape):
        """Map word indices, shape (T,), and their tree to 2T - 1 scores, shape (1, CLASSES)."""
        return [self.score(state) for state in self.states(words, shape)]


class TreeFC(PhraseModel):
    """One layer for words and one for phrases."""

    def __init__(self, vocab_size, embedding_size=200, hidden_size=200):
        super().__init__(vocab_size, embedding_size, hidden_size)
        self.leaf = nn.Dense(hidden_size, in_units=embedding_size, activation="relu")
        self.join = Layers(nn.Dense(hidden_size, in_units=2 * hidden_size, activation="relu"))


class MatrixVectorJoin(nn.HybridBlock):
    """Vector and matrix of a phrase, shapes (1, H) and (1, H, H), from those of its two parts."""

    def __init__(self, hidden_size):
        super().__init__()
        self.vector = nn.Dense(hidden_size, in_units=2 * hidden_size, activation="tanh")
        self.matrix = nn.Dense(hidden_size, in_units=2 * hidden_size, flatten=False,
                               use_bias=False)  # fmt: skip

    def hybrid_forward(self, F, a, A, b, B):  # noqa: D102, N803
        products = [
            F.reshape(F.batch_dot(matrix, F.expand_dims(vector, 2)), (0, -1))
            for matrix, vector in ((B, a), (A, b))
        ]
        # W [A; B] is computed in transposed form, because a layer multiplies from the right.
        columns = F.concat(F.transpose(A, (0, 2, 1)), F.transpose(B, (0, 2, 1)), dim=2)
        matrix = F.transpose(self.matrix(columns), (0, 2, 1))
        return self.vector(F.concat(*products, dim=1)), matrix


class MVRNN(PhraseModel):
    """The MV-RNN; the matrices of words are frozen, like their vectors."""

    def __init__(self, vocab_size, embedding_size=25, hidden_size=25):
        super().__init__(vocab_size, hidden_size, hidden_size)  # words and phrases share sizes
        self.matrices = nn.Embedding(vocab_size, hidden_size**2)
        self.join = MatrixVectorJoin(hidden_size)

    def leaf_inputs(self, words):  # noqa: D102
        vectors = self.embedding(words)
        size = vectors.shape[1]
        matrices = self.matrices(words).reshape((-1, size, size))
        return list(zip(rows_of(vectors), rows_of(matrices)))

    def leaf(self, vector, matrix):
        """Return the state of a word."""
        return vector, matrix


class Sentiment:
    """Sentiment of all phrases: Tai et al. 2015, section 4.1; see `relatedness.options.TASKS`."""

    unit = UNIT
    best_by = "accuracy"
    defaults = {"dropout": 0.5, "lr_decay": 0.9, "embedding_lr": 0.3, "weight_decay": 0.01,
                "freeze_embedding": False}  # fmt: skip

    def read(self, args, splits):  # noqa: D102
        return {split: read_treebank(args.data, args.limit, split) for split in splits}

    def model(self, vocab_size, settings, sparse):  # noqa: D102
        sizes = (settings[name] for name in ("embedding_size", "hidden", "dropout"))
        model = gdb.convert(TreeLSTM(vocab_size, *sizes, sparse))
        # A minibatch has some hundred of twenty thousand words; decay would change all of them.
        model.embedding.weight.wd_mult = 0
        return model

    def workload(self, model, trainer, samples=()):  # noqa: D102
        return labelling("sst", TITLES["sst"], UNIT, samples, model, (), "words", trainer)

    def answers(self, outputs, items):
        """Return the best label of each sentence; its scores follow those of its phrases."""
        roots = np.cumsum([len(item.labels) for item in items]) - 1
        return outputs[roots].argmax(axis=1)

    def measure(self, answers, items):
        """Compute the share of sentences with the right label."""
        return {"accuracy": float(np.mean(answers == [item.labels[-1] for item in items]))}


SENTIMENT = Sentiment()
#: By name of the workload.
MODELS = {"sst": TreeLSTM, "treegru": TreeGRU, "treefc": TreeFC, "mvrnn": MVRNN}
TITLES = {"sst": "binary Tree-LSTM", "treegru": "Tree-GRU", "treefc": "TreeFC", "mvrnn": "MV-RNN"}


def phrase_workload(name, sst=None, limit=None, **sizes):
    """Make a model with the trees of the treebank, or of the built-in corpus."""
    items = read_treebank(sst, limit)
    vocab = build_vocab(item.words for item in items)
    model = MODELS[name](len(vocab), **sizes)
    frozen = ["embedding", "matrices"] if name == "mvrnn" else ["embedding"]
    workload = labelling(name, TITLES[name], UNIT, encode(items, vocab), model, frozen, "words")
    if name != "treegru":
        return workload

    def compare(scores, labels):
        return front().add_n(*map(workload.loss_block, scores, rows_of(labels))) / len(scores)

    return workload._replace(compare=compare)
