"""What a hand-batched Tree-LSTM computes when: planned in NumPy, for each minibatch anew."""

from itertools import chain
from typing import NamedTuple, Tuple

import numpy as np


class Levels(NamedTuple):
    """The nodes of several trees, divided into *inner* nodes by level, and leaves.

    Leaves need no other node and are one group.  All others are inner nodes; their level is their
    distance from the root, so that a child of level d is a leaf or stands in level d + 1, and no
    level reads any inner node but those of the level computed just before.  Roots are inner nodes
    even if they have no children: they are level 0, in the order of the trees.

    """

    #: Where the word of each node stands among the words of all trees, one tree after the other:
    #: inner nodes by level, then leaves. Shape (nodes,), int32.
    words: np.ndarray
    #: Parent of each node, in the same order, as a number among the inner nodes; 0 for roots.
    #: Shape (nodes,), int64.
    parents: np.ndarray
    #: Number of the first inner node of each level, and at the end how many inner nodes there are.
    starts: Tuple[int, ...]


def divide(trees):
    """Plan a minibatch; nothing about a tree is kept for the next time."""
    sizes = np.fromiter((len(tree.heads) for tree in trees), np.int64, len(trees))
    heads = np.fromiter(chain.from_iterable(tree.heads for tree in trees), np.int64, sizes.sum())
    is_root = heads < 0
    parents = heads + np.repeat(np.cumsum(sizes) - sizes, sizes)
    parents[is_root] = -1
    is_inner = is_root.copy()
    is_inner[parents[~is_root]] = True
    inner, leaves = np.flatnonzero(is_inner), np.flatnonzero(~is_inner)
    depths = steps_up(parents, inner)
    words = np.concatenate([inner[np.argsort(depths, kind="stable")], leaves])
    number = np.empty(len(words), np.int64)
    number[words] = np.arange(len(words))
    above = np.where(is_root, 0, number[parents])[words]
    starts = np.cumsum(np.bincount(depths)).tolist()
    return Levels(words.astype(np.int32), above, (0, *starts))


def steps_up(parents, nodes):
    """Count the steps from each of `nodes` up to its root, whose parent is -1."""
    depths = np.zeros(len(nodes), np.int64)
    places, above = np.arange(len(nodes)), parents[nodes]
    while True:
        goes_on = above >= 0
        places, above = places[goes_on], parents[above[goes_on]]
        if not len(places):
            return depths
        depths[places] += 1
