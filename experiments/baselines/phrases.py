"""The binary Tree-LSTM, batched by hand: level by level, planned in NumPy for each minibatch.

Both parts of a phrase are one level below it. If the nodes of a level are in the order of the
phrases that they belong to, left parts before right ones, then the states of the parts of all
phrases of a level are a matrix without copying: two rows of a node are one of a phrase. So the
launches of a level are a product, the gates, and putting computed nodes and leaves in order. All
leaves, half of the nodes, are computed together, and so are all scores.
"""

from typing import List, NamedTuple, Tuple

import numpy as np
from mxnet import autograd, gluon

from workloads.front import ND, NP, front


class Nodes(NamedTuple):
    """All nodes of some trees, in post-order: position of the word, or of both parts; or -1."""

    words: np.ndarray
    left: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, shape):
        """List the nodes of a word's number, or of a pair of shapes."""
        rows = []

        def visit(shape):
            if isinstance(shape, int):
                rows.append((shape, -1, -1))
            else:
                rows.append((-1, *map(visit, shape)))
            return len(rows) - 1

        visit(shape)
        return cls(*np.array(rows).T)


class Plan(NamedTuple):
    """The order of computation of a minibatch."""

    words: np.ndarray  # of all leaves, from the deepest level to the roots
    #: Per level from the deepest one: how many phrases and leaves it has, and where each node is
    #: in its phrases followed by its leaves.
    levels: List[Tuple[int, int, np.ndarray]]
    places: np.ndarray  # of all nodes, in all phrases as they are computed, followed by all leaves


def plan(trees, sizes):
    """Plan a minibatch of nodes of trees that have so many words."""
    counts = [len(tree.words) for tree in trees]
    starts, offsets = (np.repeat(np.cumsum([0, *each[:-1]]), counts) for each in (counts, sizes))
    joined = Nodes(*map(np.concatenate, zip(*trees)))
    parts = np.stack([joined.left + starts, joined.right + starts], axis=1)
    level, levels = np.cumsum(counts) - 1, []  # the roots are last
    while len(level):
        is_leaf = joined.left[level] < 0
        levels.append((level, is_leaf))
        level = parts[level[~is_leaf]].reshape(-1)
    levels.reverse()
    leaves = [level[is_leaf] for level, is_leaf in levels]
    inner = [level[~is_leaf] for level, is_leaf in levels]
    orders = [np.argsort(np.argsort(is_leaf, kind="stable")) for _, is_leaf in levels]
    places = np.empty(len(joined.words), np.int64)
    places[np.concatenate([*inner, *leaves])] = np.arange(len(places))
    all_leaves = np.concatenate(leaves)
    words = (joined.words + offsets)[all_leaves]
    return Plan(words, list(zip(map(len, inner), map(len, leaves), orders)), places)


def _join(F, gates, cells):
    """Compute the states of phrases, (n, H), from gates, (n, 5H), and cells of parts, (n, 2H)."""
    F = front(F)
    i, left, right, o, u = F.split(gates, num_outputs=5, axis=1)
    c_left, c_right = F.split(cells, num_outputs=2, axis=1)
    c = F.sigmoid(i) * F.tanh(u) + F.sigmoid(left) * c_left + F.sigmoid(right) * c_right
    return F.sigmoid(o) * F.tanh(c), c


class LevelBatching:
    """Runs the binary Tree-LSTM of a workload with its parameters."""

    by_length, interfaces = False, (ND, NP)

    def __init__(self, workload):
        self.model, self._loss = workload.model, workload.loss_block
        self._join = gluon.nn.HybridLambda(_join)
        self._join.hybridize()
        self._trees = {id(sample): Nodes.of(sample.inputs[1]) for sample in workload.samples}

    def score(self, samples):
        """Compute the scores of all phrases of some samples, each tree in post-order."""
        F, model = front(), self.model
        order = plan([self._trees[id(each)] for each in samples], [each.size for each in samples])
        words = F.concat(*(sample.inputs[0] for sample in samples), dim=0)
        vectors = model.embedding(F.take(words, F.array(order.words, dtype="int32")))
        leaves = model.leaf(vectors)
        ends = np.cumsum([count for _, count, _ in order.levels if count]).tolist()
        by_level = zip(*(self._cut(each, ends[:-1]) for each in leaves))
        phrases, states = [], None
        for count, leaf_count, at in order.levels:
            parts = [next(by_level)] if leaf_count else []
            if count:
                h, cells = (each.reshape((count, -1)) for each in states)
                parts.insert(0, self._join(model.join.gates(h), cells))
                phrases.append(parts[0][0])
            states = parts[0]
            if len(parts) > 1:
                at = F.array(at, dtype="int32")
                states = [F.take(F.concat(*pair, dim=0), at) for pair in zip(*parts)]
        scores = model.score(F.concat(*phrases, leaves[0], dim=0))
        return F.take(scores, F.array(order.places, dtype="int32"))

    def _cut(self, array, starts):
        return front().split_v2(array, tuple(starts), axis=0) if starts else [array]

    def differentiate(self, samples):
        """Compute the loss of all samples, shape (N,), and the gradients of all parameters."""
        F = front()
        counts = np.array([len(sample.target) for sample in samples])
        ends = np.cumsum(counts)[:, None]
        numbers = np.arange(counts.max()) + ends - counts[:, None]  # (N, phrases)
        weights = F.array((numbers < ends) / counts[:, None])
        labels = F.concat(*(sample.target for sample in samples), dim=0)
        with autograd.record():
            losses = self._loss(self.score(samples), labels)
            each = F.take(losses, F.array(numbers, dtype="int32"))
            means = F.sum(each * weights, axis=1)
        means.backward()
        return means
