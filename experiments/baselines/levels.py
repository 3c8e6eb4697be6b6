"""The order of computation of a hand-batched Tree-LSTM, planned in NumPy for each minibatch."""

from itertools import chain
from typing import NamedTuple, Tuple

import numpy as np


class Levels(NamedTuple):
    """The nodes of several trees, divided into inner nodes by level, and leaves.

    The level of an inner node is its distance from the root. A child of a node of level d is a leaf
    or in level d + 1, so that a level reads only leaves and the level computed just before. Roots
    are inner nodes of level 0 even without children, in the order of the trees.
    """

    #: Position of each node's word in the concatenated trees: inner nodes by level, then leaves.
    #: Shape (nodes,), int32.
    words: np.ndarray
    #: Parent of each node, in the same order, as a number among the inner nodes; 0 for roots.
    #: Shape (nodes,), int64.
    parents: np.ndarray
    #: Number of the first inner node of each level, and at the end the number of inner nodes.
    starts: Tuple[int, ...]


def divide(trees):
    """Plan a minibatch of trees, each a sequence of heads."""
    sizes = np.fromiter(map(len, trees), np.int64, len(trees))
    heads = np.fromiter(chain.from_iterable(trees), np.int64, sizes.sum())
    is_root = heads < 0
    parents = heads + np.repeat(np.cumsum(sizes) - sizes, sizes)
    parents[is_root] = -1
    is_inner = is_root.copy()
    is_inner[parents[~is_root]] = True
    inner, leaves = np.flatnonzero(is_inner), np.flatnonzero(~is_inner)
    depths = np.zeros(len(inner), np.int64)
    climbing, above = np.arange(len(inner)), parents[inner]
    while len(climbing):  # all nodes climb one step at a time to their root
        below_root = above >= 0
        climbing, above = climbing[below_root], parents[above[below_root]]
        depths[climbing] += 1
    words = np.concatenate([inner[np.argsort(depths, kind="stable")], leaves])
    numbers = np.empty(len(words), np.int64)
    numbers[words] = np.arange(len(words))
    parents = np.where(is_root, 0, numbers[parents])[words]
    starts = np.cumsum(np.bincount(depths)).tolist()
    return Levels(words.astype(np.int32), parents, (0, *starts))
